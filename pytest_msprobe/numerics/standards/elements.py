"""Elements of both sides in chunks, and what the standards that look at them have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, plain_judgement, unforgivable_reasons
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS
from pytest_msprobe.numerics.metrics import Element, Metrics, unravelled
from pytest_msprobe.numerics.rounding import round_once
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.tally import settle_nonfinite
from pytest_msprobe.numerics.ulp import part_dtype
from pytest_msprobe.numerics.wording import number, position, values

Floats = npt.NDArray[np.float64]
_Bounds = TypeVar("_Bounds")


class Chunk(NamedTuple):
    """Some elements in float64 or complex128, 0 on both sides where one of them is not finite.

    Attributes:
        start: flat position of the first.
        tested, reference: values, shape (n,), float64 or complex128.
        error: |t-b|, shape (n,), float64, in the unit of the output.
        magnitude: |b|, of the same shape, dtype and unit.
    """

    start: int
    tested: npt.NDArray[Any]
    reference: npt.NDArray[Any]
    error: Floats
    magnitude: Floats

    @property
    def relative(self) -> Floats:
        """|t-b| / |b|, shape (n,), float64; 0 where the two are equal, infinite where only b is 0."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative: Floats = self.error / self.magnitude
        relative[self.error == 0] = 0
        return relative


def rounded_chunks(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Iterator[Chunk]:
    """Chunks of two outputs of one shape; `tested` has the dtype of the device, `reference` is float64 or complex128.

    The reference is rounded once to the tested dtype: what a perfect device returns has no error.
    """
    for start, *sides in wide_chunks(tested, reference):
        left, right, _ = settle_nonfinite(*sides)
        with np.errstate(over="ignore"):
            error = np.abs(left - right)
        yield Chunk(start, left, right, error, np.abs(right))


def wide_chunks(
    tested: npt.NDArray[Any], reference: npt.NDArray[Any]
) -> Iterator[tuple[int, npt.NDArray[Any], npt.NDArray[Any]]]:
    """(flat start, tested values, rounded reference values) of chunks, as they are: shape (n,), float64 or complex128.

    The two outputs are of one shape; the reference is rounded once to the dtype of `tested`.
    """
    wide = np.complex128 if tested.dtype.kind == "c" else np.float64
    dtype, flat_tested, flat_reference = tested.dtype, tested.reshape(-1), reference.reshape(-1)
    for start in range(0, flat_tested.size, CHUNK_ELEMENTS):
        stop = start + CHUNK_ELEMENTS
        rounded = round_once(flat_reference[start:stop], dtype)
        yield start, flat_tested[start:stop].astype(wide), rounded.astype(wide)


class Beyond:
    """Counts figures above a limit and keeps the largest of all.

    Attributes:
        limit: a figure above it counts.
        count: how many did.
        worst, worst_at: the largest figure and its flat position; 0 and 0 while all are 0.
    """

    __slots__ = ("count", "limit", "worst", "worst_at")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.count = 0
        self.worst = 0.0
        self.worst_at = 0

    @property
    def ratio(self) -> float:
        """The largest figure over the limit."""
        return self.worst / self.limit if self.limit else math.inf if self.worst else 0.0

    def add(self, start: int, figures: Floats) -> None:
        """Take a chunk of figures into account, shape (n,), float64; the first stands at the flat position `start`."""
        at = int(figures.argmax())
        if figures.item(at) > self.worst:
            self.worst, self.worst_at = figures.item(at), start + at
        self.count += int(np.count_nonzero(figures > self.limit))


def settled(metrics: Metrics) -> Judgement | None:
    """The verdict where there is nothing to weigh: structure, exact or no elements, all equal; else None."""
    if metrics.structural or metrics.is_exact or metrics.is_empty:
        return judge_plain(metrics)
    return plain_judgement(()) if metrics.max_abs == 0 and not metrics.nonfinite_mismatches else None


def weigh(
    standard: str, pair: OutputPair, bounds: _Bounds | None, judge: Callable[[OutputPair, _Bounds], Judgement]
) -> Judgement:
    """The verdict of `judge` where there is something to weigh; a skip that says so where no `bounds` are known."""
    verdict = settled(pair.metrics)
    if verdict is not None:
        return verdict
    if bounds is None:
        reason = f"{standard} has no bounds for {pair.tested.dtype}; choose another standard for it."
        return Judgement("skip", (reason,))
    return judge(pair, bounds)


def judge_plain(metrics: Metrics) -> Judgement:
    """The verdict on a value without elements to look at, such as a Python float: within 1 ULP of its dtype."""
    reasons = unforgivable_reasons(metrics)
    if not reasons and not metrics.is_exact and metrics.max_abs:
        if metrics.max_ulp is None:
            reasons = ("The values differ, and no ULP is defined for their type.",)
        elif metrics.max_ulp > 1:
            return Judgement(
                "error", (f"Error of {number(metrics.max_ulp, 1)} ULP is above 1.",), ratio=metrics.max_ulp
            )
        else:
            return Judgement("pass", ratio=metrics.max_ulp)
    return plain_judgement(reasons)


def dtype_name(pair: OutputPair) -> str:
    """Name of the float dtype whose constants count: that of the parts for complex numbers."""
    return part_dtype(pair.tested.dtype).name


def place(pair: OutputPair, at: int) -> str:
    """Where a flat position is, with both values there."""
    rounded = round_once(pair.reference.reshape(-1)[at : at + 1], pair.tested.dtype)
    element = Element(unravelled(at, pair.tested.shape), pair.tested.item(at), rounded.item())
    return f"{position(element)} ({values(element)})"
