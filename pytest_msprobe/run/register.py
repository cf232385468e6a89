"""The reports of a run, registered on the one process that writes."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.run.page import started_as
from pytest_msprobe.run.reporting import ReportPlugin
from pytest_msprobe.run.settings import Settings
from pytest_msprobe.run.terminal_output import Progress
from pytest_msprobe.suites.contract import Suite


def register_reports(
    config: pytest.Config,
    settings: Settings,
    suite: Suite,
    header: Callable[[], list[str]],
    earlier: EarlierRun | None,
) -> None:
    """Have verdicts written: JSONL, terminal, hook, and what other plugins write, the page and JUnit.

    Args:
        config: of the run.
        settings: of the run.
        suite: of the run.
        header: lines for the terminal before the run, and for the page.
        earlier: the run that is continued.

    Raises:
        pytest.UsageError: a folder or file of the results cannot be written.
    """
    reports = ReportPlugin(
        config,
        suite,
        header,
        out=settings.out,
        jsonl=settings.jsonl,
        page=settings.page,
        started=started_as(config),
        earlier=earlier,
        allows_empty=settings.allows_empty,
    )
    config.pluginmanager.register(reports, "msprobe-reports")
    config.pluginmanager.register(Progress(), "msprobe-progress")
    if config.getoption("durations") is None:
        config.pluginmanager.register(PassedPhaseReports(), "msprobe-passed-phase-reports")
    if config.getoption("xmlpath", None):
        from pytest_msprobe.reports.junit import JUnitNames

        config.pluginmanager.register(JUnitNames(), "msprobe-junit-names")
    if page := config.getoption("htmlpath", None):
        if os.path.isdir(page):
            raise pytest.UsageError(f"--html={page}: is a folder; name a file")
        from pytest_msprobe.reports.html import HtmlPage

        report = reports.report
        html = HtmlPage(
            settings.html_passes,
            lambda: [*report.findings(), *header()],
            report.markup,
            reports.names,
            title=suite.title,
            noun=suite.noun,
            kinds=suite.kinds,
            figures=suite.figures,
        )
        config.pluginmanager.register(html, "msprobe-html")


class PassedPhaseReports:
    """Releases passed setups and teardowns that printed nothing, two for each item.

    pytest keeps them to the end, and its summary looks through all of them once for each failure. Only `--durations`
    asks for them.
    """

    def __init__(self) -> None:
        """Release the reports of the session that starts next."""
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
