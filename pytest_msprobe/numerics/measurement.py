"""How far a tested output is from its benchmark: one pass in chunks, without a temporary as large as the output."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.cosine import WidePair, largest_magnitudes, scaled_cosine
from pytest_msprobe.numerics.kinds import Kind, kind_of
from pytest_msprobe.numerics.metrics import Element, Metrics, unravelled
from pytest_msprobe.numerics.rounding import round_unguarded
from pytest_msprobe.numerics.tally import RunningMetrics, settle_nonfinite
from pytest_msprobe.numerics.ulp import float_format

#: A quarter of a megabyte in float64: the few arrays of a chunk stay in the cache of one core.
CHUNK_ELEMENTS = 1 << 15

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def measure(
    tested: npt.NDArray[Any],
    reference: npt.NDArray[Any],
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
    pair = _Pair(np.asarray(tested), np.asarray(reference), kind, chunk_elements)
    with np.errstate(all="ignore"):
        tally = _tally(pair, off_bound, integer_tolerance)
        return _metrics(pair, tally, _cosine(pair, tally))


def structural_mismatch(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> str | None:
    """Why two arrays cannot be compared element by element, or None when they can."""
    if tested.shape != reference.shape:
        return f"Shapes differ: tested {tested.shape}, benchmark {reference.shape}."
    kind = kind_of(tested.dtype)
    if kind != kind_of(reference.dtype):
        return f"Element kinds differ: tested {tested.dtype}, benchmark {reference.dtype}."
    return f"Elements of dtype {tested.dtype} cannot be measured." if kind == "other" else None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two non-empty arrays of one shape and kind."""

    tested: npt.NDArray[Any]
    reference: npt.NDArray[Any]
    kind: Kind
    chunk_elements: int

    def chunks(self) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]]:
        """Flat start, tested values, and reference values rounded to the tested dtype."""
        tested, reference = self.tested.reshape(-1), self.reference.reshape(-1)
        for start in range(0, tested.size, self.chunk_elements):
            stop = start + self.chunk_elements
            yield start, tested[start:stop], round_unguarded(reference[start:stop], tested.dtype)

    def finite_chunks(self) -> Iterator[WidePair]:
        """Wide values of both sides, 0 wherever one of them is not finite."""
        for _, tested, reference in self.chunks():
            wide_tested, wide_reference, _ = settle_nonfinite(self.widened(tested), self.widened(reference))
            yield wide_tested, wide_reference

    def widened(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values as complex128 or float64; a view where they are that already."""
        return values.astype(np.complex128 if self.kind == "complex" else np.float64, copy=False)

    def element(self, at: int | None) -> Element | None:
        """The element at a flat position."""
        if at is None:
            return None
        rounded = round_unguarded(self.reference.flat[at : at + 1], self.tested.dtype)
        return Element(unravelled(at, self.tested.shape), self.tested.item(at), rounded.item())


def _tally(pair: _Pair, off_bound: float, integer_tolerance: int) -> RunningMetrics:
    tally = RunningMetrics(
        off_bound, float_format(pair.tested.dtype) if pair.kind == "float" else None, integer_tolerance
    )
    for start, tested, reference in pair.chunks():
        if _is_same_bits(tested, reference):
            tally.equal_at.append(start)
        elif pair.kind in ("float", "complex"):
            tally.add_inexact(start, pair.widened(tested), pair.widened(reference))
        else:
            tally.add_exact(start, tested, reference)
    return tally


def _is_same_bits(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> bool:
    if tested.dtype != reference.dtype:
        return False
    bits = _BITS.get(tested.dtype.itemsize, np.uint64)
    return not np.count_nonzero(tested.view(bits) != reference.view(bits))


def _cosine(pair: _Pair, tally: RunningMetrics) -> float:
    if tally.nonfinite_mismatches:
        return math.nan
    if tally.max_abs == 0:
        return 1.0
    tested = pair.tested.reshape(-1)
    for start in tally.equal_at:
        tally.sums.add_equal(pair.widened(tested[start : start + pair.chunk_elements]))
    if tally.sums.is_reliable:
        return tally.sums.cosine()
    return scaled_cosine(pair.finite_chunks(), largest_magnitudes(pair.finite_chunks()))


def _metrics(pair: _Pair, tally: RunningMetrics, cosine: float) -> Metrics:
    worst = pair.element(tally.worst_at)
    is_same_place = tally.worst_at == tally.worst_relative_at
    return Metrics(
        kind=pair.kind,
        size=pair.tested.size,
        cosine=cosine,
        max_abs=float(tally.max_abs),
        max_rel=tally.max_rel,
        max_ulp=tally.max_ulp if pair.kind == "float" else None,
        worst=worst,
        worst_relative=worst if is_same_place else pair.element(tally.worst_relative_at),
        off_count=tally.off_count,
        off_bound=tally.off_bound,
        nonfinite_mismatches=tally.nonfinite_mismatches,
        first_nonfinite=pair.element(tally.nonfinite_at),
        unequal_count=tally.unequal_count,
        first_unequal=pair.element(tally.unequal_at),
    )
