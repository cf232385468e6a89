"""The verdict on one record or on a training step, the form of a record in files, and what the items of a run share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import DumpError, is_communication
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.engines.protocol import DeviceSpecification
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.contract import Context
from pytest_msprobe.suites.overflow import OverflowSettings
from pytest_msprobe.suites.overflow.first_anomaly import (
    RankAnomaly,
    StepAnomalies,
    bad_parameters,
    first_anomalies,
    rank_numbers,
    step_folder,
    steps_of,
)
from pytest_msprobe.suites.overflow.survey import MAKERS, Conduct, Survey, SurveyedRecord
from pytest_msprobe.suites.overflow.values import ObservedValue, OverflowDump, read_rules
from pytest_msprobe.verdicts import MOOT, UNREADABLE, OutputRow, Status, Verdict, Wire

if TYPE_CHECKING:
    from pytest_msprobe.suites.overflow.recomputation import Recomputer


class OverflowSession:
    """The dumps of a run, read and surveyed once.

    Attributes:
        settings: what the run was asked to do.
        steps: dumps by step folder, in the order of their ranks.
        ranks: rank of each dump.
        engines: who computes origins again.
    """

    def __init__(self, context: Context) -> None:
        """A session over the dumps of a run.

        Raises:
            RuleError: the file of --msprobe-overflow-rules is not what it should be.
        """
        settings = self.settings = OverflowSettings.of(context.values)
        self.steps = steps_of(context.dumps)
        # Nothing runs on a device here, so that MindSpore's CPU needs no process of its own.
        self.engines = Engines(
            EngineChoice(DeviceSpecification("mindspore", "cpu"), settings.bench, settings.bench_python)
        )
        self.ranks = {path: rank for paths in self.steps.values() for path, rank in rank_numbers(paths).items()}
        self._rules = read_rules(settings.rules)
        self._max_memory_bytes = settings.max_memory_bytes // context.sharers
        self._dumps = cache(lambda path: OverflowDump(path, settings.data_dir))
        self._unreadable: set[Path] = set()
        self._surveys = cache(lambda path: Survey(self.dump(path), self._rules))
        self._anomalies: dict[Path, list[RankAnomaly]] = {}

    def dump(self, path: Path) -> OverflowDump:
        """The dump at `path`, read once. Raises DumpError."""
        return self._dumps(path)

    def survey(self, path: Path) -> Survey:
        """The survey of the dump at `path`. Raises DumpError."""
        return self._surveys(path)

    def recomputer(self, path: Path) -> Recomputer:
        """The object that computes origins of the dump at `path` again. Imports NumPy."""
        from pytest_msprobe.suites.overflow.recomputation import Recomputer

        return Recomputer(self.dump(path), self.engines, self.settings.seed, self._max_memory_bytes)

    def anomalies(self, folder: Path) -> list[RankAnomaly]:
        """The first anomaly of each rank of a step that has one, the earliest first; of the dumps that can be read."""
        if folder not in self._anomalies:
            ranks = [(self.ranks[path], self.survey(path)) for path in self._readable(folder)]
            self._anomalies[folder] = first_anomalies(ranks)
        return self._anomalies[folder]

    def anomalies_of_step(self, folder: Path) -> StepAnomalies:
        """The finding on the step in `folder`."""
        dumps, readable = self.steps[folder], [*self._readable(folder)]
        unjudged = len(dumps) - len(readable) + sum(self.survey(path).unjudged for path in readable)
        return StepAnomalies(str(folder), Slot.of(dumps[0]).step, self.anomalies(folder), unjudged)

    def is_leader(self, path: Path) -> bool:
        """Whether the dump at `path` is the first of its step that can be read, which represents all of them."""
        return next(self._readable(step_folder(path)), None) == path

    def _readable(self, folder: Path) -> Iterator[Path]:
        """The dumps of a step that can be read; the collection reports the others."""
        for path in self.steps[folder]:
            if path not in self._unreadable:
                try:
                    self.dump(path)
                except DumpError:
                    self._unreadable.add(path)
                else:
                    yield path


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
    surveyed = survey.records[operation.record]
    finding, bench = _finding(session, path, surveyed), ""
    if surveyed.level == "origin" or (surveyed.level == "discarded" and surveyed.conduct in MAKERS):
        finding, bench = _judge_origin(session, path, surveyed, finding)
        finding = replace(finding, is_first_origin=finding.level == "origin" and survey.first is surveyed)
    if finding.status == "pass" and _is_first_of_step(session, path, finding.record):
        finding = replace(finding, status="error")
    status = finding.status
    properties = {"level": finding.level, "overflow_verdict": finding.verdict, "propagated_from": surveyed.source}
    if status == "error":
        properties["called_from"] = finding.stack
    if status == "skip" and finding.level in _FOLLOWING:
        properties[MOOT] = finding.level
    if surveyed.fault:
        properties[UNREADABLE] = "dump"
    outputs = tuple(_output_row(value, status) for value in surveyed.bad if not value.is_input)
    return Verdict(
        status,
        finding.message,
        outputs,
        explanation=_explanation(surveyed, finding, bench),
        device=RECORDED,
        bench=bench,
        attachment={"finding": finding.to_wire()},
        properties=tuple((name, text) for name, text in properties.items() if text),
    )


def _is_first_of_step(session: OverflowSession, path: Path, record: str) -> bool:
    """Whether NaN or Inf begin there in the whole step: its item fails, also where they are right by themselves."""
    anomalies = session.anomalies_of_step(step_folder(path)).anomalies
    return bool(anomalies) and (anomalies[0].dump, anomalies[0].record) == (str(path), record)


def _finding(session: OverflowSession, path: Path, surveyed: SurveyedRecord) -> OverflowRecord:
    """What the survey says of a record, with the ruling on all but origins."""
    status, verdict, message = _rule_on(surveyed)
    if surveyed.is_uncollected and (parameters := bad_parameters(session.survey(path), surveyed)):
        held = (f"parameter {name} holds {what}" for name, what in parameters.items())
        verdict, message = "parameter", f"{', '.join(held)} before any call"
    in_nan, in_inf = map(_count, surveyed.inputs.counts)
    out_nan, out_inf = map(_count, surveyed.outputs.counts)
    finding = OverflowRecord(
        dump=str(path),
        order=surveyed.operation.index,
        record=surveyed.operation.record,
        status=status,
        level=surveyed.level,
        verdict=verdict,
        in_nan=in_nan,
        in_inf=in_inf,
        out_nan=out_nan,
        out_inf=out_inf,
        message=message,
    )
    if not surveyed.bad:
        return finding
    shown = min(surveyed.bad, key=lambda value: value.is_input)  # the first that came out, else that went in
    index = shown.finiteness.first_index
    return replace(
        finding,
        dtype=shown.dtype,
        shape=str(shown.shape),
        first_bad_index="" if index is None else str(list(index)),
        stack=session.dump(path).called_from(surveyed.operation),
    )


def _count(count: int | None) -> int | str:
    return "some" if count is None else count


def _rule_on(surveyed: SurveyedRecord) -> tuple[Status, str, str]:
    """(status, verdict, message) of a record; of an origin, before it is computed again."""
    bad = ", ".join(map(str, surveyed.bad))
    if surveyed.fault:
        return "error", "unreadable", surveyed.fault
    if surveyed.level == "unknown":
        return "skip", "unknown", "the dump holds neither data nor statistics of its outputs"
    if surveyed.level == "ignored":
        return "skip", "uninitialised", "uninitialised buffer: its content means nothing"
    if surveyed.level == "absorbed":
        return "pass", "", f"absorbed: its outputs are finite although {bad or 'its forward was not'}"
    if surveyed.level == "discarded":
        return "pass", "", f"no loss and no gradient is computed from what is not finite: {bad}"
    if surveyed.level in ("clean", "origin"):
        return "pass", "", ""
    if surveyed.is_uncollected:
        return "error", "uncollected", f"no record before it made what it passes on: {bad}; collect its producer"
    if not surveyed.source:
        return "pass", "intended", f"begins with a number that the script passed: {bad}"
    turn = ", whose Inf becomes NaN here" if surveyed.conduct is Conduct.MAKES_NAN else ""
    return "skip", "", f"propagated from {surveyed.source}{turn}"


def _judge_origin(
    session: OverflowSession, path: Path, surveyed: SurveyedRecord, finding: OverflowRecord
) -> tuple[OverflowRecord, str]:
    """(`finding` with the ruling on an origin, who computed it again)."""
    operation, settings = surveyed.operation, session.settings
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
        again = session.recomputer(path).recompute(operation.call, operation.phase, surveyed.bad)
        cause, message, bench = again.cause, again.message, again.bench
        finding = replace(finding, cpu_same=again.same, cpu_high=again.high)
    if surveyed.level == "discarded":
        # What a right device has there is lost, whoever takes it out; so is what float64 has, by a division.
        if cause != "abnormal" and (cause != "normal-range" or surveyed.is_selected_out):
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
    figures: dict[str, float | None] = {"nan": None, "inf": None}
    for name, count in zip(figures, value.finiteness.counts):
        if count is not None:
            figures[name] = float(count)
    return OutputRow(
        label=value.path,
        bench_dtype="",
        tested_dtype=canonical_dtype(value.dtype),
        shape=value.shape,
        status="error" if status == "error" else "pass",
        message=str(value),
        figures=figures,
    )


def _explanation(surveyed: SurveyedRecord, finding: OverflowRecord, bench: str) -> str:
    what = f"{finding.level}, {finding.verdict}" if finding.level != "unknown" else finding.verdict
    lines = [printable(f"{finding.record}: {what}: {finding.message}")]
    if not surveyed.fault:
        lines.append("\n".join(printable(f"  {value}") for value in surveyed.bad))
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
