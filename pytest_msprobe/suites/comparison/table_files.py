"""The comparison table on disk: rows wait in a temporary file until all are in, then go out in the order of execution.

Rows may come in any order, from several processes. What stays in memory is one place per operation, so 200,000 rows
need no more than 2,000. Written are a CSV file and, on demand, a coloured workbook; both in parts where a spreadsheet
program could not open the whole.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import msgspec

from pytest_msprobe.installing import how_to_install
from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.suites.comparison.table import ABSENT, columns

MOST_CSV_ROWS = 1_000_000
MOST_SHEET_ROWS = 1_048_500
_FILLS = {
    "error": "#FF0000",
    "No": "#FF0000",
    "Different": "#FF0000",
    "warning": "#FFFF00",
    "unmatched": "#C7C7C7",
    "Unmatched": "#C7C7C7",
    "unreadable": "#C7C7C7",
}
NO_XLSXWRITER = f"no .xlsx: {how_to_install('xlsxwriter')}"


class RowStore:
    """Rows of operations by their place in the order of execution."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._places: dict[int, tuple[int, int, int]] = {}

    def add(self, order: int, record: str, rows: list[list[Any]]) -> None:
        """Keep the rows of the operation `record`; the last ones for one place count."""
        encoded = msgspec.msgpack.encode((record, rows))
        self._places[order] = (self._file.seek(0, os.SEEK_END), len(encoded), len(rows))
        self._file.write(encoded)

    def __iter__(self) -> Iterator[tuple[str, list[list[Any]]]]:
        for order in sorted(self._places):
            offset, length, _ = self._places[order]
            self._file.seek(offset)
            record, rows = msgspec.msgpack.decode(self._file.read(length))
            yield record, rows

    def line_of(self, order: int, row: int) -> int:
        """The line of the table of row `row` of the operation at `order`; the columns' names are line 1."""
        return 2 + row + sum(count for place, (_, _, count) in self._places.items() if place < order)

    def close(self) -> None:
        """Let go of the temporary file."""
        self._file.close()


class TableFiles:
    """Writes one table: one dump against its golden dump."""

    def __init__(self, folder: Path, stem: str, mode: str, style: str) -> None:
        """A table named `{stem}_{time}.csv` in `folder`, with the columns of `mode` and `style`."""
        self._folder = folder
        self._stem = stem
        self._columns = columns(mode, style)
        self._stack_at = self._columns.index("NPU_Stack_Info")
        self._verdict_at = self._stack_at - (1 if "Err_message" not in self._columns else 2)

    def write_csv(self, store: RowStore, stack_of: Callable[[str], str]) -> list[Path]:
        """Write everything in `store` as CSV; the paths. `stack_of` gives the call stack of a record as text.

        Raises:
            OSError: a file cannot be written.
        """
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        return self._write_parts(self._reserve(), self._rows(store, stack_of))

    def _reserve(self) -> Path:
        moment = datetime.now()
        while True:
            stamp = f"{moment:%Y%m%d%H%M%S}"
            path = self._folder / f"{self._stem}_{stamp}.csv"
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
            except FileExistsError:
                moment += timedelta(seconds=1)  # another run of the same second
            else:
                return path

    def _rows(self, store: RowStore, stack_of: Callable[[str], str]) -> Iterator[list[Any]]:
        for record, rows in store:
            rows[0][self._stack_at] = stack_of(record) or ABSENT
            yield from rows

    def _write_parts(self, first: Path, rows: Iterator[list[Any]]) -> list[Path]:
        paths, row = [first], next(rows, None)
        while row is not None or len(paths) == 1:
            path = paths[-1]
            with path.open("w", encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(self._columns)
                written = 0
                while row is not None and written < MOST_CSV_ROWS:
                    writer.writerow([neutral(cell) for cell in row])
                    written += 1
                    row = next(rows, None)
            if row is None:
                break
            paths.append(first.with_name(f"{first.stem}_part_{len(paths)}.csv"))
        return paths

    def write_xlsx(self, store: RowStore, stack_of: Callable[[str], str], *, beside: Path) -> Path:
        """Write everything in `store` as a workbook named as the CSV file `beside` it; its path.

        Raises:
            OSError: it cannot be written.
            ImportError: XlsxWriter is not installed.
        """
        writer = import_module("xlsxwriter")
        path = beside.with_suffix(".xlsx")
        rows = self._rows(store, stack_of)
        options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
        with writer.Workbook(str(path), options) as book:
            fills = {word: book.add_format({"bg_color": colour}) for word, colour in _FILLS.items()}
            sheet, line = None, 0
            for number, row in enumerate(rows):
                if number % MOST_SHEET_ROWS == 0:
                    sheet, line = book.add_worksheet(f"part_{number // MOST_SHEET_ROWS}"), 0
                    sheet.write_row(0, 0, self._columns)
                line += 1
                sheet.write_row(line, 0, row, fills.get(row[self._verdict_at]))  # type: ignore[union-attr]
            if sheet is None:
                book.add_worksheet().write_row(0, 0, self._columns)
        path.chmod(0o640)
        return path
