"""Placements of values of which a dump holds statistics alone: what sums, extremes and norms of parts say of the whole.

Replicas have equal statistics. Of shards the maximum is the largest, the minimum the least, sums and squared norms add
up. Of terms of a sum the sums alone add up, and the norm is at most the sum of the norms: the weakest of the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.suites.sharded.ranks import has_numbers


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
