"""The comparison as a suite: one item per operation of the target dump, judged against the golden dump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from pytest_msprobe import _keys
from pytest_msprobe.comparison.dump_pairs import DumpPairs, find_files, pair_dumps
from pytest_msprobe.comparison.nodes import ComparedFile, ComparedItem, attach
from pytest_msprobe.comparison.report_plugin import ComparisonReport
from pytest_msprobe.comparison.session import ComparisonSession
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.suite_reports import register_reports
from pytest_msprobe.settings import Settings


class ComparisonSuite:
    """See `pytest_msprobe.suite.Suite`."""

    item_type: ClassVar[type[pytest.Item]] = ComparedItem

    def __init__(self, pairs: DumpPairs) -> None:
        self._pairs = pairs

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether `path` is a target dump."""
        return path in self._pairs.golden

    def collector(self, parent: pytest.Collector, path: Path) -> pytest.Collector:
        """The target dump at `path`."""
        return ComparedFile.of(parent, path)

    def choose(self, items: list[pytest.Item]) -> None:
        """All items run."""

    def begin(self, items: list[pytest.Item]) -> None:
        """Items are independent of each other."""

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Send an item's rows along with its report."""
        attach(item, report)

    def close(self) -> None:
        """Nothing outlives the items."""


def set_up(config: pytest.Config, settings: Settings, dumps: tuple[Path, ...]) -> ComparisonSuite:
    """The suite of a run over the target `dumps`, with its reports on the process that writes them.

    Raises:
        pytest.UsageError: there is nothing to compare with.
    """
    golden = settings.golden
    if golden is None:
        raise pytest.UsageError("--msprobe-suite=comparison needs --msprobe-golden=PATH, the dump to compare with")
    if not dumps:
        raise pytest.UsageError(f"--msprobe-golden={golden}: name the dumps to compare with it by --msprobe-dump=PATH")
    if not golden.exists():
        raise pytest.UsageError(f"--msprobe-golden={golden}: there is no such file or folder")
    if not find_files(golden):
        raise pytest.UsageError(f"--msprobe-golden={golden}: holds no dump.json; give a dump, step or rank folder")
    config.option.msprobe_golden = os.fspath(golden)  # workers have another working folder
    pairs = pair_dumps(dumps, golden)
    session = ComparisonSession(config, settings, pairs)
    config.stash[_keys.COMPARISON] = session
    if not hasattr(config, "workerinput"):
        _register_reports(config, settings, session, dumps)
    return ComparisonSuite(pairs)


def _register_reports(
    config: pytest.Config, settings: Settings, session: ComparisonSession, dumps: tuple[Path, ...]
) -> None:
    report = ComparisonReport(session, CallNames(dumps))
    config.pluginmanager.register(report, "msprobe-comparison")
    register_reports(
        config, settings, dumps, report.header, report.page_lines, title="Comparison of dumps", noun="operations"
    )
