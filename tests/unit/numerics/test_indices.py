from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from pytest_msprobe.numerics.indices import check_indices, scatter_by_index, select
from pytest_msprobe.numerics.judgement import CosineMaxAbs
from pytest_msprobe.numerics.measurement import Element, Metrics

SOURCE = np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 4.0]])


def check(
    tested: object, reference: object, axis: int | None = 1, *, unique: bool = False, source: np.ndarray = SOURCE
) -> Metrics:
    return check_indices(source, np.array(tested), np.array(reference), axis, unique_along_axis=unique)


@pytest.mark.parametrize(
    ("indices", "axis", "values"),
    [
        ([1, 3], 1, [1.0, 4.0]),
        ([[1], [3]], 1, [[1.0], [4.0]]),
        ([[1], [3]], -1, [[1.0], [4.0]]),
        ([[0, 2], [3, 3]], 1, [[3.0, 3.0], [4.0, 4.0]]),
        ([0, 1, 0, 1], 0, [3.0, 5.0, 3.0, 4.0]),
        ([[0, 1, 0, 1]], 0, [[3.0, 5.0, 3.0, 4.0]]),
        (7, None, 4.0),
        ([[7]], None, [[4.0]]),
        (np.zeros((2, 0), np.int64), 1, np.zeros((2, 0))),
    ],
)
def test_select(indices: object, axis: int | None, values: object) -> None:
    selected = select(SOURCE, np.array(indices), axis)
    np.testing.assert_array_equal(selected, np.array(values))
    assert selected.shape == np.shape(values)


@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("indices", [0, [0]])
def test_select_from_a_0d_source(indices: object, axis: int | None) -> None:
    selected = select(np.array(2.5), np.array(indices), axis)
    assert selected.shape == np.shape(indices)
    assert selected.item() == 2.5


@pytest.mark.parametrize(("index", "axis"), [(-1, 1), (4, 1), (8, None), (-1, None), (2, 0)])
def test_select_refuses_indices_out_of_range(index: int, axis: int | None) -> None:
    shape = {0: 4, 1: 2, None: 1}[axis]
    with pytest.raises(IndexError, match=rf"Indices must be in 0\.\.\d, found 0 to {index}|found {index} to"):
        select(SOURCE, np.array([0] * (shape - 1) + [index]), axis)


@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [
        ((3,), 1, "do not fit axis 1"),
        ((2, 2, 2), 1, "do not fit"),
        ((), 1, "do not fit"),
        ((2,), 2, "Axis 2 does not exist"),
    ],
)
def test_select_refuses_shapes_that_do_not_fit(shape: tuple[int, ...], axis: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(SOURCE, np.zeros(shape, np.int64), axis)


@given(
    source=hnp.arrays(np.int8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), elements=st.integers(0, 2)),
    data=st.data(),
)
def test_sorting_by_any_stable_or_unstable_order_is_right(source: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-source.ndim, source.ndim - 1))
    reference = np.argsort(source, axis=axis, kind="stable")
    length = source.shape[axis]
    flipped = np.flip(source, axis=axis)
    tested = length - 1 - np.argsort(flipped, axis=axis, kind="stable")
    metrics = check_indices(source, tested, reference, axis, unique_along_axis=True)
    assert (metrics.unequal_count, metrics.max_abs, metrics.cosine, metrics.kind) == (0, 0.0, 1.0, "int")
    np.testing.assert_array_equal(select(source, tested, axis), np.sort(source, axis=axis))


@pytest.mark.parametrize(
    ("tested", "reference", "axis"),
    [([2, 1], [0, 0], 1), ([[2], [1]], [[0], [0]], 1), (2, 0, None), ([[5]], [[6]], None)],
)
def test_another_index_of_an_equal_value_passes(tested: object, reference: object, axis: int | None) -> None:
    source = np.array([[5.0, 1.0, 5.0, 2.0], [5.0, 5.0, 5.0, 4.0]])
    metrics = check(tested, reference, axis, source=source)
    assert metrics.unequal_count == 0
    assert CosineMaxAbs().judge(metrics).is_pass


def test_an_index_of_another_value_fails_however_close() -> None:
    source = np.array([1.0, math.nextafter(1.0, 2.0)])
    metrics = check([0], [1], 0, source=source)
    assert metrics.first_unequal == Element((0,), 0, 1)
    assert metrics.worst == Element((0,), 1.0, math.nextafter(1.0, 2.0))
    assert CosineMaxAbs(cosine=-1, max_abs=9).judge(metrics).reasons == (
        "1 of 1 element differs, first at [0] (tested 0, benchmark 1) (the index selects another value).",
    )


def test_the_figures_are_those_of_the_selected_values() -> None:
    metrics = check([[0, 1], [3, 0]], [[0, 3], [3, 0]])
    assert (metrics.max_abs, metrics.worst, metrics.first_unequal) == (
        1.0,
        Element((0, 1), 1.0, 2.0),
        Element((0, 1), 1, 3),
    )
    assert (metrics.off_count, metrics.max_ulp, metrics.is_exact) == (1, None, True)


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_an_index_out_of_range_is_located(index: int) -> None:
    metrics = check([[0, 2], [1, index]], [[0, 2], [1, 0]])
    assert (metrics.unequal_count, metrics.first_unequal) == (1, Element((1, 1), index, 0))
    assert metrics.unequal_note == "the index is not in 0..3"
    assert metrics.max_abs is None
    assert not CosineMaxAbs().judge(metrics).is_pass


def test_an_unsigned_index_out_of_range() -> None:
    tested = np.array([2**64 - 1], np.uint64)
    metrics = check_indices(np.ones(4), tested, np.array([0]), 0, unique_along_axis=False)
    assert metrics.first_unequal == Element((0,), 2**64 - 1, 0)


