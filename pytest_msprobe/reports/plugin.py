"""The reporting side of a run, on the one process that writes: alone, or the controller under xdist."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from pytest_msprobe.reports.jsonl import JsonLines
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.terminal import Tally


@dataclass(frozen=True, slots=True)
class _Call:
    dump: str
    name: str


class ResultFiles(Protocol):
    """What a suite writes for people to read; made when the first row comes, complete after `close`."""

    def write(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Take the rows of one API call, whose name in reports is `name`. Raises OSError."""

    def close(self) -> None:
        """Finish the files."""

    def lines(self) -> Iterator[str]:
        """What the terminal says about them, such as their paths."""


class ReportPlugin:
    """Receives every verdict row, writes the files of the suite, machine rows and the terminal summary."""

    def __init__(
        self,
        out: Path,
        dumps: Sequence[Path],
        header: Callable[[], list[str]],
        tell: Callable[[VerdictRow], None],
        *,
        noun: str,
        jsonl: Path | None = None,
        earlier: EarlierRun | None = None,
        files: ResultFiles | None = None,
    ) -> None:
        """A writer into the folder `out` for the dumps that this run collects; `header` gives the lines above the run.

        `tell` gets every row when the reports have it. `jsonl` is a new file for machine rows; `earlier`
        is the run that is continued; `files` are the suite's own; `noun` is what an item of the suite is about.

        Raises:
            pytest.UsageError: the output folder or the file cannot be written.
        """
        self._out = out
        self._header = header
        self._tell = tell
        self._names = CallNames(dumps)
        self._earlier = earlier
        self._files = files
        self._tally = Tally(noun)
        self._open_calls: dict[_Call, list[VerdictRow]] = {}
        self._problem = ""
        self._jsonl_path = jsonl
        self._jsonl: JsonLines | None = None
        _check_writable("--msprobe-out", out)
        if jsonl is not None:
            _check_writable("--msprobe-jsonl", jsonl.parent)
            if jsonl.exists():
                raise pytest.UsageError(f"--msprobe-jsonl={jsonl}: exists already, and is never written over")

    @pytest.hookimpl
    def pytest_report_header(self) -> list[str]:
        """What is checked, on what, against what."""
        return self._header()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the row off the report, so that it is not kept for the whole run."""
        wire = report.__dict__.pop("msprobe_row", None)
        if wire is not None:
            self._receive(VerdictRow.from_wire(wire))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the calls of which only a part ran, and close the files."""
        for call in list(self._open_calls):
            self._write(call)
        if self._files is not None:
            self._files.close()
        if self._jsonl is not None:
            self._jsonl.close()

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Verdicts, worst calls, reasons of skips and the paths of the reports."""
        if not self._tally.verdicts:
            return
        terminalreporter.section("msprobe")
        if self._earlier is not None:
            terminalreporter.write_line(f"resumed: {len(self._earlier.done)} API calls were done before")
        for line in self._tally.lines():
            terminalreporter.write_line(line)
        for line in self._files.lines() if self._files is not None else ():
            terminalreporter.write_line(line)
        if self._jsonl is not None:
            terminalreporter.write_line(f"rows: {self._jsonl.path}")
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)

    def _receive(self, row: VerdictRow) -> None:
        call = _Call(row.dump, row.call)
        name = self._names.of(call.dump, call.name)
        self._tally.add(name, row)
        self._stream(name, row)
        rows = self._open_calls.setdefault(call, [])
        rows.append(row)
        if len(rows) >= len(row.selected):
            self._write(call)
        self._tell(row)

    def _stream(self, name: str, row: VerdictRow) -> None:
        if self._jsonl_path is None or self._problem:
            return
        try:
            self._jsonl = self._jsonl or JsonLines(self._jsonl_path)
            self._jsonl.write(name, row)
        except OSError as error:
            self._stop(f"--msprobe-jsonl={self._jsonl_path}", name, error)

    def _write(self, call: _Call) -> None:
        rows = sorted(self._open_calls.pop(call), key=lambda row: row.direction == "backward")
        if self._problem or self._files is None:
            return
        name = self._names.of(call.dump, call.name)
        try:
            self._files.write(name, rows)
        except OSError as error:
            self._stop(f"--msprobe-out={self._out}", name, error)

    def _stop(self, option: str, name: str, error: OSError) -> None:
        self._problem = f"{option}: writing stopped at {name}: {error.strerror}; the rows before it are intact"


def _check_writable(option: str, folder: Path) -> None:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise pytest.UsageError(f"{option}={folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise pytest.UsageError(f"{option}={folder}: {existing} cannot be written")
