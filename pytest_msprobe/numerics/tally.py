"""The running figures of a comparison, fed chunk by chunk; positions are flat, values stay in the arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.cosine import CosineSums
from pytest_msprobe.numerics.ulp import FloatFormat, largest_ulp_error

# Stands for |b| in the relative error where b is 0 (msProbe's formula, kept).
_ZERO_REFERENCE = 1e-8


class RunningMetrics:
    """Maxima with their flat positions (None while nothing differs), counts, and the sums of the cosine.

    Chunks that are the same on both sides are only noted, in `equal_at`: most cosines are 1 without their sums.
    """

    __slots__ = (
        "equal_at",
        "format",
        "integer_tolerance",
        "max_abs",
        "max_rel",
        "max_ulp",
        "nonfinite_at",
        "nonfinite_mismatches",
        "off_bound",
        "off_count",
        "sums",
        "unequal_at",
        "unequal_count",
        "worst_at",
        "worst_relative_at",
    )

    def __init__(self, off_bound: float, format_: FloatFormat | None, integer_tolerance: int = 0) -> None:
        self.off_bound = off_bound
        self.integer_tolerance = integer_tolerance
        self.format = format_
        self.sums = CosineSums()
        self.equal_at: list[int] = []
        #: A Python int for integers: the difference of two int64 may exceed both int64 and what float64 tells apart.
        self.max_abs: int | float = 0
        self.max_rel = 0.0
        self.max_ulp = 0.0
        self.worst_at: int | None = None
        self.worst_relative_at: int | None = None
        self.off_count = 0
        self.nonfinite_mismatches = 0
        self.nonfinite_at: int | None = None
        self.unequal_count = 0
        self.unequal_at: int | None = None

    def add_inexact(self, start: int, tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
        """Adds a chunk of float64 or complex128 values, the reference already rounded."""
        difference = np.abs(tested - reference)
        at = int(difference.argmax())
        if not difference.item(at) < math.inf:
            tested, reference, mismatches = settle_nonfinite(tested, reference)
            difference = np.abs(tested - reference)
            self._add_nonfinite(start, difference, mismatches)
            at = int(difference.argmax())
        self.sums.add(tested, reference)
        largest: float = difference.item(at)
        if largest == 0:
            return
        self._raise_max_abs(largest, start + at)
        if largest >= self.off_bound:
            self.off_count += int(np.count_nonzero(difference >= self.off_bound))
        magnitude = np.abs(reference)
        if self.format is not None:
            self.max_ulp = max(self.max_ulp, largest_ulp_error(difference, magnitude, self.format))
        self._add_relative(start, difference, magnitude)

    def add_exact(self, start: int, tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
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
        self._raise_max_abs(int(difference.item(at)), start + at)
        self._add_relative(start, difference.astype(np.float64), np.abs(wide_reference))

    def _raise_max_abs(self, largest: float, at: int) -> None:
        if largest > self.max_abs:
            self.max_abs, self.worst_at = largest, at

    def _add_nonfinite(
        self, start: int, difference: npt.NDArray[np.float64], mismatches: npt.NDArray[np.bool_]
    ) -> None:
        count = int(np.count_nonzero(mismatches))
        if count and self.nonfinite_at is None:
            self.nonfinite_at = start + int(mismatches.argmax())
        self.nonfinite_mismatches += count
        difference[mismatches] = math.inf

    def _add_relative(
        self, start: int, difference: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64]
    ) -> None:
        if magnitude.item(int(magnitude.argmin())) == 0:
            magnitude[magnitude == 0] = _ZERO_REFERENCE
        relative = np.divide(difference, magnitude, out=magnitude)
        at = int(relative.argmax())
        largest: float = relative.item(at)
        if largest > self.max_rel:
            self.max_rel, self.worst_relative_at = largest, start + at


def settle_nonfinite(
    tested: npt.NDArray[Any], reference: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Copies with 0 on both sides wherever one side is not finite, and the mask of those places that disagree.

    NaN agrees with NaN, inf with inf of the same sign. A complex number is NaN when either part is.
    """
    nonfinite = ~(np.isfinite(tested) & np.isfinite(reference))
    agree = (tested == reference) | (np.isnan(tested) & np.isnan(reference))
    return np.where(nonfinite, 0, tested), np.where(nonfinite, 0, reference), nonfinite & ~agree


def integer_difference(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> npt.NDArray[Any]:
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
