"""Placements of values of which a dump holds statistics alone: what sums, extremes and norms of parts say of the whole.

Replicas have equal statistics. Of shards the maximum is the largest, the minimum the least, sums and squared norms add
up. Of terms of a sum the sums alone add up, and the norm is at most the sum of the norms: the weakest of the three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.suites.sharded.placements import Axis, Grid, Placement, assignments, readings


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

    def divided(self, factor: float) -> Statistics:
        """Those of the tensor divided by `factor`, which is above 0."""
        ends = [None if one is None else one / factor for one in (self.largest, self.least)]
        return Statistics(self.shape, ends[0], ends[1], self.total / factor, self.norm / factor)


def wholes_by_statistics(
    parts: Sequence[Statistics], grids: Sequence[Grid], tolerance: float
) -> Iterator[tuple[tuple[Axis, ...], Statistics]]:
    """What ranks of a logical run may hold together, with how: all of it, or parts; of terms too little is known."""
    for grid in grids:
        for axes, _ in readings(grid, parts[0].ndim):
            if all(axis.kind != "P" for axis in axes):
                merged = _merged(dict(zip(grid.coordinates, parts)), axes, tolerance)
                if merged is not None:
                    yield axes, merged


def tried_by_statistics(
    whole: Statistics, parts: Sequence[Statistics], grid: Grid, tolerance: float
) -> list[Placement]:
    """The placements that shapes allow, the nearest first, by how far the statistics are from those of the whole.

    Args:
        whole: of the logical value.
        parts: of the ranks' values, in the order of `grid`.
        grid: the process groups of the ranks.
        tolerance: largest relative distance of replicas.
    """
    found = []
    for axes in dict.fromkeys(axes for axes, _ in assignments(grid, whole, parts)):
        merged = _merged(dict(zip(grid.coordinates, parts)), axes, tolerance)
        if merged is not None and merged.shape == whole.shape:
            found.append(Placement(axes, _apart(merged, whole)))
    return sorted(found, key=lambda one: (one.distance, one.is_partial))


def _merged(values: dict[tuple[int, ...], Statistics], axes: Sequence[Axis], tolerance: float) -> Statistics | None:
    for place in range(len(axes) - 1, -1, -1):
        rows: dict[tuple[int, ...], list[Statistics]] = {}
        for coordinates, value in values.items():
            rows.setdefault(coordinates[:place], []).append(value)
        joined = {key: _joined(members, axes[place], tolerance) for key, members in rows.items()}
        if any(one is None for one in joined.values()):
            return None
        values = {key: one for key, one in joined.items() if one is not None}
    return values[()]


def _joined(members: Sequence[Statistics], axis: Axis, tolerance: float) -> Statistics | None:
    first = members[0]
    if axis.kind == "R":
        return first if all(_apart(one, first) <= tolerance for one in members) else None
    total = math.fsum(one.total for one in members)
    if axis.kind == "P":
        is_same = all(one.shape == first.shape for one in members)
        return Statistics(first.shape, None, None, total, sum(one.norm for one in members)) if is_same else None
    d = axis.dimension
    if len({(*one.shape[:d], *one.shape[d + 1 :]) for one in members}) > 1:
        return None
    shape = (*first.shape[:d], sum(one.shape[d] for one in members), *first.shape[d + 1 :])
    ends = [(one.largest, one.least) for one in members]
    largest = [one for one, _ in ends if one is not None]
    least = [one for _, one in ends if one is not None]
    is_known = len(largest) == len(least) == len(members)
    norm = math.sqrt(math.fsum(one.norm**2 for one in members))
    return Statistics(shape, max(largest) if is_known else None, min(least) if is_known else None, total, norm)


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
