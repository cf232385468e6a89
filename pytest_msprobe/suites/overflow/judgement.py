"""What becomes of one item: a record, or the first anomaly of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.operation import Operation
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.suites.overflow.finding import (
    OverflowDecision,
    OverflowRecord,
    chosen_value,
    count_text,
    output_rows,
    rule_on,
    rule_on_origin,
)
from pytest_msprobe.suites.overflow.finiteness import FINITE
from pytest_msprobe.suites.overflow.first_anomaly import Anomaly, step_folder
from pytest_msprobe.suites.overflow.session import OverflowSession
from pytest_msprobe.suites.overflow.step_finding import StepAnomalies
from pytest_msprobe.suites.overflow.survey import SurveyedRecord
from pytest_msprobe.verdicts import Verdict

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
    lines = [shown(f"{finding.record}: {what}: {finding.message}")]
    if found.observation is not None:
        lines.append("\n".join(shown(f"  {value}") for value in found.observation.bad))
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
        text = "\n".join(map(shown, [finding.headline, *finding.details()]))
        return Verdict("error", finding.headline, explanation=text, device=RECORDED, attachment=attachment)
    return Verdict("skip" if finding.unjudged else "pass", finding.headline, device=RECORDED, attachment=attachment)
