"""What becomes of one item: a record, or the first anomaly of a step.

The verdict on one record, and the form in which it crosses processes and goes into files.

Where a training step goes wrong first, over all its ranks, in words and in the form that crosses processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.overflow.first_anomaly import Anomaly, step_folder
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.overflow.session import OverflowSession
from pytest_msprobe.suites.overflow.survey import UNINITIALISED, Conduct, SurveyedRecord
from pytest_msprobe.suites.overflow.values import FINITE, Finiteness, ObservedValue
from pytest_msprobe.verdicts import OutputRow, Status, Verdict


@dataclass(frozen=True, slots=True)
class OverflowRecord:
    """One record, as the CSV file has it.

    Attributes:
        dump: path of the dump.json.
        order: place in the order of execution.
        record: full name.
        status: verdict of the item.
        level: what the record does with NaN and Inf.
        verdict: of an origin `abnormal`, `normal-range`, `normal-math` or `undecided`; of others `intended`,
            `uncollected`, `uninitialised`, `unreadable`, `unknown`; "" where the level says it all.
        in_nan, in_inf, out_nan, out_inf: elements; "some" where only statistics are known.
        dtype, shape, first_bad_index: of the first output that is not finite, else of the first such input.
        cpu_same, cpu_high: what the CPU got in the dump's dtype and in float64.
        is_first_origin: whether it is the first origin of its rank.
        stack: the line of the script that made the call.
        message: one line.
    """

    dump: str
    order: int
    record: str
    status: Status
    level: str
    verdict: str = ""
    in_nan: int | str = 0
    in_inf: int | str = 0
    out_nan: int | str = 0
    out_inf: int | str = 0
    dtype: str = ""
    shape: str = ""
    first_bad_index: str = ""
    cpu_same: str = ""
    cpu_high: str = ""
    is_first_origin: bool = False
    stack: str = ""
    message: str = ""

    def to_wire(self) -> dict[str, Any]:
        """The record in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> OverflowRecord:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)


@dataclass(frozen=True, slots=True)
class OverflowDecision:
    """What becomes of an item, and why.

    Attributes:
        status: outcome.
        verdict: see `OverflowRecord`.
        message: one line.
    """

    status: Status
    verdict: str
    message: str


def rule_on(found: SurveyedRecord) -> OverflowDecision:
    """The ruling on a record that need not be computed again: on all but origins."""
    if found.fault:
        return OverflowDecision("error", "unreadable", found.fault)
    if found.level == "unknown":
        return OverflowDecision("skip", "unknown", "the dump holds neither data nor statistics of its outputs")
    if found.level == "ignored":
        return OverflowDecision("skip", "uninitialised", UNINITIALISED)
    bad = ", ".join(map(str, found.observation.bad)) if found.observation is not None else ""
    if found.level == "absorbed":
        return OverflowDecision("pass", "", f"absorbed: its outputs are finite although {bad or 'its forward was not'}")
    if found.level == "clean":
        return OverflowDecision("pass", "", "")
    if found.is_uncollected:
        return OverflowDecision(
            "error", "uncollected", f"no record before it made what it passes on: {bad}; collect its producer"
        )
    if found.is_intended and not found.source:
        return OverflowDecision("pass", "intended", f"begins with a number that the script passed: {bad}")
    makes_nan = found.observation is not None and found.observation.conduct is Conduct.MAKES_NAN
    return OverflowDecision(
        "skip", "", f"propagated from {found.source}{', whose Inf becomes NaN here' if makes_nan else ''}"
    )


def rule_on_origin(cause: str, message: str, settings: OverflowSettings) -> OverflowDecision:
    """The ruling on an origin that was computed again."""
    if cause == "abnormal":
        return OverflowDecision("error", cause, message)
    if cause == "undecided":
        return OverflowDecision("error" if settings.fails_undecided else "skip", cause, message)
    return OverflowDecision("error" if settings.strict else "pass", cause, message)


def count_text(finiteness: Finiteness) -> tuple[int | str, int | str]:
    """(NaN, Inf) as cells."""
    counts = ((finiteness.has_nan, finiteness.nan_count), (finiteness.has_inf, finiteness.inf_count))
    nan, inf = (0 if not has else "some" if count is None else count for has, count in counts)
    return nan, inf


def chosen_value(bad: Sequence[ObservedValue]) -> ObservedValue | None:
    """The value that is shown for a record: its first output that is not finite, else the first input."""
    return next((value for value in bad if not value.is_input), bad[0] if bad else None)


