"""The reporting side of a run, on the one process that writes: alone, or the controller under xdist."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from msprobe_collector.dump_format.values import counted, first_of, optional, printable
from pytest_msprobe.answers import EXIT_CODES, Answer, RowFacts
from pytest_msprobe.reports.baseline import complaint_of
from pytest_msprobe.reports.jsonl import JsonLines, check_replaceable
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.terminal import VerdictCounts
from pytest_msprobe.run.answering import RunAnswering, Unjudged, outcomes_of, settle
from pytest_msprobe.run.baseline import BaselineReport, fault_keys
from pytest_msprobe.run.run import names_of
from pytest_msprobe.run.settings import ENDED, ENDED_IN_WORKER, Settings
from pytest_msprobe.run.terminal import Progress, RunSummary, in_short, limited_failures
from pytest_msprobe.suites.contract import Suite, SuiteError, SuiteReport
from pytest_msprobe.support import place_of, version_of
from pytest_msprobe.verdicts import Change, VerdictRow


class VerdictObservers:
    """Hands each verdict row to the conftest.py files that want it.

    Attributes:
        problem: what an observer did wrong, as one line; "" when nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.problem = ""

    def tell(self, row: VerdictRow) -> None:
        """Hand `row` over, without its attachment. What an observer raises ends the observing, not the run."""
        hook = self._config.hook.pytest_msprobe_verdict
        if self.problem or not hook.get_hookimpls():
            return
        try:
            hook(config=self._config, row=row if row.attachment is None else replace(row, attachment=None))
        except Exception as error:
            self.problem = (
                f"pytest_msprobe_verdict failed at {row.node_id}: {type(error).__name__}: {error} "
                f"({place_of(error)}); it got no later verdict, all other reports are complete"
            )


class RunPage:
    """Writes the page from the JSONL file of the run; where none was asked for, from one that is kept until then.

    Attributes:
        path: of the page.
        option: as the command line has it.
    """

    def __init__(self, path: Path, suite: Suite) -> None:
        """A page at `path`.

        Raises:
            pytest.UsageError: another file stands there.
        """
        self.path = path
        self.option = f"--msprobe-page={path}"
        self._suite = suite
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            check_page_replaceable(path)
        except OSError as error:
            raise pytest.UsageError(f"{self.option}: {error.strerror or error}") from None

    def rows_beside(self) -> Path:
        """A file for the rows of a run that writes none; it goes when the page is written."""
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="msprobe_rows_")
        return Path(self._folder.name) / "rows.jsonl"

    def write(self, rows: Path, answer: Answer | None) -> None:
        """Write it, with the answer of the run. Raises OSError."""
        try:
            write_page(self.path, [rows] if rows.exists() else [], {self._suite.name: type(self._suite)}.get, answer)
        finally:
            if self._folder is not None:
                self._folder.cleanup()


def started_as(config: pytest.Config, facts: RowFacts) -> dict[str, object]:
    """Command line, folder and version of the run, and the limits of its standard.

    The command line is without files that the run writes, and without options that only change what it prints.

    Stored in the first row so that the page can print a command that repeats records.
    """
    return {
        "arguments": list(facts.command()[1:]),
        "folder": str(config.invocation_params.dir),
        "version": version_of("pytest-msprobe"),
        "limits": dict(facts.limits),
    }


def check_writable(option: str, folder: Path) -> None:
    """Refuse a `folder` that is not, and cannot become, a folder to write into.

    Raises:
        pytest.UsageError: it cannot be one; the text names the `option`.
    """
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except OSError as error:
        raise pytest.UsageError(f"{option}={folder}: {error.strerror}") from None
    if not existing.is_dir():
        raise pytest.UsageError(f"{option}={folder}: {existing} is not a folder")
    try:
        tempfile.TemporaryFile(dir=existing).close()  # permissions alone do not tell, to root less than to others
    except OSError as error:
        raise pytest.UsageError(f"{option}={folder}: {existing} cannot be written: {error.strerror}") from None


