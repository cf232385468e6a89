"""A pytest plugin that tells the parent process which heavy packages a run has imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Names the file to write; set by measure.py.
WITNESS_FILE = "MSPROBE_BENCHMARK_WITNESS"
HEAVY = ("numpy", "ml_dtypes", "torch", "mindspore")


def pytest_unconfigure() -> None:
    """Write the names, one per line."""
    Path(os.environ[WITNESS_FILE]).write_text("\n".join(name for name in HEAVY if name in sys.modules))
