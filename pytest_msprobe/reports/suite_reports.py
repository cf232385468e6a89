"""The way of a suite's verdicts: onto pytest's report where they are made, and to the reports that receive them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.observers import VerdictObservers
from pytest_msprobe.reports.plugin import ReportPlugin, ResultFiles
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.row import Status, VerdictRow

#: The row of an item that did not come to run, from its status and the reason.
Unrun = Callable[[Status, str], VerdictRow]


class ReportSettings(Protocol):
    """What of a run's settings the reports need."""

    @property
    def out(self) -> Path:
        """Folder of the results."""

    @property
    def jsonl(self) -> Path | None:
        """File for machine rows."""

    @property
    def html_passes(self) -> str:
        """What becomes of passes on the HTML page."""


def send_row(
    item: pytest.Item, report: pytest.TestReport, key: pytest.StashKey[VerdictRow], *, unrun: Unrun | None = None
) -> bool:
    """Put the row of `item`, in builtin types, on the report that every process can read; whether there was one.

    The row lies in the item's stash under `key`.
    With `unrun` an item that was skipped or broken before it ran (a skip mark, a failing fixture of a conftest) gets
    its row here.
    """
    if report.skipped and report.when == "call" and isinstance(report.longrepr, tuple):
        # The place of a skip is what was judged, not the line of our code that raised it.
        report.longrepr = (str(item.path), 0, report.longrepr[2])
    row = item.stash.get(key, None) if report.when == "call" else None
    if unrun is not None and report.when == "setup" and not report.passed:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        row = unrun("skip" if report.skipped else "error", reason)
    if row is not None:
        report.msprobe_row = row.to_wire()  # type: ignore[attr-defined]  # reports carry extra attributes
    return row is not None


def register_reports(
    config: pytest.Config,
    settings: ReportSettings,
    files: Sequence[Path],
    header: Callable[[], list[str]],
    page_lines: Callable[[], list[str]],
    *,
    title: str,
    noun: str,
    results: ResultFiles | None = None,
    earlier: EarlierRun | None = None,
) -> None:
    """Have the verdicts on `files` written as every suite's are: JSONL, terminal, hook, and with --html the page.

    Args:
        config: of the run.
        settings: of the run.
        files: dumps, or what stands for them in names.
        header: lines for the terminal before the run.
        page_lines: lines for the head of the HTML page, asked for when it is written.
        title: of the page.
        noun: what an item is about.
        results: the suite's own files, unless it writes them elsewhere.
        earlier: the run that is continued.

    Raises:
        pytest.UsageError: a folder or file of the results cannot be written.
    """
    observers = VerdictObservers(config)
    config.pluginmanager.register(observers, "msprobe-observers")
    reports = ReportPlugin(
        settings.out,
        files,
        header,
        observers.tell,
        jsonl=settings.jsonl,
        earlier=earlier,
        files=results,
        noun=noun,
    )
    config.pluginmanager.register(reports, "msprobe-reports")
    if config.getoption("durations") is None:
        config.pluginmanager.register(SpentReports(), "msprobe-spent-reports")
    if page := config.getoption("htmlpath", None):
        if os.path.isdir(page):
            raise pytest.UsageError(f"--html={page}: is a folder; name a file")
        from pytest_msprobe.reports.html import HtmlPage

        html = HtmlPage(settings.html_passes, page_lines, CallNames(files), title=title, noun=noun)
        config.pluginmanager.register(html, "msprobe-html")


class SpentReports:
    """Lets go of passed setups and teardowns that printed nothing, two for each item.

    pytest keeps them to the end, and its summary looks through all of them once for each failure. Only `--durations`
    asks for them.
    """

    def __init__(self) -> None:
        """For the terminal of the session that starts next."""
        self._stats: dict[str, list[object]] = {}

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the terminal's lists of reports by outcome; those that show nothing stand under ""."""
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            self._stats = terminal.stats

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the report off the list, once it stands there."""
        if report.when != "call" and report.passed and not report.sections:
            silent = self._stats.get("")
            if silent and silent[-1] is report:
                silent.pop()
