"""The CSV pair of a run, read as users read it."""

from __future__ import annotations

import csv
from pathlib import Path


class Reports:
    """The CSV pairs of one folder, read as users read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _rows(self, kind: str) -> list[dict[str, str]]:
        (path,) = self.folder.glob(f"accuracy_checking_{kind}_*.csv")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))

    @property
    def results(self) -> dict[str, dict[str, str]]:
        """Rows of the result file by API name; a doubled name is an error."""
        rows = self._rows("result")
        found = {row["API Name"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    @property
    def details(self) -> dict[str, dict[str, str]]:
        """Rows of the details file by output name; a doubled name is an error."""
        rows = self._rows("details")
        found = {row["API Name"]: row for row in rows}
        assert len(found) == len(rows)
        return found
