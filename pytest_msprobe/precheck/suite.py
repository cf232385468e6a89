"""The pre-check as a suite: one item per API call and direction."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from pytest_msprobe.precheck.nodes import CheckItem, DumpFile, attach_row, deselect, deselect_done, mark_selected
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.precheck.shard import deselect_other_shards


class PrecheckSuite:
    """See `pytest_msprobe.suite.Suite`."""

    item_type: ClassVar[type[pytest.Item]] = CheckItem

    def __init__(self, config: pytest.Config, session: CheckSession) -> None:
        self._config = config
        self._session = session

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether `path` is a dump that an option named, or a dump.json that stands as a plain argument."""
        return self._session.wants(path, parent)

    def collector(self, parent: pytest.Collector, path: Path) -> pytest.Collector:
        """The dump at `path`."""
        return DumpFile.of(parent, path)

    def choose(self, items: list[pytest.Item]) -> None:
        """Leave out API calls: of other shards, those that no conftest.py wants, and what a resumed run has done."""
        deselect_other_shards(self._config, items)
        deselect(self._config, items)
        deselect_done(self._config, items)

    def begin(self, items: list[pytest.Item]) -> None:
        """Tell each API call which of its directions will run."""
        mark_selected(items)

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Send an item's verdict row along with its report."""
        attach_row(item, report)

    def close(self) -> None:
        """End child processes."""
        self._session.close()
