"""Values of which a dump holds sketches: put together and compared as tensors are, as far as sketches tell.

Sketches of copies, of terms of a sum and of equal shards in the order of the ranks add up. They do not tell shards of
unequal length, flat ones, and those whose indices follow in another order (chunks of fused layers, zigzag).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from msprobe_collector.dump_format.sketches import COUNTERS, RESOLUTION, Sketch, distance, merged
from pytest_msprobe.numerics.pair import relative

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class SketchedValue:
    """What a sketch tells of a value, or of what ranks hold together.

    Attributes:
        sketch: of it.
        reach: norm of what was put together, which may cancel in a sum.
        array: the tensor, where there is one: it can be split as the ranks are.
    """

    sketch: Sketch
    reach: float
    array: Array | None = None

    @classmethod
    def of(cls, sketch: Sketch, array: Array | None = None) -> SketchedValue:
        """A value of one rank."""
        return cls(sketch, sketch.norm, array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths along the dimensions."""
        return self.sketch.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.sketch.shape)

    @property
    def norm(self) -> float:
        """Estimate of the Euclidean norm of the finite elements."""
        return self.sketch.norm

    def __truediv__(self, factor: float) -> SketchedValue:
        array = None if self.array is None else self.array / factor
        return SketchedValue(self.sketch.scaled(1 / factor), self.reach / factor, array)

    def joined(self, others: Sequence[SketchedValue], kind: str, dimension: int) -> tuple[SketchedValue, float] | None:
        """This and the values of other ranks put together, and how far copies differ; None where sketches cannot tell.

        Args:
            others: of the ranks behind this one, in their order.
            kind: "R" for copies, "S" for shards along `dimension`, "P" for terms of a sum.
            dimension: of shards.
        """
        if any(other.shape != self.shape for other in others):
            return None
        members = (self, *others)
        if kind == "R":
            scale = max(member.norm for member in members)
            return self, max((other.away(self, scale) for other in others), default=0.0)
        if kind == "P" and any(chain.from_iterable(member.sketch.not_finite for member in members)):
            return None
        if kind == "S" and any(d == dimension for d, _ in self.sketch.splits):
            return None
        try:
            along = None if kind == "P" else dimension
            sketch = merged([member.sketch for member in members], along)
        except ValueError:
            return None
        return SketchedValue(sketch, math.hypot(*(member.reach for member in members))), 0.0

    def away(self, whole: SketchedValue, scale: float) -> float:
        """How far this is from `whole`, beyond what rounding of sketches explains; `scale` is what 1 means.

        Infinite where the sketches do not compare, and where others elements are not finite.
        """
        sketch, other = self.sketch, whole._as_split(self.sketch.splits)
        if other is None or sketch.shape != other.shape or sketch.not_finite != other.not_finite:
            return math.inf
        away = max(0.0, distance(sketch, other).value - RESOLUTION * max(self.reach, whole.reach))
        # Distance and norm are of the same counters, so that a multiple of the whole is as far as it is.
        norm = replace(other, has_whole=sketch.has_whole and other.has_whole).norm
        if norm:
            away *= whole.norm / norm
        return relative(away, scale)

    def factor(self, whole: SketchedValue) -> float:
        """What `whole` must be multiplied with to give this, by least squares."""
        other = whole._as_split(self.sketch.splits)
        if other is None:
            return 1.0
        first = 0 if self.sketch.has_whole and other.has_whole else COUNTERS // 2
        counters, counters_of_whole = self.sketch.counters[first:], other.counters[first:]
        square = float(np.vdot(counters_of_whole, counters_of_whole).real)
        return float(np.vdot(counters_of_whole, counters).real) / square if square else 1.0

    def _as_split(self, splits: tuple[tuple[int, int], ...]) -> Sketch | None:
        """The sketch as of these shards; None where there is no tensor to split."""
        if splits == self.sketch.splits:
            return self.sketch
        return Sketch.of_split(self.array, *splits[0]) if self.array is not None and len(splits) == 1 else None