def test_any_index_into_an_empty_source_is_out_of_range() -> None:
    metrics = check_indices(np.zeros(0), np.array([0]), np.array([0]), 0, unique_along_axis=False)
    assert metrics.structural == "The benchmark's indices are not all in the empty source."


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_repeated_index_is_wrong_where_they_must_be_unique(axis: int | None) -> None:
    source = np.ones((3, 3))
    reference = {0: np.arange(3)[:, None] + [[0, 0, 0]], 1: [[0, 1, 2]] * 3, None: np.arange(9).reshape(3, 3)}[axis]
    tested = np.array(reference)
    tested[2, 2] = tested[0, 2] if axis == 0 else tested[2, 0]
    metrics = check(tested, reference, axis, unique=True, source=source)
    assert metrics.first_unequal is not None
    assert (metrics.unequal_count, metrics.first_unequal.index) == (1, (2, 2))
    assert metrics.unequal_note == "the index occurs twice"
    assert check(tested, reference, axis, unique=False, source=source).unequal_count == 0


def test_of_a_repeated_index_the_later_one_is_wrong_in_long_outputs_too() -> None:
    reference = np.arange(2000)
    metrics = check(reference % 1000, reference, 0, unique=True, source=np.ones(2000))
    assert metrics.first_unequal == Element((1000,), 0, 1000)
    assert metrics.unequal_count == 1000


def test_the_same_index_in_two_rows_is_no_repetition() -> None:
    assert check([[0, 2], [1, 2]], [[0, 2], [1, 2]], unique=True).unequal_count == 0


def test_unique_without_the_axis() -> None:
    assert check([2, 0], [0, 2], unique=True).unequal_count == 0


def test_nan_equals_nan() -> None:
    source = np.array([math.nan, 1.0, math.nan])
    assert check(2, 0, 0, source=source).unequal_count == 0
    wrong = check(1, 0, 0, source=source)
    assert (wrong.unequal_count, wrong.nonfinite_mismatches) == (1, 0)
    assert len(CosineMaxAbs().judge(wrong).reasons) == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int64, np.bool_, np.complex64, ml_dtypes.int4])
def test_sources_of_any_kind(dtype: type) -> None:
    source = np.array([0, 1, 1]).astype(dtype)
    assert check([1], [2], 0, source=source).unequal_count == 0
    metrics = check([0], [2], 0, source=source)
    assert (metrics.unequal_count, metrics.max_abs) == (1, 1.0)


def test_no_indices_at_all() -> None:
    empty = np.zeros((2, 0), np.int64)
    assert check(empty, empty).is_empty
    assert CosineMaxAbs().judge(check(empty, empty)).is_pass


@pytest.mark.parametrize(
    ("tested", "reference", "axis", "source", "message"),
    [
        ([0, 1], [0, 1, 2], 1, SOURCE, "Shapes differ: tested (2,), benchmark (3,)."),
        ([0.0, 1.0], [0, 1], 1, SOURCE, "Element kinds differ: tested float64, benchmark int64."),
        ([0.0, 1.0], [0.0, 1.0], 1, SOURCE, "Indices must be integers, not float64."),
        ([0, 1, 2], [0, 1, 2], 1, SOURCE, "Indices of shape (3,) do not fit axis 1 of a source of shape (2, 4)."),
        ([0, 1], [0, 4], 1, SOURCE, "The benchmark's indices are not all in 0..3."),
        ([0], [0], 0, np.array(["a"]), "Elements of dtype <U1 cannot be selected."),
    ],
)
def test_structural_mismatches(tested: object, reference: object, axis: int, source: np.ndarray, message: str) -> None:
    metrics = check(tested, reference, axis, source=source)
    assert metrics.structural == message
    assert CosineMaxAbs().judge(metrics).reasons == (message,)


def test_the_values_output_must_be_what_the_indices_select() -> None:
    metrics = check_indices(
        SOURCE,
        np.array([2, 1]),
        np.array([0, 0]),
        1,
        unique_along_axis=False,
        values=np.array([3.0, np.nextafter(5.0, 6)]),
    )
    assert (metrics.unequal_count, metrics.first_unequal) == (1, Element((1,), 1, 0))
    assert metrics.unequal_note == "the values output holds another value than the index selects"


@pytest.mark.parametrize(
    ("order", "swapped"),
    [([1, 3, 0, 2], 0), ([1, 3, 2, 0], 1)],  # 3.0 stands at 0 and 2
)
def test_a_stable_sort_keeps_equal_values_in_their_order(order: list[int], swapped: int) -> None:
    source = SOURCE[0]
    tested, reference = np.array(order), np.array([1, 3, 0, 2])
    for is_stable, count in ((True, swapped), (False, 0)):
        metrics = check_indices(source, tested, reference, 0, unique_along_axis=True, is_stable=is_stable)
        assert metrics.unequal_count == count


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scattering_is_the_transpose_of_selecting(axis: int) -> None:
    generator = np.random.default_rng(axis + 1)
    shape = (3, 4) if axis == 0 else (2, 3)
    indices = generator.integers(0, SOURCE.shape[axis], shape)
    incoming = generator.standard_normal(shape)
    gradient = scatter_by_index(incoming, SOURCE, indices, axis)
    assert gradient is not None
    assert np.sum(gradient * SOURCE) == pytest.approx(np.sum(incoming * select(SOURCE, indices, axis)))


@pytest.mark.parametrize(("indices", "axis"), [([9, 0], 1), ([0, 0, 0], 1), ([0, 0], 5)])
def test_indices_that_do_not_fit_scatter_nothing(indices: list[int], axis: int) -> None:
    assert scatter_by_index(np.ones(len(indices)), SOURCE, np.array(indices), axis) is None
