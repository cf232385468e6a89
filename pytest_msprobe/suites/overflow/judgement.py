"""The verdict on one record or on a training step, and the form of a record that goes into files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.overflow.first_anomaly import bad_parameters, step_folder
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.overflow.session import OverflowSession
from pytest_msprobe.suites.overflow.survey import MAKERS, Conduct, SurveyedRecord
from pytest_msprobe.suites.overflow.values import ObservedValue
from pytest_msprobe.verdicts import MOOT, UNREADABLE, OutputRow, Status, Verdict, Wire

#: What is tested: nothing runs on a device.
RECORDED = "recorded values"

#: Levels of records that begin nothing, and so have nothing to judge.
_FOLLOWING = ("propagated", "ignored")
_IS_CELL = "it is a Cell, which is not computed again; dump with level mix or L1 to see which call inside it makes them"
_IS_COMMUNICATION = (
    "communication: its own inputs are finite, and no dump of another rank tells where they come from; add those ranks"
)


@dataclass(frozen=True, slots=True)
class OverflowRecord(Wire):
    """One record, as the CSV file has it.

    Attributes:
        dump: path of the dump.json.
        order: place in the order of execution.
        record: full name.
        status: verdict of the item.
        level: what the record does with NaN and Inf.
        verdict: of an origin `abnormal`, `normal-range`, `normal-math` or `undecided`; of others `intended`,
            `parameter`, `uncollected`, `uninitialised`, `unreadable`, `unknown`; "" where the level says it all.
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


def judge_record(session: OverflowSession, path: Path, operation: Operation) -> Verdict:
    """The verdict on one record of the dump at `path`."""
    survey = session.survey(path)
    found = survey.records[operation.record]
    finding, bench = _finding(session, path, found), ""
    if found.level == "origin" or (found.level == "discarded" and found.conduct in MAKERS):
        finding, bench = _judge_origin(session, path, found, finding)
        finding = replace(finding, is_first_origin=finding.level == "origin" and survey.first is found)
    if finding.status == "pass" and _is_first_of_step(session, path, finding.record):
        finding = replace(finding, status="error")
    status = finding.status
    place = (("called_from", finding.stack),) if finding.stack and status == "error" else ()
    source = (("propagated_from", found.source),) if found.source else ()
    verdict = (("overflow_verdict", finding.verdict),) if finding.verdict else ()
    moot = ((MOOT, finding.level),) if finding.level in _FOLLOWING and status == "skip" else ()
    unreadable = ((UNREADABLE, "dump"),) if found.fault else ()
    return Verdict(
        status,
        finding.message,
        tuple(_output_row(value, status) for value in found.bad if not value.is_input),
        explanation=_explanation(found, finding, bench),
        device=RECORDED,
        bench=bench,
        attachment={"finding": finding.to_wire()},
        properties=(("level", finding.level), *verdict, *source, *place, *moot, *unreadable),
    )


def _is_first_of_step(session: OverflowSession, path: Path, record: str) -> bool:
    """Whether NaN or Inf begin there in the whole step: its item fails, also where they are right by themselves."""
    anomalies = session.anomalies_of_step(step_folder(path)).anomalies
    return bool(anomalies) and (anomalies[0].dump, anomalies[0].record) == (str(path), record)


def _finding(session: OverflowSession, path: Path, found: SurveyedRecord) -> OverflowRecord:
    """What the survey says of a record, with the ruling on all but origins."""
    status, verdict, message = _rule_on(found)
    if found.is_uncollected and (parameters := bad_parameters(session.survey(path), found)):
        held = (f"parameter {name} holds {what}" for name, what in parameters.items())
        verdict, message = "parameter", f"{', '.join(held)} before any call"
    in_nan, in_inf, out_nan, out_inf = (
        "some" if count is None else count for count in (*found.inputs.counts, *found.outputs.counts)
    )
    outputs = (value for value in found.bad if not value.is_input)
    shown = next(outputs, found.bad[0] if found.bad else None)
    index = shown.finiteness.first_index if shown is not None else None
    return OverflowRecord(
        dump=str(path),
        order=found.operation.index,
        record=found.operation.record,
        status=status,
        level=found.level,
        verdict=verdict,
        in_nan=in_nan,
        in_inf=in_inf,
        out_nan=out_nan,
        out_inf=out_inf,
        dtype=shown.dtype if shown is not None else "",
        shape=str(shown.shape) if shown is not None else "",
        first_bad_index="" if index is None else str(list(index)),
        stack=session.dump(path).called_from(found.operation) if shown is not None else "",
        message=message,
    )


