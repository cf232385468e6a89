"""The standard `benchmark`: is the device about as accurate as an ordinary run in the same dtype?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.numerics.judgement import Judgement, OutputPair, count_of, limit_above, number
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, is_same
from pytest_msprobe.numerics.standards.elementwise import (
    ERROR_MULTIPLES,
    SECOND_OPINION,
    ElementRule,
    ErrorMultiples,
    SecondOpinionConstants,
)


@dataclass(frozen=True, slots=True)
class AgainstSecondOpinion(ElementRule[SecondOpinionConstants]):
    """Passes when each figure of the tested error is at most so many times that of the second opinion.

    Both errors are measured from the benchmark's raw result. NaN and Inf must stand where the benchmark or the second
    opinion has the same. Without a second opinion it is a skip, except for what equals the rounded benchmark.

    Attributes:
        levels: how many times.
    """

    levels: ErrorMultiples = ERROR_MULTIPLES[0]

    name: ClassVar[str] = "benchmark"

    def bounds_of(self, dtype: str) -> SecondOpinionConstants | None:
        """Which elements are small, and which errors count."""
        return SECOND_OPINION.get(dtype)

    def weigh(self, pair: OutputPair, bounds: SecondOpinionConstants) -> Judgement:
        """The verdict on elements that differ."""
        second = pair.second_opinion()
        if second is None:
            reason = (
                "There is no second opinion: PyTorch is not installed, or cannot run this call in "
                f"{pair.tested.dtype}; install it, or choose another standard for this API."
            )
            return Judgement("skip", (reason,))
        own, other = _Figures(bounds), _Figures(bounds)
        alone = 0
        for tested, opinion, reference, unmatched in _chunks(pair, second):
            alone += unmatched
            magnitude = np.abs(reference)
            own.add(np.abs(tested - reference), magnitude)
            other.add(np.abs(opinion - reference), magnitude)
        reasons = []
        ratio = math.inf if alone else 0.0
        if alone:
            verb = "has" if alone == 1 else "have"
            elements = count_of(alone, pair.tested.size)
            reasons.append(
                f"{elements} {verb} a NaN or Inf that neither benchmark nor second opinion has there, or lacks theirs."
            )
        limits = self.levels.small, self.levels.rmse, self.levels.max_relative, self.levels.mean_relative
        for label, mine, theirs, limit in zip(_LABELS, own.values(), other.values(), limits):
            floored = max(theirs, bounds.least)
            ratio = max(ratio, mine / (limit * floored) if limit else math.inf if mine else 0.0)
            if not mine <= limit * floored:
                reasons.append(_failure(label, (mine, theirs, bounds.least), mine / floored, limit))
        return Judgement("error" if reasons else "pass", tuple(reasons), ratio=ratio)


_LABELS = ("Share of small elements that are off", "RMSE", "Max relative error", "Mean relative error")


def _failure(label: str, figures: tuple[float, float, float], ratio: float, limit: float) -> str:
    mine, theirs, least = figures
    counted = f"{number(theirs)}" if theirs >= least else f"{number(theirs)}, counted as {number(least)}"
    remedy = f"; a limit of {limit_above(ratio)} would pass" if ratio < math.inf else ""
    return (
        f"{label} {number(mine)} is {number(ratio, limit)} times that of the second opinion ({counted}), above "
        f"{number(limit)}{remedy}."
    )


class _Figures:
    """Errors of one side, gathered chunk by chunk."""

    def __init__(self, constants: SecondOpinionConstants) -> None:
        self._constants = constants
        self._small = self._small_off = self._large = 0
        self._squares = self._relative = self._largest = 0.0

    def add(self, error: Floats, magnitude: Floats) -> None:
        """Take the errors and |b| of a chunk into account, both shape (n,), float64, in the unit of the output."""
        is_small = magnitude <= self._constants.small_value
        self._small += int(np.count_nonzero(is_small))
        self._small_off += int(np.count_nonzero(error[is_small] > self._constants.absolute))
        error, magnitude = error[~is_small], magnitude[~is_small]
        if error.size == 0:
            return
        self._large += error.size
        self._squares += float(np.square(error).sum())
        relative = error / magnitude
        self._relative += float(relative.sum())
        self._largest = max(self._largest, float(relative.max()))

    def values(self) -> tuple[float, float, float, float]:
        """Figures in the order of `_LABELS`; 0 where no element counts."""
        large = max(1, self._large)
        return (
            self._small_off / max(1, self._small),
            math.sqrt(self._squares / large),
            self._largest,
            self._relative / large,
        )


def _chunks(pair: OutputPair, second: Array) -> Iterator[tuple[Array, Array, Array, int]]:
    """Tested, second and raw reference values, and how many NaN or Inf of the tested side stand alone.

    Values that are not finite are left out of the figures: the tested ones with the reference, those of the second
    opinion by a stand-in without error, since it must not excuse anything there.
    """
    dtype = pair.tested.dtype
    wide = np.complex128 if dtype.kind == "c" else np.float64
    for _, sides in chunks(pair.tested, second, pair.reference):
        rounded = round_once(sides[2], dtype).astype(wide)
        tested, opinion, reference = (side.astype(wide) for side in sides)
        is_left_out = ~(np.isfinite(tested) & np.isfinite(rounded))
        unmatched = is_left_out & ~is_same(tested, rounded) & ~is_same(tested, opinion)
        reference[is_left_out] = tested[is_left_out] = opinion[is_left_out] = 0
        is_silent = ~np.isfinite(opinion)
        opinion[is_silent] = reference[is_silent]
        yield tested, opinion, reference, int(np.count_nonzero(unmatched))
