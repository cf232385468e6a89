"""Where wrong values come from: the first place of each pass, others of their own, and what follows from those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.suites.sharded.judgement import PHASES, RecordFinding, ValueFinding
from pytest_msprobe.suites.sharded.session import StepJudge

#: `first`: the first record of its pass with a wrong value, and the passes before are right. `own`: its inputs are
#: right, its outputs are not. `inherited`: what it got was wrong already. `right`: no value of it is wrong.
Role = Literal["right", "first", "own", "inherited"]


def role_of(judge: StepJudge, operation: Operation, finding: RecordFinding) -> Role:
    """What a record has to do with the wrong values of its step."""
    if not finding.wrong:
        return "right"
    before = PHASES[: PHASES.index(finding.phase)]
    is_first = judge.first(finding.phase) == operation.record
    if is_first and not any(judge.first(phase) for phase in before):
        return "first"
    if finding.phase == "optimizer":
        return "own" if any(_is_of_update(judge, value) for value in finding.wrong) else "inherited"
    if any(found.wrong for found in _reasons(judge, operation)):
        return "inherited"
    return "own" if finding.has_good_inputs or operation.phase == GRADIENTS else "inherited"


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


def _is_of_update(judge: StepJudge, value: ValueFinding) -> bool:
    """Whether a wrong value of the optimizer was right in the backward: it went wrong between the two."""
    kind, _, name = value.path.removeprefix("input.").removeprefix("output.").partition(".")
    if kind != "gradients":
        return False
    layer, _, parameter = name.rpartition(".")
    for one in judge.logical.operations:
        if one.phase == GRADIENTS and one.name.partition(".")[2].rpartition(".")[0] == layer:
            gradients = {found.path: found for found in judge.finding(one).values}
            return parameter in gradients and not gradients[parameter].is_wrong
    return value.state == "illegal"


def last_sum(judge: StepJudge, operation: Operation) -> str:
    """From where on what goes into the records before one is terms of a sum, which nothing added up; "" for none."""
    phase, found = judge.phase(operation), ""
    for one in judge.logical.operations[: operation.index + 1]:
        if judge.phase(one) != phase or one.phase == GRADIENTS:
            continue
        for value in judge.finding(one).values:
            if value.state == "placed" and not value.is_output and not value.path.startswith("parameters."):
                found = (found or f"{one.record} {value.path} is {value.placement}") if value.is_partial else ""
    return found