class Unwritten:
    """What of the results of a run could not be written, so that the run is no success.

    Attributes:
        problems: the line on each option whose writing has ended, by the option as the command line has it.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.problems: dict[str, str] = {}
        self._names: dict[str, None] = {}

    def end(self, option: str, error: Exception, name: str = "") -> None:
        """Note that writing ends at `name`, for good: what stands in the file before it is whole."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        place = optional(" at {}", name)
        self.problems.setdefault(option, f"{option}: writing stopped{place}: {reason}; the rows before it are intact")
        if name:
            self.add(name)

    def add(self, name: str) -> None:
        """Note a row or group that is missing, since the writing of its file has ended."""
        self._names[name] = None

    @contextmanager
    def watched(self, option: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
        """Note that writing for `option` ends where the block raises one of `errors`."""
        try:
            yield
        except errors as error:
            self.end(option, error)

    def lines(self) -> Iterator[str]:
        """What ended, and what is missing."""
        yield from self.problems.values()
        if self._names:
            yield (
                f"not written: {first_of(self._names, 1)}; make room and continue with --msprobe-resume=FILE, the file "
                "above whose rows are to be completed"
            )


class RowFile:
    """The file of the rows: that of --msprobe-jsonl, or of the run that is continued, or one that the page is made of.

    Attributes:
        path: of the file; None where no rows are written.
        option: of the file, as the command line has it.
        is_kept: whether it is there after the run.
        appends: whether it continues the file of an earlier run.
    """

    def __init__(
        self, settings: Settings, earlier: EarlierRun | None, page: RunPage | None, unwritten: Unwritten
    ) -> None:
        """A file that is opened with its first row; `unwritten` is told when it can no longer be written.

        Raises:
            pytest.UsageError: it cannot be written.
        """
        self.path = settings.jsonl or (earlier.jsonl if earlier else None)
        self.is_kept = self.path is not None
        if page is not None and self.path is None:
            self.path = page.rows_beside()
        self.option = f"--msprobe-jsonl={self.path}"
        self.appends = earlier is not None and self.path == earlier.jsonl
        self._unwritten = unwritten
        self._lines: JsonLines | None = None
        self._names_its_start = False
        if settings.jsonl is not None and not self.appends:
            check_writable("--msprobe-jsonl", settings.jsonl.parent)
            try:
                check_replaceable(settings.jsonl)
            except OSError as error:
                raise pytest.UsageError(f"{self.option}: {error.strerror or error}") from None

    @property
    def shown_path(self) -> Path | None:
        """The path where the file was made and stays after the run."""
        return self._lines.path if self._lines is not None and self.is_kept else None

    def write(self, name: str, row: VerdictRow, start: Callable[[], dict[str, object]]) -> None:
        """Add a row; the first one of a run holds how the run was started, as `start` tells it."""
        if self.path is None:
            return
        if self.option in self._unwritten.problems:
            self._unwritten.add(f"{name} {row.label}".rstrip())
            return
        try:
            self._lines = self._lines or JsonLines(self.path, appends=self.appends)
            if not self._names_its_start and row.run is None:
                row = replace(row, run=start())
                self._names_its_start = True
            self._lines.write(name, row)
        except OSError as error:
            self._unwritten.end(self.option, error, f"{name} {row.label}".rstrip())

    @contextmanager
    def concluded(self) -> Iterator[JsonLines | None]:
        """Give the file for what is added at the end, where all rows could be written; close it in any case."""
        with self._unwritten.watched(self.option):
            try:
                yield None if self.option in self._unwritten.problems else self._lines
            finally:
                if self._lines is not None:
                    self._lines.close()


class GroupedRows:
    """Hands rows to the report of a suite, and the rows of a group together once it is complete."""

    def __init__(self, report: SuiteReport, option: str, unwritten: Unwritten) -> None:
        """For a `report` that writes what `option` names; `unwritten` is told when it no longer can."""
        self._report = report
        self._option = option
        self._unwritten = unwritten
        self._open_groups: dict[str, list[VerdictRow]] = {}

    def add(self, name: str, row: VerdictRow) -> None:
        """Hand over one row of the group `name`."""
        try:
            self._report.receive(name, row)
        except OSError as error:
            self._unwritten.end(self._option, error, f"{name} {row.label}".rstrip())
        rows = self._open_groups.setdefault(name, [])
        rows.append(row)
        if len(rows) >= len(row.selected):
            self._hand_over(name)

    def finish(self) -> None:
        """Hand over the groups of which only a part ran, and have the report close its files."""
        for name in list(self._open_groups):
            self._hand_over(name)
        with self._unwritten.watched(self._option, (OSError, SuiteError)):
            self._report.finish()

    def _hand_over(self, name: str) -> None:
        rows = self._open_groups.pop(name)
        rows.sort(key=lambda row: row.recorded.index(row.part) if row.part in row.recorded else 0)
        if self._option in self._unwritten.problems:
            self._unwritten.add(name)
            return
        try:
            self._report.receive_call(name, rows)
        except OSError as error:
            self._unwritten.end(self._option, error, name)


class ReportPlugin:
    """Receives every verdict row: writes machine rows, hands them to the suite's report, and sums up.

    Attributes:
        names: how reports call the groups of the run.
        report: the suite's own report.
        answer: what the run amounts to, once it has ended; None before, and of a run that only collects.
        answering: collects what makes the answer.
    """

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        suite: Suite,
        header: Callable[[], list[str]],
        earlier: EarlierRun | None,
        unjudged: Unjudged | None = None,
    ) -> None:
        """A writer of what `settings` names; `header` gives the lines above the run, `earlier` is what it continues.

        `unjudged` knows what was given and is left out.

        Raises:
            pytest.UsageError: a folder or file cannot be written.
        """
        self._config = config
        self._settings = settings
        self._suite = suite
        self._header = header
        self._earlier = earlier
        self._unjudged = unjudged
        self._observers = VerdictObservers(config)
        self.names = names_of(suite)
        self._tally = VerdictCounts(suite=suite)
        self._baseline = BaselineReport(config, settings)
        self.answering = RunAnswering(config, settings, suite, self._tally)
        self.report: SuiteReport = suite.report(earlier.pair if earlier else None)
        self.answer: Answer | None = None
        self._done = 0
        self._unwritten = Unwritten()
        self._page = RunPage(settings.page, suite) if settings.page is not None else None
        self._out = f"--msprobe-out={settings.out}"
        check_writable("--msprobe-out", settings.out)
        self._rows = RowFile(settings, earlier, self._page, self._unwritten)
        self._groups = GroupedRows(self.report, self._out, self._unwritten)

    @pytest.hookimpl
    def pytest_report_header(self) -> list[str]:
        """What is judged, on what, against what."""
        return self._header()

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Warn of what the user may have meant otherwise; take the rows of the run that is continued.

        Raises:
            pytest.UsageError: there is a warning, and the project turns warnings into errors.
        """
        for warning in self._suite.warnings():
            try:
                session.config.issue_config_time_warning(pytest.PytestWarning(warning), stacklevel=1)
            except pytest.PytestWarning:
                raise pytest.UsageError(warning) from None
        for name, row in self._earlier.rows if self._earlier else ():
            self._count(name, row)
            if not self._rows.appends:
                self._rows.write(name, row, self._start)
            if self._earlier and self._earlier.jsonl:
                self._groups.add(name, row)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the row off the report, so that it is not kept for the whole run."""
        wire = report.__dict__.pop("msprobe_row", None)
        if wire is not None and report.outcome != "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures
            row = VerdictRow.from_wire(wire)
            report.msprobe_rounding = row.rounding  # type: ignore[attr-defined]  # for `limited_failures`
            if report.failed and self._config.option.verbose <= 0 and self.report.tells(row):
                # Other reports have their text by now: this hook is the last one.
                short = f"{row.message}; more below, under msprobe {self._suite.name}"
                report.longrepr = "\n\n".join(filter(None, (short, complaint_of(row))))
            name = self.names.of(row.dump, row.call)
            self._count(name, row)
            self._done += 1
            self._rows.write(name, row, self._start)
            self._groups.add(name, row)
            self._observers.tell(row)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """End the run where a worker can judge nothing.

        Raises:
            pytest.UsageError: with what it says.
        """
        if ended := getattr(node, "workeroutput", {}).get(ENDED_IN_WORKER):
            self._config.stash[ENDED] = ended
            raise pytest.UsageError(ended)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the groups of which only a part ran, and close the files. A run that lacks a row is not a success.

        Before others write: which items failed is known here, and pytest-html shows pictures that are drawn here.
        """
        self._groups.finish()
        self._baseline.finish(session, self.report)
        self.answer = self._answered(session)
        changes = self._settle(session)
        if self.answer is not None:
            with self._unwritten.watched(self._out):
                self.report.conclude(self.answer)
        with self._rows.concluded() as lines:
            if lines is not None:
                lines.append_corrections(self.report.levels(), changes)
                partial = self.answering.why_partial(self._missing(session))
                lines.attach(self.answer, fault_keys(self.report), self._baseline.known_of_run, partial)
        if self.answer is not None:
            for option in self.answering.files:
                with self._unwritten.watched(option):
                    self.answering.write(option, self.answer)
            junit: Any = session.config.pluginmanager.get_plugin("msprobe-junit-names")
            if junit is not None:
                junit.tell(self.answer)
        if self._page is not None and self._rows.path is not None:
            with self._unwritten.watched(self._page.option, (OSError, ValueError)):
                self._page.write(self._rows.path, self.answer)
        if changes and not session.testsfailed and session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK
        session.exitstatus = self._exit_code(int(session.exitstatus))

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected."""
        if report.failed:
            self.answering.add_unread(report.nodeid, report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
        """Say how wrong a failed record is before its name, in the line that pytest prints of it."""
        if report.when != "call" or not report.failed:
            return None
        if (wire := report.__dict__.get("msprobe_row")) is not None:
            report.msprobe_how = in_short(VerdictRow.from_wire(wire))  # type: ignore[union-attr]
        how = getattr(report, "msprobe_how", "")
        return ("failed", "F", f"FAILED ({printable(how)})") if how else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> Generator[None, object, object]:
        """Findings, verdicts, worst records, reasons of skips and files: last, where a terminal shows them."""
        with limited_failures(terminalreporter) as hidden:
            result = yield
        # pytest has ended the line of its progress; as long as it thinks otherwise, its next line is an empty one.
        terminalreporter.currentfspath = None
        if hidden:
            terminalreporter.write_line(f"and {counted(hidden, 'more failures')}; -v prints all of them")
        self.sum_up(terminalreporter, exitstatus)
        return result

    def sum_up(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Write our sections below those of pytest."""
        gaps: list[str] = []
        notes: list[str] = []
        if self._unjudged is not None:
            gaps, notes = list(self._unjudged.fault()), self._unjudged.notes
        RunSummary(
            suite=self._suite,
            report=self.report,
            counts=self._tally,
            answer=self.answer,
            earlier=self._earlier,
            baseline=list(self._baseline.lines()),
            files=list(self._files()),
            rows=self._rows.shown_path,
            notes=notes,
            unwritten=list(self._unwritten.lines()),
            gaps=gaps,
            faults=list(self._faults()),
        ).write(terminalreporter, exitstatus)

    def _files(self) -> Iterator[tuple[str, Path]]:
        """What the run has written, and where."""
        yield from self.report.files()
        if self._rows.shown_path is not None:
            yield "rows", self._rows.shown_path
        for option, (name, path, _) in self.answering.files.items():
            if option not in self._unwritten.problems:
                yield name, path
        if self._page is not None and self._page.option not in self._unwritten.problems:
            yield "page", self._page.path

    def _faults(self) -> Iterator[str]:
        """Why the run is no success, besides failed items, gaps and what could not be written."""
        is_answered = self.answer is not None and any(finding.kind == "incomplete" for finding in self.answer.findings)
        if not is_answered and (fault := self._baseline.unknown_fault(self.report)):
            yield fault
        if not self._settings.allows_empty:
            if self._tally.total and not self._tally.judged:
                yield (
                    "nothing was judged, so this run is not a success; see the reasons above, or accept it with "
                    "--msprobe-allow-empty"
                )
            if self._tally.judged and (untested := self.report.untested()):
                yield f"{untested}; accept it with --msprobe-allow-empty"
        if self._observers.problem:
            yield self._observers.problem

    def _exit_code(self, code: int) -> int:
        """The exit code of the whole run, in which a missing row or an earlier failure counts."""
        if self._observers.problem:
            return pytest.ExitCode.INTERNAL_ERROR
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
        if self._unwritten.problems:
            return pytest.ExitCode.TESTS_FAILED
        if self.answer is None or not (self._tally.total or self.answer.findings):
            return code
        if self.answer.outcome == "nothing judged" and self._settings.allows_empty:
            return pytest.ExitCode.OK
        return EXIT_CODES[self.answer.outcome]

    def _answered(self, session: pytest.Session) -> Answer | None:
        """Say in one value what the run amounts to; None of a run that only collects."""
        if self._config.option.collectonly:
            self.answering.refuse("--collect-only judges nothing")
            return None
        return self.answering.complete(
            self.report,
            fault=self._baseline.unknown_fault(self.report),
            known_of_run=self._baseline.known_of_run,
            unjudged=self._unjudged,
            is_judged=bool(self._tally.judged) and not self.report.untested(),
            missing=self._missing(session),
        )

    def _settle(self, session: pytest.Session) -> dict[str, Change]:
        """Have the items of causes fail, and those that follow from them not; the changes, by node id."""
        if self.answer is None:
            return {}
        rows = self.answering.rows
        by_default = {row.node_id: f"{name} by default" for name, held in rows.by_default().items() for row in held}
        changes = settle(session, outcomes_of(self.answer, rows.following, by_default))
        if not changes:
            return {}
        for name in ("msprobe-junit-names", "msprobe-html"):
            report: Any = session.config.pluginmanager.get_plugin(name)
            if report is not None:
                report.change(changes)
        self._tally.correct(changes)
        counts = {word: count for word, count in self._tally.outcomes.items() if count}
        self.answer = structs.replace(self.answer, counts=counts)
        return changes

    def _missing(self, session: pytest.Session) -> int:
        """How many items a run that was ended early did not get to."""
        is_early = session.shouldstop or session.shouldfail or session.exitstatus == pytest.ExitCode.INTERRUPTED
        is_early = is_early or ENDED in self._config.stash
        return max(0, session.testscollected - self._done) if is_early else 0

    def _count(self, name: str, row: VerdictRow) -> None:
        """Count a row; one that passes tells the diagnosis no more than the counts do."""
        self._tally.add(name, row)
        if self._settings.baseline is not None:
            self._baseline.add(name, row)
        if not row.is_plain_pass:
            self.answering.rows.add(row)

    def _start(self) -> dict[str, object]:
        """How the run was started, for the first row."""
        return {**started_as(self._config, self.answering.rows.facts), "header": self._header()}


def register_reports(
    config: pytest.Config,
    settings: Settings,
    suite: Suite,
    header: Callable[[], list[str]],
    earlier: EarlierRun | None,
    unjudged: Unjudged,
) -> None:
    """Have verdicts written: JSONL, terminal, hook, and what other plugins write, the page and JUnit.

    `header` gives the lines above the run, for the terminal and the page; `earlier` is the run that is continued;
    `unjudged` knows what was given and is left out.

    Raises:
        pytest.UsageError: a folder or file of the results cannot be written.
    """
    reports = ReportPlugin(config, settings, suite, header, earlier, unjudged)
    config.pluginmanager.register(reports, "msprobe-reports")
    config.pluginmanager.register(Progress(), "msprobe-progress")
    if config.getoption("durations") is None:
        config.pluginmanager.register(PassedPhaseReports(), "msprobe-passed-phase-reports")
    if config.getoption("xmlpath", None):
        from pytest_msprobe.reports.other_tools import JUnitNames

        config.pluginmanager.register(JUnitNames(), "msprobe-junit-names")
    if page := config.getoption("htmlpath", None):
        if os.path.isdir(page):
            raise pytest.UsageError(f"--html={page}: is a folder; name a file")
        from pytest_msprobe.reports.html import HtmlPage

        def lines() -> list[str]:
            return [*reports.report.findings(), *header()]

        passes, markup, names = settings.html_passes, reports.report.markup, reports.names
        html = HtmlPage(suite, passes, lines, markup, names, lambda: reports.answer)
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
