"""The standard `backward-error`: is the output the exact result of inputs that are off by a few rounding errors?

docs/standards.md derives the model, states its assumptions and says where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS
from pytest_msprobe.numerics.metrics import Element, Metrics, unravelled
from pytest_msprobe.numerics.standards.elements import judge_plain, settled
from pytest_msprobe.numerics.standards.excess import Excess
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.standards.sensitivity import Scatter, Sensitivity, without_jumps
from pytest_msprobe.numerics.ulp import FloatFormat, float_format, part_dtype, unit_roundoff
from pytest_msprobe.numerics.wording import count_of, number, position, values

Floats = npt.NDArray[np.float64]
_FLOAT32_ROUNDOFF = 2.0**-24
#: Five standard deviations of the error of summing n terms one by one are 5 * 0.3 * sqrt(n) * u times their norm.
_SUMMATION = 1.5
_TINY = 2.0**-1022
_FLUSHED_BELOW = 2.0**-126


@dataclass(frozen=True, slots=True)
class BackwardError:
    """Passes when every element is within its own tolerance, made of rounding, sensitivity and summation.

    Beyond that, a tensor must not use up its tolerance as a whole, nor may one element stand out among accurate ones.
    Integers and bools must be equal, NaN must stand where the benchmark has NaN, and Inf where it is infinite or at the
    end of the dtype's range. An empty output on both sides passes.

    Attributes:
        sensitivity: how many times the response to one rounding error of every input is allowed.
        single_sensitivity: the same where an element answers to one input only, so that nothing adds up by chance.
        rounding: ulps of the output that are allowed whatever the inputs.
    """

    sensitivity: float = 5.0
    single_sensitivity: float = 3.0
    rounding: float = 1.0

    name: ClassVar[str] = "backward-error"
    #: Elements are off by their own tolerance, not by one bound for all.
    off_bound: ClassVar[float] = math.inf

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements: within 1 ulp."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output; asks for perturbed results only where rounding does not explain the error."""
        metrics = pair.metrics
        verdict = settled(metrics)
        if verdict is not None:
            return verdict
        if not metrics.nonfinite_mismatches and metrics.max_ulp is not None and metrics.max_ulp <= self.rounding:
            return Judgement("pass")
        found = _Search(pair, self).fault()
        return Judgement("pass") if found is None else Judgement("error", (found,))


