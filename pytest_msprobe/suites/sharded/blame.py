"""Where wrong values come from: the first place of each pass, others of their own, and what follows from those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.suites.sharded.judgement import PHASES, RecordFinding
from pytest_msprobe.suites.sharded.step_judge import StepJudge

#: `first`: the first record of its pass with a wrong value, and the passes before are right. `own`: its inputs are
#: right, its outputs are not. `inherited`: what it got was wrong already. `right`: no value of it is wrong.
Role = Literal["right", "first", "own", "inherited"]


def judged(judge: StepJudge, operation: Operation) -> tuple[RecordFinding, Role]:
    """What is found of a record, and what it has to do with the wrong values of its step."""
    finding = judge.finding(operation)
    if finding.phase == "backward" and any(value.is_partial and not value.is_output for value in finding.values):
        judge.first("backward")  # terms of a sum are right until something goes wrong by them
        finding = judge.finding(operation)
    return finding, _role_of(judge, operation, finding)


def _role_of(judge: StepJudge, operation: Operation, finding: RecordFinding) -> Role:
    if not finding.wrong:
        return "right"
    if settings := judge.differs_in_settings if judge.number or finding.phase == "optimizer" else "":
        return "first" if operation.record == settings else "inherited"
    before = PHASES[: PHASES.index(finding.phase)]
    is_first = judge.first(finding.phase) == operation.record
    if is_first and not any(judge.first(phase) for phase in before):
        return "first"
    if finding.phase == "optimizer" or any(found.wrong for found in _reasons(judge, operation)):
        return "inherited"
    return "own" if finding.has_good_inputs or operation.phase == GRADIENTS else "inherited"


def not_judged_before(judge: StepJudge, operation: Operation) -> list[str]:
    """Records of its pass between a record and the last judged one before it: nothing says that they are right."""
    found: list[str] = []
    for one in reversed(judge.logical.operations[: operation.index]):
        if judge.phase(one) == judge.phase(operation):
            if any(value.state != "unjudged" for value in judge.finding(one).values):
                break
            found.insert(0, one.record)
    return found


def _reasons(judge: StepJudge, operation: Operation) -> Iterator[RecordFinding]:
    """Findings of records whose wrong values would be the reason for those of `operation`."""
    if operation.phase == GRADIENTS or (operation.is_cell and operation.phase == "backward"):
        for phase in ("forward", "backward") if operation.phase == GRADIENTS else ("forward",):
            yield from _known(judge, f"{operation.name}.{phase}.{operation.number}")
    elif operation.phase == "backward":
        yield from _known(judge, f"{operation.call}.forward")
    if operation.is_cell and operation.phase in ("forward", "backward"):
        inside = f".{operation.phase}"
        for one in judge.logical.operations:
            around = judge.logical.ancestors(one.record)
            if operation.record in around and inside in one.record:
                yield judge.finding(one)


def _known(judge: StepJudge, record: str) -> Iterator[RecordFinding]:
    if record in judge.logical:
        yield judge.finding(Operation.of(record, judge.logical.orders[record]))
