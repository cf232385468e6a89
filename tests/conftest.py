"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_reader import Reports

DUMPS = Path(__file__).parent / "dumps"


@pytest.fixture
def dumps() -> Path:
    """The folder of real dumps."""
    return DUMPS


@pytest.fixture
def reports(pytester: pytest.Pytester) -> Reports:
    """The CSV pair that the one run of this test wrote."""
    return Reports(pytester.path)
