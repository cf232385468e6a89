"""The overflow suite: one item per record, and one per training step for its first anomaly."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from pytest_msprobe.overflow import keys
from pytest_msprobe.overflow.buffer_rules import RuleError
from pytest_msprobe.overflow.nodes import OverflowFile, OverflowItem, attach
from pytest_msprobe.overflow.report_plugin import OverflowReport
from pytest_msprobe.overflow.session import OverflowSession
from pytest_msprobe.reports.suite_reports import register_reports
from pytest_msprobe.settings import Settings


class OverflowSuite:
    """See `pytest_msprobe.suite.Suite`."""

    item_type: ClassVar[type[pytest.Item]] = OverflowItem

    def __init__(self, session: OverflowSession, dumps: tuple[Path, ...]) -> None:
        self._session = session
        self._dumps = frozenset(dumps)

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether `path` is a dump of this run."""
        return path in self._dumps

    def collector(self, parent: pytest.Collector, path: Path) -> pytest.Collector:
        """The dump at `path`."""
        return OverflowFile.of(parent, path)

    def choose(self, items: list[pytest.Item]) -> None:
        """All items run."""

    def begin(self, items: list[pytest.Item]) -> None:
        """Items are independent of each other."""

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Send an item's rows along with its report."""
        attach(item, report)

    def close(self) -> None:
        """End child processes."""
        self._session.close()


def set_up(config: pytest.Config, settings: Settings, dumps: tuple[Path, ...]) -> OverflowSuite:
    """The suite of a run over `dumps`, with its reports on the process that writes them.

    Raises:
        pytest.UsageError: there is no dump, or the rule file is not what it should be.
    """
    if not dumps:
        raise pytest.UsageError("--msprobe-suite=overflow needs --msprobe-dump=PATH, the dumps to look through")
    try:
        session = OverflowSession(config, settings, dumps)
    except RuleError as error:
        raise pytest.UsageError(f"--msprobe-overflow-rules: {error}") from None
    if settings.overflow.rules is not None:
        config.option.msprobe_overflow_rules = str(settings.overflow.rules)  # workers have another working folder
    config.stash[keys.SESSION] = session
    if not hasattr(config, "workerinput"):
        _register_reports(config, settings, session, dumps)
    return OverflowSuite(session, dumps)


def _register_reports(
    config: pytest.Config, settings: Settings, session: OverflowSession, dumps: tuple[Path, ...]
) -> None:
    report = OverflowReport(session, dumps)
    config.pluginmanager.register(report, "msprobe-overflow")
    register_reports(
        config,
        settings,
        dumps,
        report.header,
        report.page_lines,
        title="Overflow: where NaN and Inf begin",
        noun="records",
    )
