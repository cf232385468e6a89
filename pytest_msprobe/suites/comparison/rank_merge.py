"""Tables of several ranks side by side: one file per figure, a line per value, a column per rank."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.reports.csv_rows import csv_rows
from pytest_msprobe.suites.comparison.table import ABSENT

_TABLE = re.compile(r"compare_result_(?P<step>step\d+_)?rank(?P<rank>\d+)_\d{14}\.csv")
#: Columns that identify a row or stand in the merged file anyway.
_NOT_MERGED = 8
_LEFT_OUT = frozenset({"Err_message", "NPU_Stack_Info", "Data_name", "NPU MD5", "BENCH MD5"})
_NO_FIGURE = frozenset({ABSENT, "unsupported", "Nan"})


class MergeError(ValueError):
    """One line on why tables cannot be put side by side."""


def merge_steps(tables: Sequence[Path], folder: Path) -> list[Path]:
    """What `merge_ranks` writes for each step of which `tables` has two ranks or more; others are left alone."""
    steps: dict[str | None, list[Path]] = {}
    for path in tables:
        match = _TABLE.fullmatch(path.name)
        if match is not None:
            steps.setdefault(match["step"], []).append(path)
    return [merged for found in steps.values() if len(found) > 1 for merged in merge_ranks(found, folder)]


def merge_ranks(tables: Sequence[Path], folder: Path) -> list[Path]:
    """Write `multi_ranks_compare_merge_{step}{column}_{time}.csv` into `folder` for each figure; their paths.

    `tables` are CSV tables of ranks of one step. Rows keep the order of the first rank that has them; a cell without
    a figure shows both maxima instead, `NPU:{max}  Bench:{max}`, as group ids do.

    Raises:
        MergeError: fewer than two tables, a name without rank, or different columns.
        OSError: a file cannot be read or written.
    """
    ranks: dict[int, Path] = {}
    step = ""
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
    return header, {row[0] if row[0] != ABSENT else f"Bench {row[1]}": row for row in rows if len(row) > 1}


def _write(
    header: Sequence[str], ranks: dict[int, dict[str, list[str]]], folder: Path, ends: tuple[str, str]
) -> list[Path]:
    names = list(dict.fromkeys(name for rows in ranks.values() for name in rows))
    columns = [index for index, name in enumerate(header) if index >= _NOT_MERGED and name not in _LEFT_OUT]
    maxima = [header.index(name) for name in ("NPU max", "Bench max") if name in header]
    paths = []
    with ExitStack() as files:
        for column in columns:
            figure = header[column].replace(" ", "_")
            path = folder / f"multi_ranks_compare_merge_{ends[0]}{figure}_{ends[1]}.csv"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            file = files.enter_context(open(descriptor, "w", encoding="utf-8-sig", newline=""))
            writer = csv.writer(file)
            writer.writerow(["NPU Name", *(f"rank{rank}" for rank in ranks)])
            for name in names:
                writer.writerow([neutral(name), *(_cell(rows.get(name), column, maxima) for rows in ranks.values())])
            paths.append(path)
    return paths


def _cell(row: list[str] | None, column: int, maxima: Sequence[int]) -> str:
    if row is None:
        return ABSENT
    if row[column] in _NO_FIGURE and len(maxima) == 2:
        return f"NPU:{row[maxima[0]]}  Bench:{row[maxima[1]]}"
    return row[column]
