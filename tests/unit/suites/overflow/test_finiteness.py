"""What data, statistics and numbers say about NaN and Inf."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import PlainValue, TensorValue, find_dtype
from pytest_msprobe.suites.overflow.values import (
    FINITE,
    UNKNOWN,
    Finiteness,
    combined,
    of_array,
    of_plain,
    of_statistics,
)

NAN, INF = math.nan, math.inf


def statistics(maximum, minimum, mean=0.0, norm=1.0, dtype="Float32", counts=(None, None)):
    nan, inf = counts
    return TensorValue(find_dtype(dtype), (4,), maximum, minimum, mean, norm, None, nan_count=nan, inf_count=inf)


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_a_nan_is_found_wherever_it_stands(dtype, place):
    array = np.ones((2, 3), dtype)
    array.reshape(-1)[place] = NAN
    found = of_array(array)
    assert (found.nan_count, found.inf_count, found.first_index) == (1, 0, (place // 3, place % 3))


def test_elements_are_counted_over_chunks():
    array = np.zeros((3, 1 << 20), np.float16)
    array[1, 7] = INF
    array[2, -1] = NAN
    array[2, 0] = -INF
    assert of_array(array) == Finiteness(True, True, 1, 2, (1, 7))


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.float32(2.0).reshape(()), np.ones(3, np.float64)])
def test_finite_arrays(array):
    assert of_array(array) == FINITE


CASES = {
    "finite": (statistics(1.0, -1.0), False, False),
    "nan everywhere": (statistics(NAN, NAN, NAN, NAN), True, False),
    "nan hidden in Max and Min, seen in Norm": (statistics(1.0, -1.0, 0.5, NAN), True, False),
    "nan hidden in Max and Min, seen in Mean": (statistics(1.0, -1.0, NAN, 1.0), True, False),
    "nan hidden in all but Mean": (statistics(1.0, -1.0, NAN, None), True, False),
    "inf": (statistics(INF, 0.0, INF, INF), False, True),
    "minus inf": (statistics(0.0, -INF, -INF, INF), False, True),
    "both signs, whose Mean is not a NaN of the data": (statistics(INF, -INF, NAN, INF), False, True),
    "both signs and a NaN": (statistics(INF, -INF, NAN, NAN), True, True),
    "sums that overflow in float16": (statistics(6e4, -1.0, INF, INF, dtype="Float16"), False, False),
    "only Norm": (statistics(None, None, None, INF), False, True),
}


@pytest.mark.parametrize(("tensor", "has_nan", "has_inf"), CASES.values(), ids=CASES)
def test_statistics(tensor, has_nan, has_inf):
    found = of_statistics(tensor)
    assert (found.has_nan, found.has_inf) == (has_nan, has_inf)
    assert found.is_known


def test_counts_say_how_many():
    found = of_statistics(statistics(NAN, NAN, NAN, NAN, counts=(3, 2)))
    assert (found.nan_count, found.inf_count, str(found)) == (3, 2, "3 NaN, 2 Inf")
    assert of_statistics(statistics(1.0, -1.0, counts=(0, 2))).has_inf


def test_nothing_recorded_is_unknown():
    assert of_statistics(statistics(None, None, None, None)) == UNKNOWN


@pytest.mark.parametrize(
    ("value", "is_bad"),
    [
        (PlainValue("float", -INF), True),
        (PlainValue("float32", NAN), True),
        (PlainValue("float", 1e300), False),
        (PlainValue("str", "inf"), False),  # the order of a norm
        (PlainValue("int", 10**400), False),
        (None, False),
    ],
)
def test_numbers_and_words(value, is_bad):
    assert of_plain(value).is_bad is is_bad


def test_a_sum_with_an_unknown_part_is_unknown():
    assert combined([of_array(np.array([NAN])), Finiteness(True, False, None, 0)]).nan_count is None
    assert combined([]) == FINITE
