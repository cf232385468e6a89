"""The overflow suite: one item per record, and one per training step for its first anomaly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import ApiName, Frame
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    Suite,
    SuiteError,
    SuiteReport,
    of_step,
    place_in,
)
from pytest_msprobe.suites.grouping import api_of, group_operations, operation_of
from pytest_msprobe.suites.overflow.judgement import OverflowRecord, OverflowSession, judge_record, judge_step
from pytest_msprobe.suites.overflow.report import OverflowReport, OverflowSummary
from pytest_msprobe.suites.overflow.values import OverflowDump, RuleError
from pytest_msprobe.verdicts import Figure, Status, StepPosition, Verdict

FIRST_ANOMALY = "first_anomaly"
STEP = "step"


class OverflowSuite(Suite):
    """Looks for NaN and Inf in every record, and computes their origins again."""

    name = "overflow"
    title = "Overflow: where NaN and Inf begin"
    item_noun = "records"
    figures = (Figure("nan", "NaN", ".0f"), Figure("inf", "Inf", ".0f"))
    severity_figures = ("nan", "inf")
    passing = "finite"
    summary = OverflowSummary

    @classmethod
    def make(cls, context: Context) -> OverflowSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: there is no dump, or the rule file is not what it should be.
        """
        if not context.dumps:
            raise SuiteError("--msprobe-suite=overflow needs --msprobe-dump=PATH, the dumps to look through")
        try:
            session = OverflowSession(context)
        except RuleError as error:
            raise SuiteError(f"--msprobe-overflow-rules: {error}") from None
        if context.is_writer and (unusable := session.engines.unusable_bench()):
            raise SuiteError(unusable)
        return cls(context, session)

    def __init__(self, context: Context, session: OverflowSession) -> None:
        super().__init__(context)
        self._session = session

    def dump(self, path: Path) -> OverflowDump:
        return self._session.dump(path)

    def groups(self, file: Path) -> Iterator[Group]:
        """Calls of the dump; after the first dump of a step the step itself."""
        names = self.dump(file).record_names
        yield from group_operations(Operation.of(name, order) for order, name in enumerate(names))
        if self._session.is_leader(file):
            yield Group(FIRST_ANOMALY, f"{FIRST_ANOMALY}.{STEP}", (STEP,))

    def judge(self, record: ItemRecord) -> Verdict:
        operation = _operation(record)
        if operation is None:
            return judge_step(self._session, record.file)
        return judge_record(self._session, record.file, operation)

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any] | None:
        """A line of the CSV file all the same."""
        operation = _operation(record)
        if operation is None:
            return None
        finding = OverflowRecord(
            str(record.file), operation.index, operation.record, status, "unknown", "unknown", message=message
        )
        return {"finding": finding.to_wire()}

    def headline(self, record: ItemRecord) -> str:
        """`Mint.matmul.2, forward`."""
        return f"{record.group.scope if record.payload is None else record.call}, {record.part}"

    def api(self, record: ItemRecord) -> ApiName | None:
        """The name that hooks get; the step is not an API call."""
        operation = _operation(record)
        return None if operation is None else api_of(operation)

    def place(self, record: ItemRecord) -> StepPosition:
        """Place in the order and the Cells of the dump; the step stands behind all."""
        operation, dump = _operation(record), self.dump(record.file)
        if operation is None:
            return of_step(place_in(dump, ""))
        return replace(
            place_in(dump, operation.record, f"{operation.call}.forward"), rank=self._session.ranks[record.file]
        )

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        operation = _operation(record)
        return () if operation is None else self.dump(record.file).frames(operation)

    def header(self) -> list[str]:
        benches = ", ".join(engine.name for engine in self._session.engines.benchmarks)
        return [
            f"msprobe: {self._shown_files()}: looking for where NaN and Inf begin; origins are recomputed by {benches}"
        ]

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return OverflowReport(self._session, self.files, self._context.out, self._context.config.rootpath)

    def close(self) -> None:
        self._session.engines.close()


def _operation(record: ItemRecord) -> Operation | None:
    """The record's; None for the step."""
    return None if record.payload is None else operation_of(record)
