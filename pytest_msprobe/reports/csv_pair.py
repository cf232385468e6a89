"""The CSV pair, one row per API call in the result file and one per output in the details file; tables of other suites.

Names, columns, order, encoding and vocabulary are those of the existing tool, so that scripts that read its files read
ours: UTF-8 with a byte order mark, CRLF, times in the local zone.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, Literal

from msprobe_collector.dump_format.values import printable_lines
from pytest_msprobe.suites.contract import SuiteReport
from pytest_msprobe.verdicts import OutputRow, Status, VerdictRow

RESULT_COLUMNS = ("API Name", "Forward Test Success", "Backward Test Success", "Message")
_FIGURE_COLUMNS = {"cosine": "Cosine", "max_abs": "MaxAbsErr", "max_rel": "MaxRelativeErr"}
DETAILS_COLUMNS = ("API Name", "Bench Dtype", "Tested Dtype", "Shape", *_FIGURE_COLUMNS.values(), "Status", "Message")
WORDS: dict[Status, str] = {"pass": "pass", "error": "error", "skip": "SKIP"}
STATUSES = {word: status for status, word in WORDS.items()}
#: Spreadsheets begin a formula with these, some in full width. They skip blanks before them; other characters that are
#: skipped (tab, byte order mark, wide space) are escaped anyway.
_FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", " ", "\n")
_SECOND = timedelta(seconds=1)


class CsvPair:
    """The two files of one run, created with the first row and flushed after every API call.

    Attributes:
        result, details: paths of the files, or None before the first row.
    """

    def __init__(self, folder: Path, continued: tuple[Path, Path] | None = None) -> None:
        """A new pair in `folder`, or the one that is `continued`: its (details, result)."""
        self._folder = folder
        self._continued = continued
        self._files: list[TextIOWrapper] = []
        self.result: Path | None = None
        self.details: Path | None = None

    def write(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Write the rows of one API call, details first; `rows` holds one per direction, `name` goes in column one."""
        if not self._files:
            self._open()
        details, result = map(csv.writer, self._files)
        for row in rows:
            details.writerows(_details(name, row))
        self._files[0].flush()
        result.writerow(_neutral(_result(name, rows)))
        self._files[1].flush()

    def close(self) -> None:
        """Close both files."""
        for file in self._files:
            # Every row was flushed when it was written; what is left here is one whose writing failed, which was said.
            with suppress(OSError):
                file.close()

    def _open(self) -> None:
        if self._continued is not None:
            self.details, self.result = self._continued
            self._files = [_opened(path, "a", "utf-8") for path in self._continued]
            return
        self._files = new_files(self._folder, "accuracy_checking_details", "accuracy_checking_result")
        self.details, self.result = (Path(file.name) for file in self._files)
        for file, columns in zip(self._files, (DETAILS_COLUMNS, RESULT_COLUMNS)):
            csv.writer(file).writerow(columns)
            file.flush()


def neutral(cell: Any) -> Any:
    """`cell` with text made harmless that a spreadsheet would run as a formula; numbers stay numbers.

    Control characters other than line breaks are escaped: a terminal that shows the file would obey them.
    """
    if not isinstance(cell, str):
        return cell
    if not cell.isprintable():
        cell = printable_lines(cell)
    return f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell


def original(cell: str) -> str:
    """The name that `neutral` wrote as `cell`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA_STARTS) else cell


def _result(name: str, rows: Sequence[VerdictRow]) -> list[str]:
    status = {row.direction: WORDS[row.status] for row in rows}
    messages = []
    for row in rows:
        messages += _messages(row, is_one_of_two=len(rows) > 1)
    messages += _missing(rows)
    # A record without a valid name has no direction; its verdict stands in the first column.
    return [name, status.get("forward", status.get(None, "")), status.get("backward", ""), "\n".join(messages)]


def _missing(rows: Sequence[VerdictRow]) -> list[str]:
    """What became of the recorded directions that have no row."""
    done = [row.part for row in rows]
    reasons = {True: "not run, the run ended before it", False: "not selected in this run"}
    missing = [direction for direction in rows[0].recorded if direction not in done]
    return [f"{direction}: {reasons[direction in rows[0].selected]}" for direction in missing]


def _messages(row: VerdictRow, *, is_one_of_two: bool) -> list[str]:
    direction = row.direction
    prefix = f"{direction}: " if is_one_of_two or direction == "backward" else ""
    texts = [f"{output.label}: {output.message}" for output in row.outputs if output.message]
    return [f"{prefix}{text}" for text in filter(None, (row.message, *texts))]


def _details(call: str, row: VerdictRow) -> list[list[Any]]:
    direction = row.direction
    name = f"{call}.{direction}" if direction else call
    if not row.outputs:
        # A direction that was not compared is a row too, so that the two files tell the same story.
        if row.status == "pass":
            return []
        return [_neutral((name, "", "", "", "", "", "", WORDS[row.status], row.message))]
    return [_neutral(_output(name, output)) for output in row.outputs]


def _neutral(cells: Sequence[Any]) -> list[Any]:
    return list(map(neutral, cells))


def _output(name: str, output: OutputRow) -> list[Any]:
    described = f"{name}.{output.label}", output.bench_dtype, output.tested_dtype, str(output.shape)
    # A figure that is None becomes an empty cell.
    return [*described, *map(output.figures.get, _FIGURE_COLUMNS), WORDS[output.status], output.message]


def csv_rows(text: str) -> list[list[str]]:
    """The rows of `text`. A message or a name may be longer than the 131,072 characters that `csv` takes by default.

    Raises:
        csv.Error: it is not CSV.
    """
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    finally:
        csv.field_size_limit(limit)


def new_files(folder: Path, *stems: str) -> list[TextIOWrapper]:
    """New files `{stem}_{time}.csv` of one time in `folder`, which is created when absent: all, or after an error none.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    moment = datetime.now()
    while True:
        created: list[Path] = []
        try:
            for path in (folder / f"{stem}_{moment:%Y%m%d%H%M%S}.csv" for stem in stems):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                created.append(path)
            return [_opened(path, "w", "utf-8-sig") for path in created]
        except OSError as error:
            for path in created:
                path.unlink()
            if not isinstance(error, FileExistsError):
                raise
            moment += _SECOND  # another run of the same second: never write into its files


def _opened(path: Path, mode: Literal["a", "w"], encoding: str) -> TextIOWrapper:
    # backslashreplace: a path in a message may hold bytes that are not text; they must not cost the row.
    return open(path, mode, encoding=encoding, errors="backslashreplace", newline="")


class TableReport(SuiteReport):
    """Writes `{stem}_{time}.csv`, flushed row by row, and shows what the summary says.

    Attributes:
        stem: of the name of the file.
        columns: its first row.
    """

    stem: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, out: Path) -> None:
        """Write into the folder `out`; the file is made when the first row comes."""
        self._out = out
        self._table: TextIOWrapper | None = None

    def write(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write some rows, with texts that no spreadsheet takes for formulas. Raises OSError."""
        if self._table is None:
            (self._table,) = new_files(self._out, self.stem)
            csv.writer(self._table).writerow(self.columns)
        for cells in rows:
            csv.writer(self._table).writerow(map(neutral, cells))
        self._table.flush()

    def finish(self) -> None:
        """Close the file."""
        if self._table is not None:
            self._table.close()

    def files(self) -> Iterator[tuple[str, Path]]:
        """Name the file, once there is a row."""
        if self._table is not None:
            yield "results", Path(self._table.name)
