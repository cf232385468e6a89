"""Faults of devices, each named by what its wrong elements have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.numerics.patterns import describe_region, find_pattern

Values = np.ndarray[Any, Any]
SHAPE = (4, 64, 128)
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def reference() -> Values:
    return np.random.default_rng(5).standard_normal(SHAPE)


def at(place: Any, change: Callable[[Values], Any]) -> Callable[[Values], Values]:
    def fault(right: Values) -> Values:
        wrong = right.copy()
        wrong[place] = change(wrong[place])
        return wrong

    return fault


FAULTS: list[tuple[Callable[[Values], Values], str]] = [
    (lambda r: np.zeros_like(r), "all zero"),
    (lambda r: 256 * r, "256 x too large"),
    (lambda r: -r, "other sign"),
    (at((..., slice(96, 128)), lambda x: 0), "zero, columns 96 to 127"),
    (at((..., 7), lambda x: 2 * x), "2 x too large, column 7"),
    (at((slice(None), slice(3, 9)), lambda x: 4 * x), "4 x too large, rows 3 to 8"),
    (
        at((2, slice(32, 48), slice(64, 80)), lambda x: np.nan),
        "NaN where finite, one 16 x 16 tile at [2, 32:48, 64:80]",
    ),
    (
        at((slice(None), slice(32, 48), slice(64, 80)), lambda x: np.inf),
        "Inf where finite, one 4 x 16 x 16 tile at [.., 32:48, 64:80]",
    ),
    (at((..., slice(1, None, 4)), lambda x: -x), "other sign, every 4th of the columns, from 1"),
    (lambda r: np.roll(r.reshape(-1), 1).reshape(r.shape), "equals element i-1 (shifted)"),
    (lambda r: np.roll(r, -1, axis=1), "equals element i+1 along axis 1 (shifted)"),
    (lambda r: r.swapaxes(-1, -2).reshape(r.shape), "transposed"),
    (lambda r: np.concatenate([r[:3], r[:1]]), "repeats block 0 (elements 0 to 8191), index on axis 0: 3"),
    (lambda r: r + 3, "3 added"),
    (at((1, 2, 3), lambda x: 8 * x), "8 x too large, one element at [1, 2, 3]"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("fault", "name"), FAULTS, ids=[name for _, name in FAULTS])
def test_a_fault_is_named(fault: Callable[[Values], Values], name: str, dtype: np.dtype[Any]) -> None:
    right = reference()
    tested = round_once(fault(round_once(right, dtype).astype(np.float64)), dtype)
    assert str(find_pattern(tested, right)) == name


def test_the_last_block_of_memory() -> None:
    right = reference()
    tested = right.astype(np.float32)
    tested.reshape(-1)[-1000:] = 0
    assert str(find_pattern(tested, right)) == "zero, the last 1000 of 32768 elements"


def test_two_swapped_elements() -> None:
    right = reference()
    tested = right.astype(np.float32)
    tested[0, 0, [3, 50]] = tested[0, 0, [50, 3]]
    assert str(find_pattern(tested, right)).startswith("two elements swapped")


@pytest.mark.parametrize(("narrow", "name"), [(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16 or HF32/TF32")])
def test_a_narrower_dtype(narrow: Any, name: str) -> None:
    right = reference()
    assert str(find_pattern(right.astype(narrow).astype(np.float32), right)) == f"matches {name}"


def test_one_sided_rounding_is_named_though_each_element_is_within_its_tolerance() -> None:
    right = reference()
    half = right.astype(np.float16)
    truncated = np.where(np.abs(half.astype(np.float64)) > np.abs(right), np.nextafter(half, np.float16(0)), half)
    assert str(find_pattern(truncated, right, 1e-2)) == "rounded towards zero"


def test_what_the_output_was_taken_for() -> None:
    right = reference()
    other = np.random.default_rng(6).standard_normal(SHAPE).astype(np.float32)
    assert str(find_pattern(other, right, others={"equals input 0": other.astype(np.float64)})) == "equals input 0"
    assert str(find_pattern(other, right, others={"input 0": np.zeros(3)})) == "unrelated values everywhere"


def test_noise() -> None:
    right = reference()
    noise = 1 + 16 * 2.0**-24 * np.random.default_rng(7).uniform(-1, 1, SHAPE)
    assert str(find_pattern((right * noise).astype(np.float32), right)).startswith("noise of about")


def test_integers_and_bools() -> None:
    right = np.arange(100).reshape(10, 10)
    tested = right.copy()
    tested[4, 5] += 1
    assert str(find_pattern(tested, right)) == "too large by 1, one element at [4, 5]"
    mask = right > 50
    assert str(find_pattern(~mask, mask)) == "inverted"


@pytest.mark.parametrize(
    ("tested", "right"),
    [
        (np.zeros(0, np.float32), np.zeros(0)),
        (np.zeros(3, np.float32), np.zeros(4)),
        (np.ones(3, np.complex64), np.zeros(3, np.complex128)),
        (np.ones(3, np.float32), np.ones(3)),
    ],
)
def test_nothing_to_name(tested: Values, right: Values) -> None:
    assert str(find_pattern(tested, right)) == ""


def test_extreme_values_raise_no_warning() -> None:
    right = np.array([np.nan, np.inf, -np.inf, 1e300, 5e-324, 0.0, 1.0, 2.0])
    for tested in (np.zeros(8), np.full(8, np.nan), np.full(8, np.inf), right[::-1]):
        with np.errstate(all="ignore"):
            narrow = tested.astype(np.float32)
        assert str(find_pattern(narrow, right)) != ""


def test_scattered_elements() -> None:
    is_off = np.random.default_rng(8).random((64, 64)) < 0.05
    assert describe_region(is_off) == f"{is_off.sum()} of 4096 elements, scattered"


@pytest.mark.parametrize(
    ("change", "kind", "figure"),
    [
        (lambda right: right * np.float32(1.01), "factor", 1.01),
        (lambda right: -right, "factor", -1.0),
        (lambda right: right + np.float32(0.5), "offset", 0.5),
        (np.zeros_like, "zero", None),
        (lambda right: right.astype(np.float16).astype(np.float32), "narrower", 11.0),
        (lambda right: np.roll(right, 1), "shifted", None),
    ],
)
def test_a_pattern_is_data(change: Callable[[Any], Any], kind: str, figure: float | None) -> None:
    right = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    pattern = find_pattern(change(right), right)
    assert pattern.kind == kind
    assert pattern.figure == (None if figure is None else pytest.approx(figure, rel=1e-4))