def _rule_on(found: SurveyedRecord) -> tuple[Status, str, str]:
    """(status, verdict, message) of a record; of an origin, before it is computed again."""
    bad = ", ".join(map(str, found.bad))
    if found.fault:
        return "error", "unreadable", found.fault
    if found.level == "unknown":
        return "skip", "unknown", "the dump holds neither data nor statistics of its outputs"
    if found.level == "ignored":
        return "skip", "uninitialised", "uninitialised buffer: its content means nothing"
    if found.level == "absorbed":
        return "pass", "", f"absorbed: its outputs are finite although {bad or 'its forward was not'}"
    if found.level == "discarded":
        return "pass", "", f"no loss and no gradient is computed from what is not finite: {bad}"
    if found.level in ("clean", "origin"):
        return "pass", "", ""
    if found.is_uncollected:
        return "error", "uncollected", f"no record before it made what it passes on: {bad}; collect its producer"
    if not found.source:
        return "pass", "intended", f"begins with a number that the script passed: {bad}"
    turn = ", whose Inf becomes NaN here" if found.conduct is Conduct.MAKES_NAN else ""
    return "skip", "", f"propagated from {found.source}{turn}"


def _judge_origin(
    session: OverflowSession, path: Path, found: SurveyedRecord, finding: OverflowRecord
) -> tuple[OverflowRecord, str]:
    """(`finding` with the ruling on an origin, who computed it again)."""
    operation, settings = found.operation, session.settings
    cause, message, bench = "undecided", "", ""
    if is_communication(operation.record):
        first = session.anomalies(step_folder(path))[0]
        is_itself = (first.dump, first.record) == (str(path), operation.record)
        if not is_itself and not is_communication(first.record):  # what went wrong there may have come here
            message = f"propagated from rank {first.rank}, {first.record}"
            return replace(finding, status="skip", level="propagated", message=message), ""
        message = _IS_COMMUNICATION
    elif operation.is_cell:
        message = _IS_CELL
    else:
        again = session.recomputer(path).recompute(operation.call, operation.phase, found.bad)
        cause, message, bench = again.cause, again.message, again.bench
        finding = replace(finding, cpu_same=again.same, cpu_high=again.high)
    if found.level == "discarded":
        # What a right device has there is lost, whoever takes it out; so is what float64 has, by a division.
        if cause != "abnormal" and (cause != "normal-range" or found.is_selected_out):
            return replace(finding, verdict=cause), bench
        # No item of the step fails by it: this one does.
        return replace(finding, status="error", level="origin", verdict=cause, message=message), bench
    return replace(finding, status=_status_of_origin(cause, settings), verdict=cause, message=message), bench


def _status_of_origin(cause: str, settings: OverflowSettings) -> Status:
    if cause == "abnormal":
        return "error"
    if cause == "undecided":
        return "error" if settings.fails_undecided else "skip"
    return "error" if settings.fails_reproduced else "pass"


def _output_row(value: ObservedValue, status: Status) -> OutputRow:
    nan, inf = (None if count is None else float(count) for count in value.finiteness.counts)
    return OutputRow(
        label=value.path,
        bench_dtype="",
        tested_dtype=canonical_dtype(value.dtype),
        shape=value.shape,
        status="error" if status == "error" else "pass",
        message=str(value),
        figures={"nan": nan, "inf": inf},
    )


def _explanation(found: SurveyedRecord, finding: OverflowRecord, bench: str) -> str:
    what = f"{finding.level}, {finding.verdict}" if finding.level != "unknown" else finding.verdict
    lines = [printable(f"{finding.record}: {what}: {finding.message}")]
    if not found.fault:
        lines.append("\n".join(printable(f"  {value}") for value in found.bad))
    if bench:
        lines.append(
            f"in the dtype of the dump: {finding.cpu_same or '-'}; in float64: {finding.cpu_high or '-'} ({bench})"
        )
    if finding.stack:
        lines.append(f"called from {finding.stack}")
    return "\n\n".join(lines)


def judge_step(session: OverflowSession, path: Path) -> Verdict:
    """The verdict on the step that the dump at `path` belongs to: an error when it has an anomaly."""
    finding = session.anomalies_of_step(step_folder(path))
    attachment = {"step": finding.to_wire()}
    if finding.anomalies:
        # The item of the record where NaN or Inf begin fails, and no other.
        moot = ((MOOT, "first anomaly"),)
        return Verdict("skip", finding.headline, device=RECORDED, attachment=attachment, properties=moot)
    if finding.unjudged:
        moot = ((MOOT, "step"),)
        return Verdict("skip", finding.headline, device=RECORDED, attachment=attachment, properties=moot)
    return Verdict("pass", finding.headline, device=RECORDED, attachment=attachment)
