"""Fingerprints: whatever distinguishes two tensors changes them, and nothing else does."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra import numpy as arrays

from msprobe_collector.dump_format.values import array_dtype, find_dtype
from msprobe_collector.dump_format.writing.encoding import Fingerprint, fingerprint_of, statistics_of

DTYPES = (np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.bool_, np.complex64, ml_dtypes.bfloat16)
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=40)


@st.composite
def tensors(draw, shapes=SHAPES):
    """Arrays of few distinct values, among which a weak checksum takes exchanged elements for equal."""
    shape, dtype = draw(shapes), draw(st.sampled_from(DTYPES))
    values = draw(arrays.arrays(np.int8, shape, elements=st.integers(-2, 2)))
    return values.astype(dtype)


def differ(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape != right.shape or left.tobytes() != right.tobytes()


@given(tensors(), st.data())
def test_two_elements_that_are_swapped_change_it(array, data):
    first, second = (data.draw(st.integers(0, array.size - 1)) for _ in range(2))
    changed = array.copy().reshape(-1)
    changed[[first, second]] = changed[[second, first]]
    assert (fingerprint_of(changed.reshape(array.shape)) != fingerprint_of(array)) == differ(changed, array.reshape(-1))


@given(tensors(), st.randoms(use_true_random=False))
def test_permuted_rows_change_it(array, random):
    order = list(range(len(array)))
    random.shuffle(order)
    assert (fingerprint_of(array[order]) != fingerprint_of(array)) == differ(array[order], array)


@given(tensors(arrays.array_shapes(min_dims=2, max_dims=3, max_side=30)))
def test_a_transposition_changes_it_also_where_all_elements_are_equal(array):
    transposed = array.T
    assert (fingerprint_of(transposed) != fingerprint_of(array)) == differ(transposed, array)


@given(SHAPES, st.sampled_from(DTYPES))
def test_zeros_for_ones_change_it(shape, dtype):
    assert fingerprint_of(np.zeros(shape, dtype)) != fingerprint_of(np.ones(shape, dtype))


@given(tensors(), st.data())
def test_one_changed_bit_changes_it(array, data):
    assume(array.dtype != np.bool_)
    changed = np.frombuffer(bytearray(array.tobytes()), np.uint8)
    changed[data.draw(st.integers(0, changed.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert fingerprint_of(changed.view(array.dtype).reshape(array.shape)) != fingerprint_of(array)


@given(tensors(), st.data())
def test_another_shape_changes_it(array, data):
    shape = data.draw(st.sampled_from([(array.size,), (1, *array.shape), (*array.shape, 1), array.shape[::-1]]))
    assert (fingerprint_of(array.reshape(shape)) != fingerprint_of(array)) == (shape != array.shape)


def test_the_dtype_counts_also_where_all_bytes_are_equal():
    names = ("Float32", "Int32", "UInt32", "Float64", "Int64", "Complex64", "BFloat16", "Float16", "Bool", "Int8")
    zeros = [np.zeros(16 // found.item_bytes, array_dtype(found)) for found in map(find_dtype, names)]
    assert len({fingerprint_of(array) for array in zeros}) == len(names)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_scalars_and_empty_tensors_have_one(shape):
    others = {(), (0,), (0, 3), (3, 0), (1,)} - {shape}
    found = fingerprint_of(np.zeros(shape, np.float32))
    assert found not in {fingerprint_of(np.zeros(other, np.float32)) for other in others}


def test_layout_in_memory_and_byte_order_do_not_count():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    wide = np.zeros((8, 12), np.float32)
    wide[::2, ::2] = array
    for same in (np.asfortranarray(array), wide[::2, ::2], array.astype(">f4")):
        assert fingerprint_of(same) == fingerprint_of(array)
    assert fingerprint_of(wide[2, ::2]) == fingerprint_of(array[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (3, 40_000)])
def test_the_pass_for_statistics_shows_every_element_once(dtype, shape):
    array = np.random.default_rng(0).integers(-2, 2, shape).astype(dtype)
    seen = Fingerprint(array)
    assert statistics_of(array, seen.add) == statistics_of(array)
    assert seen.text() == fingerprint_of(array)


def test_its_value_is_part_of_the_format():
    # Dumps of different releases are compared: these must never change.
    assert fingerprint_of(np.array([1, 2], np.float32)) == "8f5feb382e6a1054"
    assert fingerprint_of(np.array([1, 2], ml_dtypes.bfloat16)) == "bc72db4b1e040897"
