"""Whether a value is a view of a whole, told from the elements of both.

Elements are compared by a hash of each number: equal in any width of float, for both zeros and for all NaNs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

#: Numbers hashed at a time: the few arrays of a chunk stay in the cache.
CHUNK = 1 << 17


def real_numbers(array: Array) -> Array:
    """An array of real floats: complex numbers are pairs of them."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" and array.ndim else array


def hash_magnitudes(numbers: Array, dtype: np.dtype[Any]) -> Hashes:
    """A hash of the magnitude of each number as one of `dtype`; 0 of zero."""
    with np.errstate(all="ignore"):
        numbers = np.abs(numbers.astype(dtype, copy=False))
        narrow = numbers.astype(np.float32)
        narrow[np.isnan(narrow)] = np.nan
        codes = narrow.view(np.uint32).astype(np.uint64)
        if dtype.itemsize > narrow.itemsize:
            finer = (narrow != numbers) & ~np.isnan(narrow)
            codes[finer] = numbers[finer].view(np.uint64)
    codes *= np.uint64(0x9E3779B97F4A7C15)
    codes ^= codes >> np.uint64(29)
    codes *= np.uint64(0xBF58476D1CE4E5B9)
    codes ^= codes >> np.uint64(32)
    return codes


#: What the hash of a number below zero is multiplied with.
OF_NEGATIVE = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True)
class _Hash:
    """How numbers are hashed: as those of a dtype, with their sign or without."""

    dtype: np.dtype[Any]
    is_signed: bool

    def of(self, numbers: Array) -> Hashes:
        """The hash of each number."""
        hashes = hash_magnitudes(numbers, self.dtype)
        if self.is_signed:
            hashes[is_negative(numbers)] *= OF_NEGATIVE
        return hashes

    def chunks(self, array: Array, overlap: int) -> Iterator[tuple[int, Hashes]]:
        """(flat position of the first number, hashes), chunk by chunk, each with some numbers of the next one."""
        flat = real_numbers(array).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            yield start, self.of(flat[start : start + CHUNK + overlap])


def is_negative(numbers: Array) -> npt.NDArray[np.bool_]:
    """Where a number is below zero."""
    with np.errstate(invalid="ignore"):
        below: npt.NDArray[np.bool_] = numbers < 0
    return below


