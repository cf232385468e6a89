"""The suite of sharded runs: one item per record of the logical run, judged by what all ranks of the step hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import ApiName, Dump, DumpError, Frame
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    Suite,
    SuiteError,
    SuiteReport,
    file_id,
    place_in,
)
from pytest_msprobe.suites.grouping import api_of, group_operations, operation_of
from pytest_msprobe.suites.sharded import ShardedSettings
from pytest_msprobe.suites.sharded.alone import LawsSession, RankLaws
from pytest_msprobe.suites.sharded.judgement import RecordFinding, ValueFinding
from pytest_msprobe.suites.sharded.outline import CallPlaces
from pytest_msprobe.suites.sharded.ranks import dumps_below, listed, step_folders
from pytest_msprobe.suites.sharded.report import ShardedReport, ShardedSummary
from pytest_msprobe.suites.sharded.session import Blame, Role, ShardedSession
from pytest_msprobe.verdicts import Figure, OutputRow, Status, StepPosition, Verdict

_STATUS: dict[str, Status] = {"placed": "pass", "illegal": "error", "unexplained": "error", "unreadable": "error"}
#: Records before the first wrong one that are named where they were not judged.
_MOST_BEFORE = 3
#: Wrong values of one record that are told.
_MOST_VALUES = 6


class ShardedSuite(Suite):
    """Puts the values of ranks together and judges them by the logical run."""

    name = "sharded"
    excuses = True
    title = "Sharded runs"
    item_noun = "records of the logical run"
    group_noun = "operations"
    figures = (
        Figure("distance", "Distance", ".3g"),
        Figure("tolerance", "Tolerance", ".3g"),
        Figure("ratio", "Distance/tolerance", ".3g"),
    )
    passing = "placed"
    summary = ShardedSummary

    @classmethod
    def make(cls, context: Context) -> ShardedSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: there is no dump, or no logical run where one is named.
        """
        settings = ShardedSettings.of(context.values)
        if not context.dumps:
            asked = "--msprobe-suite=sharded" if settings.logical is None else "--msprobe-logical"
            raise SuiteError(f"{asked} needs --msprobe-dump=PATH, the step of the sharded run with all its ranks")
        if settings.logical is None:
            return RankLawsSuite(context, LawsSession(step_folders(context.dumps), settings.data_dir))
        if settings.logical.is_file():
            logical = [settings.logical]
        elif settings.logical.is_dir():
            logical = dumps_below(settings.logical)
        else:
            raise SuiteError(f"--msprobe-logical={settings.logical}: there is no such file or folder")
        if not logical:
            raise SuiteError(
                f"--msprobe-logical={settings.logical}: holds no dump.json; give a dump, step or rank folder"
            )
        return cls(context, ShardedSession(settings, context.dumps, logical))

    def __init__(self, context: Context, session: ShardedSession) -> None:
        super().__init__(context)
        self._session = session

    def groups(self, file: Path) -> Iterator[Group]:
        """The calls of the logical run, in the file of the first rank; the others are parts of them.

        Raises:
            DumpError: the dump of this rank cannot be read, or that of the logical run.
            SuiteError: there is no logical run of this step, or it holds no record.
        """
        step = self._session.step(file)
        if file in step.unreadable:
            raise step.unreadable[file]
        if not self._session.is_leader(file):
            return
        outline = self._session.blame(file).outline
        if not outline.logical.operations:
            raise SuiteError(f"{outline.logical.path}: the logical run holds no record; dump a step that runs")
        yield from group_operations(outline.items)

    def judge(self, record: ItemRecord) -> Verdict:
        blame, operation = self._session.blame(record.file), operation_of(record)
        finding, role = blame.judged(operation)
        outline = blame.outline
        facts = {"ranks": list(outline.step.ranks), "beside": outline.matching.only_on_ranks}
        where = chain(_begin(blame, operation, finding, role), _where(finding, outline, operation))
        fails_inherited = self._session.settings.inherited == "fail"
        return verdict_of(finding, role, facts, where, fails_inherited=fails_inherited)

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any] | None:
        """A record that was not judged counts as such."""
        operation = operation_of(record)
        finding = RecordFinding(operation.record, operation.index, "forward", reason=message)
        return {"finding": finding.to_wire(), "role": "right", "ranks": []}

    def api(self, record: ItemRecord) -> ApiName | None:
        return api_of(operation_of(record))

    def place(self, record: ItemRecord) -> StepPosition:
        """Place in the logical run; the line of the script is that of a rank."""
        outline, operation = self._session.blame(record.file).outline, operation_of(record)
        place = place_in(outline.logical, operation.record, f"{operation.call}.forward")
        return replace(place, rank=None, step=outline.number, source=outline.source(operation))

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        return self._session.blame(record.file).outline.frames(operation_of(record))

    def header(self) -> list[str]:
        root = self._context.config.rootpath
        lines = []
        for folder, paths in self._session.steps.items():
            with suppress(DumpError, SuiteError):
                logical = self._session.logical_of(paths[0])
                ranks = len(self._session.step(paths[0]).ranks)
                by = file_id(logical[0], root)
                if len(logical) > 1:
                    by += f" and {counted(len(logical) - 1, 'other ranks')}"
                lines.append(
                    f"msprobe: {file_id(folder, root)}: {counted(ranks, 'ranks')}, judged by the logical run {by}"
                )
                if len(logical) > 1 and (beside := self._session.blame(paths[0]).outline.run.beside):
                    records = counted(beside, "records of its other ranks", "are")
                    lines.append(f"msprobe: {records} not judged: the first one has no such call")
        return [*lines, *map("msprobe: not whole: {}".format, self._session.problems())]

    def dumps(self) -> Iterator[Dump]:
        for path in self.files:
            with suppress(DumpError, SuiteError):
                if self._session.is_leader(path):
                    yield from self._session.step(path).ranks.values()
                    yield from self._session.blame(path).outline.run.ranks

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return ShardedReport(self._session, self._context.out)


