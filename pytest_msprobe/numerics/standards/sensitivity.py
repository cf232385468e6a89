"""How strongly an output answers to rounding errors of its inputs, from benchmark results for perturbed inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Two perturbations move an element that hangs on one input by the same amount, up to terms of second order.
_SAME = 0.9
_MOSTLY = 0.995
#: By chance one element in 15 does so though it adds up many: fewer than so many elements say nothing.
_FEWEST = 6
_FLOOR = 1.5
#: A jump: what answers to a perturbation far below rounding by more than this share of itself...
_JUMP_OF_VALUE = 2.0**-8
#: ... and by more than this share of its answer to a perturbation 2**12 times as large.
_JUMP_OF_CHANGE = 2.0**-5
#: An output is constant between jumps when no larger share of its elements answers...
_FEW_ANSWER = 0.2
#: ... and those that answer by more than this share of themselves are at a jump.
_JUMP_OF_CONSTANT = 2.0**-4


@dataclass(frozen=True, slots=True)
class Typical:
    """The typical change of an element for one rounding error.

    Attributes:
        absolute: in the unit of the output, where changes are about as large everywhere; else 0.
        relative: relative to the element, where that is the more uniform; else 0.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def floor(self, magnitude: Floats) -> Floats:
        """Typical change of elements of these magnitudes |b|, in their unit; both shape (n,), float64."""
        return self.absolute + self.relative * magnitude


class Typicals:
    """Gathers changes, chunk by chunk, for their geometric mean.

    One element with a huge change must not raise the floor under all the others.
    """

    def __init__(self) -> None:
        self.count = 0
        self._absolute = np.zeros(2)
        self._relative = np.zeros(2)

    def add(self, magnitude: Floats, change: Floats) -> None:
        """Take a chunk of |b| and changes into account, both shape (n,), float64, in the unit of the output.

        A change that is 0 or NaN, or an element that is 0 or infinite, does not count.
        """
        used = (change > 0) & (magnitude > 0) & np.isfinite(magnitude)
        logarithms = np.log(change[used])
        self.count += logarithms.size
        self._absolute += logarithms.sum(), np.square(logarithms).sum()
        logarithms -= np.log(magnitude[used])
        self._relative += logarithms.sum(), np.square(logarithms).sum()

    def settled(self) -> Typical:
        """The typical change, once all chunks are in: absolute or relative, whichever varies less."""
        if not self.count:
            return Typical()
        absolute, relative = (sums / self.count for sums in (self._absolute, self._relative))
        if relative[1] - relative[0] ** 2 < absolute[1] - absolute[0] ** 2:
            return Typical(relative=math.exp(relative[0]))
        return Typical(absolute=math.exp(absolute[0]))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What is known of the whole output.

    Attributes:
        is_single: each element answers to one input element only, so that changes cannot have cancelled by chance.
        typical: the typical change of an element where it is not.
        slope: how much the output as a whole is scaled by a perturbation, relative to 1.
        is_constant: nearly no element answers at all, as those of floor: the few that do sit at a jump.
    """

    is_single: bool
    typical: Typical = Typical()
    slope: float = 0.0
    is_constant: bool = False

    def response(self, magnitude: Floats, changes: Sequence[Floats]) -> Floats:
        """Largest change of each element of a chunk, and no less than typical, shape (n,), float64.

        Args:
            magnitude: |b| of the benchmark's result, shape (n,), float64.
            changes: absolute ones of each run, shape (n,), float64, in the unit of the output per rounding error.
                NaN is unknown, exactly 0 is no change.
        """
        if not changes:
            return np.zeros_like(magnitude)
        # That of the larger of two normal moves is 0.85 standard deviations.
        floor = _FLOOR * self.typical.floor(magnitude)
        largest = _extreme(np.fmax, changes)
        if self.is_constant:
            largest[largest > _JUMP_OF_CONSTANT * magnitude] = math.nan
        # What answers to nothing, such as the zeros of a mask, has no error to expect.
        return np.where(largest == 0, 0.0, np.fmax(largest, floor))


class Scatter:
    """Gathers how the changes are distributed, chunk by chunk."""

    def __init__(self) -> None:
        self._alike = 0
        self._nonzero = 0
        self._changed = 0
        self._typicals = Typicals()
        self._squares = 0.0
        self._projections: list[float] = []

    def add(self, reference: npt.NDArray[Any], moves: Sequence[npt.NDArray[Any]]) -> None:
        """Take a chunk of one or two moves per element into account.

        Args:
            reference: the unperturbed result, shape (n,), float64 or complex128.
            moves: signed changes of each run in the shape, dtype and unit of `reference`; NaN for unknown.
        """
        changes = [np.abs(move) for move in moves]
        largest, smallest = _extreme(np.fmax, changes), _extreme(np.minimum, changes)
        self._changed += int(np.count_nonzero(largest > 0))
        if len(changes) > 1:
            self._alike += int(np.count_nonzero((largest > 0) & (smallest >= _SAME * largest)))
        magnitude = np.abs(reference)
        self._nonzero += int(np.count_nonzero(magnitude))
        is_finite = np.isfinite(magnitude)
        settled = np.where(is_finite, reference, 0)
        self._squares += float(np.vdot(settled, settled).real)
        self._projections = self._projections or [0.0] * len(moves)
        for number, move in enumerate(moves):
            self._projections[number] += float(np.vdot(settled, np.where(np.isnan(move), 0, move)).real)
        self._typicals.add(magnitude, largest)

    def settled(self) -> Sensitivity:
        """The sensitivity of the output, once all chunks are in."""
        slope = max(map(abs, self._projections), default=0.0) / self._squares if self._squares else 0.0
        is_constant = self._changed <= _FEW_ANSWER * self._nonzero
        if is_constant or self._typicals.count == 0 or _is_nearly_all(self._alike, self._changed):
            return Sensitivity(is_single=True, slope=0.0 if is_constant else slope, is_constant=is_constant)
        return Sensitivity(is_single=False, typical=self._typicals.settled(), slope=slope)


def without_jumps(reference: npt.NDArray[Any], moves: Sequence[npt.NDArray[Any]], size: float) -> None:
    """Set `moves` to NaN where an output jumps, as floor does at a whole number: exact inputs need an exact output.

    Args:
        reference: the unperturbed result, shape (n,), float64 or complex128.
        moves: the answers to perturbations of size 1 and of `size`, the second divided by `size`, in the shape, dtype
            and unit of `reference`; changed in place.
        size: much smaller than 1; else jumps cannot be determined.
    """
    large, small = np.abs(moves[0]), np.abs(moves[1]) * size
    jumps = (small > _JUMP_OF_VALUE * np.abs(reference)) & (small > _JUMP_OF_CHANGE * large)
    for move in moves:
        move[jumps] = math.nan


def _is_nearly_all(alike: int, changed: int) -> bool:
    return changed >= _FEWEST and alike >= _MOSTLY * changed


def _extreme(choose: Any, changes: Sequence[Floats]) -> Floats:
    found: Floats = changes[0] if len(changes) == 1 else choose(*changes)
    return found
