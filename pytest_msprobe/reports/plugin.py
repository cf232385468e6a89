"""The reporting side of a run, on the one process that writes: alone, or the controller under xdist."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.terminal import Tally


@dataclass(frozen=True, slots=True)
class _Call:
    dump: str
    name: str


class ReportPlugin:
    """Receives every verdict row, writes the CSV pair and the terminal summary."""

    def __init__(self, out: Path, dumps: Sequence[Path], header: Callable[[], list[str]]) -> None:
        """A writer into the folder `out` for the dumps that this run collects; `header` gives the lines above the run.

        Raises:
            pytest.UsageError: the output folder cannot be written.
        """
        self._out = out
        self._header = header
        self._names = _Names(dumps)
        self._pair = CsvPair(out)
        self._tally = Tally()
        self._open_calls: dict[_Call, list[VerdictRow]] = {}
        self._problem = ""
        _check_writable(out)

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
        self._pair.close()

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Verdicts, worst calls, reasons of skips and the paths of the reports."""
        if not self._tally.verdicts:
            return
        terminalreporter.section("msprobe")
        for line in self._tally.lines():
            terminalreporter.write_line(line)
        if self._pair.result is not None:
            terminalreporter.write_line("")
            terminalreporter.write_line(f"results: {self._pair.result}")
            terminalreporter.write_line(f"details: {self._pair.details}")
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)

    def _receive(self, row: VerdictRow) -> None:
        call = _Call(row.dump, row.call)
        self._tally.add(self._names.of(call.dump, call.name), row)
        rows = self._open_calls.setdefault(call, [])
        rows.append(row)
        if len(rows) >= len(row.selected):
            self._write(call)

    def _write(self, call: _Call) -> None:
        rows = sorted(self._open_calls.pop(call), key=lambda row: row.direction == "backward")
        if self._problem:
            return
        try:
            self._pair.write(self._names.of(call.dump, call.name), rows)
        except OSError as error:
            self._problem = (
                f"--msprobe-out={self._out}: writing stopped at {call.name}: {error.strerror}; "
                f"the rows before it are intact"
            )


class _Names:
    """How reports call an API call: its own name, after the folder of its dump when there are several dumps."""

    def __init__(self, dumps: Sequence[Path]) -> None:
        folders = [str(path.parent) for path in dumps]
        self._common = Path(os.path.commonpath(folders)) if len(set(folders)) > 1 else None

    def of(self, dump: str, call: str) -> str:
        if self._common is None:
            return call
        return f"{Path(dump).parent.relative_to(self._common).as_posix()}/{call}"


def _check_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise pytest.UsageError(f"--msprobe-out={folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise pytest.UsageError(f"--msprobe-out={folder}: {existing} cannot be written")
