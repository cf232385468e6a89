"""Placements of values of which a dump holds statistics alone: what sums, extremes and norms of parts say of the whole.

Replicas have equal statistics. Of shards the maximum is the largest, the minimum the least, sums and squared norms add
up. Of terms of a sum the sums alone add up, and the norm is at most the sum of the norms: the weakest of the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msprobe_collector.dump_format.leaves import Leaf


@dataclass(frozen=True, slots=True)
class Statistics:
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
    def of(cls, leaf: Leaf) -> Statistics | None:
        """Those of a recorded tensor; None where the dump lacks one, or one is not finite."""
        numbers = leaf.statistics
        if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in numbers):
            return None
        largest, least, mean, norm = map(float, numbers)
        return cls(leaf.shape, largest, least, mean * math.prod(leaf.shape), abs(norm))

    def __truediv__(self, factor: float) -> Statistics:
        """Those of the tensor divided by `factor`, which is above 0."""
        ends = [None if one is None else one / factor for one in (self.largest, self.least)]
        return Statistics(self.shape, ends[0], ends[1], self.total / factor, self.norm / factor)

    def joined(self, others: Sequence[Statistics], kind: str, dimension: int) -> tuple[Statistics, float] | None:
        """Those of this and of the values of other ranks put together, and how far copies differ; None for no shape.

        Args:
            others: of the ranks behind this one, in their order.
            kind: "R" for copies, "S" for shards along `dimension`, "P" for terms of a sum.
            dimension: of shards.
        """
        members = (self, *others)
        if kind == "R":
            return self, max((_apart(one, self) for one in others), default=0.0)
        total = math.fsum(one.total for one in members)
        if kind == "P":
            is_same = all(one.shape == self.shape for one in members)
            norm = sum(one.norm for one in members)
            return (Statistics(self.shape, None, None, total, norm), 0.0) if is_same else None
        before, after = slice(dimension), slice(dimension + 1, None)
        if len({(one.shape[before], one.shape[after]) for one in members}) > 1:
            return None
        shape = (*self.shape[before], sum(one.shape[dimension] for one in members), *self.shape[after])
        largest = [one.largest for one in members if one.largest is not None]
        least = [one.least for one in members if one.least is not None]
        is_known = len(largest) == len(least) == len(members)
        norm = math.sqrt(math.fsum(one.norm**2 for one in members))
        return Statistics(shape, max(largest) if is_known else None, min(least) if is_known else None, total, norm), 0.0

    def away(self, whole: Statistics, scale: float) -> float:
        """The largest relative difference from what is known of `whole`, each of its own size."""
        return _apart(self, whole)

    def factor(self, whole: Statistics) -> float:
        """1: statistics do not tell it."""
        return 1.0


def _apart(found: Statistics, whole: Statistics) -> float:
    """The largest relative difference of what both know; infinite for another shape."""
    if found.shape != whole.shape:
        return math.inf
    scale = whole.norm * math.sqrt(max(1, math.prod(whole.shape)))
    pairs = [(found.total, whole.total, scale)]
    if found.largest is None or found.least is None or whole.largest is None or whole.least is None:
        pairs.append((max(0.0, whole.norm - found.norm), 0.0, whole.norm))
    else:
        height = max(abs(whole.largest), abs(whole.least))
        pairs += [(found.largest, whole.largest, height), (found.least, whole.least, height)]
        pairs.append((found.norm, whole.norm, whole.norm))
    return max(_relative(one, other, size) for one, other, size in pairs)


def _relative(one: float, other: float, scale: float) -> float:
    away = abs(one - other)
    return away / scale if scale else (math.inf if away else 0.0)