def verdict_of(
    finding: RecordFinding, role: Role, facts: Mapping[str, Any], where: Iterable[str], *, fails_inherited: bool
) -> Verdict:
    """The verdict on a logical record, or on a call that laws judge.

    Args:
        finding: what is found of it.
        role: what it has to do with the wrong values of its step.
        facts: what the report needs besides.
        where: lines on where wrong values come from, of a record that has some.
        fails_inherited: whether a record fails for which another one is the reason.
    """
    attachment: dict[str, Any] = {"finding": finding.to_wire(), "role": role, **facts}
    outputs = tuple(map(_output, finding.values))
    ranks = len(finding.ranks)
    bench = f"laws of {ranks} ranks" if "by_laws" in facts else f"logical run, {ranks} ranks put together"
    unreadable = [value.message for value in finding.values if value.state == "unreadable"]
    if unreadable:
        text = "\n".join(unreadable)
        return Verdict("error", unreadable[0], outputs, text, bench=bench, attachment=attachment)
    if finding.wrong:
        first = finding.wrong[0]
        message = f"{first.path}: {first.message}"
        lines = [*_values_explained(finding), *where]
        attachment["told"] = lines
        text = "\n".join(map(printable, lines))
        verdict = Verdict("error", message, outputs, text, bench=bench, attachment=attachment)
        if role != "inherited":
            return verdict
        message = f"inherited: {message}"
        return replace(verdict, message=message, excuse="" if fails_inherited else message)
    if any(value.state == "placed" for value in finding.values):
        return Verdict("pass", "", outputs, bench=bench, attachment=attachment)
    reasons = (f"{value.path}: {value.message}" for value in finding.values if value.message)
    reason = finding.reason or next(reasons, "it holds no tensors")
    return Verdict("skip", reason, outputs, attachment=attachment)


def _values_explained(finding: RecordFinding) -> Iterator[str]:
    """What is wrong with each value, with the placements that were tried."""
    for value in finding.wrong[:_MOST_VALUES]:
        yield f"{value.path} {list(value.shape)}: {value.message}"
        if value.tried and value.tolerance is not None:
            yield f"  tried: {'; '.join(value.tried)}; rounding explains {value.tolerance:.3g}"
    if len(finding.wrong) > _MOST_VALUES:
        yield f"and {counted(len(finding.wrong) - _MOST_VALUES, 'more values')}, which the CSV file has"