def output_rows(bad: Sequence[ObservedValue], status: Status) -> tuple[OutputRow, ...]:
    """Rows for the reports: one per output that is not finite."""
    return tuple(
        OutputRow(
            label=value.path,
            bench_dtype="",
            tested_dtype=canonical_dtype(value.dtype),
            shape=value.shape,
            status="error" if status == "error" else "pass",
            message=str(value),
            figures=_figures(value.finiteness),
        )
        for value in bad
        if not value.is_input
    )


def _figures(finiteness: Finiteness) -> dict[str, float | None]:
    """Counts; None where only statistics are known."""
    counts = ((finiteness.has_nan, finiteness.nan_count), (finiteness.has_inf, finiteness.inf_count))
    nan, inf = (None if has and count is None else float(count or 0) for has, count in counts)
    return {"nan": nan, "inf": inf}


@dataclass(frozen=True, slots=True)
class RankAnomaly:
    """The first anomaly of one rank.

    Attributes:
        rank, dump, record: where it is.
        level: `origin`, or `propagated` when no record made what the first one passes on.
        values: what is not finite, one text each.
        cells: Cells that it ran in, outermost first.
        stack: call stack, innermost frame first.
        communications: how many communications are known to come before it.
    """

    rank: int
    dump: str
    record: str
    level: str
    values: list[str]
    cells: list[str]
    stack: list[str]
    communications: int

    @classmethod
    def of(cls, session: OverflowSession, anomaly: Anomaly) -> RankAnomaly:
        """The form of `anomaly` for reports."""
        dump, operation = session.dump(anomaly.path), anomaly.record.operation
        forward = f"{operation.call}.forward"
        frames = dump.stacks.frames(forward) or dump.stacks.frames(operation.record)
        return cls(
            anomaly.rank,
            str(anomaly.path),
            operation.record,
            anomaly.record.level,
            [str(value) for value in anomaly.record.observation.bad] if anomaly.record.observation else [],
            list(dump.ancestors(operation.record)),
            [str(frame) for frame in frames],
            anomaly.layer,
        )

    def __str__(self) -> str:
        what = "" if self.level == "origin" else ", which passes on what no record made: collect its producer"
        return f"rank {self.rank}, {self.record}{what}"