class _Search:
    """Looks for what no rounding explains in one output."""

    def __init__(self, pair: OutputPair, standard: BackwardError) -> None:
        self._pair = pair
        self._standard = standard
        self._format = float_format(part_dtype(pair.tested.dtype))
        self._roundoff = unit_roundoff(pair.tested.dtype)
        self._perturbed = pair.perturbed()
        self._sensitivity = self._settled_sensitivity()
        self._computing = self._computing_roundoff()

    def fault(self) -> str | None:
        """What is wrong, in one sentence; None when rounding explains every error."""
        excess = Excess()
        for start, tested, reference, moves in self._chunks():
            magnitude = np.abs(reference)
            magnitude[np.isnan(magnitude)] = 0
            rounding = 2 * self._standard.rounding * self._roundoff * magnitude + _flushed(self._format)
            response = self._sensitivity.response(magnitude, [np.abs(move) for move in moves])
            excess.add(start, _error(tested, reference), (rounding, response, self._tolerance(magnitude, response)))
            excess.add_projection(reference, tested)
        if excess.beyond:
            return self._beyond(excess)
        if excess.is_standing_out:
            return f"One element stands out{self._place(excess.largest_at)}: all others are far more accurate than it."
        if excess.is_used_up:
            return f"The errors are {number(excess.used)} of their tolerances on average, where chance leaves 0.3."
        limit = 2 * self._standard.rounding * self._roundoff + self._computing
        limit += self._standard.sensitivity * self._sensitivity.slope + _flushed(self._format) / max(excess.size, _TINY)
        if excess.is_large and abs(excess.slope) > limit:
            return (
                f"The output is {number(1 + excess.slope)} times the benchmark as a whole; rounding leaves {limit:.2g}."
            )
        return None

    def _beyond(self, excess: Excess) -> str:
        verb = "is" if excess.beyond == 1 else "are"
        times = f"{number(excess.worst)} times" if excess.worst < math.inf else "beyond"
        caveat = "" if self._perturbed else " of rounding alone, as the benchmark did not run on perturbed inputs"
        return (
            f"{count_of(excess.beyond, self._pair.tested.size)} {verb} further off than rounding of inputs and output "
            f"explains, worst{self._place(excess.worst_at)}: {times} its tolerance{caveat}."
        )

    def _place(self, at: int) -> str:
        tested, reference = self._pair.tested, self._pair.reference
        element = Element(unravelled(at, tested.shape), tested.item(at), reference.item(at))
        return f"{position(element)} ({values(element)})"

    def _tolerance(self, magnitude: Floats, response: Floats) -> Floats:
        is_single = self._sensitivity.is_single
        tolerance: Floats = (self._standard.single_sensitivity if is_single else self._standard.sensitivity) * response
        tolerance += self._computing * (response / self._roundoff + magnitude)
        tolerance += 2 * self._standard.rounding * self._roundoff * magnitude
        return tolerance + _flushed(self._format)

    def _settled_sensitivity(self) -> Sensitivity:
        scatter = Scatter()
        if self._perturbed:
            for _, _, reference, moves in self._chunks():
                scatter.add(reference, moves)
        return scatter.settled()

    def _computing_roundoff(self) -> float:
        """Relative error of the terms of an element: their summation and the functions that they are made with."""
        # float64 is computed with better functions than the wide ones of shorter types.
        kernel = self._pair.kernel_error if self._roundoff >= _FLOAT32_ROUNDOFF else 0.0
        if self._sensitivity.is_single:
            return kernel
        return kernel + _SUMMATION * math.sqrt(self._pair.accumulated) * min(self._roundoff, _FLOAT32_ROUNDOFF)

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]]]:
        """Flat start, tested and reference values in reach of the dtype, and the moves for each perturbation."""
        wide = np.complex128 if self._pair.tested.dtype.kind == "c" else np.float64
        results = (perturbed.result for perturbed in self._perturbed)
        flat = [array.reshape(-1) for array in (self._pair.tested, self._pair.reference, *results)]
        for start in range(0, flat[0].size, CHUNK_ELEMENTS):
            tested, reference, *others = (array[start : start + CHUNK_ELEMENTS].astype(wide) for array in flat)
            yield start, self._in_reach(tested), self._in_reach(reference), self._moves(reference, others)

    def _moves(self, reference: npt.NDArray[Any], others: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        moves = []
        with np.errstate(invalid="ignore"):
            for other, perturbed in zip(others, self._perturbed):
                move = (other - reference) / perturbed.size
                move[~np.isfinite(move)] = math.nan  # a perturbed input that left the domain tells nothing
                moves.append(move)
        if len(moves) > 1 and self._perturbed[1].size < self._perturbed[0].size:
            without_jumps(reference, moves, self._perturbed[1].size)
        return moves

    def _in_reach(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Infinite stands one spacing beyond the largest value: a finite result there and Inf are neighbours."""
        if array.dtype.kind == "c":
            return array
        limit = self._format.largest + self._format.largest_spacing
        return np.clip(array, -limit, limit)


def _error(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Floats:
    """|t-b|; 0 where both are NaN or the same, inf where one of them is not a number."""
    with np.errstate(invalid="ignore"):
        error: Floats = np.abs(tested - reference)
    error[(tested == reference) | (np.isnan(tested) & np.isnan(reference))] = 0
    error[np.isnan(error)] = math.inf
    return error


def _flushed(format_: FloatFormat) -> float:
    """What may become 0: devices flush what is near the end of a wide exponent range; float16 needs its subnormals."""
    if format_.smallest_normal <= _FLUSHED_BELOW:
        return 4 * format_.smallest_normal
    return format_.smallest_normal * 2.0**-format_.mantissa_bits
