"""Tables, advice and findings of a comparison, on the one process that writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_msprobe.comparison.divergence import RecordSummary
from pytest_msprobe.comparison.output import ComparisonOutput
from pytest_msprobe.comparison.rank_merge import MergeError, merge_steps
from pytest_msprobe.comparison.session import ComparisonSession
from pytest_msprobe.reports.names import CallNames


class ComparisonReport:
    """Takes the table rows off the reports, and writes and says at the end what they amount to."""

    def __init__(self, session: ComparisonSession, names: CallNames) -> None:
        self._session = session
        self._names = names
        self._outputs: dict[str, ComparisonOutput] = {}
        self._files: list[Path] = []
        self._problem = ""

    def header(self) -> list[str]:
        """The lines above the run."""
        pairs = self._session.pairs
        lines = [
            f"msprobe: {self._session.node_id(target)}: compared with {golden}"
            for target, golden in pairs.golden.items()
            if golden is not None
        ]
        return [*lines, *(f"msprobe: not compared: {problem}" for problem in self._missing())]

    def page_lines(self) -> list[str]:
        """The first lines of the HTML page: what was found, then what was compared."""
        return [*self._findings(), *self.header()]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the rows off the report, so that they are not kept for the whole run."""
        found: dict[str, Any] | None = report.__dict__.pop("msprobe_comparison", None)
        if found is not None:
            output = self._outputs.get(found["dump"])
            if output is None:
                output = self._outputs[found["dump"]] = ComparisonOutput(Path(found["dump"]))
            output.add(RecordSummary.from_wire(found["summary"]), found["rows"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files. A run that did not compare everything is no success."""
        settings = self._session.settings
        try:
            self._write()
        except (OSError, ImportError, MergeError) as error:
            self._problem = f"--msprobe-out={settings.out}: the tables are not complete: {error}"
        is_wrong = self._problem or self._is_incomplete() or self._missing()
        if is_wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The findings, before the tally that all suites have."""
        terminalreporter.section("msprobe comparison")
        for line in self._findings():
            terminalreporter.write_line(line)
        for path in self._files:
            terminalreporter.write_line(f"{'advice' if path.suffix == '.txt' else 'table'}: {path}")
        if self._is_incomplete():
            terminalreporter.write_line(
                "not everything could be compared, so this run is no success; --msprobe-accept=unmatched accepts "
                "what only one side has",
                red=True,
            )
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)

    def _is_incomplete(self) -> bool:
        accepts = "unmatched" in self._session.settings.comparison.accept
        return not accepts and any(not output.divergence.is_complete for output in self._outputs.values())

    def _write(self) -> None:
        settings, tables = self._session.settings, []
        targets = list(self._session.pairs.golden)
        for target, output in self._outputs.items():
            comparison = self._session.comparison(Path(target))
            written = output.write(settings.out, comparison, settings.comparison, targets=targets)
            tables.append(written[0])
            self._files += written
            output.close()
        self._files += merge_steps(tables, settings.out)

    def _missing(self) -> list[str]:
        pairs = self._session.pairs
        return [
            *pairs.problems.values(),
            *(f"{path}: no target dump for this golden dump" for path in pairs.golden_only),
        ]

    def _findings(self) -> Iterator[str]:
        several = len(self._outputs) > 1
        for target, output in self._outputs.items():
            if several:
                yield f"{self._session.node_id(Path(target))}:"
            yield from (f"  {line}" if several else line for line in output.divergence.lines())
        yield from (f"not compared: {problem}" for problem in self._missing())
