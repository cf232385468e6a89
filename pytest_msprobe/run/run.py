"""One run in one process: what the hooks of `plugin.py` ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe_collector.dump_format import API_TYPES, DIRECTIONS
from pytest_msprobe.run.nodes import RecordFile, RecordFolder, RecordItem
from pytest_msprobe.run.selection import deselect_by_hook, deselect_done, deselect_other_shards, mark_selected, names_of
from pytest_msprobe.run.settings import Settings
from pytest_msprobe.suites.contract import Suite

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
    """

    item_type = RecordItem

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite) -> None:
        self.settings = settings
        self.suite = suite
        self.names = names_of(suite)
        self.done: frozenset[str] = frozenset(getattr(config, "workerinput", {}).get("msprobe_done", ()))
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

    def begin(self, items: list[pytest.Item]) -> None:
        """Tell each group which of its records will be judged."""
        mark_selected(items)

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

    def close(self) -> None:
        """End what outlives the items."""
        self.suite.close()
