"""Who judges what, and when: groups of records to workers, the most expensive first, each whole on one worker."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from xdist.report import report_collection_diff

from pytest_msprobe.run.record_index import RecordIndex

#: xdist's worker starts an item only when it holds the next one, or knows that there is none.
_FEWEST_HELD = 2


class CallScheduler:
    """An xdist scheduler whose unit of work is a group of records: the directions of a call share inputs and forward.

    Units go out largest estimated cost first, one at a time, whenever a worker is about to run dry. A worker is
    committed to the unit after the one it runs, because of `_FEWEST_HELD`; everything else stays free for others. Of a
    group whose records belong to several devices, those of each device are a unit, which only its workers get.

    Attributes:
        collection: node ids of all items, once every worker has collected the same ones.
    """

    def __init__(
        self, config: pytest.Config, worker_count: int, index: RecordIndex, device_of: Callable[[Any], str | None]
    ) -> None:
        """A scheduler for `worker_count` workers; `index` tells units and costs, `device_of` a worker's device."""
        self._config = config
        self._worker_count = worker_count
        self._index = index
        self._device_of = device_of
        self._collections: dict[Any, Sequence[str]] = {}
        self._held: dict[Any, list[int]] = {}
        #: Units that wait, by their devices; None for those that any worker may get.
        self._units: dict[str | None, deque[list[int]]] = defaultdict(deque)
        self.collection: Sequence[str] | None = None

    @property
    def nodes(self) -> list[Any]:
        """All workers that take part."""
        return list(self._held)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every initial worker has collected."""
        return len(self._collections) >= self._worker_count

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left that a worker could not do with what it holds."""
        return (
            self.collection_is_completed
            and not any(self._units.values())
            and all(len(held) < _FEWEST_HELD for held in self._held.values())
        )

    @property
    def has_pending(self) -> bool:
        """Whether an item is waiting or running."""
        return any(self._units.values()) or any(self._held.values())

    def add_node(self, node: Any) -> None:
        """A worker has started."""
        assert node not in self._held
        self._held[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """A worker has collected. One that replaces another and collected something else gets no work."""
        if self.collection is not None and list(collection) != list(self.collection):
            self._report_difference(node, collection)
            return
        self._collections[node] = collection

    def schedule(self) -> None:
        """Make units of the collection and give every worker its first; later, give work to workers that joined."""
        if self.collection is None:
            first = next(iter(self._collections.values()))
            for node, collection in self._collections.items():
                if list(collection) != list(first):
                    self._report_difference(node, collection)
                    return
            self.collection = first
            for unit in self._sorted_units():
                self._units[self._device(unit)].append(unit)
        for node in self.nodes:
            self._feed(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """A worker has finished an item."""
        self._held[node].remove(item_index)
        self._feed(node)

    def mark_test_pending(self, item: str) -> None:
        """Run an item (again), before everything else."""
        assert self.collection is not None
        unit = [list(self.collection).index(item)]
        self._units[self._device(unit)].appendleft(unit)
        for node in self.nodes:
            self._feed(node)

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Part of xdist's protocol that is never asked for: this scheduler does not take work back.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """A worker has gone. The item that it was running, when it crashed in one; the others that it held go back."""
        held = self._held.pop(node)
        if self.collection is None:
            self._collections.pop(node, None)
        if not held:
            return None
        assert self.collection is not None
        crashed, *others = held
        for unit in reversed(self._grouped(others)):
            self._units[self._device(unit)].appendleft(unit)
        for remaining in self.nodes:
            self._feed(remaining)
        return self.collection[crashed]

    def _feed(self, node: Any) -> None:
        if node.shutting_down or (self.collection is not None and node not in self._collections):
            return
        held = self._held[node]
        while len(held) < _FEWEST_HELD:
            waiting = self._units[self._device_of(node)] or self._units[None]
            if not waiting:
                node.shutdown()
                return
            unit = waiting.popleft()
            held.extend(unit)
            node.send_runtest_some(unit)

    def _device(self, unit: Sequence[int]) -> str | None:
        assert self.collection is not None
        return self._index.device_of(self.collection[unit[0]])

    def _sorted_units(self) -> list[list[int]]:
        assert self.collection is not None
        collection = self.collection
        units = self._grouped(range(len(collection)))
        return sorted(units, key=lambda unit: -self._index.cost_of(list(map(collection.__getitem__, unit))))

    def _grouped(self, indices: Sequence[int]) -> list[list[int]]:
        """`indices` by the group and the device of their records, in order of appearance."""
        assert self.collection is not None
        groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for index in indices:
            node_id = self.collection[index]
            groups[self._index.scope_of(node_id), self._index.device_of(node_id)].append(index)
        return list(groups.values())

    def _report_difference(self, node: Any, collection: Sequence[str]) -> None:
        first = self.collection if self.collection is not None else next(iter(self._collections.values()))
        text = report_collection_diff(list(first), list(collection), "the first worker", node.gateway.id)
        report = pytest.CollectReport(nodeid=node.gateway.id, outcome="failed", longrepr=text, result=[])
        self._config.hook.pytest_collectreport(report=report)
