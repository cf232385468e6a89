"""What the values of two tensors show: how far they are apart, in one pass over both, and a key of their content."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_hexdigest

from pytest_msprobe.numerics.dtypes import Kind, kind_of
from pytest_msprobe.numerics.expected import Absolute, Relative
from pytest_msprobe.numerics.measurement import (
    ArrayPair,
    Metrics,
    RunningMetrics,
    measure,
    structural_mismatch,
    widened,
)
from pytest_msprobe.numerics.pair import relative

#: So many pairs are remembered: a step holds each value several times, most of them close together.
_MOST_MEASURED = 4096


@dataclass(frozen=True, slots=True)
class Figures:
    """What one pass over target t and golden g yields.

    Attributes:
        metrics: cosine, largest errors and mismatches as everywhere in this tool; no ULP error.
        euclid: |t-g| in the 2-norm.
        distance: |t-g| / |g|: 0 for equal tensors, inf where only g is all zero.
        peak: largest magnitude of g, over the places where both sides are finite.
        shares: of relative errors below 0.001 and below 0.005.
    """

    metrics: Metrics
    euclid: float = 0.0
    distance: float = 0.0
    peak: float = 0.0
    shares: tuple[float, float] = (1.0, 1.0)


def content_key(array: npt.NDArray[Any]) -> str:
    """A digest of the values, `v` and 32 hexadecimal digits: equal for equal bits in any shape.

    Integers count by their numbers, so that they are the same in any width.
    """
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    return f"v{xxh3_128_hexdigest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)}"


class PairFigures:
    """The figures of pairs of tensors, those of equal contents measured once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Figures] = {}

    def of(self, target: npt.NDArray[Any], golden: npt.NDArray[Any]) -> tuple[Figures, tuple[str, str]]:
        """See `measure_pair`, and the `content_key` of both."""
        contents = content_key(target), content_key(golden)
        pair = *contents, target.dtype, golden.dtype, target.shape, golden.shape
        if pair not in self._known:
            if len(self._known) >= _MOST_MEASURED:
                del self._known[next(iter(self._known))]
            self._known[pair] = measure_pair(target, golden)
        return self._known[pair], contents


def measure_pair(target: npt.NDArray[Any], golden: npt.NDArray[Any]) -> Figures:
    """The figures of two tensors.

    The relative error of an element is |(t-g)/g|; where g is 0, both get the epsilon of their common float dtype added
    first (formula of the existing tool). Places where both are NaN, or inf of one sign, are left out; any other NaN or
    Inf makes the cosine NaN and the largest errors inf. Integers and bools have exact differences besides.
    """
    structural = structural_mismatch(target, golden)
    kind = kind_of(target.dtype)
    if structural or target.size == 0:
        return Figures(Metrics(kind, target.size, structural=structural))
    if kind not in ("float", "complex"):
        return _exact(target, golden)
    return _measured(target, golden, kind)


def _exact(target: npt.NDArray[Any], golden: npt.NDArray[Any]) -> Figures:
    """Integers and bools: where they differ is what counts, the other figures are those of their float64 values."""
    metrics = measure(target, golden, off_bound=Absolute.ANY_DIFFERENCE)
    figures = _measured(target.astype(np.float64), golden.astype(np.float64), "float")
    metrics = replace(metrics, max_rel=figures.metrics.max_rel, off_count=metrics.unequal_count)
    return replace(figures, metrics=metrics)


def _measured(target: npt.NDArray[Any], golden: npt.NDArray[Any], kind: Kind) -> Figures:
    pair = ArrayPair(np.asarray(target), np.asarray(golden), kind, is_rounded=False)
    running = _RunningFigures(math.inf, None, zero_reference=_epsilon(target.dtype, golden.dtype), mismatch_error=0.0)
    with np.errstate(all="ignore"):
        running.add(pair)
        metrics = replace(running.metrics(pair, _cosine(pair, running)), off_count=0, off_bound=None)
    if running.nonfinite_mismatches:
        metrics = replace(metrics, max_abs=math.inf, max_rel=math.inf)
    euclid, norm = math.sqrt(running.squares), math.sqrt(running.sums.reference)
    shares = running.below[0] / target.size, running.below[1] / target.size
    return Figures(metrics, euclid, relative(euclid, norm), running.peak, shares)


@dataclass
class _RunningFigures(RunningMetrics):
    """With the squares of t-g, the largest |g|, and shares of relative errors."""

    squares: float = 0.0
    peak: float = 0.0
    below: list[int] = field(default_factory=lambda: [0] * len(Relative.LISTED))

    def add_equal(self, start: int, both: npt.NDArray[Any]) -> None:
        wide = widened(both)
        magnitude = np.abs(wide)
        largest = magnitude.item(int(magnitude.argmax()))
        if not largest < math.inf:
            wide = np.where(np.isfinite(wide), wide, 0)
            largest = float(np.abs(wide).max())
        self.peak = max(self.peak, largest)
        self.sums.add_equal(wide)
        for index in range(len(Relative.LISTED)):
            self.below[index] += both.size

    def add_inexact(self, start: int, tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
        tested, reference, error, at = self.without_nonfinite(start, tested, reference)
        self.sums.add(tested, reference)
        self.squares += float(np.einsum("i,i->", error, error))
        self.raise_max_abs(error.item(at), start + at)
        magnitude = np.abs(reference)
        self.peak = max(self.peak, magnitude.item(int(magnitude.argmax())))
        relative = self.add_relative(start, error, magnitude)
        for index, bound in enumerate(Relative.LISTED):
            # No element is above the largest so far.
            self.below[index] += error.size if self.max_rel < bound else int(np.count_nonzero(relative < bound))


def _cosine(pair: ArrayPair, running: RunningMetrics) -> float | None:
    if running.nonfinite_mismatches:
        return math.nan
    if running.max_abs == 0:
        return 1.0
    if running.sums.is_reliable:
        return running.sums.cosine()
    return measure(pair.tested, pair.reference, off_bound=Absolute.ANY_DIFFERENCE).cosine


def _epsilon(*dtypes: np.dtype[Any]) -> float:
    """Machine epsilon of float64 where one dtype is as wide, else of float32."""
    wide = any(dtype in (np.dtype(np.float64), np.dtype(np.complex128)) for dtype in dtypes)
    return float(np.finfo(np.float64 if wide else np.float32).eps)
