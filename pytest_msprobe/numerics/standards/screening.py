"""Which elements of a large output must be looked at: those that may be beyond their tolerance, or stand out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, is_same, widened
from pytest_msprobe.numerics.standards.error_statistics import NOTICEABLE, ErrorStatistics

#: An error within this share of the least that an element is allowed needs no closer look.
_SURELY_WITHIN = 0.8
#: Where a larger share of the elements must be looked at, looking at all takes no longer.
_MOST = 2.0**-10
_MANY = 512


class LeastTolerance(NamedTuple):
    """What every element is allowed at least, by its own |b| and the least that it is known to move.

    Attributes:
        rounding: times |b|, what rounding the element leaves.
        kernel: times |b|, what functions inside may be off by.
        summation: times |b|; and `deviation`, times its standard deviation under one rounding error of every input:
            their root sum of squares.
    """

    rounding: float
    kernel: float
    summation: float
    deviation: float

    def shares(self, share: float, magnitude: Floats, deviations: Floats) -> Floats:
        """A share of what each element of a chunk is allowed at least."""
        found: Floats = np.square((share * self.deviation) * deviations, dtype=np.float64)
        found += np.square((share * self.summation) * magnitude)
        np.sqrt(found, out=found)
        found += (share * (self.rounding + self.kernel)) * magnitude
        return found


def in_question(pair: OutputPair, least: Floats, allowed: LeastTolerance, sample: ErrorStatistics) -> Array | None:
    """Flat positions of the elements of `pair` to be looked at; None where these are too many.

    Args:
        pair: of floats.
        least: no more than the standard deviation of each element, shape (n,), float32, finite.
        allowed: what these allow.
        sample: errors of a sample of all elements, among which one may stand out.
    """
    found: list[Array] = []
    count = 0
    with np.errstate(invalid="ignore", over="ignore"):
        for start, (tested, reference, deviations) in chunks(pair.tested, pair.reference, least):
            places = _in_question(widened(tested), reference, deviations, allowed, sample)
            count += places.size
            if count > max(_MANY, _MOST * pair.tested.size):
                return None
            found.append(start + places)
    together: Array = np.concatenate(found)
    return together


def _in_question(
    tested: Array, reference: Array, deviations: Floats, allowed: LeastTolerance, sample: ErrorStatistics
) -> Array:
    error = tested - reference
    np.abs(error, out=error)
    magnitude = np.abs(reference)
    bound = allowed.shares(_SURELY_WITHIN, magnitude, deviations)
    is_within = error <= bound
    is_within &= error <= sample.least_outlier
    # What is not a number is within nothing.
    places = np.flatnonzero(~is_within)
    error, bound, magnitude = error[places], bound[places], magnitude[places]
    is_far = sample.may_stand_out(error, allowed.rounding * magnitude) & (error > NOTICEABLE * bound)
    is_meant = ~(error <= bound) | is_far
    places = places[is_meant]
    found: Array = places[~is_same(tested[places], reference[places])]
    return found
