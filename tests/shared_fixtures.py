"""Fixtures and the mark `needs` for tests of every folder: a conftest.py that imports them has them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_dumps import real_dumps
from report_reader import Reports

from pytest_msprobe.engines.process import restore_subnormals

__all__ = ["dumps", "keep_floating_point_mode", "pytest_runtest_setup", "reports"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        if importlib.util.find_spec(mark.args[0]) is None:
            pytest.skip(f"{mark.args[0]} is not installed")


@pytest.fixture(autouse=True)
def keep_floating_point_mode() -> Iterator[None]:
    """Tests that call MindSpore directly must not leave flush-to-zero to the next."""
    yield
    restore_subnormals()


@pytest.fixture
def dumps() -> Path:
    """A folder with the real dumps, which no test may change."""
    return real_dumps()


@pytest.fixture
def reports(pytester: pytest.Pytester) -> Reports:
    """The CSV pair that the one run of this test wrote."""
    return Reports(pytester.path)
