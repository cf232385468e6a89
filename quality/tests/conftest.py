"""What all tests of this folder have: the mark `quality`, and the import path of the programs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shared_fixtures import dumps, keep_floating_point_mode, pytest_runtest_setup, reports

__all__ = ["dumps", "keep_floating_point_mode", "pytest_runtest_setup", "reports"]

FOLDER = Path(__file__).parent
# For the packages `quality` and `tools`. Last, so that an installed pytest_msprobe is tested, not the one beside them.
sys.path.append(str(FOLDER.parents[1]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker("quality")
