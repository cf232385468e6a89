"""The reporting side of a run, on the one process that writes: alone, or the controller under xdist."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.answers import EXIT_CODES, Answer, Outcome, RunFacts
from pytest_msprobe.answers.words import lines as lines_of
from pytest_msprobe.reports.baseline import complaint_of
from pytest_msprobe.reports.jsonl import JsonLines, check_replaceable
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.terminal import FILE_WIDTH, Line, VerdictCounts, wrapped
from pytest_msprobe.run.answering import RunAnswering, write_refusal
from pytest_msprobe.run.baseline import BaselineReport, fault_keys
from pytest_msprobe.run.causes import outcomes_of, settle
from pytest_msprobe.run.run import names_of
from pytest_msprobe.run.settings import ENDED, ENDED_IN_WORKER, Settings
from pytest_msprobe.run.terminal import Progress, in_short, limited_failures, width_of
from pytest_msprobe.run.unjudged import Unjudged
from pytest_msprobe.suites.contract import Suite, SuiteError, SuiteReport
from pytest_msprobe.suites.registry import REFUSED
from pytest_msprobe.support import place_of, version_of
from pytest_msprobe.verdicts import Change, VerdictRow

#: Colours of the answer.
_COLOURS: dict[Outcome, str] = {"right": "green", "wrong": "red", "nothing judged": "yellow"}


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


def started_as(config: pytest.Config, facts: RunFacts) -> dict[str, object]:
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


class ReportPlugin:
    """Receives every verdict row: writes machine rows, hands them to the suite's report, and sums up.

    Attributes:
        names: how reports call the groups of the run.
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
        self._known = BaselineReport(config, settings)
        self.answering = RunAnswering(config, settings, suite, self._tally)
        self._report: SuiteReport = suite.report(earlier.pair if earlier else None)
        self.answer: Answer | None = None
        self._done = 0
        self._open_groups: dict[str, list[VerdictRow]] = {}
        self._problems: dict[str, str] = {}
        self._unwritten: dict[str, None] = {}
        self._lines: JsonLines | None = None
        self._names_its_start = False
        self._page = RunPage(settings.page, suite) if settings.page is not None else None
        self._jsonl_path = settings.jsonl or (earlier.jsonl if earlier else None)
        self._shows_rows = self._jsonl_path is not None
        if self._page is not None and self._jsonl_path is None:
            self._jsonl_path = self._page.rows_beside()
        self._appends = earlier is not None and self._jsonl_path == earlier.jsonl
        check_writable("--msprobe-out", settings.out)
        if settings.jsonl is not None and not self._appends:
            check_writable("--msprobe-jsonl", settings.jsonl.parent)
            try:
                check_replaceable(settings.jsonl)
            except OSError as error:
                raise pytest.UsageError(f"--msprobe-jsonl={settings.jsonl}: {error.strerror or error}") from None

    @property
    def report(self) -> SuiteReport:
        """The suite's own report."""
        return self._report

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
            if not self._appends:
                self._stream(name, row)
            if self._earlier and self._earlier.jsonl:
                self._hand_over(name, row)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the row off the report, so that it is not kept for the whole run."""
        wire = report.__dict__.pop("msprobe_row", None)
        if wire is not None and report.outcome != "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures
            row = VerdictRow.from_wire(wire)
            report.msprobe_rounding = row.rounding  # type: ignore[attr-defined]  # for `limited_failures`
            if report.failed and self._config.option.verbose <= 0 and self._report.tells(row):
                # Other reports have their text by now: this hook is the last one.
                short = f"{row.message}; more below, under msprobe {self._suite.name}"
                report.longrepr = "\n\n".join(filter(None, (short, complaint_of(row))))
            name = self.names.of(row.dump, row.call)
            self._count(name, row)
            self._done += 1
            self._stream(name, row)
            self._hand_over(name, row)
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
        for name in list(self._open_groups):
            self._write(name)
        try:
            self._report.finish()
        except (OSError, SuiteError) as error:
            self._fail(f"--msprobe-out={self._settings.out}", "", error)
        self._known.finish(session, self._report)
        self.answer = self._answered(session)
        changes = self._settle(session)
        if self.answer is not None:
            try:
                self._report.conclude(self.answer)
            except OSError as error:
                self._fail(f"--msprobe-out={self._settings.out}", "", error)
        if self._lines is not None:
            try:
                self._conclude_lines(self._lines, session, changes)
            except OSError as error:
                self._fail(f"--msprobe-jsonl={self._jsonl_path}", "", error)
        self._write_answer_files()
        junit: Any = session.config.pluginmanager.get_plugin("msprobe-junit-names")
        if junit is not None and self.answer is not None:
            junit.tell(self.answer)
        if self._page is not None and self._jsonl_path is not None:
            try:
                self._page.write(self._jsonl_path, self.answer)
            except (OSError, ValueError) as error:
                self._fail(self._page.option, "", error)
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
        for refused in REFUSED:
            terminalreporter.write_line(f"msprobe: {printable(refused)}", yellow=True)
        for note in self._unjudged.notes if self._unjudged is not None else ():
            terminalreporter.write_line(printable(f"msprobe: not judged: {note}"), yellow=True)
        findings = list(self._report.findings())
        if not (self._tally.total or findings or self._problems):
            gaps = self._gaps()
            for text in gaps:
                terminalreporter.write_line(printable(text), red=True)
            is_filtered = terminalreporter.stats.get("deselected") or terminalreporter.stats.get("error")
            is_empty = exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not is_filtered and not gaps
            if is_empty and (advice := self._suite.advice_when_empty()):
                terminalreporter.write_line(f"msprobe: {advice}", red=True)
            return
        width, verbosity = width_of(terminalreporter), terminalreporter.verbosity
        terminalreporter.section(f"msprobe {self._suite.name}")
        told = findings if self.answer is None or verbosity > 0 else list(self._report.facts())
        lines = [*self._counts(verbosity, width), *map(Line, told)]
        for line in (*lines, *self._file_lines(is_apart=len(lines) > 1 and verbosity >= 0)):
            for text in [printable(line.text)] if line.is_whole else wrapped(printable(line.text), width):
                terminalreporter.write_line(text, **line.markup)
        file = self._lines.path if self._lines is not None and self._shows_rows else self._report.resumable()
        if exitstatus == pytest.ExitCode.INTERRUPTED and file:
            terminalreporter.write_line(printable(f"interrupted: continue with --msprobe-resume={file}"), yellow=True)
        for text in self._faults():
            terminalreporter.write_line(printable(text), red=True)
        if self.answer is not None:
            first, *others = lines_of(self.answer, width or FILE_WIDTH)
            terminalreporter.write_line("")
            terminalreporter.write_line(first, bold=True, **{_COLOURS[self.answer.outcome]: True})
            for text in others:
                terminalreporter.write_line(text)

    def _counts(self, verbosity: int, width: int) -> Iterator[Line]:
        if self._earlier is not None:
            yield Line(f"resumed: {len(self._earlier.rows)} of these verdicts are from the earlier run")
            if self._earlier.note:
                yield Line(f"resumed: {self._earlier.note}", "yellow")
        told = self.answer.findings[0].place.record if self.answer is not None and self.answer.findings else ""
        yield from self._tally.lines(verbosity, width, told)
        yield from map(Line, self._known.lines())

    def _file_lines(self, *, is_apart: bool) -> Iterator[Line]:
        files = [*self._report.files()]
        if self._lines is not None and self._shows_rows:
            files.append(("rows", self._lines.path))
        files += [
            (name, path) for option, (name, path, _) in self.answering.files.items() if option not in self._problems
        ]
        if self._page is not None and self._page.option not in self._problems:
            files.append(("page", self._page.path))
        if files and is_apart:
            yield Line("")
        yield from (Line(f"{what}: {path}", is_whole=True) for what, path in files)

    def _faults(self) -> Iterator[str]:
        yield from self._problems.values()
        if self._unwritten:
            first = next(iter(self._unwritten))
            more = f" and {len(self._unwritten) - 1} more" if len(self._unwritten) > 1 else ""
            yield (
                f"not written: {first}{more}; make room and continue with --msprobe-resume=FILE, the file above whose "
                f"rows are to be completed"
            )
        yield from self._gaps()
        is_told = self.answer is not None and any(one.kind == "incomplete" for one in self.answer.findings)
        if not is_told and (fault := self._known.unknown_fault(self._report)):
            yield fault
        if self._is_empty:
            yield (
                "nothing was judged, so this run is not a success; see the reasons above, or accept it with "
                "--msprobe-allow-empty"
            )
        if self._is_untested:
            yield f"{self._report.untested()}; accept it with --msprobe-allow-empty"
        if self._observers.problem:
            yield self._observers.problem

    def _gaps(self) -> list[str]:
        return list(self._unjudged.fault()) if self._unjudged is not None else []

    @property
    def _is_untested(self) -> bool:
        return bool(self._tally.judged) and not self._settings.allows_empty and bool(self._report.untested())

    @property
    def _is_empty(self) -> bool:
        return bool(self._tally.total) and not self._tally.judged and not self._settings.allows_empty

    def _exit_code(self, code: int) -> int:
        """The exit code of the whole run, in which a missing row or an earlier failure counts."""
        if self._observers.problem:
            return pytest.ExitCode.INTERNAL_ERROR
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code
        if self._problems:
            return pytest.ExitCode.TESTS_FAILED
        if self.answer is None or not (self._tally.total or self.answer.findings):
            return code
        if self.answer.outcome == "nothing judged" and self._settings.allows_empty:
            return pytest.ExitCode.OK
        return EXIT_CODES[self.answer.outcome]

    def _answered(self, session: pytest.Session) -> Answer | None:
        """Say in one value what the run amounts to, and write it where that was asked for; None of no run."""
        if self._config.option.collectonly:
            write_refusal(self._config, "--collect-only judges nothing")
            return None
        return self.answering.complete(
            self._report,
            fault=self._known.unknown_fault(self._report),
            known=self._known.known_of_run,
            unjudged=self._unjudged,
            is_judged=bool(self._tally.judged) and not self._report.untested(),
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
        counts = {word: count for word in self._tally.outcomes if (count := self._tally.outcomes[word])}
        self.answer = self.answering.complete_with(structs.replace(self.answer, counts=counts))
        return changes

    def _conclude_lines(self, lines: JsonLines, session: pytest.Session, changes: Mapping[str, Change]) -> None:
        """Add to the rows what the whole run says, where all of them could be written, and close their file."""
        try:
            if f"--msprobe-jsonl={self._jsonl_path}" not in self._problems:
                lines.append_corrections(self._report.levels(), changes)
                partial = self.answering.why_partial(self._missing(session))
                lines.attach(self.answer, fault_keys(self._report), self._known.known_of_run, partial)
        finally:
            lines.close()

    def _write_answer_files(self) -> None:
        for option in self.answering.files if self.answer is not None else ():
            try:
                self.answering.write(option)
            except OSError as error:
                self._fail(option, "", error)

    def _missing(self, session: pytest.Session) -> int:
        """How many items a run that was ended early did not get to."""
        is_early = session.shouldstop or session.shouldfail or session.exitstatus == pytest.ExitCode.INTERRUPTED
        is_early = is_early or ENDED in self._config.stash
        return max(0, session.testscollected - self._done) if is_early else 0

    def _count(self, name: str, row: VerdictRow) -> None:
        """Count a row; one that passes tells the diagnosis no more than the counts do."""
        self._tally.add(name, row)
        if self._settings.baseline is not None:
            self._known.add(name, row)
        if not row.is_plain_pass:
            self.answering.rows.add(row)

    def _stream(self, name: str, row: VerdictRow) -> None:
        option = f"--msprobe-jsonl={self._jsonl_path}"
        if self._jsonl_path is None:
            return
        try:
            if option in self._problems:
                self._unwritten[f"{name} {row.label}".rstrip()] = None
                return
            self._lines = self._lines or JsonLines(self._jsonl_path, appends=self._appends)
            if not self._names_its_start and row.run is None:
                row = replace(
                    row, run={**started_as(self._config, self.answering.rows.facts), "header": self._header()}
                )
                self._names_its_start = True
            self._lines.write(name, row)
        except OSError as error:
            self._fail(option, f"{name} {row.label}".rstrip(), error)

    def _hand_over(self, name: str, row: VerdictRow) -> None:
        """Give a row to the suite's report, and its group once it is complete."""
        try:
            self._report.receive(name, row)
        except OSError as error:
            self._fail(f"--msprobe-out={self._settings.out}", f"{name} {row.label}".rstrip(), error)
        rows = self._open_groups.setdefault(name, [])
        rows.append(row)
        if len(rows) >= len(row.selected):
            self._write(name)

    def _write(self, name: str) -> None:
        rows = self._open_groups.pop(name)
        rows.sort(key=lambda row: row.recorded.index(row.part) if row.part in row.recorded else 0)
        option = f"--msprobe-out={self._settings.out}"
        try:
            if option in self._problems:
                self._unwritten[name] = None
                return
            self._report.receive_call(name, rows)
        except OSError as error:
            self._fail(option, name, error)

    def _fail(self, option: str, name: str, error: Exception) -> None:
        """Writing ends at `name`, for good: what stands in the file before it is whole."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._problems.setdefault(
            option, f"{option}: writing stopped{f' at {name}' if name else ''}: {reason}; the rows before it are intact"
        )
        if name:
            self._unwritten[name] = None


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
        from pytest_msprobe.reports.junit import JUnitNames

        config.pluginmanager.register(JUnitNames(), "msprobe-junit-names")
    if page := config.getoption("htmlpath", None):
        if os.path.isdir(page):
            raise pytest.UsageError(f"--html={page}: is a folder; name a file")
        from pytest_msprobe.reports.html import HtmlPage

        report = reports.report
        html = HtmlPage(
            suite,
            settings.html_passes,
            lambda: [*report.findings(), *header()],
            report.markup,
            reports.names,
            lambda: reports.answer,
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
