"""Results of several runs, workers or hosts as one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.jsonl import JsonLines, read_json_lines
from pytest_msprobe.reports.terminal import VerdictCounts
from pytest_msprobe.verdicts import VerdictRow

MERGED_NAME = "merged.jsonl"
#: The suite whose rows also make a CSV pair; rows of version 0.1 do not name theirs.
_WITH_PAIR = ("precheck", "")

_Rows = dict[tuple[str, str], VerdictRow]


@dataclass(slots=True)
class Merged:
    """What became of the rows.

    Attributes:
        tallies: of each suite that has rows.
        files: (what it is, path) of each file.
    """

    tallies: list[VerdictCounts] = field(default_factory=list)
    files: list[tuple[str, Path | None]] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether a row is a failure."""
        return any(tally.failed for tally in self.tallies)

    def lines(self) -> list[str]:
        """The summary."""
        counts = [line for tally in self.tallies for line in (*(line.text for line in tally.lines()), "")]
        return [*counts, *(f"{what}: {path}" for what, path in self.files)]


def merge_runs(sources: Sequence[Path], folder: Path, tally_of: Callable[[str], VerdictCounts]) -> Merged:
    """Write the rows of all `sources` into `folder` as one JSONL file, and those of the pre-check as a CSV pair.

    A source is a JSONL file of `--msprobe-jsonl`, or a folder with some. Of rows for the same check the last counts, in
    the order of the sources: a later run replaces what an earlier one said. `tally_of` gives a new tally for a suite.

    Raises:
        ValueError: a source is missing, or holds something else.
        OSError: `folder` cannot be written, or has merged rows already.
    """
    suites: dict[str, _Rows] = {}
    for path in _files(sources):
        for name, row in read_json_lines(path):
            suites.setdefault(row.suite, {})[name, row.part] = row
    if (folder / MERGED_NAME).exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder / MERGED_NAME))
    merged = Merged()
    lines, pair = JsonLines(folder / MERGED_NAME), CsvPair(folder)
    try:
        for suite, rows in suites.items():
            tally = tally_of(suite)
            merged.tallies.append(tally)
            _write(_by_call(rows.items()), lines, pair if suite in _WITH_PAIR else None, tally)
    finally:
        lines.close()
        pair.close()
    if pair.result is not None:
        merged.files += [("results", pair.result), ("details", pair.details)]
    merged.files.append(("rows", lines.path))
    return merged


def _by_call(rows: Iterable[tuple[tuple[str, str], VerdictRow]]) -> dict[str, list[VerdictRow]]:
    calls: dict[str, list[VerdictRow]] = {}
    for (name, _), row in rows:
        calls.setdefault(name, []).append(row)
    for found in calls.values():
        found.sort(key=lambda row: row.part == "backward")
    return calls


def _write(calls: dict[str, list[VerdictRow]], lines: JsonLines, pair: CsvPair | None, tally: VerdictCounts) -> None:
    for name, rows in calls.items():
        for row in rows:
            lines.write(name, row)
            tally.add(name, row)
        if pair is not None:
            pair.write(name, rows)


def _files(sources: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for source in sources:
        files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
        if not files:
            raise ValueError(f"{source}: this folder holds no .jsonl file; write them with --msprobe-jsonl=FILE")
        if not files[0].is_file():
            raise ValueError(f"{source}: there is no such file or folder")
        found += files
    return found
