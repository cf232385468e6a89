"""Parameters that a run of folders leaves out: one of each kind stays in it."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow(*values: Any) -> list[ParameterSet]:
    """Mark parameters as slow."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


#: Numbers for `-n`. A run of folders has the workers of every suite in the contract.
WORKERS = pytest.mark.parametrize("workers", ["0", *slow("2")])
#: Options.
WITH_WORKERS = pytest.mark.parametrize("workers", [(), *slow(("-n2",))], ids=["alone", "workers"])
