"""Results of several runs, workers or hosts as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.jsonl import JsonLines, read_json_lines
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.terminal import Tally

MERGED_NAME = "merged.jsonl"


def merge_runs(sources: Sequence[Path], folder: Path) -> list[str]:
    """Write the rows of all `sources` into `folder` as one CSV pair and one JSONL file; the lines of a summary.

    A source is a JSONL file of `--msprobe-jsonl`, or a folder with some. Of rows for the same check the last counts, in
    the order of the sources: a later run replaces what an earlier one said.

    Raises:
        ValueError: a source is missing, or holds something else.
        OSError: `folder` cannot be written, or has merged rows already.
    """
    rows: dict[tuple[str, str | None], VerdictRow] = {}
    for path in _files(sources):
        for name, row in read_json_lines(path):
            rows[name, row.direction] = row
    calls: dict[str, list[VerdictRow]] = {}
    for (name, _), row in rows.items():
        calls.setdefault(name, []).append(row)
    lines, pair, tally = JsonLines(folder / MERGED_NAME), CsvPair(folder), Tally()
    try:
        for name, directions in calls.items():
            directions.sort(key=lambda row: row.direction == "backward")
            for row in directions:
                lines.write(name, row)
                tally.add(name, row)
            pair.write(name, directions)
    finally:
        lines.close()
        pair.close()
    return [*tally.lines(), "", f"results: {pair.result}", f"details: {pair.details}", f"rows: {lines.path}"]


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