@dataclass(frozen=True, slots=True)
class StepAnomalies:
    """The first anomaly of each rank of a step.

    Attributes:
        folder: of the step.
        step: its number, None where the folder does not say.
        anomalies: the earliest first; empty when there is none.
        unjudged: dumps and records that cannot be read, or do not tell.
    """

    folder: str
    step: int | None
    anomalies: list[RankAnomaly]
    unjudged: int

    @classmethod
    def of(cls, session: OverflowSession, folder: Path) -> StepAnomalies:
        """The finding on the step in `folder`."""
        found = [RankAnomaly.of(session, anomaly) for anomaly in session.anomalies(folder)]
        return cls(str(folder), Slot.of(session.steps[folder][0]).step, found, session.unjudged(folder))

    @property
    def headline(self) -> str:
        """One line."""
        place = f"step {self.step}" if self.step is not None else self.folder
        if not self.anomalies:
            left = f"; {self.unjudged} dumps or records could not be judged" if self.unjudged else ""
            return f"no anomaly in {place}: no record makes NaN or Inf{left}"
        return f"first anomaly of {place}: {self.anomalies[0]}"

    def details(self) -> Iterator[str]:
        """What is not finite there, where it was called, and what goes wrong on other ranks first."""
        first, *others = self.anomalies
        yield from (f"  {value}" for value in first.values)
        if first.cells:
            yield f"  in {' > '.join(first.cells)}"
        if first.stack:
            yield f"  called from {first.stack[0]}"
        for other in others:
            order = "not ordered by any communication" if other.communications == first.communications else "later"
            yield f"  {order}: {other}"

    def to_wire(self) -> dict[str, Any]:
        """The finding in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> StepAnomalies:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)


#: What is tested: nothing runs on a device.
RECORDED = "recorded values"

_IS_CELL = "it is a Cell, which is not computed again; dump with level mix or L1 to see which call inside it makes them"
_IS_COMMUNICATION = (
    "communication: its own inputs are finite, and no dump of another rank tells where they come from; add those ranks"
)


def judge_record(session: OverflowSession, path: Path, operation: Operation) -> Verdict:
    """The verdict on one record of the dump at `path`."""
    survey = session.survey(path)
    found = survey.records[operation.record]
    ruling, finding, bench = rule_on(found), _finding(session, path, found), ""
    if found.level == "origin":
        ruling, finding, bench = _judge_origin(session, path, found, finding)
    finding = replace(
        finding,
        status=ruling.status,
        verdict=ruling.verdict,
        message=ruling.message,
        is_first_origin=finding.level == "origin" and survey.first is found,
    )
    bad = found.observation.bad if found.observation is not None else ()
    place = (("called_from", finding.stack),) if finding.stack and ruling.status == "error" else ()
    source = (("propagated_from", found.source),) if found.source else ()
    verdict = (("overflow_verdict", ruling.verdict),) if ruling.verdict else ()
    return Verdict(
        ruling.status,
        ruling.message,
        output_rows(bad, ruling.status),
        explanation=_explanation(found, finding, bench),
        device=RECORDED,
        bench=bench,
        attachment={"finding": finding.to_wire()},
        properties=(("level", finding.level), *verdict, *source, *place),
    )


def _judge_origin(
    session: OverflowSession, path: Path, found: SurveyedRecord, finding: OverflowRecord
) -> tuple[OverflowDecision, OverflowRecord, str]:
    settings, operation = session.settings, found.operation
    if is_communication(operation.record):
        sender = _sender(session, path, found)
        if sender is not None:
            message = f"propagated from rank {sender.rank}, {sender.record.operation.record}"
            return OverflowDecision("skip", "", message), replace(finding, level="propagated"), ""
        return rule_on_origin("undecided", _IS_COMMUNICATION, settings), finding, ""
    if operation.is_cell:
        return rule_on_origin("undecided", _IS_CELL, settings), finding, ""
    assert found.observation is not None  # an origin was read
    again = session.recomputer(path).recompute(operation.call, operation.phase, found.observation.bad)
    finding = replace(finding, cpu_same=again.same, cpu_high=again.high)
    return rule_on_origin(again.cause, again.message, settings), finding, again.bench


def _sender(session: OverflowSession, path: Path, found: SurveyedRecord) -> Anomaly | None:
    """The first anomaly of the step, which may have come here; None when that is `found` or a communication itself."""
    first = session.anomalies(step_folder(path))[0]
    is_cause = first.record is not found and not is_communication(first.record.operation.record)
    return first if is_cause else None


def _finding(session: OverflowSession, path: Path, found: SurveyedRecord) -> OverflowRecord:
    """The finding without a verdict."""
    seen = found.observation
    in_nan, in_inf = count_text(seen.inputs if seen is not None else FINITE)
    out_nan, out_inf = count_text(seen.outputs if seen is not None else FINITE)
    value = chosen_value(seen.bad) if seen is not None else None
    index = value.finiteness.first_index if value is not None else None
    return OverflowRecord(
        dump=str(path),
        order=found.operation.index,
        record=found.operation.record,
        status="pass",
        level=found.level,
        in_nan=in_nan,
        in_inf=in_inf,
        out_nan=out_nan,
        out_inf=out_inf,
        dtype=value.dtype if value is not None else "",
        shape=str(value.shape) if value is not None else "",
        first_bad_index="" if index is None else str(list(index)),
        stack=_called_from(session, path, found.operation) if value is not None else "",
    )


def _called_from(session: OverflowSession, path: Path, operation: Operation) -> str:
    stacks = session.dump(path).stacks
    frame = stacks.user_frame(f"{operation.call}.forward") or stacks.user_frame(operation.record)
    return "" if frame is None else str(frame)


def _explanation(found: SurveyedRecord, finding: OverflowRecord, bench: str) -> str:
    what = f"{finding.level}, {finding.verdict}" if finding.level != "unknown" else finding.verdict
    lines = [printable(f"{finding.record}: {what}: {finding.message}")]
    if found.observation is not None:
        lines.append("\n".join(printable(f"  {value}") for value in found.observation.bad))
    if bench:
        lines.append(
            f"in the dtype of the dump: {finding.cpu_same or '-'}; in float64: {finding.cpu_high or '-'} ({bench})"
        )
    if finding.stack:
        lines.append(f"called from {finding.stack}")
    return "\n\n".join(lines)


def judge_step(session: OverflowSession, path: Path) -> Verdict:
    """The verdict on the step that the dump at `path` belongs to: an error when it has an anomaly."""
    folder = step_folder(path)
    finding = StepAnomalies.of(session, folder)
    attachment = {"step": finding.to_wire()}
    if finding.anomalies:
        text = "\n".join(map(printable, [finding.headline, *finding.details()]))
        return Verdict("error", finding.headline, explanation=text, device=RECORDED, attachment=attachment)
    return Verdict("skip" if finding.unjudged else "pass", finding.headline, device=RECORDED, attachment=attachment)
