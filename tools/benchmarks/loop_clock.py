"""A pytest plugin that times the items of a run but the first, on the process that schedules them."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

import pytest

#: Names the file to write; set by workers.py.
CLOCK_FILE = "MSPROBE_BENCHMARK_CLOCK"
_ENDS: list[float] = []


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Remember when an item ended."""
    _ENDS.append(monotonic())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write the seconds from the first end to the last, and the number of items."""
    if not hasattr(config, "workerinput") and _ENDS:
        Path(os.environ[CLOCK_FILE]).write_text(f"{_ENDS[-1] - _ENDS[0]} {len(_ENDS)}")
