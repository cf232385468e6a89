from __future__ import annotations

from hypothesis import given, strategies as st

from pytest_msprobe.run.run import split_by_cost

COSTS = st.lists(st.floats(1, 1e9), max_size=60)


@given(COSTS, st.integers(1, 9))
def test_every_call_is_in_one_shard_and_no_shard_is_far_above_the_others(costs: list[float], count: int) -> None:
    shards = split_by_cost(costs, count)
    assert len(shards) == len(costs)
    assert set(shards) <= set(range(1, count + 1))
    loads = [sum(cost for cost, shard in zip(costs, shards) if shard == number) for number in range(1, count + 1)]
    # What was put last on the fullest shard was put there because it had least.
    assert max(loads) - min(loads) <= max(costs, default=0) * (1 + 1e-9)


@given(COSTS, st.integers(1, 9))
def test_the_split_is_the_same_everywhere(costs: list[float], count: int) -> None:
    assert split_by_cost(costs, count) == split_by_cost(list(costs), count)
