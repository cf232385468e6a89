"""The report of a suite that writes rows of its own into one CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar

from pytest_msprobe.reports.csv_pair import neutral, new_files
from pytest_msprobe.suites.contract import SuiteReport


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
