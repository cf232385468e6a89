"""How far a tested output is from its benchmark: one pass in chunks, without a temporary as large as the output.

The cosine is exact: no epsilon that would call tiny opposite vectors alike, no overflow or underflow of squares.
`Metrics`, which is what one comparison yields, holds plain values: old results can be judged again without any array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.dtypes import FloatFormat, Kind, float_format, kind_of, largest_ulp_error, round_unguarded
from pytest_msprobe.numerics.expected import Absolute

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

#: A quarter of a megabyte in float64: the few arrays of a chunk stay in the cache of one core.
CHUNK_ELEMENTS = 1 << 15


def chunks(*arrays: Array, elements: int = CHUNK_ELEMENTS) -> Iterator[tuple[int, list[Array]]]:
    """(flat position of the first element, those elements of each array) of arrays of one size, as flat views."""
    flat = [np.asarray(array).reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, elements):
        yield start, [array[start : start + elements] for array in flat]


def widened(array: Array) -> Array:
    """Return values in float64 or complex128, in the shape of `array`, which it may be itself.

    Memory that a device has not written may hold signalling NaNs, at which NumPy warns.
    """
    with np.errstate(invalid="ignore"):
        return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)


def is_same(first: Array, second: Array) -> npt.NDArray[np.bool_]:
    """Where two arrays of floats or complex numbers are equal, in their shape; NaN equals NaN."""
    same: npt.NDArray[np.bool_] = (first == second) | (np.isnan(first) & np.isnan(second))
    return same


_LONGEST_SERIAL_DOT = 4096


@dataclass(slots=True)
class CosineSums:
    """The three sums of a cosine, collected chunk by chunk.

    Complex numbers count as their two real parts, so the numerator is the real part of the Hermitian product
    sum(b * conj(t)): a device that rotates the phase loses cosine, as one that turns a real vector does.
    """

    tested: float = 0.0
    reference: float = 0.0
    shared: float = 0.0

    def add(self, tested: Array, reference: Array) -> None:
        """Adds a chunk of float64 or complex128 values."""
        self.tested += inner(tested, tested)
        self.reference += inner(reference, reference)
        self.shared += inner(tested, reference)

    def add_equal(self, both: Array) -> None:
        """Adds a chunk that is the same on both sides."""
        square = inner(both, both)
        self.tested += square
        self.reference += square
        self.shared += square

    @property
    def is_reliable(self) -> bool:
        """False when squares overflowed, vanished or met a NaN or Inf, or a side is zero."""
        return all(Absolute.RELIABLE_SQUARES < square < math.inf for square in (self.tested, self.reference))

    def cosine(self) -> float:
        """The cosine, shared / (||tested|| * ||reference||), kept within -1..1."""
        value = self.shared / (math.sqrt(self.tested) * math.sqrt(self.reference))
        return max(-1.0, min(1.0, value))


def _real_parts(values: Array) -> Floats:
    return values if values.dtype == np.float64 else values.view(np.float64)


def inner(first: Array, second: Array) -> float:
    """The real part of the Hermitian product of two vectors, float64 or complex128, in this thread alone.

    np.dot has the least overhead, but on longer vectors BLAS takes threads: they would fight with those of the
    engines, and the last digits would depend on how many there are.
    """
    if first.dtype != np.float64 or second.dtype != np.float64:
        first, second = _real_parts(first), _real_parts(second)
    if first.size <= _LONGEST_SERIAL_DOT:
        return float(np.dot(first, second))
    return float(np.einsum("i,i->", first, second))


@dataclass(slots=True)
class RunningMetrics:
    """Maxima with their flat positions (None while nothing differs), counts, and the sums of the cosine.

    Chunks that are the same on both sides are only noted, in `equal_at`: most cosines are 1 without their sums.
    """

    off_bound: float
    format: FloatFormat | None
    integer_tolerance: int = 0
    #: Stands for |b| in the relative error where b is 0 (msProbe's formula, kept).
    zero_reference: float = Absolute.ZERO_REFERENCE
    #: The error where a NaN or Inf stands on one side only.
    mismatch_error: float = math.inf
    sums: CosineSums = field(default_factory=CosineSums)
    equal_at: list[int] = field(default_factory=list)
    #: A Python int for integers: the difference of two int64 may exceed both int64 and what float64 tells apart.
    max_abs: int | float = 0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    worst_at: int | None = None
    worst_relative_at: int | None = None
    off_count: int = 0
    nonfinite_mismatches: int = 0
    nonfinite_at: int | None = None
    unequal_count: int = 0
    unequal_at: int | None = None

    def add(self, pair: ArrayPair) -> None:
        """Adds two arrays, chunk by chunk."""
        for start, tested, reference in pair.chunks():
            if _is_same_bits(tested, reference):
                self.add_equal(start, tested)
            elif pair.kind in ("float", "complex"):
                self.add_inexact(start, widened(tested), widened(reference))
            else:
                self.add_exact(start, tested, reference)

    def add_equal(self, start: int, both: Array) -> None:
        """Notes a chunk that is the same on both sides, shape (n,), in the dtype of both."""
        self.equal_at.append(start)

    def add_inexact(self, start: int, tested: Array, reference: Array) -> None:
        """Adds a chunk of float64 or complex128 values, both shape (n,), the reference already rounded."""
        tested, reference, error, at = self.without_nonfinite(start, tested, reference)
        self.sums.add(tested, reference)
        largest: float = error.item(at)
        if largest == 0:
            return
        self.raise_max_abs(largest, start + at)
        if largest >= self.off_bound:
            self.off_count += int(np.count_nonzero(error >= self.off_bound))
        magnitude = np.abs(reference)
        if self.format is not None:
            self.max_ulp = max(self.max_ulp, largest_ulp_error(error, magnitude, self.format))
        self.add_relative(start, error, magnitude)

    def without_nonfinite(self, start: int, tested: Array, reference: Array) -> tuple[Array, Array, Floats, int]:
        """(tested, reference, |t-b|, index of the largest) of a chunk, both sides 0 where one of them is not finite.

        Counts where NaN or Inf stand on one side only; the error there is `mismatch_error`.
        """
        error = np.abs(tested - reference)
        at = int(error.argmax())
        if error.item(at) < math.inf:
            return tested, reference, error, at
        tested, reference, mismatches = settle_nonfinite(tested, reference)
        count = int(np.count_nonzero(mismatches))
        if count and self.nonfinite_at is None:
            self.nonfinite_at = start + int(mismatches.argmax())
        self.nonfinite_mismatches += count
        error = np.abs(tested - reference)
        error[mismatches] = self.mismatch_error
        return tested, reference, error, int(error.argmax())

    def add_exact(self, start: int, tested: Array, reference: Array) -> None:
        """Adds a chunk of integers or bools, each side in a dtype of its own."""
        wide_tested, wide_reference = tested.astype(np.float64), reference.astype(np.float64)
        self.sums.add(wide_tested, wide_reference)
        difference = integer_difference(tested, reference)
        if not np.count_nonzero(difference):
            return
        unequal = difference > self.integer_tolerance
        count = int(np.count_nonzero(unequal))
        if count and self.unequal_at is None:
            self.unequal_at = start + int(unequal.argmax())
        self.unequal_count += count
        self.off_count += count
        at = int(difference.argmax())
        self.raise_max_abs(int(difference.item(at)), start + at)
        self.add_relative(start, difference.astype(np.float64), np.abs(wide_reference))

    def raise_max_abs(self, largest: float, at: int) -> None:
        """Takes the largest error of a chunk into account, which stands at the flat position `at`."""
        if largest > self.max_abs:
            self.max_abs, self.worst_at = largest, at

    def add_relative(self, start: int, error: Floats, magnitude: Floats) -> Floats:
        """The relative errors of a chunk from |t-b| and |b|, both shape (n,), float64, in the memory of `magnitude`."""
        if magnitude.item(int(magnitude.argmin())) == 0:
            magnitude[magnitude == 0] = self.zero_reference
        relative = np.divide(error, magnitude, out=magnitude)
        at = int(relative.argmax())
        largest: float = relative.item(at)
        if largest > self.max_rel:
            self.max_rel, self.worst_relative_at = largest, start + at
        return relative

    def metrics(self, pair: ArrayPair, cosine: float | None) -> Metrics:
        """The figures, once all of `pair` is in."""
        return Metrics(
            kind=pair.kind,
            size=pair.tested.size,
            cosine=cosine,
            max_abs=float(self.max_abs),
            max_rel=self.max_rel,
            max_ulp=self.max_ulp if self.format is not None else None,
            worst=pair.element(self.worst_at),
            worst_relative=pair.element(self.worst_relative_at),
            off_count=self.off_count,
            off_bound=self.off_bound,
            nonfinite_mismatches=self.nonfinite_mismatches,
            first_nonfinite=pair.element(self.nonfinite_at),
            unequal_count=self.unequal_count,
            first_unequal=pair.element(self.unequal_at),
        )


def settle_nonfinite(tested: Array, reference: Array) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
    """Copies with 0 on both sides wherever one side is not finite, and the mask of those places that disagree.

    NaN agrees with NaN, inf with inf of the same sign. A complex number is NaN when either part is.
    """
    nonfinite = ~(np.isfinite(tested) & np.isfinite(reference))
    mismatches = nonfinite & ~is_same(tested, reference)
    return np.where(nonfinite, 0, tested), np.where(nonfinite, 0, reference), mismatches


def integer_difference(tested: Array, reference: Array) -> Array:
    """Exact |t-b| of integers or bools, as uint64; as Python ints where uint64 meets a signed dtype."""
    common = _common_integer(tested.dtype, reference.dtype)
    tested, reference = tested.astype(common), reference.astype(common)
    higher, lower = np.maximum(tested, reference), np.minimum(tested, reference)
    if common.kind == "O":
        return np.asarray(higher - lower, dtype=object)
    # The true difference is below 2**64, so what wraps around in uint64 wraps back to it.
    return higher.astype(np.uint64) - lower.astype(np.uint64)


def _common_integer(tested: np.dtype[Any], reference: np.dtype[Any]) -> np.dtype[Any]:
    widest = np.dtype(np.uint64)
    if widest not in (tested, reference):
        return np.dtype(np.int64)
    both_unsigned = tested.kind in "bu" and reference.kind in "bu"
    return widest if both_unsigned else np.dtype(object)


Scalar: TypeAlias = bool | int | float | complex | str | None


@dataclass(frozen=True, slots=True)
class Element:
    """One place in an output with both values there, as Python scalars.

    `index` is a multi-dimensional index, () for a 0-d array; for Python values it is the path through the nested
    sequences. `reference` is the benchmark's value as compared, that is already rounded to the tested dtype.
    """

    index: tuple[int, ...]
    tested: Scalar
    reference: Scalar


def unravelled(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element at a flat position (np.unravel_index, a tenth of its time)."""
    index = []
    for length in reversed(shape):
        at, place = divmod(at, length)
        index.append(place)
    return tuple(reversed(index))


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far a tested output is from its benchmark; t and b are the two values of one element.

    A figure that does not apply is None: all of them for a structural mismatch or an empty output.
    """

    kind: Kind
    size: int
    #: sum(b*t) / (||b|| * ||t||); NaN when a NaN or Inf stands on one side only.
    cosine: float | None = None
    #: max |b-t|; inf when a NaN or Inf stands on one side only.
    max_abs: float | None = None
    #: max |b-t| / (|b|, or 1e-8 where b is 0).
    max_rel: float | None = None
    #: max |b-t| / (spacing of the tested dtype at b); only for floats.
    max_ulp: float | None = None
    #: The element of `max_abs`, the first one of equals; None when nothing differs.
    worst: Element | None = None
    #: The element of `max_rel`.
    worst_relative: Element | None = None
    #: Elements with |b-t| >= `off_bound`; of integers, bools and strings those that differ at all.
    off_count: int = 0
    off_bound: float | None = None
    #: Places where a NaN or Inf is not matched by the same on the other side.
    nonfinite_mismatches: int = 0
    first_nonfinite: Element | None = None
    #: Elements that had to be equal (integers, bools, strings, indices) and are not.
    unequal_count: int = 0
    first_unequal: Element | None = None
    #: Why the first unequal element is wrong, where that is not plain from its values.
    unequal_note: str = ""
    #: Why nothing could be measured: shapes, kinds or types disagree.
    structural: str | None = None

    @property
    def is_exact(self) -> bool:
        """True when elements must be equal and no tolerance applies."""
        return self.kind not in ("float", "complex")

    @property
    def is_empty(self) -> bool:
        """True when both sides agree that there is no element."""
        return self.size == 0 and self.structural is None


_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def measure(
    tested: Array,
    reference: Array,
    *,
    off_bound: float,
    integer_tolerance: int = 0,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Metrics:
    """The figures of `tested` against `reference`, the benchmark's raw result.

    A float64 or complex128 reference is first rounded once to the tested dtype: what a perfect device would return.

    - Shapes or kinds (bool, int, float, complex) that disagree: `structural` says so, every figure is None.
    - No element: every figure is None. 0-d: as one element, cosine 1 or -1.
    - Equal everywhere, both all zero included: cosine 1, the errors 0. Exactly one side all zero: cosine 0.
    - NaN against NaN and inf against the same inf are left out and the rest is measured. Any other NaN or inf is
      counted and located; then cosine is NaN and the largest errors are inf.
    - Integers and bools: |b-t| is exact in every width, the cosine is that of their float64 values, no ULP error.
    - Complex: |b-t| is the modulus, the cosine takes the real part of the Hermitian product, no ULP error.
    - float64 differences beyond its range: inf, at the element where it happens.

    `off_bound` (> 0) is the |b-t| from which on an element counts as off. Integers that are apart by no more than
    `integer_tolerance` count as equal; their errors are measured all the same.

    Raises:
        ValueError: `off_bound` is not above 0.
    """
    if not off_bound > 0:
        raise ValueError(
            f"off_bound must be above 0, not {off_bound!r}: it is the error from which elements count as off"
        )
    kind = kind_of(tested.dtype)
    structural = structural_mismatch(tested, reference)
    if structural or tested.size == 0:
        return Metrics(kind, tested.size, off_bound=off_bound, structural=structural)
    pair = ArrayPair(np.asarray(tested), np.asarray(reference), kind, chunk_elements)
    running = RunningMetrics(off_bound, float_format(tested.dtype) if kind == "float" else None, integer_tolerance)
    with np.errstate(all="ignore"):
        running.add(pair)
        return running.metrics(pair, _cosine(pair, running))


def structural_mismatch(tested: Array, reference: Array) -> str | None:
    """Why two arrays cannot be compared element by element, or None when they can."""
    if tested.shape != reference.shape:
        return f"Shapes differ: tested {tested.shape}, benchmark {reference.shape}."
    kind = kind_of(tested.dtype)
    if kind != kind_of(reference.dtype):
        return f"Element kinds differ: tested {tested.dtype}, benchmark {reference.dtype}."
    return f"Elements of dtype {tested.dtype} cannot be measured." if kind == "other" else None


@dataclass(frozen=True, slots=True)
class ArrayPair:
    """Two non-empty arrays of one shape and kind.

    Attributes:
        tested, reference: values of both sides, in their own dtypes.
        is_rounded: whether the reference counts as rounded once to the tested dtype, or as it is.
    """

    tested: Array
    reference: Array
    kind: Kind
    chunk_elements: int = CHUNK_ELEMENTS
    is_rounded: bool = True

    def chunks(self) -> Iterator[tuple[int, Array, Array]]:
        """Flat start, tested values and reference values of each chunk."""
        for start, (tested, reference) in chunks(self.tested, self.reference, elements=self.chunk_elements):
            yield start, tested, self._rounded(reference)

    def finite_chunks(self) -> Iterator[tuple[Array, Array]]:
        """Wide values of both sides, 0 wherever one of them is not finite."""
        for _, tested, reference in self.chunks():
            wide_tested, wide_reference, _ = settle_nonfinite(widened(tested), widened(reference))
            yield wide_tested, wide_reference

    def element(self, at: int | None) -> Element | None:
        """The element at a flat position."""
        if at is None:
            return None
        reference = self._rounded(self.reference.flat[at : at + 1])
        return Element(unravelled(at, self.tested.shape), self.tested.item(at), reference.item())

    def _rounded(self, reference: Array) -> Array:
        return round_unguarded(reference, self.tested.dtype) if self.is_rounded else reference


def _is_same_bits(tested: Array, reference: Array) -> bool:
    if tested.dtype != reference.dtype:
        return False
    bits = _BITS.get(tested.dtype.itemsize, np.uint64)
    return not np.count_nonzero(tested.view(bits) != reference.view(bits))


def _cosine(pair: ArrayPair, running: RunningMetrics) -> float:
    if running.nonfinite_mismatches:
        return math.nan
    if running.max_abs == 0:
        return 1.0
    tested = pair.tested.reshape(-1)
    for start in running.equal_at:
        running.sums.add_equal(widened(tested[start : start + pair.chunk_elements]))
    if running.sums.is_reliable:
        return running.sums.cosine()
    return _scaled_cosine(pair)


def _scaled_cosine(pair: ArrayPair) -> float:
    """The cosine of finite values of any magnitude: each side is first divided by its own largest |part|.

    Both sides all zero: 1. Exactly one side all zero: 0, because the angle is undefined and an output that was lost, or
    made up, must not pass for similar.
    """
    largest = [0.0, 0.0]
    for sides in pair.finite_chunks():
        largest = [max(before, float(np.abs(_real_parts(side)).max())) for before, side in zip(largest, sides)]
    if 0 in largest:
        return 1.0 if largest[0] == largest[1] else 0.0
    sums = CosineSums()
    for tested, reference in pair.finite_chunks():
        sums.add(_real_parts(tested) / largest[0], _real_parts(reference) / largest[1])
    return sums.cosine()
