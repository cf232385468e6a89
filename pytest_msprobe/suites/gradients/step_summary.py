"""grad_summary_{step}.csv: what one rank says about the gradients of one step."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.files import read_plain
from pytest_msprobe.reports.csv_rows import csv_rows

Parsed = TypeVar("Parsed")

_NEEDED = ("param_name", "max", "min", "norm", "shape")
_SHAPE = re.compile(r"[\[(][\d,\s]*[\])]", re.ASCII)


@dataclass(frozen=True, slots=True)
class GradientRow:
    """One gradient, as its row says.

    Attributes:
        name: of the parameter.
        order: its place in the file, from 0.
        shape: of the gradient.
        max, min, norm: NaN and infinite as they stand there.
        nans, infs: numbers of elements; None in files of the existing tool, which does not count them.
        md5: of the gradient in float32; None for levels other than L0.
        fault: one line on a row that cannot be read, whose figures then mean nothing; else "".
    """

    name: str
    order: int
    shape: tuple[int, ...] = ()
    max: float = math.nan
    min: float = math.nan
    norm: float = math.nan
    nans: int | None = None
    infs: int | None = None
    md5: str | None = None
    fault: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_zero(self) -> bool:
        """Whether every element is 0."""
        return self.max == self.min == self.norm == 0

    def nonfinite(self) -> str:
        """What is NaN or infinite in it, in words; "" when nothing is. An empty gradient has nothing."""
        if not self.size:
            return ""
        if self.nans or self.infs:
            counts = [f"{count} {word}" for count, word in ((self.nans, "NaN"), (self.infs, "Inf")) if count]
            return f"{' and '.join(counts)} among {self.size} elements"
        wrong = [name for name in ("max", "min", "norm") if not math.isfinite(getattr(self, name))]
        return f"{wrong[0]} is {getattr(self, wrong[0])}" if wrong else ""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """One file.

    Attributes:
        path: of the file; the signs of the gradients lie in the folder `step{step}` beside it.
        rows: by parameter, in the order of the optimizer.
    """

    path: Path
    rows: dict[str, GradientRow]


def read_summary(path: Path) -> StepSummary:
    """The file at `path`, of this collector or the existing tool, whose graph mode begins names with a capital.

    Raises:
        DumpError: it cannot be read as a whole; a row that cannot says so itself.
    """
    try:
        table = csv_rows(read_plain(path).decode("utf-8-sig"))
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DumpError(f"is not a CSV file in UTF-8: {error}", file=str(path)) from None
    columns = [cell.strip().lower() for cell in table[0]] if table else []
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise DumpError(
            f"has no column {', '.join(missing)}; it is truncated, or no summary of gradients", file=str(path)
        )
    rows: dict[str, GradientRow] = {}
    for line, cells in enumerate(table[1:], start=2):
        if cells:
            row = _row(path, (line, len(rows)), columns, cells)
            rows[row.name] = _doubled(path, line, rows[row.name]) if row.name in rows else row
    return StepSummary(path, rows)


def _row(path: Path, place_in_file: tuple[int, int], columns: Sequence[str], cells: Sequence[str]) -> GradientRow:
    line, order = place_in_file
    found = dict(zip(columns, cells))
    name = found.get("param_name", "").strip() or f"line {line}"
    if len(cells) != len(columns):
        held = f"line {line} holds {len(cells)} of {len(columns)} cells"
        return GradientRow(name, order, fault=f"{path}: {name}: {held}; it is truncated")
    try:
        return GradientRow(
            name,
            order,
            shape=_parsed(found, "shape", _shape),
            max=_parsed(found, "max", float),
            min=_parsed(found, "min", float),
            norm=_parsed(found, "norm", float),
            nans=_parsed(found, "nan", int) if "nan" in found else None,
            infs=_parsed(found, "inf", int) if "inf" in found else None,
            md5=found.get("md5"),
        )
    except ValueError as error:
        return GradientRow(name, order, fault=f"{path}: {name}: {error}; record this step again")


def _parsed(cells: Mapping[str, str], column: str, parse: Callable[[str], Parsed]) -> Parsed:
    try:
        return parse(cells[column])
    except ValueError:
        raise ValueError(f"{column}: {cells[column]!r} cannot be read") from None


def _shape(text: str) -> tuple[int, ...]:
    if _SHAPE.fullmatch(text.strip()) is None:
        raise ValueError(text)
    return tuple(map(int, re.findall(r"\d+", text)))


def _doubled(path: Path, line: int, row: GradientRow) -> GradientRow:
    fault = f"{path}: {row.name}: line {line} names this parameter a second time; none is taken"
    return GradientRow(row.name, row.order, fault=fault)
