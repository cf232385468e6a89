"""Statistics of parts say which placement may give the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_msprobe.suites.sharded.placements import Grid, tried
from pytest_msprobe.suites.sharded.without_tensors import PartStatistics

WHOLE = np.random.default_rng(1).standard_normal((4, 6)) + 0.3
NOISE = np.random.default_rng(2).standard_normal((4, 6))


def of(value: np.ndarray) -> PartStatistics:
    return PartStatistics(value.shape, value.max(), value.min(), value.sum(), float(np.linalg.norm(value)))


@pytest.mark.parametrize(
    ("parts", "placement"),
    [
        ([WHOLE, WHOLE], "R over tp"),
        (np.split(WHOLE, 2, 1), "S(1) over tp"),
        (np.split(WHOLE, [1], 0), "S(0) over tp"),
        ([NOISE, WHOLE - NOISE], "P(sum) over tp"),
        ([WHOLE * 2, WHOLE * 2], ""),
        (np.split(WHOLE * 1.01, 2, 0), ""),
    ],
)
def test_placements(parts: list[np.ndarray], placement: str) -> None:
    found = tried(of(WHOLE), [of(part) for part in parts], Grid.line(2, "tp"), 1e-6)
    assert (str(found[0]) if found[0].distance <= 1e-6 else "") == placement


def test_two_groups() -> None:
    grid = Grid(("dp", "tp"), (2, 2), ((0, 0), (0, 1), (1, 0), (1, 1)))
    parts = [half for part in np.split(WHOLE, 2, 0) for half in np.split(part, 2, 1)]
    found = tried(of(WHOLE), [of(part) for part in parts], grid, 1e-6)
    assert str(found[0]) == "S(0) over dp, S(1) over tp"


def test_division() -> None:
    assert (of(WHOLE * 2) / 2).norm == pytest.approx(of(WHOLE).norm)
    assert math.isclose((of(WHOLE * 2) / 2).total, of(WHOLE).total)
