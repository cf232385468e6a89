"""A pytest plugin for the runs under test: writes down what pytest itself counts, item by item.

Loaded by `-p contract_witness`; writes into the file that the environment variable CONTRACT_WITNESS names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

CATEGORIES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """The outcome of each item by node id, and the items that were left out."""
    stats = terminalreporter.stats
    found = {
        "outcomes": [[category, report.nodeid] for category in CATEGORIES for report in stats.get(category, ())],
        "deselected": [item.nodeid for item in stats.get("deselected", ())],
        "frameworks": _frameworks(),
    }
    Path(os.environ["CONTRACT_WITNESS"]).write_text(json.dumps(found), encoding="utf-8")


def _frameworks() -> list[str]:
    import sys

    return [name for name in ("mindspore", "torch") if name in sys.modules]
