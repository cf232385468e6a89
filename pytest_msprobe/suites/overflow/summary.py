"""What an overflow run leaves behind: a CSV file with a row per record, and a JSON file that sums it up."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.reports.result_file import new_result_file
from pytest_msprobe.suites.overflow.finding import OverflowRecord
from pytest_msprobe.suites.overflow.step_finding import StepAnomalies

COLUMNS = tuple(
    """
    step rank api_name direction level verdict in_nan in_inf out_nan out_inf dtype shape first_bad_index cpu_same
    cpu_high is_first_origin stack message
    """.split()
)
_LEVELS = ("origin", "propagated", "absorbed", "ignored", "unknown", "clean")


@dataclass(slots=True)
class RankSummary:
    """Running counts over the records of one dump.

    Attributes:
        dump: path of the dump.json.
        rank, step: their numbers; None for a step whose folder does not say.
        levels, verdicts: records by level and by verdict.
        first_origin: the first origin of the rank; None before it was seen, and where there is none.
    """

    dump: str
    rank: int
    step: int | None
    levels: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    first_origin: OverflowRecord | None = None

    def add(self, record: OverflowRecord) -> None:
        """Count one record."""
        self.levels[record.level] += 1
        if record.verdict:
            self.verdicts[record.verdict] += 1
        if record.is_first_origin:
            self.first_origin = record

    @property
    def counts(self) -> str:
        """One line."""
        counted = ", ".join(f"{self.levels[level]} {level}" for level in _LEVELS if self.levels[level])
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        return f"{counted}{f' ({verdicts})' if verdicts else ''}"

    def content(self) -> dict[str, Any]:
        """Entry of the rank in the JSON file."""
        return {
            "rank": self.rank,
            "step": self.step,
            "dump": self.dump,
            "levels": dict(sorted(self.levels.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "first_origin": None if self.first_origin is None else self.first_origin.to_wire(),
        }


class SummaryFiles:
    """`overflow_result_{time}.csv`, flushed row by row, and `overflow_summary_{time}.json` at the end."""

    def __init__(self, folder: Path) -> None:
        """Files in `folder`, made when the first row comes."""
        self._folder = folder
        self._csv: TextIOWrapper | None = None
        self._json: Path | None = None

    def write(self, record: OverflowRecord, summary: RankSummary) -> None:
        """Add a row. Raises OSError."""
        if self._csv is None:
            self._csv = new_result_file(self._folder, "overflow_result")
            csv.writer(self._csv).writerow(COLUMNS)
        csv.writer(self._csv).writerow([neutral(cell) for cell in _cells(record, summary)])
        self._csv.flush()

    def close(self, steps: Sequence[StepAnomalies], ranks: Sequence[RankSummary]) -> None:
        """Write the JSON file, when there was a row. Raises OSError."""
        if self._csv is None:
            return
        self._csv.close()
        path = Path(self._csv.name)
        path = path.with_name(path.name.replace("overflow_result_", "overflow_summary_")).with_suffix(".json")
        content = {
            "first_anomaly": [{**msgspec.to_builtins(step), "headline": step.headline} for step in steps],
            "ranks": [summary.content() for summary in ranks],
        }
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        self._json = path

    def paths(self) -> Iterator[tuple[str, str]]:
        """(what it is, path) of each file."""
        if self._csv is not None:
            yield "results", self._csv.name
        if self._json is not None:
            yield "summary", str(self._json)


def _cells(record: OverflowRecord, summary: RankSummary) -> list[Any]:
    operation = Operation.of(record.record, record.order)
    named: dict[str, Any] = {
        "step": "" if summary.step is None else summary.step,
        "rank": summary.rank,
        "api_name": operation.call,
        "direction": operation.phase,
    }
    return [named[column] if column in named else getattr(record, column) for column in COLUMNS]
