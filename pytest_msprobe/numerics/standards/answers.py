"""How one output answers to runs of the benchmark that were moved by rounding errors, chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS
from pytest_msprobe.numerics.standards.output_pair import Perturbed
from pytest_msprobe.numerics.standards.sensitivity import Scatter, Sensitivity, without_jumps
from pytest_msprobe.numerics.ulp import FloatFormat

Floats = npt.NDArray[np.float64]


class Answers:
    """The answers of one output to a set of moved runs.

    Attributes:
        is_known: whether there was any run.
        sensitivity: what they say of the output as a whole.
    """

    def __init__(self, runs: Sequence[Perturbed], reference: npt.NDArray[Any], format_: FloatFormat) -> None:
        """Of `runs` to the benchmark's `reference`, all in reach of a format."""
        self._sizes = [run.size for run in runs]
        self._results = [run.result.reshape(-1) for run in runs]
        self._format = format_
        self.is_known = bool(runs)
        self.sensitivity = self._settled(reference.reshape(-1))

    def responses(self, start: int, reference: npt.NDArray[Any]) -> Floats:
        """Per element of a chunk how far one rounding error of everything that was moved takes it."""
        magnitude = magnitude_of(reference)
        return self.sensitivity.response(magnitude, [np.abs(move) for move in self._moves(start, reference)])

    def _settled(self, reference: npt.NDArray[Any]) -> Sensitivity:
        scatter = Scatter()
        for start in range(0, reference.size if self.is_known else 0, CHUNK_ELEMENTS):
            chunk = in_reach(widened(reference[start : start + CHUNK_ELEMENTS]), self._format)
            scatter.add(chunk, self._moves(start, chunk))
        return scatter.settled()

    def _moves(self, start: int, reference: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Signed answers to each run, over its size; NaN where nothing is known."""
        moves = []
        with np.errstate(invalid="ignore"):
            for result, size in zip(self._results, self._sizes):
                move = (widened(result[start : start + reference.size]) - reference) / size
                move[~np.isfinite(move)] = math.nan  # a perturbed input that left the domain tells nothing
                moves.append(move)
        if len(moves) > 1 and self._sizes[1] < self._sizes[0]:
            without_jumps(reference, moves, self._sizes[1])
        return moves


def widened(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in float64 or complex128, which may be `array` itself."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64, copy=False)


def in_reach(array: npt.NDArray[Any], format_: FloatFormat) -> npt.NDArray[Any]:
    """Infinite stands one spacing beyond the largest value: a finite result there and Inf are neighbours."""
    if array.dtype.kind == "c":
        return array
    limit = format_.largest + format_.largest_spacing
    return np.clip(array, -limit, limit)


def magnitude_of(reference: npt.NDArray[Any]) -> Floats:
    """|b|, 0 where it is NaN."""
    magnitude: Floats = np.abs(reference)
    magnitude[np.isnan(magnitude)] = 0
    return magnitude
