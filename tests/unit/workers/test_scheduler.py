"""The scheduler driven by fakes: workers that keep xdist's rule, and run what they may."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pytest_msprobe.workers.controller import CallScheduler


class FakeWorker:
    """Starts an item only when it holds the next one or knows that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []
        self.done: list[int] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        assert not self.shutting_down, "work sent after shutdown would be lost"
        self.queue.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    def can_run(self) -> bool:
        return len(self.queue) > 1 or (bool(self.queue) and self.shutting_down)

    def run_one(self) -> int:
        self.done.append(self.queue.pop(0))
        return self.done[-1]


class FakeCosts:
    """Costs by the name of a call; two directions of a call belong together."""

    def __init__(self, costs: dict[str, float]) -> None:
        self._costs = costs

    def scope_of(self, node_id: str) -> str:
        return node_id.rpartition("::")[0]

    def device_of(self, node_id: str) -> str | None:
        return node_id.partition("-device")[2] or None

    def cost_of(self, node_ids: Sequence[str]) -> float:
        return self._costs.get(node_ids[0].split("::")[1], 1.0)


def device_of(worker: FakeWorker) -> str:
    """Worker gw3 has device 3."""
    return worker.gateway.id.removeprefix("gw")


CONFIG: Any = SimpleNamespace(hook=SimpleNamespace(pytest_collectreport=lambda report: None))


def calls(*directions: int) -> list[str]:
    """Node ids of calls with one or two directions each."""
    return [
        f"dump.json::Mint.f.{n}::{d}" for n, count in enumerate(directions) for d in ("forward", "backward")[:count]
    ]


def started(
    collection: list[str], workers: int, costs: dict[str, float] | None = None
) -> tuple[CallScheduler, list[FakeWorker]]:
    scheduler = CallScheduler(CONFIG, workers, FakeCosts(costs or {}), device_of)
    nodes = [FakeWorker(f"gw{number}") for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, collection)
    scheduler.schedule()
    return scheduler, nodes


def finish(scheduler: CallScheduler, nodes: list[FakeWorker]) -> None:
    while any(node.can_run() for node in nodes):
        for node in nodes:
            if node.can_run():
                scheduler.mark_test_complete(node, node.run_one())


@given(st.lists(st.integers(1, 2), max_size=40), st.integers(1, 5))
def test_every_item_runs_once_and_calls_stay_whole(directions: list[int], workers: int) -> None:
    collection = calls(*directions)
    scheduler, nodes = started(collection, workers)
    finish(scheduler, nodes)
    assert sorted(index for node in nodes for index in node.done) == list(range(len(collection)))
    for node in nodes:
        scopes = [collection[index].rpartition("::")[0] for index in node.done]
        assert all(
            scopes.index(scope) + scopes.count(scope) - 1 == len(scopes) - 1 - scopes[::-1].index(scope)
            for scope in scopes
        )
    owners = {}
    for node in nodes:
        for index in node.done:
            assert owners.setdefault(collection[index].rpartition("::")[0], node) is node
    assert scheduler.tests_finished
    assert not scheduler.has_pending
    assert all(node.shutting_down for node in nodes)


def test_the_most_expensive_call_starts_first() -> None:
    costs = {"Mint.f.0": 1.0, "Mint.f.1": 5.0, "Mint.f.2": 9.0, "Mint.f.3": 5.0}
    scheduler, (node,) = started(calls(2, 2, 2, 2), 1, costs)
    finish(scheduler, [node])
    assert node.done == [4, 5, 2, 3, 6, 7, 0, 1]


def test_a_busy_worker_keeps_nothing_from_an_idle_one() -> None:
    scheduler, (busy, idle) = started(calls(*[2] * 20), 2)
    while idle.can_run():
        scheduler.mark_test_complete(idle, idle.run_one())
    # Besides the call that it is in, xdist's rule commits a worker to one more at most.
    assert len(busy.queue) <= 4
    assert len(idle.done) == 40 - len(busy.queue) - len(idle.queue)


