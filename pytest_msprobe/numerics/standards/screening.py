"""Which elements of a large output must be looked at: those that may be beyond their tolerance, or stand out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, is_same, widened
from pytest_msprobe.numerics.standards.error_statistics import NOTICEABLE, ErrorStatistics


class LeastTolerance(NamedTuple):
    """What every element is allowed at least, by its own |b| and the least that it is known to move.

    Attributes:
        rounding: times |b|, what rounding the element leaves.
        kernel: times |b|, what functions inside may be off by.
        summation: times |b|; and `move`, times how far it moves under one rounding error of every input: their root sum
            of squares.
        kernel_of_move: times the same, what functions inside may be off by beside `kernel`.
    """

    rounding: float
    kernel: float
    summation: float
    move: float
    kernel_of_move: float

    def of_chunk(self, magnitude: Floats, moves: Floats) -> Floats:
        """What each element of a chunk is allowed at least, float64."""
        tolerance: Floats = np.square(self.move * moves, dtype=np.float64)
        if self.summation:
            tolerance += np.square(self.summation * magnitude)
        np.sqrt(tolerance, out=tolerance)
        tolerance += (self.rounding + self.kernel) * magnitude
        if self.kernel_of_move:
            tolerance += self.kernel_of_move * moves
        return tolerance


#: How far the elements of a chunk move at least, given its flat start and the benchmark's values.
LeastMoves = Callable[[int, Array], Floats]


def in_question(
    pair: OutputPair, least: LeastMoves, allowed: LeastTolerance, sample: ErrorStatistics, most: int
) -> Array | None:
    """Flat positions of the elements of `pair` to be looked at; None where these are more than `most`.

    Args:
        pair: of floats.
        least: finite.
        allowed: what these moves allow.
        sample: errors of a sample of all elements, among which one may stand out.
        most: so many elements.
    """
    questioned: list[Array] = []
    count = 0
    with np.errstate(invalid="ignore", over="ignore"):
        for start, (tested, reference) in chunks(pair.tested, pair.reference):
            moves = least(start, reference)
            places = _in_question(widened(tested), reference, moves, allowed, sample)
            count += places.size
            if count > most:
                return None
            questioned.append(start + places)
    return np.concatenate(questioned)


def _in_question(
    tested: Array, reference: Array, moves: Floats, allowed: LeastTolerance, sample: ErrorStatistics
) -> Array:
    error = tested - reference
    np.abs(error, out=error)
    magnitude = np.abs(reference)
    bound = allowed.of_chunk(magnitude, moves)
    is_within = error <= bound
    is_within &= error <= sample.least_outlier
    # What is not a number is within nothing.
    places = np.flatnonzero(~is_within)
    error, bound, magnitude = error[places], bound[places], magnitude[places]
    is_far = sample.may_stand_out(error, allowed.rounding * magnitude) & (error > NOTICEABLE * bound)
    is_meant = ~(error <= bound) | is_far
    places = places[is_meant]
    return places[~is_same(tested[places], reference[places])]