def _begin(blame: Blame, operation: Operation, finding: RecordFinding, role: Role) -> Iterator[str]:
    """Whether a record at fault makes the wrong values or got them."""
    is_wrong_before = any(not value.is_output for value in finding.wrong)
    if role in ("first", "own") and finding.has_good_inputs:
        yield "what goes into it is right: it goes wrong in here"
    elif role == "first" and finding.phase != "optimizer" and is_wrong_before:
        before = [unjudged.record for unjudged in blame.not_judged_before(operation)]
        made = f"{listed(before, _MOST_BEFORE)}, not judged here" if before else "what no record shows"
        yield f"what goes into it is wrong already: it is made by {made}"


def _where(finding: RecordFinding, calls: CallPlaces, operation: Operation) -> Iterator[str]:
    """The ranks, and the line of the script."""
    yield f"on ranks {listed(finding.ranks, 16)}"
    if source := calls.source(operation):
        yield f"called from {source}"


def _output(value: ValueFinding) -> OutputRow:
    ratio = None
    if value.distance is not None and value.tolerance is not None and value.state in ("placed", "unexplained"):
        ratio = relative(value.distance, value.tolerance)
    return OutputRow(
        label=value.path,
        bench_dtype=value.dtype,
        tested_dtype=value.dtype,
        shape=value.shape,
        status=_STATUS.get(value.state, "skip"),
        message=value.message,
        standard="" if value.is_ambiguous or value.state != "placed" else value.placement,
        figures={"distance": value.distance, "tolerance": value.tolerance, "ratio": ratio},
    )


class RankLawsSuite(ShardedSuite):
    """Judges the calls of one step on all ranks by what holds without a logical run; each call is one item."""

    item_noun = "calls of the ranks"

    def __init__(self, context: Context, session: LawsSession) -> None:
        self._context = context
        self._laws = session
        self._fails_inherited = ShardedSettings.of(context.values).inherited == "fail"

    def groups(self, file: Path) -> Iterator[Group]:
        """The calls of a rank that no rank before it made, too.

        Raises:
            DumpError: the dump of this rank cannot be read.
            SuiteError: there is only one rank.
        """
        rank = self._laws.rank(file)
        if rank is None:
            return
        if len(rank.step.ranks) < 2:
            raise SuiteError(
                f"{rank.step.folder}: one rank has no other to be judged by; give a step with all its ranks, or the "
                " run of the whole model with --msprobe-logical"
            )
        yield from group_operations(rank.laws.operations(rank.dump))

    def _rank(self, record: ItemRecord) -> RankLaws:
        rank = self._laws.rank(record.file)
        assert rank is not None
        return rank

    def judge(self, record: ItemRecord) -> Verdict:
        rank, operation = self._rank(record), operation_of(record)
        finding, role = rank.judged(operation)
        facts = {"ranks": list(rank.step.ranks), "by_laws": True}
        where = _where(finding, rank, operation)
        return verdict_of(finding, role, facts, where, fails_inherited=self._fails_inherited)

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any] | None:
        return {**(super().attachment_of_unjudged(record, status, message) or {}), "by_laws": True}

    def place(self, record: ItemRecord) -> StepPosition:
        """Place in the run of the first rank that made the call."""
        rank, operation = self._rank(record), operation_of(record)
        place = place_in(rank.dump, operation.record, f"{operation.call}.forward")
        return replace(place, source=rank.source(operation) or place.source)

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        return self._rank(record).frames(operation_of(record))

    def header(self) -> list[str]:
        root, lines = self._context.config.rootpath, []
        for folder, paths in self._laws.steps.items():
            spread = self._laws.laws(paths[0]).spread
            ranks = len(spread.step.ranks)
            lines.append(
                f"msprobe: {file_id(folder, root)}: {counted(ranks, 'ranks')}, judged by laws, without a logical run"
            )
            lines += [f"msprobe:   {row}, which share {_SHARED[spread.sharing(row)]}" for row in spread.rows[:8]]
        return [*lines, *map("msprobe: not whole: {}".format, self._laws.problems())]

    def dumps(self) -> Iterator[Dump]:
        for path in self.files:
            with suppress(DumpError):
                if (rank := self._laws.rank(path)) is not None:
                    yield rank.dump

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return ShardedReport(self._laws, self._context.out)


_SHARED = {
    "data": "the whole model",
    "model": "not all parameters",
    "pipeline": "the batch, each with other layers",
    "unknown": "what is not known: no record of an optimizer has their parameters",
}
