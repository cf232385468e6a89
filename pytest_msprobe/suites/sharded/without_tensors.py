"""Values of which a dump holds no tensors, put together and compared by their statistics or their sketches.

- Replicas have equal statistics. Of shards the maximum is the largest, the minimum the least, sums
  and squared norms add up. Of terms of a sum the sums alone add up, and the norm is at most the
  sum of the norms: the weakest of the three.
- Sketches of copies, of terms of a sum and of equal shards in the order of the ranks add up. They
  do not tell shards of unequal length, flat ones, and those whose indices follow in another order
  (chunks of fused layers, zigzag).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.sketches import COUNTERS, RESOLUTION, Sketch, distance, merged
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.suites.sharded.ranks import has_numbers

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """What is known of a tensor, or of what parts make up.

    Attributes:
        shape: of the tensor.
        largest, least: elements; None where parts do not tell.
        total: sum of the elements.
        norm: Euclidean; of terms of a sum the most that it can be.
    """

    shape: tuple[int, ...]
    largest: float | None
    least: float | None
    total: float
    norm: float

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @classmethod
    def of(cls, leaf: Leaf) -> PartStatistics | None:
        """Those of a recorded tensor; None where the dump lacks one, or one is not finite."""
        if not has_numbers(leaf):
            return None
        largest, least, mean, norm = map(float, leaf.statistics)
        return cls(leaf.shape, largest, least, mean * math.prod(leaf.shape), abs(norm))

    def __truediv__(self, factor: float) -> PartStatistics:
        """Those of the tensor divided by `factor`, which is above 0."""
        divided = replace(self, total=self.total / factor, norm=self.norm / factor)
        if self.largest is None or self.least is None:
            return divided
        return replace(divided, largest=self.largest / factor, least=self.least / factor)

    def joined(
        self, others: Sequence[PartStatistics], kind: str, dimension: int
    ) -> tuple[PartStatistics, float] | None:
        """Those of this and of the values of other ranks put together, and how far copies differ; None for no shape.

        Args:
            others: of the ranks behind this one, in their order.
            kind: "R" for copies, "S" for shards along `dimension`, "P" for terms of a sum.
            dimension: of shards.
        """
        members = (self, *others)
        if kind == "R":
            return self, max((_apart(other, self) for other in others), default=0.0)
        total = math.fsum(member.total for member in members)
        if kind == "P":
            if any(other.shape != self.shape for other in others):
                return None
            norm = sum(member.norm for member in members)
            return PartStatistics(self.shape, None, None, total, norm), 0.0
        before, after = slice(dimension), slice(dimension + 1, None)
        if len({(member.shape[before], member.shape[after]) for member in members}) > 1:
            return None
        length = sum(member.shape[dimension] for member in members)
        shape = (*self.shape[before], length, *self.shape[after])
        norm = math.sqrt(math.fsum(member.norm**2 for member in members))
        largest = [member.largest for member in members if member.largest is not None]
        least = [member.least for member in members if member.least is not None]
        if not len(largest) == len(least) == len(members):
            return PartStatistics(shape, None, None, total, norm), 0.0
        return PartStatistics(shape, max(largest), min(least), total, norm), 0.0

    def away(self, whole: PartStatistics, scale: float) -> float:
        """The largest relative difference from what is known of `whole`, each of its own size."""
        return _apart(self, whole)

    def factor(self, whole: PartStatistics) -> float:
        """1: statistics do not tell it."""
        return 1.0


def _apart(value: PartStatistics, whole: PartStatistics) -> float:
    """The largest relative difference of what both know; infinite for another shape."""
    if value.shape != whole.shape:
        return math.inf
    scale = whole.norm * math.sqrt(max(1, math.prod(whole.shape)))
    pairs = [(value.total, whole.total, scale)]
    if value.largest is None or value.least is None or whole.largest is None or whole.least is None:
        pairs.append((max(0.0, whole.norm - value.norm), 0.0, whole.norm))
    else:
        height = max(abs(whole.largest), abs(whole.least))
        pairs += [(value.largest, whole.largest, height), (value.least, whole.least, height)]
        pairs.append((value.norm, whole.norm, whole.norm))
    return max(relative(abs(actual - expected), size) for actual, expected, size in pairs)


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