@given(st.integers(1, 3), st.lists(st.integers(0, 100), max_size=6))
def test_a_crash_costs_one_item(workers: int, crashes: list[int]) -> None:
    collection = calls(*[2] * 12)
    scheduler, nodes = started(collection, workers)
    crashed = []
    for number, choice in enumerate(crashes):
        ready = [node for node in nodes if node.can_run()]
        if not ready:
            break
        victim = ready[choice % len(ready)]
        nodes.remove(victim)
        crashed.append(scheduler.remove_node(victim))
        assert crashed[-1] == collection[victim.queue[0]]
        replacement = FakeWorker(f"new{number}")
        scheduler.add_node(replacement)
        scheduler.add_node_collection(replacement, list(collection))
        scheduler.schedule()
        replacement.done.extend(victim.done)
        nodes.append(replacement)
        finish_some(scheduler, nodes, choice)
    finish(scheduler, nodes)
    done = [collection[index] for node in nodes for index in node.done]
    assert sorted(done + [item for item in crashed if item]) == sorted(collection)


def finish_some(scheduler: CallScheduler, nodes: list[FakeWorker], count: int) -> None:
    for number in range(count % 7):
        ready = [node for node in nodes if node.can_run()]
        if ready:
            node = ready[number % len(ready)]
            scheduler.mark_test_complete(node, node.run_one())


def test_workers_that_collected_other_items_end_the_run_with_a_report() -> None:
    reports: list[pytest.CollectReport] = []
    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_collectreport=lambda report: reports.append(report)))
    scheduler = CallScheduler(config, 2, FakeCosts({}), device_of)
    for name, collection in (("gw0", calls(2, 2)), ("gw1", calls(2, 1))):
        node = FakeWorker(name)
        scheduler.add_node(node)
        scheduler.add_node_collection(node, collection)
    scheduler.schedule()
    assert [report.outcome for report in reports] == ["failed"]
    assert scheduler.collection is None


def test_an_item_can_be_put_back() -> None:
    scheduler, (node,) = started(calls(2, 2), 1)
    scheduler.mark_test_complete(node, node.run_one())
    scheduler.mark_test_pending("dump.json::Mint.f.0::forward")
    finish(scheduler, [node])
    assert node.done.count(0) == 2


def of_devices(count: int, devices: Sequence[int]) -> list[str]:
    """Node ids of calls that each of the devices judges in both directions."""
    return [
        f"dump.json::Mint.f.{n}::{direction}-device{device}"
        for n in range(count)
        for device in devices
        for direction in ("forward", "backward")
    ]


@given(st.integers(1, 8), st.integers(1, 4))
def test_items_of_a_device_run_on_its_workers_only(count: int, workers: int) -> None:
    collection = [*of_devices(count, range(workers)), *calls(2, 1)]
    scheduler, nodes = started(collection, workers)
    finish(scheduler, nodes)
    assert sorted(index for node in nodes for index in node.done) == list(range(len(collection)))
    for number, node in enumerate(nodes):
        assert {collection[index].partition("-device")[2] for index in node.done} <= {str(number), ""}
    assert scheduler.tests_finished
    assert all(node.shutting_down for node in nodes)


def test_what_a_dead_worker_held_goes_to_the_next_one_of_its_device() -> None:
    collection = of_devices(4, (0, 1))
    scheduler, (first, second) = started(collection, 2)
    crashed = scheduler.remove_node(first)
    assert crashed == collection[first.queue[0]]
    replacement = FakeWorker("gw0")
    scheduler.add_node(replacement)
    scheduler.add_node_collection(replacement, collection)
    scheduler.schedule()
    finish(scheduler, [second, replacement])
    done = {collection[index] for index in replacement.done}
    assert done == {node_id for node_id in collection if node_id.endswith("device0")} - {crashed}
    assert len(second.done) == 8
