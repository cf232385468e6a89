"""Tables of figures: what the programs measured last, each a file of quality/results that README.md sums up."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Table:
    """Figures in rows.

    Attributes:
        name: of the file, without its suffix.
        head: names of the columns.
        rows: the cells of each row.
    """

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
        """Return the table of these cells, in which a tab or the end of a line is a space."""
        cells = (tuple(" ".join(str(cell).split()) for cell in row) for row in rows)
        return cls(name, tuple(head), tuple(cells))

    @property
    def text(self) -> str:
        """The table, cells apart by tabs."""
        return "".join("\t".join(row) + "\n" for row in (self.head, *self.rows))

    def write(self, measured: str) -> None:
        """Write the file; its first line says how it was `measured`."""
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{self.name}.tsv").write_text(f"# {measured}\n{self.text}", encoding="utf-8")


def how(command: str, *packages: str, note: str = "") -> str:
    """Return the line on how a table came about: the command, today's date, versions of `packages`, and a note."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return "; ".join(filter(None, (f"{date.today()}: python -m {command}", versions, note)))


def read(name: str) -> list[Mapping[str, str]]:
    """Return the rows of a file by the names of their columns."""
    lines = (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
