"""Fixtures that every test may use."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_reader import Reports

from pytest_msprobe.engines.float_environment import restore_subnormals

# pytest loads this file also for a dump that is checked inside this repository, where the test extra may be missing.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run, and no limit on their time: a busy machine is no fault of the code.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.load_profile("steady")

DUMPS = Path(__file__).parent / "dumps"


@pytest.fixture(autouse=True)
def _default_floating_point_mode() -> Iterator[None]:
    """Tests that call MindSpore directly must not leave flush-to-zero to the next."""
    yield
    restore_subnormals()


@pytest.fixture
def dumps() -> Path:
    """The folder of real dumps."""
    return DUMPS


@pytest.fixture
def reports(pytester: pytest.Pytester) -> Reports:
    """The CSV pair that the one run of this test wrote."""
    return Reports(pytester.path)
