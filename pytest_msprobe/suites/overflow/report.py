"""What the rows of an overflow run amount to: findings, a CSV file with a row per record, and a JSON file of counts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from msprobe_collector.dump_format import DIRECTIONS
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers import Answer, Confidence, Finding, Gap, Place, Reach, RunRows
from pytest_msprobe.answers.from_rows import short_source
from pytest_msprobe.reports.csv_pair import TableReport
from pytest_msprobe.suites.contract import RowSummary, escape, file_id
from pytest_msprobe.suites.overflow.first_anomaly import RankAnomaly, StepAnomalies
from pytest_msprobe.suites.overflow.judgement import OverflowRecord, OverflowSession
from pytest_msprobe.verdicts import StepPosition, VerdictRow

COLUMNS = tuple(
    """
    step rank api_name direction level verdict in_nan in_inf out_nan out_inf dtype shape first_bad_index cpu_same
    cpu_high is_first_origin stack message
    """.split()
)
#: What computing an origin again showed, for readers; files have the words themselves.
VERDICT_WORDS = {
    "abnormal": "the device computed it wrongly",
    "normal-range": "the range of its dtype is too small",
    "normal-math": "float64 gives NaN or Inf, too",
    "undecided": "it could not be told why",
}
_LEVELS = ("origin", "propagated", "absorbed", "discarded", "ignored", "unknown", "clean")
#: Levels of records that have a verdict.
_JUDGED = ("origin", "absorbed", "discarded", "clean")


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

    def count(self, record: OverflowRecord) -> None:
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
        verdicts = ", ".join(
            f"{count} {VERDICT_WORDS.get(verdict, verdict)}" for verdict, count in sorted(self.verdicts.items())
        )
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


class OverflowSummary(RowSummary):
    """The first anomaly of each step, and counts of each dump.

    Attributes:
        ranks: counts by dump.
        steps: findings by folder.
    """

    def __init__(self, name_of: Callable[[str], str] = str) -> None:
        """A summary that calls the dump at a path by what `name_of` makes of it."""
        self.ranks: dict[str, RankSummary] = {}
        self.steps: dict[str, StepAnomalies] = {}
        self._step_items: dict[str, str] = {}
        self._name_of = name_of

    def add(self, row: VerdictRow) -> None:
        if row.attachment is None:
            return
        if "step" in row.attachment:
            finding = StepAnomalies.from_wire(row.attachment["step"])
            self.steps[finding.folder] = finding
            self._step_items[finding.folder] = row.node_id
            return
        record = OverflowRecord.from_wire(row.attachment["finding"])
        place = row.place or StepPosition()
        self.ranks.setdefault(record.dump, RankSummary(record.dump, place.rank or 0, place.step)).count(record)

    def lines(self) -> Iterator[str]:
        for finding in self.steps.values():
            yield self._with_verdict(finding)
            if finding.anomalies:
                yield from finding.details()
        yield from self.facts()

    def facts(self) -> Iterator[str]:
        """Counts of each dump."""
        if not self.steps:
            yield "the first anomaly was not looked for: its item did not run"
        for summary in self.ranks.values():
            if summary.levels:
                yield f"{self._name_of(summary.dump)}: {summary.counts}"

    def answer(self, rows: RunRows) -> Answer:
        """Where NaN and Inf begin, the first anomaly of each step; what follows from it is no fault of its own."""
        steps = sorted(self.steps.values(), key=lambda step: -1 if step.step is None else step.step)
        # What a baseline knows is the failure of the step's item: the one of its first record may pass by itself.
        new = [step for step in steps if step.anomalies and not rows.is_expected(self._step_items[step.folder])]
        findings = [self._finding(rows, step) for step in new]
        if not steps:  # their items were not selected
            origins = [summary.first_origin for summary in self.ranks.values() if summary.first_origin is not None]
            findings = [self._of_origin(rows, origin) for origin in origins]
        gaps = rows.gaps()
        if not gaps:
            for step in steps:
                if step.unjudged:
                    gap = Gap(kind="values unknown", what=step.folder, count=step.unjudged, noun="dumps or records")
                    gaps.append(gap)
        levels = sum((summary.levels for summary in self.ranks.values()), Counter[str]())
        judged = sum(map(levels.__getitem__, _JUDGED))
        measure = structs.replace(rows.measure(), judged=judged, total=levels.total(), differing=levels["discarded"])
        answer = rows.made(findings or rows.findings(by_order=True), gaps=gaps, measure=measure)
        return structs.replace(answer, reach=Reach(levels["propagated"])) if findings else answer

    def _finding(self, rows: RunRows, step: StepAnomalies) -> Finding:
        first = step.anomalies[0]
        kind = "parameter" if first.parameters else first.level
        message = ""
        figures: dict[str, float | int | str] = {}
        if (origin := self._origin_of(first)) is not None:
            kind = origin.verdict or kind
            message = f"; {origin.message}" if origin.message else ""
            figures = _figures(origin)
        same = [other for other in step.anomalies if other.record == first.record]
        if first.parameters:
            figures |= {"names": len(first.parameters), "holds": next(iter(first.parameters.values()))}
        return Finding(
            id=_item(rows, first.dump, first.record),
            kind=kind,
            confidence=_SURE.get(kind, "likely"),
            place=Place(
                record=first.record,
                operation=first.record,
                names=tuple(first.parameters),
                value=first.first_value,
                source=short_source(first.called_from),
                cell="".join(first.cells[-1:]),
                ranks=tuple(sorted(other.rank for other in same)),
                steps=() if step.step is None else (step.step,),
            ),
            figures=figures,
            count=len(same),
            detail=f"{'; '.join(first.values[:3])}{message}",
        )

    def _of_origin(self, rows: RunRows, origin: OverflowRecord) -> Finding:
        kind = origin.verdict or origin.level
        return Finding(
            id=_item(rows, origin.dump, origin.record),
            kind=kind,
            confidence=_SURE.get(kind, "likely"),
            place=Place(record=origin.record, operation=origin.record, source=short_source(origin.stack)),
            figures=_figures(origin),
            detail=origin.message,
        )

    def _with_verdict(self, finding: StepAnomalies) -> str:
        """The headline, with what computing it again showed where that item has run."""
        if not finding.anomalies:
            return finding.headline
        origin = self._origin_of(finding.anomalies[0])
        if origin is None or not origin.verdict:
            return finding.headline
        return f"{finding.headline}: {VERDICT_WORDS.get(origin.verdict, origin.verdict)}"

    def _origin_of(self, anomaly: RankAnomaly) -> OverflowRecord | None:
        """The record of an anomaly, if it was judged and is the first origin of its rank."""
        origin = self.ranks[anomaly.dump].first_origin if anomaly.dump in self.ranks else None
        return origin if origin is not None and origin.record == anomaly.record else None


def _item(rows: RunRows, dump: str, record: str) -> str:
    """The node id of the item of a record."""
    operation = Operation.of(record, 0)
    part = operation.phase if operation.phase in DIRECTIONS else "record"
    return f"{rows.file_id(dump)}::{escape(operation.call)}::{part}"


#: How sure it is that a record is where NaN or Inf begin, by its verdict.
_SURE: dict[str, Confidence] = {
    "abnormal": "proved",
    "parameter": "proved",
    "uncollected": "first difference only",
    "propagated": "first difference only",
}
#: Figures of a finding, by the column of the table.
_COUNTS = {"out_nan": "nan", "out_inf": "inf"}


def _figures(origin: OverflowRecord) -> dict[str, float | int | str]:
    figures: dict[str, float | int | str] = {}
    for column in (*_COUNTS, "in_nan", "in_inf", "cpu_same", "cpu_high", "first_bad_index"):
        if figure := getattr(origin, column):
            figures[_COUNTS.get(column, column)] = figure
    return figures


class OverflowReport(TableReport):
    """`overflow_result_{time}.csv`, and `overflow_summary_{time}.json` and findings at the end."""

    stem = "overflow_result"
    columns = COLUMNS
    summary: OverflowSummary

    def __init__(self, session: OverflowSession, dumps: Sequence[Path], out: Path, root: Path) -> None:
        """A report with files in the folder `out`, made when the first row comes; `root` is pytest's rootdir."""
        super().__init__(out)
        self.summary = OverflowSummary(lambda dump: file_id(Path(dump), root))
        for path in dumps:
            self.summary.ranks[str(path)] = RankSummary(str(path), session.ranks[path], Slot.of(path).step)
        self._json: Path | None = None

    def receive(self, name: str, row: VerdictRow) -> None:
        super().receive(name, row)
        if row.attachment is not None and "finding" in row.attachment:
            record = OverflowRecord.from_wire(row.attachment["finding"])
            self.write([_cells(record, self.summary.ranks[record.dump])])

    def finish(self) -> None:
        super().finish()
        if self._table is None:
            return
        path = Path(self._table.name)
        path = path.with_name(path.name.replace("overflow_result_", "overflow_summary_")).with_suffix(".json")
        steps, ranks = self.summary.steps.values(), self.summary.ranks.values()
        anomalies = [{**step.to_wire(), "headline": step.headline} for step in steps]
        content = {"first_anomaly": anomalies, "ranks": [rank.content() for rank in ranks]}
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        self._json = path

    def facts(self) -> Iterator[str]:
        return self.summary.facts()

    def tells(self, row: VerdictRow) -> bool:
        return row.attachment is not None and "step" in row.attachment

    def files(self) -> Iterator[tuple[str, Path]]:
        yield from super().files()
        if self._json is not None:
            yield "summary", self._json


def _cells(record: OverflowRecord, summary: RankSummary) -> list[Any]:
    operation = Operation.of(record.record, record.order)
    step = "" if summary.step is None else summary.step
    cells = {"step": step, "rank": summary.rank, "api_name": operation.call, "direction": operation.phase}
    return [cells.get(column, getattr(record, column, None)) for column in COLUMNS]
