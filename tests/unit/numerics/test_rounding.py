"""round_once against exact fractions: the oracle knows every value of the format and nothing of float arithmetic."""

from __future__ import annotations

import bisect
import math
import warnings
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_msprobe.numerics.dtypes import round_once

NARROW = [
    np.dtype(np.float16),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3fnuz),
]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@cache
def grid(dtype: np.dtype) -> list[Fraction]:
    """All finite values >= 0, ascending: position parity is mantissa parity, as in every binary format."""
    bits = np.arange(2 ** (8 * dtype.itemsize - 1), dtype=f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaNs among the bits
        values = bits.view(dtype).astype(np.float64)
    return [Fraction(float(value)) for value in values[np.isfinite(values)]]


def nearest_even(value: float, dtype: np.dtype) -> Fraction | None:
    """The value of the format nearest to a finite one, None beyond the largest."""
    exact, values = abs(Fraction(value)), grid(dtype)
    if exact > values[-1]:
        half_step = (values[-1] - values[-2]) / 2
        is_last_even = len(values) % 2 == 1
        beyond = exact - values[-1]
        nearest = values[-1] if beyond < half_step or (beyond == half_step and is_last_even) else None
    else:
        upper = bisect.bisect_left(values, exact)
        lower = max(upper - 1, 0)
        distances = exact - values[lower], values[upper] - exact
        up = distances[1] < distances[0] or (distances[1] == distances[0] and upper % 2 == 0)
        nearest = values[upper if up else lower]
    return nearest if nearest is None or value >= 0 else -nearest


def rounded(value: float, dtype: np.dtype) -> float:
    return float(round_once(np.array([value]), dtype).astype(np.float64)[0])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(data=st.data())
def test_narrow_formats_round_to_the_nearest_value_with_ties_to_even(dtype: np.dtype, data: st.DataObject) -> None:
    values = grid(dtype)
    i = data.draw(st.integers(0, len(values) - 2))
    middle = float((values[i] + values[i + 1]) / 2)
    value = data.draw(
        st.sampled_from(
            [
                middle,
                math.nextafter(middle, 0),
                math.nextafter(middle, math.inf),
                middle * (1 + 2**-40),
                float(values[i]),
            ]
        )
    ) * data.draw(st.sampled_from([1, -1]))
    assert Fraction(rounded(value, dtype)) == nearest_even(value, dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_float64_is_rounded_as_exact_arithmetic_does(dtype: np.dtype, value: float) -> None:
    expected = nearest_even(value, dtype)
    result = rounded(value, dtype)
    if expected is None:
        assert not math.isfinite(result)
    else:
        assert Fraction(result) == expected


@given(value=st.floats(allow_nan=False, allow_infinity=False), sign=st.sampled_from([1, -1]))
def test_float32_is_the_nearest_neighbour(value: float, sign: int) -> None:
    result = np.float32(rounded(sign * value, np.dtype(np.float32)))
    if np.isinf(result):
        assert abs(Fraction(value)) >= Fraction(float(np.finfo(np.float32).max)) + Fraction(2) ** 103
        return
    error = abs(Fraction(float(result)) - Fraction(sign * value))
    with np.errstate(over="ignore"):
        neighbours = [np.nextafter(result, np.float32(end)) for end in (-np.inf, np.inf)]
    for neighbour in neighbours:
        if np.isfinite(neighbour):
            assert error <= abs(Fraction(float(neighbour)) - Fraction(sign * value))


def test_double_rounding_trap_of_bfloat16() -> None:
    just_above_tie = 1 + 2**-8 + 2**-40
    assert rounded(just_above_tie, BFLOAT16) == 1 + 2**-7
    assert rounded(1 + 2**-8, BFLOAT16) == 1
    assert rounded(1 + 3 * 2**-8 - 2**-40, BFLOAT16) == 1 + 2**-7
    assert rounded(-just_above_tie, BFLOAT16) == -1 - 2**-7
    # Why rounding.py exists: should this ever fail, ml_dtypes rounds once by itself.
    assert float(np.float64(just_above_tie).astype(BFLOAT16)) == 1


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (np.float32, 1e300, math.inf),
        (np.float32, -1e300, -math.inf),
        (np.float16, 65520.0, math.inf),
        (np.float16, 65519.0, 65504.0),
        (np.float16, -math.inf, -math.inf),
        (ml_dtypes.bfloat16, 1e300, math.inf),
        (ml_dtypes.bfloat16, 3.39e38, 3.3895313892515355e38),
        (ml_dtypes.bfloat16, -math.inf, -math.inf),
        (ml_dtypes.bfloat16, 1e-300, 0.0),
        (ml_dtypes.bfloat16, math.nan, math.nan),
        (ml_dtypes.float8_e5m2, 1e6, math.inf),
        (ml_dtypes.float8_e4m3fn, 1e6, math.nan),
        (ml_dtypes.float8_e4m3fn, math.nan, math.nan),
        (np.float32, math.nan, math.nan),
        (np.float64, 0.1, 0.1),
    ],
)
def test_overflow_and_nan_without_warnings(dtype: type, value: float, expected: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = rounded(value, np.dtype(dtype))
    assert result == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_negative_nan_with_a_full_payload_stays_nan() -> None:
    every_bit = np.array([0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64).view(np.float64)
    assert np.isnan(round_once(every_bit, BFLOAT16).astype(np.float64))[0]


def test_sign_of_zero_survives() -> None:
    assert np.signbit(round_once(np.array([-0.0, -1e-300]), BFLOAT16).astype(np.float64)).all()


def test_complex_numbers_are_rounded_part_by_part() -> None:
    result = round_once(np.array([complex(1 + 2**-30, -1e300)]), np.dtype(np.complex64))
    assert result.dtype == np.complex64
    assert result[0] == complex(1, -math.inf)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 0, 2)])
def test_shape_and_dtype_are_kept(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    result = round_once(np.ones(shape), dtype)
    assert (result.shape, result.dtype) == (shape, dtype)


def test_the_reference_itself_is_never_changed() -> None:
    reference = np.array([1 + 2**-8 + 2**-40, math.nan])
    before = reference.tobytes()
    round_once(reference, BFLOAT16)
    assert reference.tobytes() == before


@pytest.mark.parametrize(
    ("reference", "dtype"),
    [
        (np.array([2**60 + 1]), np.float32),
        (np.array([True]), np.float32),
        (np.array([1.5]), np.int32),
        (np.array([1.5]), np.complex64),
        (np.array([1.5 + 1j]), np.float32),
        (np.array([1.5]), np.float64),
    ],
)
def test_where_nothing_is_to_round_the_reference_is_returned(reference: np.ndarray, dtype: type) -> None:
    assert round_once(reference, np.dtype(dtype)) is reference


def test_a_narrow_reference_is_widened_exactly() -> None:
    reference = np.array([1.5, -0.1875]).astype(BFLOAT16)
    result = round_once(reference, np.dtype(np.float32))
    assert result.dtype == np.float32
    assert result.tolist() == [1.5, -0.1875]
