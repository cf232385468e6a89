"""Files and findings of an overflow run, on the one process that writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.slot import Slot
from pytest_msprobe.overflow.finding import RecordFinding
from pytest_msprobe.overflow.session import OverflowSession
from pytest_msprobe.overflow.step_finding import StepFinding
from pytest_msprobe.overflow.summary import RankSummary, SummaryFiles


class OverflowReport:
    """Takes the findings off the reports, and writes and says at the end what they amount to."""

    def __init__(self, session: OverflowSession, dumps: Sequence[Path]) -> None:
        self._session = session
        self._dumps = dumps
        self._ranks = {str(path): RankSummary(str(path), session.rank(path), Slot.of(path).step) for path in dumps}
        self._steps: dict[str, StepFinding] = {}
        self._files = SummaryFiles(session.settings.out)
        self._problem = ""

    def header(self) -> list[str]:
        """The lines above the run."""
        shown = self._session.node_id(self._dumps[0]) if len(self._dumps) == 1 else f"{len(self._dumps)} dumps"
        benches = ", ".join(engine.name for engine in self._session.engines.benchmarks)
        return [f"msprobe: {shown}: looking for where NaN and Inf begin; origins are computed again by {benches}"]

    def page_lines(self) -> list[str]:
        """The first lines of the HTML page: what was found, then what was looked through."""
        return [*self._findings(), *self.header()]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the finding off the report, so that it is not kept for the whole run."""
        wire: dict[str, Any] | None = report.__dict__.pop("msprobe_overflow", None)
        if wire is None:
            return
        if "step" in wire:
            finding = StepFinding.from_wire(wire["step"])
            self._steps[finding.folder] = finding
            return
        record = RecordFinding.from_wire(wire["finding"])
        summary = self._ranks[record.dump]
        summary.add(record)
        try:
            self._files.write(record, summary)
        except OSError as error:
            self._problem = f"--msprobe-out={self._session.settings.out}: writing stopped: {error.strerror}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Finish the files. A run whose files are not whole is no success."""
        try:
            self._files.close([*self._steps.values()], [*self._ranks.values()])
        except OSError as error:
            self._problem = (
                f"--msprobe-out={self._session.settings.out}: the summary cannot be written: {error.strerror}"
            )
        if self._problem and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The findings, before the tally that all suites have."""
        terminalreporter.section("msprobe overflow")
        for line in self._findings():
            terminalreporter.write_line(line)
        for label, path in self._files.paths():
            terminalreporter.write_line(f"{label}: {path}")
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)

    def _findings(self) -> Iterator[str]:
        for finding in self._steps.values():
            yield self._with_verdict(finding)
            if finding.anomalies:
                yield from finding.details()
        if not self._steps:
            yield "the first anomaly was not looked for: its item did not run"
        for summary in self._ranks.values():
            if summary.levels:
                yield f"{self._session.node_id(Path(summary.dump))}: {summary.counts}"

    def _with_verdict(self, finding: StepFinding) -> str:
        """The headline, with what computing it again showed where that item has run."""
        if not finding.anomalies:
            return finding.headline
        first = finding.anomalies[0]
        origin = self._ranks[first.dump].first_origin
        is_known = origin is not None and origin.record == first.record and origin.verdict
        return f"{finding.headline}: {origin.verdict}" if is_known and origin is not None else finding.headline
