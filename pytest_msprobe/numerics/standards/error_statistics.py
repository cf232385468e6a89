"""How the errors of one output compare with their tolerances: the whole, the worst one, and one that stands out.

Of a large output only elements are looked at that may be beyond their tolerance, or stand out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, inner, is_same, widened

#: Fewer elements than this say nothing about a mean, ...
FEW = 8
#: ... or about a distribution.
_LARGE = 32
#: Largest of a million normal errors over their root mean square: 5. Twice that is not chance.
STANDS_OUT = 10.0
#: What is within so many roundings of the benchmark may be right, however accurate the others are.
_HARMLESS = 8.0
#: ... and so may be what uses up no more than this share of its tolerance: rows of one tensor differ in accuracy.
NOTICEABLE = 0.2
#: An element that answers to its inputs by less than this share of its rounding does not show how accurate others are.
_INFORMATIVE = 0.25
#: Where the largest error just meets its tolerance by chance, at five standard deviations, the root mean square is 0.2.
_USED_UP = 0.5


class ErrorStatistics:
    """How the errors of one output compare with their tolerances: the worst, the outlier, the whole.

    Attributes:
        beyond: number of elements beyond their tolerance.
        largest_use, worst_at: largest error over tolerance, and its flat position; 0 and 0 while there is no error.
        largest_at: flat position of the largest error.
    """

    def __init__(self, chosen: int = 0) -> None:
        """Nothing added; the first `chosen` elements are no measure of others."""
        self._chosen = chosen
        self.beyond = 0
        self.largest_use, self.worst_at = 0.0, 0
        self.largest_at = 0
        self._largest = np.zeros(3)
        self._use_of_largest = 0.0
        self._informative = 0
        self._count = 0
        self._uses = 0.0
        self._squared_errors = np.zeros(3)
        self._projection = 0.0
        self._squares = 0.0

    def add(self, start: int, error: Floats, bounds: tuple[Floats, Floats, Floats]) -> None:
        """Take a chunk into account, whose first element stands at the flat position `start`.

        Args:
            start: flat position.
            error: |t-b| of each element, shape (n,), float64, in the unit of the output.
            bounds: rounding of each element, its response to the inputs, and its tolerance, each like `error`.
        """
        rounding, response, tolerance = bounds
        use = error / tolerance
        self.beyond += int(np.count_nonzero(use > 1))
        at = int(use.argmax())
        if use.item(at) > self.largest_use:
            self.largest_use, self.worst_at = use.item(at), start + at
        sample = slice(max(0, self._chosen - start), None)
        self._count += use[sample].size
        self._uses += inner(use[sample], use[sample])
        is_informative = response >= _INFORMATIVE * rounding
        telling = np.where(is_informative, error, 0.0)
        self._informative += int(np.count_nonzero(is_informative[sample]))
        # The errors as they are, in roundings of the element, and in answers to the inputs.
        errors = telling, telling / rounding, telling / (response + rounding)
        self._squared_errors += [inner(scaled[sample], scaled[sample]) for scaled in errors]
        at = int(telling.argmax())
        if telling.item(at) > max(self._largest[0], _HARMLESS * rounding.item(at)):
            self._largest, self.largest_at = np.asarray([scaled[at] for scaled in errors]), start + at
            self._use_of_largest = use.item(at)

    def add_projection(self, start: int, reference: Array, tested: Array) -> None:
        """Take a chunk into account for `slope` and `size`, whose first element stands at the flat position `start`.

        Args:
            start: flat position.
            reference: values of the benchmark, shape (n,), float64 or complex128; what is not finite does not count.
            tested: values of the device, of the same shape and dtype.
        """
        sample = slice(max(0, self._chosen - start), None)
        reference, tested = reference[sample], tested[sample]
        is_finite = np.isfinite(reference) & np.isfinite(tested)
        finite = np.where(is_finite, reference, 0)
        error = np.where(is_finite, tested, 0) - finite
        self._projection += inner(finite, error)
        self._squares += inner(finite, finite)

    @property
    def least_outlier(self) -> float:
        """No smaller error stands out among these."""
        return float(self._far()[0])

    def may_stand_out(self, error: Floats, rounding: Floats) -> npt.NDArray[np.bool_]:
        """Where errors are far from these ones, absolutely and in roundings: all that could be outliers among them."""
        far = self._far()
        is_far: npt.NDArray[np.bool_] = (error > far[0]) & (error > max(_HARMLESS, far[1]) * rounding)
        return is_far

    def stand_out(self, error: Floats, rounding: Floats, response: Floats) -> npt.NDArray[np.bool_]:
        """Where errors are as far from the others as one that `outlier_over_chance` finds, by all three ratios.

        The arguments are those of `add`.
        """
        far = STANDS_OUT * np.sqrt(self._squared_errors / max(1, self._informative))
        is_far: npt.NDArray[np.bool_] = (error > far[0]) & (error > far[1] * rounding)
        is_far &= (error > far[2] * (response + rounding)) & (response >= _INFORMATIVE * rounding)
        return is_far

    def _far(self) -> Floats:
        far: Floats = STANDS_OUT / 2 * np.sqrt(self._squared_errors / max(1, self._informative))
        return far

    @property
    def is_measure(self) -> bool:
        """Whether enough elements show how accurate others are."""
        return self._informative >= _LARGE

    @property
    def largest_error(self) -> float:
        """The error of the element at `largest_at`."""
        return float(self._largest[0])

    @property
    def is_large(self) -> bool:
        """Whether there are enough elements to look at them as a whole."""
        return self._count >= _LARGE

    @property
    def outlier_over_chance(self) -> float:
        """How many times as far as chance allows the largest error is beyond the others; 0 where that says nothing.

        It is the least of three ratios to the root mean square of the others, each of which rules out a false alarm:

        - the error as it is: an element whose rounding is small because it cancels, or whose answer is small by chance;
        - the error in roundings of the element: a large element among small ones, in an output of a wide range;
        - the error in answers to the inputs: an element that hangs on its inputs more than the others do.

        It must also use up a good part of its own tolerance.
        """
        if not self.is_measure or self._use_of_largest <= NOTICEABLE:
            return 0.0
        is_counted = self.largest_at >= self._chosen
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = np.maximum(0, self._squared_errors - is_counted * self._largest**2)
            others = np.sqrt(squares / max(1, self._informative - is_counted))
            return float((self._largest / (STANDS_OUT * others)).min())

    @property
    def rms_of_tolerance(self) -> float:
        """Root mean square of error over tolerance."""
        return math.sqrt(self._uses / max(1, self._count))

    @property
    def rms_over_chance(self) -> float:
        """`rms_of_tolerance` over what chance allows; 0 for too few elements."""
        return self.rms_of_tolerance / _USED_UP if self._count >= FEW else 0.0

    @property
    def size(self) -> float:
        """Root mean square of the benchmark's finite elements."""
        return math.sqrt(self._squares / max(1, self._count))

    @property
    def slope(self) -> float:
        """The part of the error that is a scaling of the whole output, relative to 1."""
        return self._projection / self._squares if self._squares > 0 else 0.0


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
