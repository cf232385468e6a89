"""How two results that should be the same differ in their bytes: how many elements, which bits, where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from pytest_msprobe.numerics.kinds import kind_of
from pytest_msprobe.numerics.patterns import name_pattern
from pytest_msprobe.numerics.regions import describe_region
from pytest_msprobe.numerics.ulp import unit_roundoff

#: Elements whose bits are looked at, from the first one that differs.
_MOST_ELEMENTS = 1 << 20
#: Up to this size a copy of the bytes costs less than their hash.
_SMALL_BYTES = 1 << 12
#: Words of `name_pattern` that say more than which bits have changed.
_TELLING = ("NaN", "Inf", "zero", "swapped", "repeats", "equals", "transposed")


@dataclass(frozen=True, slots=True)
class BitDifference:
    """What differs between two results.

    Attributes:
        elements: how many differ.
        bits: how many bits of an element differ, at most.
        size: largest difference over the largest finite magnitude of the second result; infinity where one is finite
            and the other is not, NaN for what is no number.
        pattern: a phrase: ``bit 30 of one element at [0, 2]``, ``1 to 5 bits each, row 3``.
    """

    elements: int
    bits: int
    size: float
    pattern: str


def content_of(value: object, *, by_columns: bool = False) -> tuple[object, ...]:
    """What two outputs have in common only if they are equal to the bit.

    dtype, shape and bytes of an array, of a large one the 128 bits of XXH3 in place of its bytes: that reads each
    result once and keeps none, and two that differ have the same with a chance of 2**-128. Type and text of what is no
    array. Arrays are read in row-major order, or `by_columns`, which costs less where they stand so in memory: only
    what was read in the same order compares.
    """
    if type(value) is not np.ndarray:
        return type(value), repr(value)
    read = value.T if by_columns else value
    if value.nbytes <= _SMALL_BYTES:
        return value.dtype, value.shape, read.tobytes()
    return value.dtype, value.shape, xxh3_128_digest(bytes_of(read).data)


def stands_by_columns(value: object) -> bool:
    """Whether `value` is an array in column-major order, as gradients of weights often are."""
    return type(value) is np.ndarray and value.flags.f_contiguous and not value.flags.c_contiguous


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes of an array in C order, in one dimension; as bytes, since bfloat16 has no buffer format of its own."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def describe_bits(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> BitDifference:
    """How `tested` differs from `reference`, an array of the same dtype and shape with other bytes."""
    found, right = (_rows_of_bytes(array) for array in (tested, reference))
    is_off = (found != right).any(axis=1)
    places = np.flatnonzero(is_off)
    changed = np.unpackbits((found ^ right)[places[:_MOST_ELEMENTS]], axis=1, bitorder="little")
    where = describe_region(is_off.reshape(reference.shape)) or "everywhere"
    what = name_pattern(tested, reference) if tested.size > 1 else ""
    telling = what.partition(", ")[0] if any(word in what for word in _TELLING) else ""
    bits = _bits_phrase(changed, is_one=places.size == 1)
    pattern = f"{bits}{' of ' if places.size == 1 else ', '}{where}{f' ({telling})' if telling else ''}"
    return BitDifference(int(places.size), int(changed.sum(axis=1).max()), _size(tested, reference), pattern)


def is_reordering(difference: BitDifference, dtype: np.dtype[Any]) -> bool:
    """Whether a difference is no larger than what another order of additions leaves.

    That is 1024 unit roundoffs of the largest element, for half dtypes, whose sums are kept in more bits, at most 2^-8
    of it, and never less than four roundoffs. A changed high bit of an element is more.
    """
    if kind_of(dtype) != "float":
        return False
    unit = unit_roundoff(dtype)
    return difference.size <= max(4 * unit, min(1024 * unit, 2.0**-8))


def _rows_of_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """One row of bytes for each element."""
    return bytes_of(array).reshape(array.size, -1)


def _bits_phrase(changed: npt.NDArray[np.uint8], *, is_one: bool) -> str:
    """Which bits, counted from the lowest one: ``bit 30``, ``3 bits``, ``1 to 5 bits each``."""
    counts = changed.sum(axis=1)
    positions = np.flatnonzero(changed.any(axis=0))
    if positions.size == 1:
        return f"bit {positions[0]}"
    least, most = int(counts.min()), int(counts.max())
    bits = f"{most} bit{'s' if most > 1 else ''}" if least == most else f"{least} to {most} bits"
    return bits if is_one else f"{bits} each"


def _size(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    if kind_of(reference.dtype) != "float" or reference.dtype.kind == "c":
        return math.nan
    with np.errstate(all="ignore"):
        found, right = tested.astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(right)
        if (finite != np.isfinite(found)).any():
            return math.inf
        largest = float(np.abs(right[finite]).max(initial=0.0))
        off = float(np.abs(found[finite] - right[finite]).max(initial=0.0))
    return off / largest if largest else (0.0 if not off else math.inf)
