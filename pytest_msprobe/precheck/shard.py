"""A run split over hosts that do not know of each other: the same split on each of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest

from pytest_msprobe import _keys
from pytest_msprobe.precheck.cost import estimate_cost
from pytest_msprobe.precheck.nodes import CallNode, CheckItem


def split_by_cost(costs: Sequence[float], count: int) -> list[int]:
    """Shard, from 1 to `count`, of each call, so that the sums of costs are nearly even; a function of the costs only.

    The dearest call goes to the shard that has least so far (longest processing time first): no shard then costs more
    than 4/3 of the best possible split.
    """
    loads = [(0.0, shard) for shard in range(1, count + 1)]
    shards = [0] * len(costs)
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        load, shard = heapq.heappop(loads)
        shards[number] = shard
        heapq.heappush(loads, (load + costs[number], shard))
    return shards


def deselect_other_shards(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the API calls that belong to other shards of `--msprobe-shard`."""
    chosen = config.stash[_keys.SESSION].settings.shard
    if chosen is None:
        return
    number, count = chosen
    calls: dict[CallNode, None] = {item.parent: None for item in items if isinstance(item, CheckItem)}
    costs = [estimate_cost(call.dump, call.call) for call in calls]
    own = {call for call, shard in zip(calls, split_by_cost(costs, count)) if shard == number}
    left = [item for item in items if isinstance(item, CheckItem) and item.parent not in own]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not isinstance(item, CheckItem) or item.parent in own]
