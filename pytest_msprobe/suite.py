"""What a suite is: one way in which the dumps of a run become items. `activation.SUITES` says which there are."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest


class Suite(Protocol):
    """What the hooks in `plugin.py` ask of the suite of a run; one object per process, in the stash under `SUITE`.

    A suite registers its own reports when it is set up, on the process that writes them. Items send their verdicts
    there as `report.msprobe_row`, a `VerdictRow` in builtin types, which `reports.plugin.ReportPlugin` takes off.
    """

    @property
    def item_type(self) -> type[pytest.Item]:
        """The class of the suite's items."""

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether the file at `path` is one that this run was pointed at."""

    def collector(self, parent: pytest.Collector, path: Path) -> pytest.Collector:
        """The node for the file at `path`, whose items stand below it."""

    def choose(self, items: list[pytest.Item]) -> None:
        """Take the items out of `items` that are not to run, and tell pytest that they were deselected."""

    def begin(self, items: list[pytest.Item]) -> None:
        """Learn which items will run."""

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Put the verdict of `item` on `report`, in builtin types; `item` may be another suite's or none of ours."""

    def close(self) -> None:
        """End what outlives the items."""
