"""Random inputs: whatever the seed, the data must have the statistics that the dump recorded."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from msprobe_collector.dump_format import DumpError, FieldPath, TensorValue, array_dtype, find_dtype
from pytest_msprobe.cases.random_data import generator_for, has_known_range, random_array

PLACE = FieldPath("dump.json", "Mint.add.0.forward", "input_args[0]")
FLOATS = ["Float16", "BFloat16", "Float32", "Float64"]
SIZES = [2, 3, 999, 1000, 5000]  # places are drawn in another way from 1000 elements on


def tensor(dtype: str | None, shape: Any, low: Any = None, high: Any = None, norm: Any = 1.0) -> TensorValue:
    found = None if dtype is None else find_dtype(dtype)
    return TensorValue(found, shape if isinstance(shape, tuple) else (shape,), high, low, None, norm, None)


def draw(value: TensorValue, seed: int = 0, place: FieldPath = PLACE) -> np.ndarray:
    return random_array(value, generator_for(seed, place), place)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def test_the_same_seed_record_and_field_give_the_same_data_whatever_came_before() -> None:
    value = tensor("Float32", 100, -1.0, 1.0)
    first = draw(value)
    np.random.seed(1)  # the global state must not matter
    draw(tensor("Int64", 7, 0, 9), place=FieldPath("dump.json", "Mint.other.0.forward", "input_args[0]"))
    assert np.array_equal(draw(value), first)
    assert np.array_equal(draw(value, place=FieldPath("copied/dump.json", PLACE.record, PLACE.field)), first)


@pytest.mark.parametrize(
    ("seed", "record", "field"),
    [
        (0, "Mint.add.0.forward", "input_args[1]"),  # q and k of one call
        (0, "Mint.add.0.forward", "input_args[0][0]"),
        (0, "Mint.add.1.forward", "input_args[0]"),
        (0, "Mint.add.0.backward", "input_args[0]"),
        (1, "Mint.add.0.forward", "input_args[0]"),
        (-1, "Mint.add.0.forward", "input_args[0]"),
    ],
)
def test_another_seed_record_or_field_gives_uncorrelated_data(seed: int, record: str, field: str) -> None:
    value = tensor("Float32", 4000, -1.0, 1.0)
    one, other = draw(value), draw(value, seed, FieldPath("dump.json", record, field))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1  # six standard deviations of chance


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import test_random_data as t; print(t.draw(t.tensor('Float64', 5, -1.0, 1.0)).tobytes().hex())"
    )
    folder = __file__.rpartition("/")[0]
    ran = [
        subprocess.run(
            [sys.executable, "-c", code, folder],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert ran == [draw(tensor("Float64", 5, -1.0, 1.0)).tobytes().hex()] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 1.0), (0.0, 2.0**-10), (-300.0, -2.5), (0.15625, 0.15625), (0.0, 0.0)]
)
def test_min_and_max_of_floats_occur_and_nothing_lies_outside(dtype: str, size: int, low: float, high: float) -> None:
    found = wide(draw(tensor(dtype, size, low, high)))
    assert (found.min(), found.max()) == (low, high)


@pytest.mark.parametrize("dtype", ["Float16", "BFloat16", "Float8E4M3FN", "Float8E5M2"])
@given(st.floats(-400, 400), st.floats(-400, 400), st.integers(2, 40))
def test_min_and_max_occur_after_rounding_to_a_small_dtype(dtype: str, one: float, other: float, size: int) -> None:
    low, high = sorted((one, other))
    found = draw(tensor(dtype, size, low, high))
    ends = np.array([low, high]).astype(found.dtype)
    assert wide(found).min() == float(ends[0])
    assert wide(found).max() == float(ends[1])


def test_both_ends_have_places_of_their_own_whatever_the_seed() -> None:
    value = tensor("Float32", 1000, -1.0, 1.0)
    ends = {(array.min(), array.max()) for array in (draw(value, seed) for seed in range(3000))}
    assert ends == {(-1.0, 1.0)}  # about three of the seeds draw one place twice


def test_floats_fill_the_range_evenly() -> None:
    found = draw(tensor("Float32", 40_000, 2.0, 6.0))
    counts, _ = np.histogram(found, bins=8, range=(2.0, 6.0))
    assert counts.min() > 4600  # 5000 expected, six standard deviations
    assert counts.max() < 5400


@pytest.mark.parametrize("low", [-1.7e308, -math.inf])
@pytest.mark.parametrize("size", [2, 50])
def test_a_range_wider_than_float64_does_not_overflow(low: float, size: int) -> None:
    found = draw(tensor("Float64", size, low, 1.7e308))
    assert found.max() == 1.7e308
    assert found.min() == low
    assert np.isfinite(found).sum() >= size - 1
    if size > 2:
        assert (found < 0).any()


INT_RANGES = [
    ("Int8", -128, 127),
    ("UInt8", 0, 255),
    ("Int16", -5, -2),
    ("Int32", 0, 1),
    ("UInt32", 0, 2**32 - 1),
    ("Int64", 2**53 + 1, 2**53 + 3),
    ("Int64", -(2**63), 2**63 - 1),
    ("UInt64", 2**64 - 2, 2**64 - 1),
    ("UInt64", 0, 2**64 - 1),
    ("Int4", -8, 7),
    ("Int4", -1, 0),
    ("Int32", 7, 7),
    ("Int64", 0.0, 31.0),  # how dumps write them
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "low", "high"), INT_RANGES)
def test_min_and_max_of_integers_occur_exactly(dtype: str, low: Any, high: Any, size: int) -> None:
    found = draw(tensor(dtype, size, low, high))
    exact = [int(item) for item in found]
    assert (min(exact), max(exact)) == (low, high)
    assert found.dtype == array_dtype(find_dtype(dtype))


def test_every_integer_of_the_range_occurs_about_equally_often() -> None:
    found = draw(tensor("Int32", 30_000, -1.0, 1.0))
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    assert counts.min() > 9500  # 10,000 expected, six standard deviations


@pytest.mark.parametrize(
    ("dtype", "low", "high", "expected"),
    [
        ("Int64", -(2.0**63), 2.0**63, (-(2**63), 2**63 - 1)),  # 2**63 - 1 as the collector's float32 tells it
        ("Int32", 0, 2147483648.0, (0, 2147483647)),
        ("UInt8", -3, 300, (0, 255)),
        ("Int4", -100, 100, (-8, 7)),
        ("Int8", 5, -5, (-5, 5)),
        ("Int8", math.nan, math.inf, (0, 0)),
        ("Int8", False, True, (0, 1)),
    ],
)
def test_statistics_that_no_integer_of_the_dtype_has_are_brought_into_range(
    dtype: str, low: Any, high: Any, expected: tuple[int, int]
) -> None:
    exact = [int(item) for item in draw(tensor(dtype, 200, low, high))]
    assert (min(exact), max(exact)) == expected


@pytest.mark.parametrize("size", [2, 500, 2000])
@pytest.mark.parametrize(
    ("low", "high", "expected"), [(False, False, {False}), (True, True, {True}), (False, True, {False, True})]
)
def test_bools_follow_their_statistics(size: int, low: bool, high: bool, expected: set[bool]) -> None:
    found = draw(tensor("Bool", size, low, high))
    assert found.dtype == np.bool_
    assert set(found.tolist()) == expected


@pytest.mark.parametrize("size", [4, 50, 3000])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("low", "high", "norm", "nan", "infinities", "finite_ends"),
    [
        (math.nan, math.nan, math.nan, True, set(), (None, None)),
        (-2.0, 2.0, math.nan, True, set(), (-2.0, 2.0)),  # CPU kernels lose NaN in Max and Min, not in Norm
        (-2.0, math.inf, math.inf, False, {math.inf}, (-2.0, None)),
        (-math.inf, 2.0, math.inf, False, {-math.inf}, (None, 2.0)),
        (-math.inf, math.inf, math.inf, False, {-math.inf, math.inf}, (None, None)),
        (-math.inf, math.inf, math.nan, True, {-math.inf, math.inf}, (None, None)),
        (-math.inf, -2.0, math.inf, False, {-math.inf}, (None, -2.0)),
        (2.0, math.inf, math.nan, True, {math.inf}, (2.0, None)),
    ],
)
def test_nan_and_infinities_occur_where_the_statistics_show_them(
    dtype: str,
    size: int,
    low: float,
    high: float,
    norm: float,
    nan: bool,
    infinities: set[float],
    finite_ends: tuple[float | None, float | None],
) -> None:
    found = wide(draw(tensor(dtype, size, low, high, norm)))
    assert np.isnan(found).any() == nan
    assert set(found[np.isinf(found)]) == infinities
    rest = found[np.isfinite(found)]
    assert rest.size == size - nan - len(infinities)  # each once: a call on nothing but NaN tells nothing
    for end, reached in zip(finite_ends, (rest.min(initial=math.inf), rest.max(initial=-math.inf))):
        if end is not None:
            assert reached == end


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("low", "high", "norm", "expected"),
    [
        (3.0, math.inf, math.inf, {3.0, math.inf}),
        (-math.inf, 3.0, math.inf, {3.0, -math.inf}),
        (-math.inf, math.inf, math.inf, {-math.inf, math.inf}),
        (math.inf, math.inf, math.nan, {math.inf, "nan"}),
    ],
)
def test_two_elements_are_exactly_what_their_statistics_say(
    dtype: str, low: float, high: float, norm: float, expected: set[Any]
) -> None:
    found = {"nan" if math.isnan(item) else item for item in wide(draw(tensor(dtype, 2, low, high, norm))).tolist()}
    assert found == expected


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("Float32", 2.5, 2.5), ("Int64", -3, -3), ("Bool", True, True), ("BFloat16", math.inf, math.inf)],
)
def test_a_single_element_is_its_statistic(shape: tuple[int, ...], dtype: str, low: Any, high: Any) -> None:
    found = draw(tensor(dtype, shape, low, high))
    assert found.shape == shape
    assert found.item() == low


@pytest.mark.parametrize(("dtype", "low", "high"), [("Float32", -1.0, 4.0), ("Int32", -1, 4), ("Bool", False, True)])
def test_a_single_element_with_two_ends_is_one_of_them(dtype: str, low: Any, high: Any) -> None:
    assert draw(tensor(dtype, (1,), low, high)).item() in (low, high)


def test_a_single_nan_is_nan() -> None:
    assert math.isnan(draw(tensor("Float32", (), math.nan, math.nan, math.nan)).item())


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16", "Int64", "Bool", "Complex64", "Int4"])
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_needs_no_statistics(dtype: str, shape: tuple[int, ...]) -> None:
    value = tensor(dtype, shape, norm=None)
    assert has_known_range(value)
    found = draw(value)
    assert found.shape == shape
    assert found.dtype == array_dtype(find_dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("Float32", (-1, 1)), ("Float64", (-1, 1)), ("Int32", (0, 1)), ("Bool", (0, 1)), ("Int4", (0, 1))],
)
@pytest.mark.parametrize(("low", "high"), [(None, None), (5.0, None), (None, -5.0)])
def test_without_both_ends_the_default_range_is_drawn_from(
    dtype: str, expected: tuple[int, int], low: Any, high: Any
) -> None:
    value = tensor(dtype, 300, low, high, None)
    assert not has_known_range(value)
    found = wide(draw(value))
    assert (found.min(), found.max()) == expected


def test_complex_numbers_have_the_recorded_magnitudes_and_any_phase() -> None:
    for dtype, precision in (("Complex64", 1e-6), ("Complex128", 1e-14)):
        found = draw(tensor(dtype, 2000, 0.5, 3.0))
        assert found.dtype == array_dtype(find_dtype(dtype))
        assert np.abs(found).min() == pytest.approx(0.5, rel=precision)
        assert np.abs(found).max() == pytest.approx(3.0, rel=precision)
        quadrants = np.unique(np.sign(found.real) * 2 + np.sign(found.imag), return_counts=True)[1]
        assert len(quadrants) == 4
        assert quadrants.min() > 380  # 500 expected, six standard deviations


@pytest.mark.parametrize(("low", "high"), [(0.0, 3.4e38), (1.0, math.inf)])
def test_large_complex_numbers_stay_numbers(low: float, high: float) -> None:
    found = draw(tensor("Complex64", 100, low, high))
    assert not np.isnan(found).any()
    assert np.isinf(found).sum() == (1 if math.isinf(high) else 0)


@pytest.mark.parametrize(("dtype", "name"), [("HiFloat8", "HiFloat8"), (None, "this array")])
def test_a_dtype_without_array_type_is_said(dtype: str | None, name: str) -> None:
    with pytest.raises(DumpError) as caught:
        draw(tensor(dtype, 3, 0.0, 1.0))
    sentence = f"dump.json: Mint.add.0.forward: input_args[0].dtype: there is no array type for {name}"
    assert str(caught.value) == sentence


ANY_STATISTIC = st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70)


@given(
    st.sampled_from(
        [*FLOATS, "Float8E4M3FN", "Float8E5M2", "Int4", "Int8", "UInt64", "Bool", "Complex64", "Complex128"]
    ),
    st.integers(0, 6),
    ANY_STATISTIC,
    ANY_STATISTIC,
    ANY_STATISTIC,
)
def test_no_statistics_make_it_fail_or_warn(dtype: str, size: int, low: Any, high: Any, norm: Any) -> None:
    found = draw(tensor(dtype, size, low, high, norm))
    assert found.shape == (size,)
    assert found.dtype == array_dtype(find_dtype(dtype))
