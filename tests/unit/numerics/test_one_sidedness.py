"""Rounding to one side is found, fair rounding never is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.numerics.patterns import find_rounding_bias

NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
Values = np.ndarray[Any, Any]


def neighbours(exact: Values, dtype: np.dtype[Any]) -> tuple[Values, Values]:
    """The numbers of `dtype` on both sides of each exact value, the same twice where it is one."""
    nearest = round_once(exact, dtype)
    wide = nearest.astype(np.float64)
    with np.errstate(over="ignore"):
        return _around(nearest, wide, exact, dtype)


def _around(nearest: Values, wide: Values, exact: Values, dtype: np.dtype[Any]) -> tuple[Values, Values]:
    higher = np.nextafter(nearest, dtype.type(np.inf)).astype(np.float64)
    lower = np.nextafter(nearest, dtype.type(-np.inf)).astype(np.float64)
    return np.where(wide <= exact, wide, lower), np.where(wide >= exact, wide, higher)


def truncated(exact: Values, dtype: np.dtype[Any]) -> Values:
    low, high = neighbours(exact, dtype)
    return np.where(exact < 0, high, low).astype(dtype)


def stochastic(exact: Values, dtype: np.dtype[Any], rng: np.random.Generator) -> Values:
    low, high = neighbours(exact, dtype)
    gap = np.where(high > low, high - low, 1)
    return np.where(rng.random(exact.shape) < (exact - low) / gap, high, low).astype(dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("size", [160, 5000, 200_000])
def test_truncation_is_found(dtype: np.dtype[Any], size: int) -> None:
    exact = np.random.default_rng(size).standard_normal(size)
    found = find_rounding_bias(truncated(exact, dtype), exact)
    assert found is not None
    assert found.direction == "towards zero"
    assert found.count == found.total


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize(("side", "which"), [("down", 0), ("up", 1)])
def test_directed_rounding_is_found(dtype: np.dtype[Any], side: str, which: int) -> None:
    exact = np.random.default_rng(1).standard_normal(5000)
    found = find_rounding_bias(neighbours(exact, dtype)[which].astype(dtype), exact)
    assert found is not None
    assert found.direction == side


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_truncation_is_found_though_some_elements_are_further_off(dtype: np.dtype[Any]) -> None:
    exact = np.random.default_rng(2).standard_normal(5000)
    tested = truncated(exact, dtype)
    tested[::7] = (tested[::7].astype(np.float64) * 1.1).astype(dtype)
    assert find_rounding_bias(tested, exact) is not None


LAWS: dict[str, Callable[[np.random.Generator, int], Values]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "positive": lambda rng, size: rng.random(size),
    "wide range": lambda rng, size: np.exp(8 * rng.standard_normal(size)),
    # What rounds to 1, or to itself, is rounded to one side by every correct device.
    "near one": lambda rng, size: 1 + 1e-4 * rng.random(size),
    "plus epsilon": lambda rng, size: round_once(rng.standard_normal(size), NARROW[1]).astype(np.float64) + 1e-5,
    "few values": lambda rng, size: rng.integers(1, 20, size) / 3,
    "halved few values": lambda rng, size: np.ldexp(1 / 3, rng.integers(-5, 5, size)),
    "constant": lambda rng, size: np.full(size, 0.3),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_fair_rounding_never_fires(dtype: np.dtype[Any], law: str) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        exact = LAWS[law](rng, int(rng.integers(1, 20_000)))
        assert find_rounding_bias(round_once(exact, dtype), exact) is None
        assert find_rounding_bias(stochastic(exact, dtype, rng), exact) is None
        # float32 inside, off by a hundred of its roundings, then rounded once.
        inside = exact * (1 + 100 * 2.0**-24 * rng.uniform(-1, 1, exact.shape))
        assert find_rounding_bias(round_once(inside, dtype), exact) is None


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_few_significands_prove_nothing(dtype: np.dtype[Any]) -> None:
    """One biased value that fills the tensor is one rounding, not thousands."""
    rng = np.random.default_rng(3)
    exact = np.ldexp(rng.choice(rng.uniform(1, 2, 20), 10_000), rng.integers(-3, 3, 10_000))
    assert find_rounding_bias(truncated(exact, dtype), exact) is None


def test_what_is_not_finite_or_normal_is_left_out() -> None:
    exact = np.array([np.nan, np.inf, -np.inf, 1e-40, 1e300] * 100)
    assert find_rounding_bias(np.zeros(500, ml_dtypes.bfloat16), exact) is None


def test_float32_is_not_asked() -> None:
    exact = np.random.default_rng(4).standard_normal(5000)
    assert find_rounding_bias(np.nextafter(exact.astype(np.float32), np.float32(0)), exact) is None


def test_empty_output() -> None:
    assert find_rounding_bias(np.zeros(0, np.float16), np.zeros(0)) is None


def test_a_benchmark_of_a_narrow_dtype() -> None:
    exact = np.random.default_rng(5).standard_normal(64).astype(np.float16)
    assert find_rounding_bias(exact + np.float16(1), exact) is None
