"""What the values of two tensors show: how far they are apart, in one pass over both, and a key of their content."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics import Element, Kind, Metrics, kind_of, measure
from pytest_msprobe.numerics.measurement import (
    CHUNK_ELEMENTS,
    CosineSums,
    settle_nonfinite,
    structural_mismatch,
    unravelled,
)

#: Relative errors whose shares tables list.
_SHARE_BOUNDS = (0.001, 0.005)
_ANY_DIFFERENCE = 5e-324
_KEY_BYTES = 8
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Figures:
    """What one pass over target t and golden g yields.

    Attributes:
        metrics: cosine, largest errors and mismatches as everywhere in this tool; no ULP error.
        euclid: |t-g| in the 2-norm.
        distance: |t-g| / |g|: 0 for equal tensors, inf where only g is all zero.
        peak: largest magnitude of g, over the places where both sides are finite.
        shares: of relative errors below 0.001 and below 0.005.
        is_identical: whether both are known to have the same dtype and the same bits.
    """

    metrics: Metrics
    euclid: float = 0.0
    distance: float = 0.0
    peak: float = 0.0
    shares: tuple[float, float] = (1.0, 1.0)
    is_identical: bool = False


def content_keys(target: npt.NDArray[Any], golden: npt.NDArray[Any], figures: Figures) -> tuple[str, str]:
    """The `content_key` of both, made once where their `figures` show that all bits are equal."""
    key = content_key(target)
    return key, key if figures.is_identical else content_key(golden)


def content_key(array: npt.NDArray[Any]) -> str:
    """A digest of the values, `v` and 16 hexadecimal digits: equal for equal bits in any shape.

    Integers count by their numbers, so that they are the same in any width.
    """
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"v{hashlib.blake2b(content.data, digest_size=_KEY_BYTES).hexdigest()}"


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
    with np.errstate(all="ignore"):
        return _Pass(target, golden, kind).figures()


def _exact(target: npt.NDArray[Any], golden: npt.NDArray[Any]) -> Figures:
    """Integers and bools: where they differ is what counts, the other figures are those of their float64 values."""
    metrics = measure(target, golden, off_bound=_ANY_DIFFERENCE)
    with np.errstate(all="ignore"):
        figures = _Pass(target.astype(np.float64), golden.astype(np.float64), "float").figures()
    metrics = replace(metrics, max_rel=figures.metrics.max_rel, off_count=metrics.unequal_count)
    is_identical = target.dtype == golden.dtype and target.dtype.kind in "iub" and not metrics.unequal_count
    return replace(figures, metrics=metrics, is_identical=is_identical)


class _Pass:
    """One pass in chunks; running sums and maxima."""

    def __init__(self, target: npt.NDArray[Any], golden: npt.NDArray[Any], kind: Kind) -> None:
        self.shape = target.shape
        self.kind = kind
        self.target = np.asarray(target).reshape(-1)
        self.golden = np.asarray(golden).reshape(-1)
        self.wide = np.dtype(np.complex128 if kind == "complex" else np.float64)
        self.epsilon = _epsilon(target.dtype, golden.dtype)
        self.sums = CosineSums()
        self.squares = self.max_abs = self.max_rel = self.peak = 0.0
        self.worst: int | None = None
        self.worst_relative: int | None = None
        self.mismatches = 0
        self.first_mismatch: int | None = None
        self.below = [0, 0]

    def figures(self) -> Figures:
        """Everything over all chunks."""
        bits = _BITS.get(self.target.dtype.itemsize) if self.target.dtype == self.golden.dtype else None
        is_identical = True
        for start in range(0, self.target.size, CHUNK_ELEMENTS):
            target, golden = self.target[start : start + CHUNK_ELEMENTS], self.golden[start : start + CHUNK_ELEMENTS]
            if bits is not None and not np.count_nonzero(target.view(bits) != golden.view(bits)):
                self._add_equal(golden)
            else:
                is_identical = False
                self._add(start, target.astype(self.wide, copy=False), golden.astype(self.wide, copy=False))
        size, euclid, norm = self.target.size, math.sqrt(self.squares), math.sqrt(self.sums.reference)
        return Figures(
            self._metrics(),
            euclid=euclid,
            distance=0.0 if euclid == 0 else euclid / norm if norm > 0 else math.inf,
            peak=self.peak,
            shares=(self.below[0] / size, self.below[1] / size),
            is_identical=is_identical,
        )

    def _add_equal(self, both: npt.NDArray[Any]) -> None:
        wide = both.astype(self.wide, copy=False)
        magnitude = np.abs(wide)
        largest = magnitude.item(int(magnitude.argmax()))
        if not largest < math.inf:
            wide = np.where(np.isfinite(wide), wide, 0)
            largest = float(np.abs(wide).max())
        self.peak = max(self.peak, largest)
        self.sums.add_equal(wide)
        for index in range(len(_SHARE_BOUNDS)):
            self.below[index] += both.size

    def _add(self, start: int, target: npt.NDArray[Any], golden: npt.NDArray[Any]) -> None:
        difference = target - golden
        error = np.abs(difference)
        at = int(error.argmax())
        if not error.item(at) < math.inf:
            target, golden, mismatches = settle_nonfinite(target, golden)
            self._add_mismatches(start, mismatches)
            difference = target - golden
            error = np.abs(difference)
            at = int(error.argmax())
        self.sums.add(target, golden)
        self.squares += float(np.einsum("i,i->", error, error))
        if error.item(at) > self.max_abs:
            self.max_abs, self.worst = error.item(at), start + at
        magnitude = np.abs(golden)
        self.peak = max(self.peak, magnitude.item(int(magnitude.argmax())))
        self._add_relative(start, error, magnitude, golden)

    def _add_relative(
        self, start: int, error: npt.NDArray[Any], magnitude: npt.NDArray[Any], golden: npt.NDArray[Any]
    ) -> None:
        if magnitude.item(int(magnitude.argmin())) == 0:
            magnitude[golden == 0] = self.epsilon
        relative = np.divide(error, magnitude, out=magnitude)
        at = int(relative.argmax())
        if relative.item(at) > self.max_rel:
            self.max_rel, self.worst_relative = relative.item(at), start + at
        for index, bound in enumerate(_SHARE_BOUNDS):
            self.below[index] += int(np.count_nonzero(relative < bound))

    def _add_mismatches(self, start: int, mismatches: npt.NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(mismatches))
        if count and self.first_mismatch is None:
            self.first_mismatch = start + int(mismatches.argmax())
        self.mismatches += count

    def _metrics(self) -> Metrics:
        spoilt = self.mismatches > 0
        return Metrics(
            kind=self.kind,
            size=self.target.size,
            cosine=math.nan if spoilt else self._cosine(),
            max_abs=math.inf if spoilt else self.max_abs,
            max_rel=math.inf if spoilt else self.max_rel,
            worst=self._element(self.worst),
            worst_relative=self._element(self.worst_relative),
            nonfinite_mismatches=self.mismatches,
            first_nonfinite=self._element(self.first_mismatch),
        )

    def _cosine(self) -> float | None:
        if self.max_abs == 0:
            return 1.0
        if self.sums.is_reliable:
            return self.sums.cosine()
        return measure(self.target, self.golden, off_bound=_ANY_DIFFERENCE).cosine

    def _element(self, at: int | None) -> Element | None:
        if at is None:
            return None
        return Element(unravelled(at, self.shape), self.target.item(at), self.golden.item(at))


def _epsilon(*dtypes: np.dtype[Any]) -> float:
    """Machine epsilon of float64 where one dtype is as wide, else of float32."""
    wide = any(dtype in (np.dtype(np.float64), np.dtype(np.complex128)) for dtype in dtypes)
    return float(np.finfo(np.float64 if wide else np.float32).eps)
