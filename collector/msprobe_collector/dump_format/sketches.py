"""Linear sketches: 64 numbers of a tensor from which distances are estimated, and which add up over shards.

A sketch holds 32 complex counters. Counter j of a tensor is the sum of its elements, each times a phase (a complex
number of magnitude 1) for each of its indices. The phases depend on counter, dimension and index alone: every rank, run
and framework has the same ones. The mean of |counter|^2 estimates the squared norm, since the phases of two elements
are uncorrelated (N. Alon, Y. Matias, M. Szegedy, "The space complexity of approximating the frequency moments", 1999,
with complex phases in place of signs).

- *Shard counters* (16) add up over shards. A length n = u * 2^p, u odd, has s(i) = base(i mod u) * (product of +i or -i
  over the binary digits of i div u), so that the phases of the r-th of 2, 4, 8 ... shards are those of the first, times
  the digits of r: a rank need not know which shard it holds, nor a whole tensor how others split it. Constants,
  ramps and all products of real factors over the digits keep their norm exactly. What they do not see well are
  values that repeat along the digits of two dimensions (a constant diagonal) or oscillate in many digits (a sine).
- *Whole counters* (16) see these too. Their phases are chirps, whose frequency rises with the index and whose spectrum
  is flat (D. C. Chu, "Polyphase codes with good periodic correlation properties", 1972). They compare values of one
  shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import matmul
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

#: Changes with every change of what the numbers mean.
VERSION = 1
SEED = 20261124
#: Real numbers of a sketch: real parts of whole and shard counters, then the imaginary parts.
NUMBERS = 64
COUNTERS = NUMBERS // 2
_WHOLE = COUNTERS // 2
#: Elements that one table of phases stands for; a longer dimension has a table of its own up to `_LONGEST`.
_GROUP, _LONGEST = 1 << 10, 1 << 16
#: Elements that are raised to float32 or float64 at a time.
_BLOCK = 1 << 20
#: Products that are added one after the other.
_PIECE = 1 << 8
#: Magnitudes that float32 holds with their sums.
LEAST, MOST = 1e-15, 1e15
#: Halves of a sketch whose squares differ by more see different things.
_APART = 4.0
#: Kinds of NumPy's dtypes that are no numbers.
WITHOUT_NUMBERS = "OSUMm"
#: Squares below it may have lost digits.
_LEAST_SQUARE = 1e-280
#: Of the norm: what rounding to float32 and another order of summation leave, and putting sketches together.
RESOLUTION = 2e-6


class SketchRow(NamedTuple):
    """What a dump holds of one value.

    Attributes:
        numbers: the sketch of the value divided by 2**exponent, with 0 for elements that are not finite; float32[64].
        exponent: 0 but for magnitudes outside of 1e-15 to 1e15.
        not_finite: numbers of elements that are NaN, +Inf and -Inf.
    """

    numbers: np.ndarray[Any, Any]
    exponent: int = 0
    not_finite: tuple[int, int, int] = (0, 0, 0)


class Distance(NamedTuple):
    """An estimate of the L2 norm of a difference.

    Attributes:
        value: the estimate.
        relative: standard deviation of the estimate, relative to the true distance (of differences like noise).
        resolution: distances below it may be the rounding of the sketches.
    """

    value: float
    relative: float
    resolution: float


@dataclass(frozen=True, slots=True)
class Sketch:
    """The sketch of a tensor, whole or put together from parts.

    Attributes:
        counters: complex128[32], the 16 whole counters first.
        shape: of the tensor that is sketched.
        not_finite: numbers of elements that are NaN, +Inf and -Inf; they count as 0 in the counters.
        has_whole: whether the whole counters hold; after shards were put together they do not.
        splits: (dimension, number of shards) of those that were put together of another number than 2, 4, 8, ...:
            their counters compare with those of the same split only.
    """

    counters: np.ndarray[Any, Any]
    shape: tuple[int, ...]
    not_finite: tuple[int, int, int] = (0, 0, 0)
    has_whole: bool = True
    splits: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> Sketch:
        """Return the sketch of an array of any shape and numeric dtype."""
        return cls.of_row(row_of(array), array.shape)

    @classmethod
    def of_split(cls, array: np.ndarray[Any, Any], dimension: int, count: int) -> Sketch:
        """The sketch of an array as of `count` shards along `dimension`, for those that are not 2, 4, 8 ..."""
        return merged([cls.of(part) for part in np.split(array, count, dimension)], dimension)

    @classmethod
    def of_row(cls, row: SketchRow, shape: Sequence[int]) -> Sketch:
        """Return the sketch that a dump holds of a tensor of `shape`."""
        numbers = row.numbers.astype(np.float64)
        if row.exponent:
            with np.errstate(over="ignore", under="ignore"):
                numbers = np.ldexp(numbers, row.exponent)
        return cls(numbers[:COUNTERS] + 1j * numbers[COUNTERS:], tuple(shape), row.not_finite)

    @property
    def norm(self) -> float:
        """Estimate of the L2 norm of the finite elements."""
        return _norm(self.counters, has_whole=self.has_whole)

    def scaled(self, factor: float) -> Sketch:
        """Return the sketch of the tensor times `factor`."""
        return replace(self, counters=self.counters * factor)


def distance(first: Sketch, second: Sketch) -> Distance:
    """Estimate of the L2 norm of the difference of the finite elements of two tensors.

    Raises:
        ValueError: the sketches do not compare: other shapes, or put together of another number of shards.
    """
    if first.shape != second.shape:
        raise ValueError(f"sketches of shapes {first.shape} and {second.shape} do not compare")
    if first.splits != second.splits:
        raise ValueError(f"sketches put together of other shards do not compare: {first.splits} and {second.splits}")
    has_whole = first.has_whole and second.has_whole
    value = _norm(first.counters - second.counters, has_whole=has_whole)
    relative = 0.5 / math.sqrt(COUNTERS if has_whole else COUNTERS - _WHOLE)
    return Distance(value, relative, RESOLUTION * max(first.norm, second.norm))


def merged(parts: Sequence[Sketch], dimension: int | None) -> Sketch:
    """The sketch of what `parts` are equal shards of along `dimension`, in order; of their sum where it is None.

    Raises:
        ValueError: there are none, or they have not one shape (shards of unequal length do not add up).
    """
    first = parts[0] if parts else None
    if first is None or any(part.shape != first.shape or part.splits != first.splits for part in parts):
        raise ValueError(f"these sketches do not add up: shapes {[part.shape for part in parts]}")
    phases = np.ones((len(parts), COUNTERS))
    shape, splits, has_whole = first.shape, first.splits, all(part.has_whole for part in parts)
    if dimension is not None and len(parts) > 1:
        if not 0 <= dimension < len(shape):
            raise ValueError(f"shape {shape} has no dimension {dimension}")
        phases = _shard_phases(dimension, shape[dimension], len(parts))
        shape = (*shape[:dimension], shape[dimension] * len(parts), *shape[dimension + 1 :])
        has_whole = False
        if len(parts) & (len(parts) - 1):
            splits = tuple(sorted((*splits, (dimension, len(parts)))))
    counters = (np.array([part.counters for part in parts]) * phases).sum(axis=0)
    nan, above, below = map(sum, zip(*(part.not_finite for part in parts), strict=True))
    return Sketch(counters, shape, (nan, above, below), has_whole, splits)


def _norm(counters: np.ndarray[Any, Any], *, has_whole: bool) -> float:
    """The norm that counters estimate; where the halves do not agree, by the whole counters, which see more."""
    scale = 1.0
    of_whole, of_shards = _mean_square(counters[:_WHOLE]), _mean_square(counters[_WHOLE:])
    if not _LEAST_SQUARE < of_whole + of_shards < math.inf:
        scale = float(np.abs(counters).max(initial=0.0))
        if scale == 0.0 or not math.isfinite(scale):
            return scale
        of_whole, of_shards = _mean_square(counters[:_WHOLE] / scale), _mean_square(counters[_WHOLE:] / scale)
    if not has_whole:
        return scale * math.sqrt(of_shards)
    is_apart = not of_whole <= _APART * of_shards <= _APART**2 * of_whole
    return scale * math.sqrt(of_whole if is_apart else (of_whole + of_shards) / 2)


def _mean_square(counters: np.ndarray[Any, Any]) -> float:
    return float(np.vdot(counters, counters).real) / _WHOLE


# The phases of the counters, as tables (length, 32) of complex numbers

_WHOLE_KIND, _BASE_KIND, _DIGIT_KIND, _OTHER_KIND = range(4)


def _hashed(*keys: Any) -> np.ndarray[Any, Any]:
    """64 random bits by counter: the finalizer of SplitMix64 (Steele, Lea, Flood, 2014) over each key in turn."""
    bits = np.asarray(SEED, np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            bits = (bits ^ np.asarray(key, np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            bits ^= bits >> np.uint64(31)
    return bits


def _chirps(length: int, kind: int, dimension: int, level: int) -> np.ndarray[Any, Any]:
    """(length, 16) of exp(2 pi i (a l (l + 1) / 2 + m l) / P), with random a and m and the least odd prime P >= length.

    A prime, so that what repeats at any distance meets phases that do not.
    """
    prime = length | 1
    while prime < 3 or any(prime % divisor == 0 for divisor in range(3, math.isqrt(prime) + 1, 2)):
        prime += 2
    bits = _hashed(kind, dimension, level, length, np.arange(_WHOLE))
    roots = 1 + ((bits & np.uint64(0xFFFFFFFF)) % np.uint64(prime - 1)).astype(np.int64)
    shifts = ((bits >> np.uint64(32)) % np.uint64(prime)).astype(np.int64)
    index = np.arange(length)[:, None]
    turns = (index * (index + 1) // 2 % prime * roots + index * shifts) % prime
    chirps: np.ndarray[Any, Any] = np.exp(2j * np.pi / prime * turns)
    return chirps


def _digits(dimension: int, first: int, count: int) -> np.ndarray[Any, Any]:
    """(2**count, 16): the shard phases of `count` binary digits, the lowest of which is digit `first`."""
    table = np.ones((1, _WHOLE), np.complex128)
    for digit in range(first, first + count):
        bits = _hashed(_DIGIT_KIND, dimension, digit, np.arange(_WHOLE)) >> np.uint64(63)
        table = np.concatenate([table, table * np.where(bits, 1j, -1j)])
    return table


def _shard_phases(dimension: int, length: int, count: int) -> np.ndarray[Any, Any]:
    """(count, 32): what the sketches of `count` shards of this length are multiplied by."""
    if count & (count - 1) == 0:
        shard = _digits(dimension, _odd_part(length)[1], count.bit_length() - 1)
    else:
        bits = _hashed(_OTHER_KIND, dimension, np.arange(count)[:, None], np.arange(_WHOLE)) >> np.uint64(62)
        shard = np.array([1, 1j, -1, -1j])[bits.astype(np.int64)]
        shard[0] = 1
    return np.concatenate([np.zeros((count, _WHOLE)), shard], axis=1)


def _odd_part(length: int) -> tuple[int, int]:
    """(u, p) of length = u * 2**p."""
    digits = max(0, (length & -length).bit_length() - 1)
    return length >> digits, digits


class _Axis(NamedTuple):
    """A dimension, or a part of a very long one, whose table of phases would be as long."""

    dimension: int
    level: int
    length: int
    #: The binary digits that it stands for; the rest of its length is what precedes the digits.
    first_digit: int
    digits: int

    def phases(self) -> np.ndarray[Any, Any]:
        """(length, 32)."""
        shard = _digits(self.dimension, self.first_digit, self.digits)
        base = self.length >> self.digits
        if base > 1:
            chirps = _chirps(base, _BASE_KIND, self.dimension, self.level)
            shard = (shard[:, None] * chirps).reshape(self.length, _WHOLE)
        whole = _chirps(self.length, _WHOLE_KIND, self.dimension, self.level)
        return np.concatenate([whole, shard], axis=1)


def _axes(dimension: int, length: int) -> list[_Axis]:
    """The axes of a dimension, outermost first. Together they may be longer, by zeros after its odd part."""
    odd, digits = _odd_part(length)
    if length <= _LONGEST:
        return [_Axis(dimension, 0, length, 0, digits)]
    axes: list[_Axis] = []
    while odd > _LONGEST:
        axes.insert(0, _Axis(dimension, len(axes), _GROUP, 0, 0))
        odd = -(-odd // _GROUP)
    done = min(digits, max(0, (_GROUP // odd).bit_length() - 1)) if not axes else 0
    axes.insert(0, _Axis(dimension, len(axes), odd << done, 0, done))
    while done < digits:
        count = min(10, digits - done)
        axes.insert(0, _Axis(dimension, len(axes), 1 << count, done, count))
        done += count
    return axes


def _length(axes: Iterable[_Axis]) -> int:
    """Return the number of indices of neighbouring axes."""
    return math.prod(axis.length for axis in axes)


class _Group:
    """Neighbouring axes in memory; equal ones are one object, which is found quickly in a dictionary."""

    __slots__ = ("axes",)

    def __init__(self, axes: tuple[_Axis, ...]) -> None:
        self.axes = axes

    def table(self) -> np.ndarray[Any, Any]:
        """The phases of its row-major indices: float32 (length, 64), real parts before imaginary ones."""
        table = np.ones((1, COUNTERS), np.complex128)
        for axis in self.axes:
            table = (table[:, None] * axis.phases()).reshape(-1, COUNTERS)
        return np.concatenate([table.real, table.imag], axis=1).astype(np.float32)


_group = lru_cache(maxsize=1 << 14)(_Group)


class Plan:
    """How tensors of one shape and order in memory are folded into counters: the same steps in every framework.

    Attributes:
        pads: (rows, length, padded length, columns) as which the elements are seen in turn, to be filled with zeros.
        groups: of neighbouring axes, the last first; each has one table of phases.
        lengths: of the groups.
    """

    def __init__(self, shape: tuple[int, ...], order: tuple[int, ...] | None) -> None:
        """Of tensors of `shape`, which are not empty; `order` is of their dimensions in memory, None for their own."""
        order = tuple(range(len(shape))) if order is None else order
        self.pads: list[tuple[int, int, int, int]] = []
        self.groups: list[_Group] = []
        axes: list[_Axis] = []
        for place, dimension in enumerate(order):
            axes_here = _axes(dimension, shape[dimension])
            odd, digits = _odd_part(shape[dimension])
            padded = _length(axes_here) >> digits
            if padded != odd:
                before = _length(axes) << digits
                self.pads.append((before, odd, padded, math.prod(shape[after] for after in order[place + 1 :])))
            axes += axes_here
        group: tuple[_Axis, ...] = ()
        for axis in reversed([axis for axis in axes if axis.length > 1]):
            if group and axis.length * _length(group) > _GROUP:
                self.groups.append(_group(group))
                group = ()
            group = (axis, *group)
        self.groups.append(_group(group))
        self.lengths = [_length(member.axes) for member in self.groups]


plan_of = lru_cache(maxsize=4096)(Plan)


class Tables:
    """Tables of phases in the form that one device computes with; of those least lately made some are forgotten."""

    def __init__(
        self, convert: Callable[[np.ndarray[Any, Any]], Any], *, scale: float = 1.0, most_bytes: int = 1 << 27
    ) -> None:
        """`convert` puts an array where it is computed with; all of them together take at most `most_bytes`.

        Whole tables are multiplied by `scale`, a power of two.
        """
        self._convert = convert
        self._scale = np.float32(scale)
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._tables: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0
        self.rotation = convert(_ROTATION)

    def of(self, group: _Group, part: int) -> Any:
        """The table of a group: whole (-1), or its real (0) or imaginary (1) parts, twice side by side."""
        converted = self._tables.get((group, part))
        if converted is None:
            table = group.table()
            if part < 0:
                table *= self._scale
            else:
                table = np.tile(table[:, part * COUNTERS : (part + 1) * COUNTERS], 2)
            converted = self._convert(table), table.nbytes
            with self._lock:
                while self._tables and self._bytes + table.nbytes > self._most_bytes:
                    self._bytes -= self._tables.pop(next(iter(self._tables)))[1]
                self._bytes += table.nbytes - self._tables.get((group, part), (None, 0))[1]
                self._tables[group, part] = converted
        return converted[0]


#: Multiplies counters by i: (real, imaginary) becomes (-imaginary, real).
_ROTATION = np.kron(np.array([[0, 1], [-1, 0]], np.float32), np.eye(COUNTERS, dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a framework computes on a device.

    Attributes:
        tables: of phases, in the dtype and on the device in which is computed.
        raised: elements in that dtype.
        weighted: (counters (n, m, 64), table (m, 64)) -> their products, summed over m.
        joined: joins a list of tensors along their first dimension.
        block: elements that are raised and multiplied at a time.
        product: of two matrices.
    """

    tables: Tables
    raised: Callable[[Any], Any]
    weighted: Callable[[Any, Any], Any]
    joined: Callable[[list[Any]], Any]
    block: int
    product: Callable[[Any, Any], Any] = matmul

    def fold(self, flat: Any, plan: Plan) -> Any:
        """The 64 numbers of a real tensor; `flat` are its elements, in the order and as many as `plan` says."""
        columns = plan.lengths[0]
        rows = math.prod(plan.lengths[1:])
        step = plan.lengths[1] if len(plan.groups) > 1 else 1
        step *= max(1, self.block // (columns * step))
        table = self.tables.of(plan.groups[0], -1)
        parts = []
        for start in range(0, rows, step):
            part = self.raised(flat[start * columns : (start + step) * columns]).reshape(-1, columns)
            part = self.product(part, table)
            parts.append(self._contracted(part, plan, 1) if len(plan.groups) > 1 else part)
        folded = parts[0] if len(parts) == 1 else self.joined(parts)
        for at in range(2, len(plan.groups)):
            folded = self._contracted(folded, plan, at)
        return folded.reshape(-1)

    def _contracted(self, counters: Any, plan: Plan, at: int) -> Any:
        """Sum `counters` (n, 64) over the group `at` of axes, which vary fastest, with its phases."""
        counters = counters.reshape(-1, plan.lengths[at], NUMBERS)
        real, imaginary = (self.tables.of(plan.groups[at], part) for part in (0, 1))
        return self.weighted(counters, real) + self.weighted(counters, imaginary) @ self.tables.rotation


# Of arrays


def _of_arrays(dtype: type[np.floating[Any]]) -> Arithmetic:
    return Arithmetic(
        tables=Tables(lambda table: table.astype(dtype)),
        raised=lambda part: part.astype(dtype, copy=False),
        weighted=_weighted,
        joined=np.concatenate,
        block=_BLOCK,
    )


def _weighted(counters: np.ndarray[Any, Any], table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In pieces: a sum of many float32 in a row loses digits."""
    parts = []
    for start in range(0, len(table), _PIECE):
        end = start + _PIECE
        parts.append(np.einsum("nmk,mk->nk", counters[:, start:end], table[start:end]))
    total: np.ndarray[Any, Any] = parts[0] if len(parts) == 1 else np.sum(parts, axis=0)
    return total


_NARROW, _WIDE = _of_arrays(np.float32), _of_arrays(np.float64)


def memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """Dimensions in the order in which they lie in memory, the slowest first: a transposed tensor is not copied."""
    return tuple(sorted(range(len(strides)), key=lambda dimension: -abs(strides[dimension])))


def row_of(array: np.ndarray[Any, Any], *, largest: float | None = None) -> SketchRow:
    """The sketch of an array of any shape and numeric dtype (bfloat16 and float8 through ml_dtypes too).

    Elements are multiplied in float32, those of 64 bits and integers of 32 in float64. `largest` is the largest
    magnitude, where it is known.

    Raises:
        ValueError: it holds no numbers.
    """
    if array.dtype.kind in WITHOUT_NUMBERS:
        raise ValueError(f"an array of {array.dtype} holds no numbers")
    if array.size == 0:
        return SketchRow(np.zeros(NUMBERS, np.float32))
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    order = None if array.flags.c_contiguous else memory_order(array.strides)
    flat = array.reshape(-1) if order is None else array.transpose(order).reshape(-1)
    plan = plan_of(array.shape, order)
    if array.dtype.kind in "biu":
        return SketchRow(_folded(flat, plan, is_wide=array.dtype.itemsize > 2))
    if largest is None:
        with np.errstate(all="ignore"):
            largest = max(abs(float(np.maximum.reduce(flat))), abs(float(np.minimum.reduce(flat))))
    if LEAST < largest < MOST or largest == 0.0:
        return SketchRow(_folded(flat, plan, is_wide=array.dtype == np.float64))
    with np.errstate(all="ignore"):
        return _row_of_extremes(flat.astype(np.float64), plan)


def exponent_of(largest: float) -> int:
    """Return the exponent of a sketch of elements up to the magnitude `largest`."""
    return 0 if LEAST < largest < MOST or largest == 0.0 else math.frexp(largest)[1]


def _row_of_extremes(flat: np.ndarray[Any, Any], plan: Plan) -> SketchRow:
    """Of elements that are not finite, or whose sums may leave the range of float32."""
    masks = (np.isnan(flat), flat == np.inf, flat == -np.inf)
    nan, above, below = (int(np.count_nonzero(mask)) for mask in masks)
    flat = np.where(np.isfinite(flat), flat, 0.0)
    exponent = exponent_of(float(np.abs(flat).max()))
    return SketchRow(_folded(np.ldexp(flat, -exponent), plan, is_wide=True), exponent, (nan, above, below))


def _folded(flat: np.ndarray[Any, Any], plan: Plan, *, is_wide: bool) -> np.ndarray[Any, Any]:
    for rows, length, padded, columns in plan.pads:
        zeros = np.zeros((rows, padded - length, columns), flat.dtype)
        flat = np.concatenate([flat.reshape(rows, length, columns), zeros], axis=1).reshape(-1)
    numbers: np.ndarray[Any, Any] = (_WIDE if is_wide else _NARROW).fold(flat, plan).astype(np.float32)
    return numbers