#: Numbers that are looked up together where single ones are not distinct enough, and their weights in one hash.
_RUN = 4
_WEIGHTS = tuple(map(np.uint64, (1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))
_PROBES = 32
_BASES = 6
_LONGEST_LINE = 4096
_MOST_GUESSES = 64
#: A view may have one irregular step for so many distinct numbers: any few numbers are found somewhere.
_NUMBERS_FOR_A_STEP = 8
_TABLE_BITS = 20


def _runs(hashes: Hashes, stride: int) -> Hashes:
    """A hash of each number with the three that follow it, `stride` numbers apart."""
    runs = np.zeros(max(hashes.size - (_RUN - 1) * stride, 0), np.uint64)
    for step, weight in enumerate(_WEIGHTS):
        runs += hashes[step * stride : step * stride + runs.size] * weight
    return runs


class _Lookup:
    """Where in a whole some hashes stand."""

    def __init__(self, wanted: Hashes, stride: int) -> None:
        """Looks for hashes of single numbers or, with a `stride` above 0, of runs of numbers so far apart."""
        self.wanted = np.unique(wanted[wanted > 0])
        self.stride = stride
        self.count = np.zeros(self.wanted.size, np.int64)
        self.position = np.full(self.wanted.size, -1, np.int64)
        self._may = np.zeros(1 << _TABLE_BITS, np.bool_)
        self._may[self.wanted >> np.uint64(64 - _TABLE_BITS)] = True

    def feed(self, start: int, hashes: Hashes) -> None:
        """Notes those of a chunk that begins at `start`."""
        if not self.wanted.size:
            return
        hashes = (_runs(hashes, self.stride) if self.stride else hashes)[:CHUNK]  # the rest belongs to the next chunk
        near = np.flatnonzero(self._may[hashes >> np.uint64(64 - _TABLE_BITS)])
        at = np.minimum(np.searchsorted(self.wanted, hashes[near]), self.wanted.size - 1)
        is_there = self.wanted[at] == hashes[near]
        np.add.at(self.count, at[is_there], 1)
        self.position[at[is_there]] = near[is_there] + start

    def places(self, hashes: Hashes) -> Places:
        """The position of each hash, in the shape of `hashes`; -1 where it stands nowhere, -2 where in many places."""
        if not self.wanted.size:
            return np.full(hashes.shape, -1, np.int64)
        at = np.minimum(np.searchsorted(self.wanted, hashes), self.wanted.size - 1)
        is_wanted = self.wanted[at] == hashes
        places: Places = np.where(self.count[at] > 1, -2, self.position[at])
        return np.where(is_wanted, places, np.where(hashes == 0, -2, -1))


def _looked_up(whole: Array, hashed: _Hash, *lookups: _Lookup) -> None:
    overlap = (_RUN - 1) * max(lookup.stride for lookup in lookups)
    for start, hashes in hashed.chunks(whole, overlap):
        for lookup in lookups:
            lookup.feed(start, hashes)


class ViewSearch:
    """Whether a value is a view of a whole: sliced, permuted, reshaped, repeated.

    A view takes the element at index (i, j, ...) from flat position a[i] + b[j] + ... of the whole. These tables are
    read off the elements along a few lines, and then hold for all elements or not.
    """

    def __init__(self, value: Array, dtype: np.dtype[Any], distinct: float, *, is_signed: bool = True) -> None:
        """A search for the places of `value`, whose numbers are of `dtype`, so many of them `distinct`."""
        self._value = real_numbers(value)
        self._hash = self._of_whole = _Hash(dtype, is_signed)
        self._distinct = distinct
        self._found: Sequence[Places] = ()
        self._random = np.random.default_rng(self._value.size)

    def in_whole(self, whole: Array, dtype: np.dtype[Any]) -> Literal["part", "copies"] | None:
        """How the value is a view of `whole` cast to `dtype`; None when it is not shown to be one."""
        self._of_whole = _Hash(dtype, self._hash.is_signed)
        probed = self._probe(whole)
        if probed is None:
            return None
        for tables in islice(product(*self._tables(whole, *probed)), _MOST_GUESSES):
            steps = sum(int(np.count_nonzero(np.diff(table, 2))) for table in tables)
            if steps * _NUMBERS_FOR_A_STEP <= self._distinct and self._holds(whole, tables):
                self._found = tables
                is_repeated = any(np.unique(table).size < table.size for table in tables)
                return "copies" if is_repeated else "part"
        return None

    def _probe(self, whole: Array) -> tuple[Places, int | None, int] | None:
        """Some indices whose place in the whole is known, the axis of the runs by which it is, and their stride there.

        Single numbers, without an axis and of stride 0, are tried first. None where no way shows enough places.
        """
        axes = [axis for axis, length in reversed([*enumerate(self._value.shape)]) if length >= _RUN]
        points = {axis: self._points(axis) for axis in (None, *axes)}
        hashes = {axis: self._at(points[axis], axis) for axis in points}
        runs = np.concatenate([hashes[axis] for axis in axes] or [np.empty(0, np.uint64)])
        strides = {stride for stride in _strides(whole) if stride * _RUN <= CHUNK}
        for tried in ((0, 1), sorted({2, *strides} - {1})):
            lookups = [_Lookup(runs if stride else hashes[None], stride) for stride in tried]
            _looked_up(whole, self._of_whole, *lookups)
            if not tried[0] and (lookups[0].places(hashes[None]) == -1).any():
                return None
            for lookup, axis in product(lookups, points):
                is_known = lookup.places(hashes[axis]) >= 0
                enough = np.count_nonzero(hashes[axis]) / (_RUN if lookup.stride else 2)
                if bool(lookup.stride) == (axis is not None) and np.count_nonzero(is_known) >= max(enough, 2):
                    return points[axis][is_known][:_BASES], axis, lookup.stride
        return None

    def _points(self, axis: int | None) -> Places:
        shape = [max(self._starts(dimension, axis), 1) for dimension in range(self._value.ndim)]
        flat = self._random.integers(0, math.prod(shape), _PROBES)
        return np.stack(np.unravel_index(flat, shape), axis=-1).astype(np.int64)

    def _starts(self, dimension: int, axis: int | None) -> int:
        """How many elements along a dimension begin a run along `axis`."""
        length: int = self._value.shape[dimension]
        return length - _RUN + 1 if dimension == axis else length

    def _at(self, points: Places, axis: int | None) -> Hashes:
        """Hashes of the numbers at some indices, or of the runs along `axis` that begin there."""
        hashes = np.zeros(len(points), np.uint64)
        for step, weight in enumerate(_WEIGHTS):
            at = points.copy()
            if axis is not None:
                at[:, axis] += step
            hashes += self._hash.of(self._value[tuple(at.T)]) * weight
            if axis is None:
                break
        return hashes

    def _tables(self, whole: Array, bases: Places, axis: int | None, stride: int) -> list[list[Places]]:
        """For each dimension what may be the position by index, beside that of the first base.

        Where other elements than the base stand in several places, steps as long as a row or a plane of the whole.
        """
        lines = [self._lines(bases, dimension, axis) for dimension in range(self._value.ndim)]
        hashes = [self._at(points.reshape(-1, self._value.ndim), axis) for _, points in lines]
        of_bases = self._at(bases, axis)
        lookup = _Lookup(np.concatenate([of_bases, *hashes]), stride)
        _looked_up(whole, self._of_whole, lookup)
        starts = lookup.places(of_bases)
        tables = []
        for dimension, (indices, points) in enumerate(lines):
            places = lookup.places(hashes[dimension]).reshape(points.shape[:2])
            length, at = self._value.shape[dimension], int(bases[0, dimension])
            table = _table(indices, places, starts, length, stride if dimension == axis else 0)
            if table is not None:
                guesses = [table]
            else:
                guesses = [step * np.arange(length) for step in (1, *_strides(whole)[::-1])]
            tables.append([guess - guess[at] for guess in guesses])
        tables[0] = [table + starts[0] for table in tables[0]]
        return tables

    def _lines(self, bases: Places, dimension: int, axis: int | None) -> tuple[Places, Places]:
        """(indices along a dimension, the points (base, index, dimension) there)."""
        length = self._starts(dimension, axis)
        indices = np.arange(length)
        if length > _LONGEST_LINE:
            half = _LONGEST_LINE // 2
            spread = np.linspace(0, length - 1, half).astype(np.int64)
            indices = np.unique(np.concatenate([indices[:half], spread, bases[:, dimension]]))
        points = np.repeat(bases[:, None, :], indices.size, axis=1)
        points[:, :, dimension] = indices
        return indices, points

    def positions(self) -> Iterator[tuple[int, Places]]:
        """(flat index, positions in the whole that was found last) of the elements, chunk by chunk."""
        return self._positions(self._found)

    def _positions(self, tables: Sequence[Places]) -> Iterator[tuple[int, Places]]:
        for start in range(0, self._value.size, CHUNK):
            indices = np.unravel_index(np.arange(start, min(start + CHUNK, self._value.size)), self._value.shape)
            positions: Places = np.sum([table[index] for table, index in zip(tables, indices)], axis=0)
            yield start, positions

    def _holds(self, whole: Array, tables: Sequence[Places]) -> bool:
        flat, elements = real_numbers(whole).reshape(-1), self._value.reshape(-1)
        for start, at in self._positions(tables):
            if at.min() < 0 or at.max() >= flat.size:
                return False
            if not np.array_equal(self._of_whole.of(flat[at]), self._hash.of(elements[start : start + at.size])):
                return False
        return True


def _strides(whole: Array) -> list[int]:
    """How far rows, planes and so on of an array are apart, the longest last."""
    return [int(stride) for stride in np.cumprod(whole.shape[:0:-1], dtype=np.int64)]


def _table(indices: Places, places: Places, starts: Places, length: int, stride: int) -> Places | None:
    """Positions by index: from the lines through the bases, and in between on a straight line; None from one place.

    Along the axis of runs, those have a `stride`.
    """
    steps_of = np.zeros(length, np.int64)
    is_found = np.zeros(length, np.bool_)
    for line, start in zip(places, starts):
        steps = line - start
        is_known = (line >= 0) & (start >= 0)
        shared = indices[is_known & is_found[indices]]
        if is_found.any() and not shared.size:
            continue
        if shared.size:
            steps = steps + steps_of[shared[0]] - steps[np.searchsorted(indices, shared[0])]
        fresh = is_known & ~is_found[indices]
        steps_of[indices[fresh]] = steps[fresh]
        is_found[indices[fresh]] = True
    filled = np.flatnonzero(is_found)
    for step in range(1, _RUN if stride else 1):
        fresh = (filled + step)[~is_found[filled + step]]
        steps_of[fresh] = steps_of[fresh - step] + step * stride
        is_found[fresh] = True
    return _filled(steps_of, np.flatnonzero(is_found))


def _filled(positions: Places, places: Places) -> Places | None:
    every = np.arange(positions.size)
    if places.size < 2:
        return positions if positions.size == 1 else None
    filled = np.rint(np.interp(every, places, positions[places])).astype(np.int64)
    ends = (places[0], places[1], every < places[0]), (places[-1], places[-2], every > places[-1])
    for end, beside, is_beyond in ends:
        slope = (positions[beside] - positions[end]) // (beside - end)
        filled[is_beyond] = positions[end] + slope * (every[is_beyond] - end)
    return filled
