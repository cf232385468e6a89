"""The last section of the terminal: counts, findings, files, what is missing, and the answer of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer, Outcome
from pytest_msprobe.answers.words import lines as lines_of
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.terminal import FILE_WIDTH, Line, VerdictCounts, wrapped
from pytest_msprobe.run.terminal import width_of
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.suites.registry import REFUSED

#: Colours of the answer.
_COLOURS: dict[Outcome, str] = {"right": "green", "wrong": "red", "nothing judged": "yellow"}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run shows at its end.

    Attributes:
        suite: of the run.
        report: of the suite.
        counts: of its verdicts.
        answer: what the run amounts to; None of a run that only collects.
        earlier: the run that is continued.
        baseline: lines on known failures.
        files: what was written, and where.
        rows: the file of the rows; None where none stays.
        notes: what is not judged and need not be, a line each.
        unwritten: what could not be written, a line each.
        gaps: what could not be judged of what was given, as lines.
        faults: why the run is no success, besides failed items and these two, a line each.
    """

    suite: Suite
    report: SuiteReport
    counts: VerdictCounts
    answer: Answer | None
    earlier: EarlierRun | None
    baseline: Sequence[str]
    files: Sequence[tuple[str, Path]]
    rows: Path | None
    notes: Sequence[str]
    unwritten: Sequence[str]
    gaps: Sequence[str]
    faults: Sequence[str]

    def write(self, terminal: pytest.TerminalReporter, exitstatus: int) -> None:
        """Write it below the sections of pytest, which ends with `exitstatus`."""
        for refused in REFUSED:
            terminal.write_line(f"msprobe: {printable(refused)}", yellow=True)
        for note in self.notes:
            terminal.write_line(printable(f"msprobe: not judged: {note}"), yellow=True)
        findings = list(self.report.findings())
        if not (self.counts.total or findings or self.unwritten):
            self._write_emptiness(terminal, exitstatus)
            return
        width, verbosity = width_of(terminal), terminal.verbosity
        terminal.section(f"msprobe {self.suite.name}")
        shown = findings if self.answer is None or verbosity > 0 else list(self.report.facts())
        lines = [*self._count_lines(verbosity, width), *map(Line, shown)]
        if self.files and len(lines) > 1 and verbosity >= 0:
            lines.append(Line(""))
        lines += [Line(f"{name}: {path}", is_whole=True) for name, path in self.files]
        for line in lines:
            text = printable(line.text)
            for part in [text] if line.is_whole else wrapped(text, width):
                terminal.write_line(part, **line.markup)
        file = self.rows or self.report.resumable()
        if exitstatus == pytest.ExitCode.INTERRUPTED and file:
            terminal.write_line(printable(f"interrupted: continue with --msprobe-resume={file}"), yellow=True)
        for text in (*self.unwritten, *self.gaps, *self.faults):
            terminal.write_line(printable(text), red=True)
        if self.answer is not None:
            first, *others = lines_of(self.answer, width or FILE_WIDTH)
            terminal.write_line("")
            terminal.write_line(first, bold=True, **{_COLOURS[self.answer.outcome]: True})
            for text in others:
                terminal.write_line(text)

    def _write_emptiness(self, terminal: pytest.TerminalReporter, exitstatus: int) -> None:
        """Write what is missing in a run without a verdict; advice where nothing else explains that it has none."""
        for text in self.gaps:
            terminal.write_line(printable(text), red=True)
        is_filtered = terminal.stats.get("deselected") or terminal.stats.get("error")
        is_empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not is_filtered and not self.gaps
        if is_empty and (advice := self.suite.advice_when_empty()):
            terminal.write_line(f"msprobe: {advice}", red=True)

    def _count_lines(self, verbosity: int, width: int) -> Iterator[Line]:
        if self.earlier is not None:
            yield Line(f"resumed: {len(self.earlier.rows)} of these verdicts are from the earlier run")
            if self.earlier.note:
                yield Line(f"resumed: {self.earlier.note}", "yellow")
        findings = self.answer.findings if self.answer is not None else ()
        record = findings[0].place.record if findings else ""
        yield from self.counts.lines(verbosity, width, record)
        yield from map(Line, self.baseline)
