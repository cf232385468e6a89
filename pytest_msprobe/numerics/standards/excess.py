"""How the errors of one output compare with their tolerances: the worst, the outlier, the whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Fewer elements than this say nothing about a mean, ...
_FEW = 8
#: ... or about a distribution.
_LARGE = 32
#: Largest of a million normal errors over their root mean square: 5. Twice that is not chance.
_STANDS_OUT = 10.0
#: What is within so many roundings of the benchmark may be right, however accurate the others are.
_HARMLESS = 8.0
#: ... and so may be what uses up no more than this share of its tolerance: rows of one tensor differ in accuracy.
_NOTICEABLE = 0.2
#: An element that answers to its inputs by less than this share of its rounding does not show how accurate others are.
_INFORMATIVE = 0.25
#: Where the largest error just meets its tolerance by chance, at five standard deviations, the root mean square is 0.2.
_USED_UP = 0.5


class Excess:
    """Gathers errors and tolerances chunk by chunk; positions are flat.

    Attributes:
        beyond: number of elements beyond their tolerance.
        largest_use, worst_at: largest error over tolerance, and its flat position; 0 and 0 while there is no error.
        largest_at: flat position of the largest error.
    """

    def __init__(self) -> None:
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
        self._count += use.size
        self._uses += float(np.square(use).sum())
        self._add_errors(start, error, rounding, response, use)

    def _add_errors(self, start: int, error: Floats, rounding: Floats, response: Floats, use: Floats) -> None:
        """Gather the errors as they are, in roundings of the element, and in answers to the inputs."""
        errors = np.stack([error, error / rounding, error / (response + rounding)])
        is_informative = response >= _INFORMATIVE * rounding
        self._informative += int(np.count_nonzero(is_informative))
        self._squared_errors += np.square(errors[:, is_informative]).sum(axis=1)
        at = int(error.argmax())
        if is_informative[at] and error.item(at) > max(self._largest[0], _HARMLESS * rounding.item(at)):
            self._largest, self.largest_at = errors[:, at], start + at
            self._use_of_largest = use.item(at)

    def add_projection(self, reference: npt.NDArray[Any], tested: npt.NDArray[Any]) -> None:
        """Take a chunk into account for `slope` and `size`.

        Args:
            reference: values of the benchmark, shape (n,), float64 or complex128; what is not finite does not count.
            tested: values of the device, of the same shape and dtype.
        """
        is_finite = np.isfinite(reference) & np.isfinite(tested)
        settled = np.where(is_finite, reference, 0)
        error = np.where(is_finite, tested, 0) - settled
        self._projection += float(np.vdot(settled, error).real)
        self._squares += float(np.vdot(settled, settled).real)

    @property
    def is_large(self) -> bool:
        """Whether there are enough elements to look at them as a whole."""
        return self._count >= _LARGE

    @property
    def is_standing_out(self) -> bool:
        """Whether the largest error is far beyond the others, however they are counted.

        It must be so in three ratios to the root mean square of the others, each of which rules out a false alarm:

        - the error as it is: an element whose rounding is small because it cancels, or whose answer is small by chance;
        - the error in roundings of the element: a large element among small ones, in an output of a wide range;
        - the error in answers to the inputs: an element that hangs on its inputs more than the others do.

        It must also use up a good part of its own tolerance.
        """
        return self.prominence > 1

    @property
    def prominence(self) -> float:
        """How many times as far as chance allows the largest error is beyond the others; 0 where that says nothing."""
        if self._informative < _LARGE or self._use_of_largest <= _NOTICEABLE:
            return 0.0
        others = np.sqrt(np.maximum(0, self._squared_errors - self._largest**2) / max(1, self._informative - 1))
        with np.errstate(divide="ignore"):
            return float((self._largest / (_STANDS_OUT * others)).min())

    @property
    def used(self) -> float:
        """Root mean square of error over tolerance."""
        return math.sqrt(self._uses / max(1, self._count))

    @property
    def is_used_up(self) -> bool:
        """Whether all elements are about as far off as the worst may be."""
        return self.exhaustion > 1

    @property
    def exhaustion(self) -> float:
        """`used` over what chance allows; 0 for too few elements."""
        return self.used / _USED_UP if self._count >= _FEW else 0.0

    @property
    def size(self) -> float:
        """Root mean square of the benchmark's finite elements."""
        return math.sqrt(self._squares / max(1, self._count))

    @property
    def slope(self) -> float:
        """The part of the error that is a scaling of the whole output, relative to 1."""
        return self._projection / self._squares if self._squares > 0 else 0.0
