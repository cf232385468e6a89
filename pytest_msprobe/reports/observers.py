"""Verdicts for the hook `pytest_msprobe_verdict`."""

from __future__ import annotations

import pytest

from pytest_msprobe.reports.faults import place_of
from pytest_msprobe.reports.row import VerdictRow


class VerdictObservers:
    """Hands each verdict row to the conftest.py files that want it; registered on the process that writes reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._problem = ""

    def tell(self, row: VerdictRow) -> None:
        """Hand `row` over. What an observer raises ends the observing, not the run."""
        hook = self._config.hook.pytest_msprobe_verdict
        if self._problem or not hook.get_hookimpls():
            return
        try:
            hook(config=self._config, row=row)
        except Exception as error:
            self._problem = (
                f"pytest_msprobe_verdict failed at {row.node_id}: {type(error).__name__}: {error} "
                f"({place_of(error)}); it got no later verdict, all other reports are complete"
            )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run whose verdicts did not arrive where they should is no success."""
        if self._problem:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what an observer did wrong."""
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)
