"""How many times the limit of a dtype a difference is that was measured once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_msprobe.numerics.expected import DTYPES
from pytest_msprobe.suites.comparison.figures import measure_pair
from pytest_msprobe.suites.comparison.values import DistanceLimits

LIMITS = DistanceLimits.with_changes(())
GOLDEN = np.random.default_rng(3).normal(size=4096).astype(np.float32)


def moved(share: float) -> np.ndarray:
    return GOLDEN * np.float32(1 + share)


@pytest.mark.parametrize("dtype", ["Float32", "torch.bfloat16", "Float16", "Float64"])
@pytest.mark.parametrize("times", [0.5, 2.0, 40.0])
def test_a_scaled_tensor_is_that_many_limits_off(dtype: str, times: float) -> None:
    golden = GOLDEN.astype(np.float64)
    share = times * LIMITS.limit(dtype)
    assert LIMITS.excess(measure_pair(golden * (1 + share), golden), dtype) == pytest.approx(times, rel=1e-6)


def test_the_coarsest_dtype_counts() -> None:
    figures = measure_pair(moved(0.01), GOLDEN)
    assert LIMITS.excess(figures, "Float32") == pytest.approx(0.01 / DTYPES["Float32"].step, rel=1e-3)
    assert LIMITS.excess(figures, "Float32", "BFloat16") == pytest.approx(0.01 / DTYPES["BFloat16"].step, rel=1e-3)


def test_one_wrong_element_of_many_is_beyond() -> None:
    golden = np.ones(1_000_000, np.float32)
    target = golden.copy()
    target[7] += np.float32(2e-3)
    figures = measure_pair(target, golden)
    assert figures.distance < DTYPES["Float32"].step
    assert LIMITS.excess(figures, "Float32") == pytest.approx(2, rel=1e-3)


def test_equal_tensors_have_none() -> None:
    assert LIMITS.excess(measure_pair(GOLDEN, GOLDEN), "Float32") == 0
    assert LIMITS.excess(measure_pair(np.arange(5), np.arange(5)), "Int64") == 0
    assert LIMITS.excess(measure_pair(GOLDEN[:0], GOLDEN[:0]), "Float32") == 0


@pytest.mark.parametrize(
    ("target", "golden", "dtype"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "BFloat16"),
        (np.array([1.0, np.inf]), np.array([1.0, 2.0]), "BFloat16"),
        (np.array([1, 2]), np.array([1, 3]), "Int64"),
        (np.array([1.0, 2.0]), np.array([0.0, 0.0]), "Float32"),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0]), "Float32"),
        (np.array([1e300, 1e300]), np.array([1e300, 2e300]), "Float64"),
    ],
    ids=["nan", "inf", "integer", "golden is zero", "shape", "norm overflows"],
)
def test_what_no_limit_allows_is_infinite(target: np.ndarray, golden: np.ndarray, dtype: str) -> None:
    assert LIMITS.excess(measure_pair(target, golden), dtype) == math.inf


def test_integers_have_the_limit_of_the_floats_that_they_were_made_of() -> None:
    figures = measure_pair(np.array([100, 200, 300]), np.array([100, 200, 301]))
    assert LIMITS.excess(figures, "Int64") == math.inf
    assert LIMITS.excess(figures, "Int64", "BFloat16") < 1
