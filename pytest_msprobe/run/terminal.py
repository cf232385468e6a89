"""The terminal of a run with thousands of records: no log capture, a limit for failures, progress, the last section."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.values import optional, printable
from pytest_msprobe.answers import Answer, Outcome
from pytest_msprobe.answers.answer import abridged
from pytest_msprobe.answers.words import how_far, lines as lines_of
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.terminal import FILE_WIDTH, Line, VerdictCounts, wrapped
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.suites.registry import REFUSED
from pytest_msprobe.verdicts import EXPLAINED, VerdictRow

_PLUGIN = "logging-plugin"
_LOG_KEYS = ("log_cli", "log_file", "log_level")
_LOG_OPTIONS = ("log_level", "log_cli_level", "log_file", "log_file_level")


@contextmanager
def without_log_capture(session: pytest.Session, item_type: type[pytest.Item]) -> Iterator[None]:
    """Run the items of `session` without log capture, if they are all of `item_type` and no option asks for logs.

    pytest attaches handlers to every logger that does not propagate, in each phase of each item, and importing PyTorch
    makes 43 of those: 0.4 ms per item. Our items log nothing of their own; what MindSpore logs goes to stderr anyway.
    """
    config = session.config
    plugin = config.pluginmanager.get_plugin(_PLUGIN)
    if plugin is None or _wants_logs(config) or not all(isinstance(item, item_type) for item in session.items):
        yield
        return
    config.pluginmanager.unregister(plugin)
    try:
        yield
    finally:
        # Back in its place for the hooks that end the session, which close what it has open.
        config.pluginmanager.register(plugin, _PLUGIN)


def _wants_logs(config: pytest.Config) -> bool:
    return any(config.getoption(name, None) for name in _LOG_OPTIONS) or any(map(config.getini, _LOG_KEYS))


#: Failures that pytest prints whole; `-v` prints all.
MOST_FAILURES = 20
#: Longest text that a line on a failure begins with where no figure says how wrong it is.
_SHORT = 60
#: First line of progress, and the shortest time between two, in seconds.
PROGRESS_SECONDS = 30.0
#: Later ones come after this part of the time that has passed: a run of a day need not print 3,000 lines.
_PROGRESS_SHARE = 0.1


@contextmanager
def limited_failures(terminal: pytest.TerminalReporter) -> Iterator[int]:
    """Have pytest print the first failures only, those that rounding does not explain before others.

    Nothing changes with `-v`, for the other tests of a run, and for reports other than the terminal's.

    Yields:
        How many failures it does not print.
    """
    failed: list[Any] = terminal.stats.get("failed", [])
    ours = [report for report in failed if hasattr(report, "msprobe_rounding")]
    if terminal.verbosity > 0 or len(ours) <= MOST_FAILURES:
        yield 0
        return
    ours.sort(key=lambda report: bool(report.msprobe_rounding == EXPLAINED))
    left_out = set(map(id, ours[MOST_FAILURES:]))
    terminal.stats["failed"] = [report for report in failed if id(report) not in left_out]
    try:
        yield len(left_out)
    finally:
        terminal.stats["failed"] = failed


def width_of(terminal: pytest.TerminalReporter) -> int:
    """How wide lines may be; 0 for a file, in which a text stays on one line, so that one can search in it."""
    is_known = terminal.isatty or "COLUMNS" in os.environ
    return max(40, shutil.get_terminal_size().columns) if is_known else 0


def in_short(row: VerdictRow) -> str:
    """How wrong a failed record is, in a few words."""
    worst = row.worst_failure
    if worst is None:
        return abridged(row.message.partition("\n")[0], _SHORT)
    return worst.pattern or how_far(worst.figures, worst.difference) or abridged(worst.message, _SHORT)


class Progress:
    """Prints how far a long run is and how long the rest will take, also under xdist."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Show the progress of the session that starts next; `clock` gives seconds."""
        self._clock = clock
        self._began = 0.0
        self._next = 0.0
        self._done = 0
        self._failed = 0
        self._session: Any = None
        self._terminal: Any = None

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the terminal."""
        self._session = session
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an item when it has ended; print a line when one is due."""
        now = self._clock()
        if not self._began:
            self._began, self._next = now - report.duration, now - report.duration + PROGRESS_SECONDS
        self._failed += report.failed
        if report.when != "teardown":
            return
        self._done += 1
        total = self._session.testscollected
        if now < self._next or self._done >= total or self._terminal is None or self._terminal.verbosity < 0:
            return
        passed = now - self._began
        self._next = now + max(PROGRESS_SECONDS, _PROGRESS_SHARE * passed)
        rest = passed * (total - self._done) / self._done
        failed = optional(", {} failed", self._failed)
        self._terminal.ensure_newline()
        if self._terminal._tw.width_of_current_line:  # under xdist it does not know of the dots that it has printed
            self._terminal._tw.line()
        self._terminal.write_line(f"msprobe: {self._done} of {total} done{failed}; about {duration(rest)} left")


def duration(seconds: float) -> str:
    """A time for people: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


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
