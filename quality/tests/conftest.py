"""What all tests of this folder have: the mark `quality`, and the import path of the programs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_msprobe.engines.process import restore_subnormals

FOLDER = Path(__file__).parent
# For the packages `quality` and `tools`. Last, so that an installed pytest_msprobe is tested, not the one beside them.
sys.path.append(str(FOLDER.parents[1]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(module): skipped where this optional dependency is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker("quality")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        if importlib.util.find_spec(mark.args[0]) is None:
            pytest.skip(f"{mark.args[0]} is not installed")


@pytest.fixture(autouse=True)
def _default_floating_point_mode() -> Iterator[None]:
    """MindSpore called directly must not leave flush-to-zero to the next test."""
    yield
    restore_subnormals()
