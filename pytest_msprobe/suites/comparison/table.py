"""The comparison table: its rows, its files, and tables of several ranks side by side.

Names, order and vocabulary of columns are those that users' scripts know. Rows may come in any
order, from several processes: they wait in a temporary file until all are in, then go out in the
order of execution. What stays in memory is one place per operation, so 200,000 rows need no more
than 2,000. Written are a CSV file and, on demand, a coloured workbook; both in parts where a
spreadsheet program could not open the whole. Side by side, ranks have one file per figure, with a
line per value and a column per rank.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import msgspec

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.values import abbreviated, printable
from pytest_msprobe.answers import Answer, Finding
from pytest_msprobe.answers.words import headline, in_words, sentence_of
from pytest_msprobe.reports.csv_pair import csv_rows, neutral, new_files
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.suites.comparison.values import ValueComparison
from pytest_msprobe.support import how_to_install

Cell = Any
ABSENT = "N/A"
#: Beyond it a spreadsheet, and MessagePack on the way, would not keep every digit.
_MOST_EXACT = 2**53

_DESCRIPTION = ("Name", "Dtype", "Tensor Shape", "Requires_grad")
_BASIC = tuple(f"{side} {name}" for name in _DESCRIPTION for side in ("NPU", "Bench"))
_STATISTICS = tuple(f"{side} {name}" for side in ("NPU", "Bench") for name in ("max", "min", "mean", "l2norm"))
_RELATIVES = tuple(f"{name}RelativeErr" for name in ("Max", "Min", "Mean", "Norm"))
_DIFFERENCES = (*(f"{name} diff" for name in ("Max", "Min", "Mean", "L2norm")), *_RELATIVES)
_REAL = ("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio")
_FIGURES = {
    "real": (*_REAL, *_STATISTICS),
    "statistics": (*_DIFFERENCES, *_STATISTICS),
    "sketches": (*_DIFFERENCES, "Distance", "Distance Uncertainty", *_STATISTICS),
    "md5": ("NPU MD5", "BENCH MD5"),
}
#: The verdict column of the older generation, by mode: its name, and its word for each of our states.
_YES_NO = {"pass": "Yes", "warning": "Yes", "error": "No", "unmatched": "Unmatched"}
_RESULT = {"pass": "", "error": "warning", "warning": "warning", "unmatched": ABSENT}
_ACCURACY = {
    "real": ("Accuracy Reached or Not", _YES_NO),
    "statistics": ("Result", _RESULT),
    "sketches": ("Result", _RESULT),
    "md5": ("Result", {"pass": "pass", "warning": "pass", "error": "Different", "unmatched": ABSENT}),
}


def columns(mode: str, style: str) -> tuple[str, ...]:
    """Names of the columns in `mode` (`real`, `sketches`, `statistics`, `md5`) and `style` (`result` or `accuracy`)."""
    verdict = "Result" if style == "result" else _ACCURACY[mode][0]
    message = () if style == "accuracy" and mode == "md5" else ("Err_message",)
    names = (*_BASIC, *_FIGURES[mode], "Requires_grad Consistent", verdict, *message, "NPU_Stack_Info")
    return (*names, "Data_name") if mode == "real" else names


def rows(verdict: OperationComparison, mode: str, style: str) -> list[list[Cell]]:
    """The rows of one operation; a row per value, and one for an operation that has none or cannot be read.

    The stack column is left empty (`N/A`): it is filled where the table is written.
    """
    if not verdict.values:
        return [_whole(verdict, mode, style)]
    return [_row(value, mode, style) for value in verdict.values]


def _row(value: ValueComparison, mode: str, style: str) -> list[Cell]:
    target, golden = value.target, value.golden
    consistent = ABSENT
    if target is not None and golden is not None:
        consistent = str(target.requires_grad == golden.requires_grad)
    row = [*chain.from_iterable(zip(_of_side(target), _of_side(golden))), *_figure_cells(value, mode), consistent]
    row += [*_verdict_cells(value.status, value.reasons, mode, style), ABSENT]
    if mode == "real":
        row.append(str([getattr(leaf, "data_name", "") or "-1" for leaf in (target, golden)]))
    return row


def _whole(verdict: OperationComparison, mode: str, style: str) -> list[Cell]:
    names = [verdict.operation.record, verdict.partner.record if verdict.partner is not None else ABSENT]
    if verdict.held_by == "golden":
        names.reverse()
    status = "pass" if verdict.held_by == "both" else "unmatched"
    if verdict.fault:
        status = "unreadable"
    reasons = tuple(filter(None, [verdict.message]))
    row = [*names, *[ABSENT] * (len(_BASIC) - 1 + len(_FIGURES[mode]))]
    row += [*_verdict_cells(status, reasons, mode, style), ABSENT]
    return [*row, str(["-1", "-1"])] if mode == "real" else row


def _of_side(leaf: Leaf | None) -> list[Cell]:
    """Name, dtype, shape and requires_grad."""
    if leaf is None:
        return [ABSENT] * 4
    described = [leaf.dtype, str(list(leaf.shape))] if leaf.value is not None else [ABSENT, ABSENT]
    return [leaf.name, *described, leaf.requires_grad or ABSENT]


def _figure_cells(value: ValueComparison, mode: str) -> list[Cell]:
    pair = (value.target, value.golden)
    if mode == "md5":
        return [getattr(leaf, "md5", "") or ABSENT for leaf in pair]
    figures = _real_cells(value) if mode == "real" else _difference_cells(value)
    if mode == "sketches" and (estimate := value.estimate) is not None:
        # The distance and its standard deviation, both relative to the golden value.
        deviation = max(estimate.deviation * estimate.distance, estimate.resolution)
        figures += [_cell(estimate.distance), _cell(deviation)]
    elif mode == "sketches":
        figures += [ABSENT, ABSENT]
    for leaf in pair:
        figures += map(_cell, leaf.statistics if leaf is not None else [ABSENT] * 4)
    return figures


def _real_cells(value: ValueComparison) -> list[Cell]:
    figures, target, golden = value.figures, value.target, value.golden
    if figures is not None:
        metrics = figures.metrics
        return [*map(_cell, (metrics.cosine, figures.euclid, metrics.max_abs, metrics.max_rel, *figures.shares))]
    is_shape = target is not None and golden is not None and target.is_tensor and target.shape != golden.shape
    return ["shape unmatched" if is_shape else "unsupported"] * 6


def _difference_cells(value: ValueComparison) -> list[Cell]:
    if value.target is None or value.golden is None:
        return [ABSENT] * 8
    differences, relatives = zip(*map(_difference, value.target.statistics, value.golden.statistics))
    return [*differences, *relatives]


def _difference(target: Any, golden: Any) -> tuple[Cell, Cell]:
    """(signed difference, relative error in per cent as text) of one statistic, in the existing tool's words."""
    if target is None or golden is None:
        return ABSENT, ABSENT
    if str(target) == str(golden):
        return 0, "0"
    try:
        mine, theirs = float(target), float(golden)
    except (ValueError, OverflowError):
        return "Diff", "Diff"
    difference = mine - theirs
    if theirs == 0:
        return _cell(difference), "inf"
    return _cell(difference), "Nan" if difference != difference else f"{abs(difference / theirs) * 100}%"


