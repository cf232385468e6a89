"""Which records a run judges: by whole groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.items import config_of, items_of
from fakes.suite import FakeSuite, group

from pytest_msprobe.run.run import complete_items, deselect_by_hook, deselect_done, deselect_other_shards
from pytest_msprobe.suites.contract import CallNames

FILES = (Path("/d/rank0/dump.json"), Path("/d/rank1/dump.json"))
CALLS = tuple(f"Mint.f.{number}" for number in range(5))


@pytest.fixture
def suite() -> FakeSuite:
    return FakeSuite({file: [group(call) for call in CALLS] for file in FILES}, costs={"Mint.f.3": 6.0})


class Hook:
    """A hook with one answer per call, and what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def get_hookimpls(self) -> list[None]:
        return [None]

    def __call__(self, *, config: object, api: Any, dump: Path) -> Any:
        self.asked.append((dump.parent.name, str(api)))
        return self.answer(api)


def run(suite: FakeSuite, select: Any, hook: Any = None) -> tuple[list[str], int]:
    """(ids of what is left, number of deselected items)."""
    left: list[pytest.Item] = []
    config = config_of(suite, pytest_deselected=lambda items: left.extend(items), pytest_msprobe_select=hook)
    items: list[pytest.Item] = [*items_of(suite, config)]
    select(config, items)
    return [item.nodeid for item in items], len(left)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_are_disjoint_and_together_the_whole(suite: FakeSuite, count: int) -> None:
    everything, _ = run(suite, lambda config, items: None)
    shards = [
        run(suite, lambda config, items, number=number: deselect_other_shards(config, suite, items, (number, count)))
        for number in range(1, count + 1)
    ]
    assert sorted(node_id for kept, _ in shards for node_id in kept) == sorted(everything)
    for kept, left in shards:
        assert len(kept) + left == len(everything)
        directions = [node_id.rpartition("::")[0] for node_id in kept]
        assert all(directions.count(scope) == 2 for scope in directions)


def test_the_hook_is_asked_once_per_group(suite: FakeSuite) -> None:
    hook = Hook(lambda api: api.number % 2 == 0)
    kept, left = run(suite, lambda config, items: deselect_by_hook(config, suite, items), hook)
    assert (len(kept), left) == (12, 8)
    assert hook.asked == [(rank, call) for rank in ("rank0", "rank1") for call in CALLS]


def test_no_answer_keeps_a_group(suite: FakeSuite) -> None:
    kept, left = run(suite, lambda config, items: deselect_by_hook(config, suite, items), Hook(lambda api: None))
    assert (len(kept), left) == (20, 0)


def test_a_hook_that_raises_is_a_usage_error(suite: FakeSuite) -> None:
    hook = Hook(lambda api: api.nonsense)
    with pytest.raises(pytest.UsageError, match=r"select failed for Mint\.f\.0 of /d/rank0/dump\.json: AttributeError"):
        run(suite, lambda config, items: deselect_by_hook(config, suite, items), hook)


def test_what_an_earlier_run_has_done_is_left_out_by_its_name_in_reports(suite: FakeSuite) -> None:
    done = {"rank0/Mint.f.0", "rank1/Mint.f.4"}
    kept, left = run(suite, lambda config, items: deselect_done(config, items, CallNames(FILES), done))
    assert (len(kept), left) == (16, 4)
    assert not any("rank0/dump.json::Mint.f.0" in node_id for node_id in kept)
    assert sum("rank1/dump.json::Mint.f.0" in node_id for node_id in kept) == 2


def test_groups_learn_which_of_their_records_run(suite: FakeSuite) -> None:
    items = items_of(suite, config_of(suite))
    complete_items([items[0], *items[2:4]])
    assert [item.name for item in items[:4]] == [
        "Mint.f.0.forward",
        "backward",
        "Mint.f.1.forward",
        "Mint.f.1.backward",
    ]
    assert items[0].record.selected == ("forward",)
    assert items[2].record.selected == ("forward", "backward")
