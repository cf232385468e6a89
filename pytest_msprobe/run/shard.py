"""A run split over hosts that do not know of each other: the same split on each of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def split_by_cost(costs: Sequence[float], count: int) -> list[int]:
    """Shard, from 1 to `count`, of each group of records, so that the sums of costs are nearly even.

    The most expensive one goes to the shard that has least so far (longest processing time first): no shard then costs
    more than 4/3 of the best possible split. The result depends on the costs only.
    """
    loads = [(0.0, shard) for shard in range(1, count + 1)]
    shards = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        load, shard = heapq.heappop(loads)
        shards[number] = shard
        heapq.heappush(loads, (load + costs[number], shard))
    return shards