def _verdict_cells(status: str, reasons: Sequence[str], mode: str, style: str) -> list[Cell]:
    if style == "result":
        kind = "warning" if status in ("warning", "skip") else "error"
        return [status, json.dumps([f"{kind}: {reason}" for reason in reasons], ensure_ascii=False)]
    word = _ACCURACY[mode][1].get(status, "None")
    return [word] if mode == "md5" else [word, "\n".join(reasons)]


def _cell(value: Any) -> Cell:
    """A number as it is; NaN, infinity, bools and nothing in words."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return _bounded(_number_in(value))
    return _bounded(value) if value - value == 0 else {"inf": "inf", "-inf": "-inf"}.get(str(value), "Nan")


def _bounded(value: Cell) -> Cell:
    """`value`, or as text a whole number that neither the rows on their way nor a spreadsheet can hold as a number."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return abbreviated(value)
    return value


def _number_in(text: str) -> Cell:
    """The finite number that `text` writes, so that a plain -1 is not text to a spreadsheet; else `text`."""
    try:
        number = int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text
    return number if number - number == 0 and abs(number) < _MOST_EXACT else text


MOST_CSV_ROWS = 1_000_000
MOST_SHEET_ROWS = 1_048_500
_FILLS = dict.fromkeys(("error", "No", "Different"), "#FF0000") | {"warning": "#FFFF00"}
_FILLS |= dict.fromkeys(("unmatched", "Unmatched", "unreadable"), "#C7C7C7")
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

    def line_of_value(self, record: str, name: str) -> int:
        """The line of the value `name` of `record`, else of the first of its values; 0 for none."""
        line = 2
        for record_of_rows, rows in self:
            if record_of_rows == record:
                return line + next((place for place, row in enumerate(rows) if name in row[:2]), 0)
            line += len(rows)
        return 0

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
        (file,) = new_files(self._folder, self._stem)
        file.close()
        paths, rows = [Path(file.name)], self._rows(store, stack_of)
        part = list(islice(rows, 1))
        while True:
            with paths[-1].open("w", encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(self._columns)
                for row in islice(chain(part, rows), MOST_CSV_ROWS):
                    writer.writerow(map(neutral, row))
            if not (part := list(islice(rows, 1))):
                return paths
            paths.append(paths[0].with_name(f"{paths[0].stem}_part_{len(paths)}.csv"))

    def _rows(self, store: RowStore, stack_of: Callable[[str], str]) -> Iterator[list[Any]]:
        for record, rows in store:
            rows[0][self._stack_at] = stack_of(record) or ABSENT
            yield from rows

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
        return path


_TABLE = re.compile(r"compare_result_(?P<step>step\d+_)?rank(?P<rank>\d+)_\d{14}\.csv")
#: Columns that identify a row or stand in the merged file anyway.
_NOT_MERGED = 8
_LEFT_OUT = frozenset({"Err_message", "NPU_Stack_Info", "Data_name", "NPU MD5", "BENCH MD5"})
_NO_FIGURE = frozenset({ABSENT, "unsupported", "Nan"})


class MergeError(ValueError):
    """One line on why tables cannot be put side by side."""


def merge_steps(tables: Sequence[Path], folder: Path) -> list[Path]:
    """What `merge_ranks` writes for each step of which `tables` has two ranks or more; others are left alone."""
    steps = defaultdict[str | None, list[Path]](list)
    for path in tables:
        if (match := _TABLE.fullmatch(path.name)) is not None:
            steps[match["step"]].append(path)
    return [merged for paths in steps.values() if len(paths) > 1 for merged in merge_ranks(paths, folder)]


def merge_ranks(tables: Sequence[Path], folder: Path) -> list[Path]:
    """Write `multi_ranks_compare_merge_{step}{column}_{time}.csv` into `folder` for each figure; their paths.

    `tables` are CSV tables of ranks of one step. Rows keep the order of the first rank that has them; a cell without
    a figure shows both maxima instead, `NPU:{max}  Bench:{max}`, as group ids do.

    Raises:
        MergeError: fewer than two tables, a name without rank, or different columns.
        OSError: a file cannot be read or written.
    """
    ranks, step = dict[int, Path](), ""
    for path in tables:
        match = _TABLE.fullmatch(path.name)
        if match is None:
            raise MergeError(f"{path}: its name is not compare_result_rank<N>_<time>.csv; name tables of ranks only")
        ranks[int(match["rank"])] = path
        step = match["step"] or ""
    if len(ranks) < 2:
        raise MergeError(f"{len(ranks)} ranks: to merge, name the tables of two ranks or more")
    contents = {rank: _read(ranks[rank]) for rank in sorted(ranks)}
    headers = {tuple(header) for header, _ in contents.values()}
    if len(headers) > 1:
        raise MergeError(f"{next(iter(ranks.values())).parent}: the tables have different columns; compare in one mode")
    header = next(iter(headers))
    stamp = next(iter(ranks.values())).stem.rpartition("_")[2]
    return _write(header, {rank: rows for rank, (_, rows) in contents.items()}, folder, (step, stamp))


def _read(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv_rows(file.read()) or [[]]
    return header, {f"Bench {row[1]}" if row[0] == ABSENT else row[0]: row for row in rows if len(row) > 1}


def _write(
    header: Sequence[str], ranks: dict[int, dict[str, list[str]]], folder: Path, ends: tuple[str, str]
) -> list[Path]:
    names = dict.fromkeys(chain.from_iterable(ranks.values()))
    columns = [index for index, name in enumerate(header) if index >= _NOT_MERGED and name not in _LEFT_OUT]
    maxima = [header.index(name) for name in ("NPU max", "Bench max") if name in header]
    paths = []
    with ExitStack() as files:
        for column in columns:
            figure = header[column].replace(" ", "_")
            path = folder / f"multi_ranks_compare_merge_{ends[0]}{figure}_{ends[1]}.csv"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            file = files.enter_context(open(descriptor, "w", encoding="utf-8-sig", newline=""))
            writer = csv.writer(file)
            writer.writerow(["NPU Name", *(f"rank{rank}" for rank in ranks)])
            for name in names:
                writer.writerow([neutral(name), *(_cell_of(rows.get(name), column, maxima) for rows in ranks.values())])
            paths.append(path)
    return paths


def _cell_of(row: list[str] | None, column: int, maxima: Sequence[int]) -> str:
    if row is None:
        return ABSENT
    if row[column] in _NO_FIGURE and len(maxima) == 2:
        return f"NPU:{row[maxima[0]]}  Bench:{row[maxima[1]]}"
    return row[column]


def value_of(finding: Finding) -> str:
    """`Mint.exp.0.forward.output.0`, as the table names it."""
    return f"{finding.place.record}.{finding.place.value}".rstrip(".")


def advice(answer: Answer, suspect: Finding | None, line: int) -> str:
    """The content of the advisor file of one dump; `line` of the table is where the `suspect` of the answer stands."""
    name = printable(value_of(suspect)) if suspect is not None else "NA"
    sentence = sentence_of(suspect) if suspect is not None else headline(answer)
    text = printable(". ".join([sentence, *map(in_words, answer.next[:1])]))
    return f"Line: {line or 'NA'}\nSuspect Nodes: {name}\nExpert Advice: {text}\n"
