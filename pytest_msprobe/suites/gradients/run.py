"""Where a run's gradients are, which step is compared with which, and what grad_summary_{step}.csv says of each."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.yaml_files import read_plain
from pytest_msprobe.reports.csv_pair import csv_rows

_RANK = re.compile(r"rank(\d+)", re.ASCII)
_SUMMARY = re.compile(r"grad_summary_(\d+)\.csv", re.ASCII)


class RunError(Exception):
    """A folder that holds no gradients; one line."""


@dataclass(frozen=True, slots=True)
class GradientRun:
    """The files of one run.

    Attributes:
        root: the folder that was named.
        ranks: folder by rank, in order.
        steps: summary file by step, in order, by rank.
        is_one_rank: whether `root` is itself the folder of a rank.
    """

    root: Path
    ranks: dict[int, Path]
    steps: dict[int, dict[int, Path]]
    is_one_rank: bool = False

    @classmethod
    def of(cls, root: Path) -> GradientRun:
        """The run in the folder `root`, which holds `rank<N>` folders or is one.

        Raises:
            RunError: it holds no summary of gradients, or cannot be read.
        """
        try:
            summaries = _numbered(root, _SUMMARY)
            folders = _numbered(root, _RANK)
            if summaries and not folders:
                name = _RANK.fullmatch(root.name)
                rank = 0 if name is None else int(name[1])
                return cls(root, {rank: root}, {rank: summaries}, is_one_rank=True)
            steps = {rank: _numbered(folder, _SUMMARY) for rank, folder in folders.items() if folder.is_dir()}
        except OSError as error:
            raise RunError(f"cannot be read: {error.strerror}") from None
        if not any(steps.values()):
            advice = "give the dump_path of a task grad_probe or one of its ranks"
            if any("dump.json" in files for _, _, files in os.walk(root)):
                advice = f"it holds dumps; judge them with --msprobe-dump={root}"
            raise RunError(f"holds no rank<N>/grad_summary_<step>.csv; {advice}")
        if summaries:
            raise RunError("holds grad_summary_<step>.csv both itself and in rank<N>; name the folder that is meant")
        return cls(root, {rank: folders[rank] for rank in steps}, steps)


@dataclass(frozen=True, slots=True)
class RunPair:
    """A run, and the run that it is compared with, if any."""

    target: GradientRun
    golden: GradientRun | None

    @classmethod
    def of(cls, root: Path, golden_root: Path | None) -> RunPair:
        """The runs in two folders; ranks and steps are paired by number, two folders of one rank whatever theirs is.

        Raises:
            RunError: one of them holds no gradients; the text names it.
        """
        runs = []
        for option, path in (("--msprobe-gradients", root), ("--msprobe-golden", golden_root)):
            try:
                runs.append(None if path is None else GradientRun.of(path))
            except RunError as error:
                raise RunError(f"{option}: {path}: {error}") from None
        target, golden = runs
        assert target is not None
        if golden is not None and golden.is_one_rank and target.is_one_rank:
            (rank,) = target.ranks
            (folder,), (steps,) = golden.ranks.values(), golden.steps.values()
            golden = replace(golden, ranks={rank: folder}, steps={rank: steps})
        return cls(target, golden)

    def steps(self, rank: int) -> list[int]:
        """The steps of `rank` that can be judged, in order."""
        steps = self.target.steps[rank]
        if self.golden is None:
            return list(steps)
        return [step for step in steps if step in self.golden.steps.get(rank, ())]

    def find(self, path: Path) -> tuple[int, int] | None:
        """(rank, step) of the summary file at `path` of the target that can be judged, or None."""
        folders = {folder: rank for rank, folder in self.target.ranks.items()}
        match = _SUMMARY.fullmatch(path.name)
        if match is None or path.parent not in folders:
            return None
        rank, step = folders[path.parent], int(match[1])
        return (rank, step) if step in self.steps(rank) and self.target.steps[rank][step] == path else None

    def unpaired(self, rank: int) -> str:
        """One line on the steps of `rank` that only one run has; "" when there are none."""
        if self.golden is None:
            has_steps = bool(self.target.steps.get(rank))
            return "" if has_steps else f"rank {rank}: {self.target.ranks[rank]} holds no grad_summary_<step>.csv"
        parts = []
        for run, other in ((self.target, self.golden), (self.golden, self.target)):
            lacking = set(other.steps.get(rank, ())).difference(run.steps.get(rank, ()))
            if rank not in run.steps:
                parts.append(f"{run.root} has no such rank")
            elif lacking:
                parts.append(f"{run.root} has no {_text(lacking)}")
        return f"rank {rank}: {', and '.join(parts)}, which the other run has" if parts else ""

    def all_unpaired(self) -> list[str]:
        """The sentences of all ranks of both runs."""
        return list(filter(None, map(self.unpaired, self.all_ranks())))

    def all_ranks(self) -> list[int]:
        """The ranks that either run has, in order."""
        return sorted({*self.target.ranks, *(self.golden.ranks if self.golden is not None else ())})


def number_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7` for 0, 1, 2, 3, 7."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("-".join(map(str, ends)) for ends in ranges)


def _text(steps: set[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {number_ranges(steps)}"


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Paths in `folder` by the number in their names, in the order of the numbers."""
    matches = filter(None, map(pattern.fullmatch, os.listdir(folder)))
    return dict(sorted((int(match[1]), folder / match[0]) for match in matches))


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
    columns = [cell.strip().lower() for cell in chain.from_iterable(table[:1])]
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise DumpError(
            f"has no column {', '.join(missing)}; it is truncated, or no summary of gradients", file=str(path)
        )
    rows: dict[str, GradientRow] = {}
    for line, cells in enumerate(table[1:], start=2):
        if cells:
            row = _row(path, (line, len(rows)), columns, cells)
            if row.name in rows:
                fault = f"{path}: {row.name}: line {line} names this parameter a second time; none is taken"
                row = GradientRow(row.name, rows[row.name].order, fault=fault)
            rows[row.name] = row
    return StepSummary(path, rows)


def _row(path: Path, place_in_file: tuple[int, int], columns: Sequence[str], cells: Sequence[str]) -> GradientRow:
    line, order = place_in_file
    row = dict(zip(columns, cells))
    name = row.get("param_name", "").strip() or f"line {line}"
    if len(cells) != len(columns):
        held = f"line {line} holds {len(cells)} of {len(columns)} cells"
        return GradientRow(name, order, fault=f"{path}: {name}: {held}; it is truncated")
    try:
        counts = {column: _parsed(row, column, int) for column in ("nan", "inf") if column in row}
        return GradientRow(
            name,
            order,
            shape=_parsed(row, "shape", _shape),
            max=_parsed(row, "max", float),
            min=_parsed(row, "min", float),
            norm=_parsed(row, "norm", float),
            nans=counts.get("nan"),
            infs=counts.get("inf"),
            md5=row.get("md5"),
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
