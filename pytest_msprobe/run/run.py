"""One run in one process: what the hooks of `plugin.py` ask.

It judges whole groups of the collected records: those of its shard that a hook wants and no earlier run has done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from msprobe_collector.dump_format import API_TYPES, DIRECTIONS
from pytest_msprobe.reports.other_tools import case_name
from pytest_msprobe.run.baseline import known_failures
from pytest_msprobe.run.nodes import GroupNode, RecordFile, RecordFolder, RecordItem, records_among
from pytest_msprobe.run.settings import Settings
from pytest_msprobe.suites.contract import CallNames, Group, Suite
from pytest_msprobe.support import place_of


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


_Key = tuple[Path, str, str]


def names_of(suite: Suite) -> CallNames:
    """How reports call the groups of `suite`; what a resumed run has done is known by these names."""
    return CallNames(suite.files, tell_files=suite.call_names_are_unique)


def deselect_other_shards(
    config: pytest.Config, suite: Suite, items: list[pytest.Item], shard: tuple[int, int] | None
) -> None:
    """Leave out the groups that belong to other shards than `shard`, as (number, count)."""
    if shard is None:
        return
    number, count = shard
    groups = {_key(item): item for item in records_among(items)}
    costs = [suite.cost(item.path, item.group) for item in groups.values()]
    shards = dict(zip(groups, split_by_cost(costs, count)))
    _keep(config, items, lambda item: shards[_key(item)] == number)


def deselect_by_hook(config: pytest.Config, suite: Suite, items: list[pytest.Item]) -> None:
    """Leave out the groups that `pytest_msprobe_select` does not want, each asked once.

    Raises:
        pytest.UsageError: the hook raises.
    """
    hook = config.hook.pytest_msprobe_select
    if not hook.get_hookimpls():
        return
    answers: dict[_Key, bool] = {}

    def is_wanted(item: RecordItem) -> bool:
        """Whether the hook wants the group of `item`; asked once for each group.

        Raises:
            pytest.UsageError: the hook raises.
        """
        key = _key(item)
        if key not in answers:
            api = suite.api(item.record)
            try:
                answer = None if api is None else hook(config=config, api=api, dump=item.path)
            except Exception as error:
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                raise pytest.UsageError(
                    f"pytest_msprobe_select failed for {item.group.call} of {item.path}: {text} ({place_of(error)})"
                ) from None
            answers[key] = answer is None or bool(answer)
        return answers[key]

    _keep(config, items, is_wanted)


def deselect_done(config: pytest.Config, items: list[pytest.Item], names: CallNames, done: Collection[str]) -> None:
    """Leave out the groups whose name in reports is in `done`."""
    if done:
        _keep(config, items, lambda item: names.of(str(item.path), item.group.call) not in done)


def complete_items(items: list[pytest.Item]) -> None:
    """Tell every group which of its records were selected, and name the items as JUnit does, for IDEs and Allure.

    pytest selects by names: as long as it does, an item is called as in its node id.
    """
    for item in records_among(items):
        if isinstance(item.parent, GroupNode):
            item.parent.selected += (item.part,)
        item.name = case_name(item.group.call, item.part)


def _keep(config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[RecordItem], bool]) -> None:
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (kept if not isinstance(item, RecordItem) or is_kept(item) else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept


def _key(item: RecordItem) -> _Key:
    """The group of an item: records that form no group are each their own."""
    group: Group = item.group
    return item.path, group.scope, group.call


#: Markers by their names, with what an item that has one is.
MARKERS: dict[str, str] = {
    **{str(direction): f"{direction} record of a dump" for direction in DIRECTIONS},
    **{api_type: f"record of {origin} in a dump" for api_type, origin in API_TYPES.items()},
    "custom": "record of another API type in a dump",
}


class Run:
    """The suite of a run with its settings.

    Attributes:
        settings: what the run was asked to do.
        suite: how records are judged.
        names: how reports call groups of records.
        done: names in reports of the groups that an interrupted run has done; workers get them from the controller.
        known_failures: what --msprobe-baseline says of the run; None without it.
    """

    item_type = RecordItem

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite) -> None:
        """For one process of a run.

        Raises:
            pytest.UsageError: the baseline cannot be read.
        """
        self.settings = settings
        self.suite = suite
        self.names = names_of(suite)
        self.done: frozenset[str] = frozenset(getattr(config, "workerinput", {}).get("msprobe_done", ()))
        self.known_failures = known_failures(config, settings, suite)
        self._config = config
        self._files = frozenset(suite.files)
        self._marks: dict[str, pytest.Mark] = {}

    def file_node(self, path: Path, parent: pytest.Collector) -> RecordFile | None:
        """The node for a file of the run, or for a dump.json that is a plain argument; None for any other file."""
        if path in self._files or (path.name == "dump.json" and parent.session.isinitpath(path)):
            return RecordFile.of(parent, path)
        return None

    def folder_node(self, path: Path, parent: pytest.Collector) -> RecordFolder | None:
        """The node for a folder that the suite reads by rules of its own; None for any other."""
        children = self.suite.folder(path)
        return None if children is None else RecordFolder.of(parent, path, children)

    def choose(self, items: list[pytest.Item]) -> None:
        """Leave out the groups of other shards, those that no conftest.py wants, and what a resumed run has done."""
        deselect_other_shards(self._config, self.suite, items, self.settings.shard)
        deselect_by_hook(self._config, self.suite, items)
        deselect_done(self._config, items, self.names, self.done)

    def mark(self, name: str) -> pytest.Mark:
        """The marker `name`, one object for all items: 100,000 of them need no 200,000 marks."""
        if name not in self._marks:
            self._marks[name] = getattr(pytest.mark, self._marker(name)).mark
        return self._marks[name]

    def _marker(self, name: str) -> str:
        """`name`, declared; `custom` where it cannot be a marker, or means something to pytest or a plugin.

        A record called `xfail.add.0` is not expected to fail.
        """
        if name in MARKERS:
            return name
        taken = {line.partition(":")[0].partition("(")[0].strip() for line in self._config.getini("markers")}
        if not name.isidentifier() or name.startswith("_") or name in taken:
            return "custom"
        # A custom prefix (register_custom_api) is an API type that nobody could declare before.
        self._config.addinivalue_line("markers", f"{name}: record of a dump")
        return name
