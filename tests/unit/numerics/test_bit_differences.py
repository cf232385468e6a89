"""How two results that should be the same differ in their bytes."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.suites.repeat.results import content_of, describe_bits, is_reordering

X = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(3, 4)


def flipped(array: np.ndarray, bit: int, *places: int) -> np.ndarray:
    found = array.copy()
    flat = found.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
    for place in places:
        flat[place, bit // 8] ^= 1 << bit % 8
    return found


def same_bytes(one: object, other: object) -> bool:
    return content_of(one) == content_of(other)


@pytest.mark.parametrize("size", [13, 10_001])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_equal_bytes(dtype: type, size: int) -> None:
    array = np.arange(size).astype(dtype)
    assert same_bytes(array, array.copy())
    assert not same_bytes(array, flipped(array, 0, 12))


def test_equal_values_are_not_equal_bytes() -> None:
    assert not same_bytes(np.array([0.0]), np.array([-0.0]))
    assert not same_bytes(np.zeros(2, np.int32), np.zeros(2, np.float32))
    assert not same_bytes(np.zeros((1, 2)), np.zeros((2, 1)))
    assert not same_bytes(1, True)
    assert same_bytes(np.array([math.nan]), np.array([math.nan]))
    assert same_bytes(np.zeros((0, 3)), np.zeros((0, 3)))
    assert same_bytes(math.nan, math.nan)
    assert same_bytes(X.T, X.T.copy())
    large = np.arange(5000.0).reshape(50, 100)
    assert same_bytes(large.T, large.T.copy())
    assert not same_bytes(large, large.T.reshape(50, 100))


@pytest.mark.parametrize("shape", [(2, 3), (50, 100)], ids=["small", "hashed"])
def test_an_order_of_reading_tells_the_same_arrays_apart(shape: tuple[int, int]) -> None:
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    contents = [
        content_of(value, by_columns=True)
        for value in (array, np.asfortranarray(array), array + 1, array.T, array.reshape(shape[::-1]))
    ]
    assert contents[0] == contents[1]
    assert len({*contents}) == 4


@pytest.mark.parametrize(
    ("tested", "pattern"),
    [
        (flipped(X, 30, 6), "bit 30 of one element at [1, 2]"),
        (flipped(flipped(X, 30, 6), 3, 6), "2 bits of one element at [1, 2]"),
        (flipped(X, 0, 4, 5, 6, 7), "bit 0, row 1"),
        (flipped(X, 5, 1, 5, 9), "bit 5, column 1"),
        (np.where(np.arange(12).reshape(3, 4) == 6, np.float32(np.nan), X), "NaN where finite"),
        (np.where(np.arange(12).reshape(3, 4) > 7, np.float32(0), X), "row 2 (zero)"),
    ],
)
def test_patterns(tested: np.ndarray, pattern: str) -> None:
    assert pattern in describe_bits(tested, X).pattern


def test_counts() -> None:
    found = describe_bits(flipped(flipped(X, 3, 2), 7, 2, 8), X)
    assert (found.elements, found.bits) == (2, 2)
    assert "1 to 2 bits each" in found.pattern


def test_a_scalar() -> None:
    assert describe_bits(np.float32([3])[0:1].reshape(()), np.float32([2])[0:1].reshape(())).elements == 1


def test_only_small_differences_may_come_from_another_order() -> None:
    unit = np.float32(2.0**-24)
    assert is_reordering(describe_bits(X * (1 + 4 * unit), X), X.dtype)
    assert not is_reordering(describe_bits(flipped(X, 22, 3), X), X.dtype)
    assert not is_reordering(describe_bits(np.full_like(X, np.nan), X), X.dtype)
    half = X.astype(np.float16)
    assert is_reordering(describe_bits(np.nextafter(half, np.float16(9)), half), half.dtype)
    whole = np.arange(4)
    assert not is_reordering(describe_bits(whole + 1, whole), whole.dtype)
