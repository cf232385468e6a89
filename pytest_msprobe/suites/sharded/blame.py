"""Where wrong values come from: the first place of each pass, others of their own, and what follows from those.

What goes wrong behind calls of which it is not certain which values they are comes from there: then the first of those
that differs is the place; of a gradient, what labels or parameters behind its layer are others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.suites.sharded.judgement import PHASES, Phase, RecordFinding, State, ValueFinding, is_given
from pytest_msprobe.suites.sharded.step_judge import StepJudge
from pytest_msprobe.suites.sharded.tolerances import forward_of

#: `first`: the first record of its pass with a wrong value, and the passes before are right. `own`: its inputs are
#: right, its outputs are not. `inherited`: what it got was wrong already. `right`: no value of it is wrong.
Role = Literal["right", "first", "own", "inherited"]
_TERMS = "the ranks hold terms of a sum that nothing has added"


def judged(judge: StepJudge, operation: Operation) -> tuple[RecordFinding, Role]:
    """What is found of a record, and what it has to do with the wrong values of its step."""
    finding = judge.finding(operation)
    if any(value.is_partial or value.differs for value in finding.values):
        for phase in PHASES[:2]:  # such values are right until something goes wrong by them
            first(judge, phase)
        finding = judge.finding(operation)
    return finding, _role_of(judge, operation, finding)


def first(judge: StepJudge, phase: Phase) -> str | None:
    """The first record of a pass that goes wrong; None for none."""
    if phase in judge.first:
        return judge.first[phase]
    own = (one for one in judge.logical.operations if judge.phase(one) == phase)
    wrong = next((one for one in own if judge.finding(one).wrong), None)
    if wrong is not None and wrong.phase == GRADIENTS:  # they are made of what comes into the layer
        incoming = f"{wrong.name}.backward.{wrong.number}"
        there = [one for one in judge.logical.operations[wrong.index :] if one.record == incoming]
        wrong = next((one for one in there if not judge.finding(one).has_good_inputs), wrong)
    judge.first[phase] = wrong.record if wrong is not None else None
    if wrong is None or phase == "optimizer":
        return judge.first[phase]
    is_inherited = wrong.phase != GRADIENTS and not judge.finding(wrong).has_good_inputs
    start = _start_of_sum(judge, wrong) if is_inherited or phase == "backward" else None
    if start is not None:
        judge.first[phase] = _blamed(judge, *start, f"{_TERMS}: {start[1].placement}; {wrong.record} goes wrong by it")
    elif is_inherited and not (phase == "backward" and first(judge, "forward")):
        suspect = _suspect(judge, wrong)
        if suspect is not None:
            words = f"is another one, as far as it is the one of the ranks; {wrong.record} goes wrong behind it"
            judge.first["forward"] = _blamed(judge, *suspect, words)
    return judge.first[phase]


def _blamed(judge: StepJudge, operation: Operation, value: ValueFinding, message: str) -> str:
    """The record, of which a value is wrong from now on."""
    found = judge.finding(operation)
    state: State = "illegal" if value.is_partial else "unexplained"
    wrong = replace(value, state=state, message=message)
    judge.change(replace(found, values=tuple(wrong if one.path == value.path else one for one in found.values)))
    return operation.record


def _start_of_sum(judge: StepJudge, wrong: Operation) -> tuple[Operation, ValueFinding] | None:
    """The value from which on the ranks have terms of a sum, if they have gone on from there to the wrong record.

    A backward is linear: what nothing has added up goes wrong only where something else is added to it. Terms that the
    loss itself has are those of parts of the batch.
    """
    is_forward = wrong.phase == "forward"
    start, is_of_loss = None, not is_forward
    for one in judge.logical.operations[: wrong.index + (not is_forward)]:
        if one.phase != wrong.phase or not (is_forward or one.is_cell is wrong.is_cell):
            continue
        for value in judge.finding(one).values:
            if value.state == "placed" and value.is_output is is_forward and value.shape:
                is_of_loss &= value.is_partial
                start = (start or (one, value)) if value.is_partial and not is_of_loss else None
    return start


def _suspect(judge: StepJudge, wrong: Operation) -> tuple[Operation, ValueFinding] | None:
    """The first value that differs, of calls of which it is not certain which values they are: that made the wrong one.

    A gradient is made by all that its forward is followed by: of that it may be what is given, labels or parameters,
    to a call that gets something right besides, which is then the same one.
    """
    is_forward = judge.phase(wrong) == "forward"
    operations: Iterable[Operation] = judge.logical.operations
    if is_forward:
        inputs = {value.path for value in judge.finding(wrong).wrong if not value.is_output}
        given = (leaf.path for leaf in judge.logical.leaves(wrong.record) if is_given(leaf))
        if inputs.intersection(given):
            return None
        names = not_judged_before(judge, wrong)
        operations = [one for one in operations if one.record in names]
    else:
        begin = judge.logical.orders.get(forward_of(wrong), wrong.index)
        behind = (one for one in operations if judge.phase(one) == "forward" and one.index > begin)
        operations = [one for one in behind if judge.around(one) is None]
    for one in operations:
        values = judge.finding(one).values
        is_known = any(value.state == "placed" and not value.is_output for value in values)
        differing = (value for value in values if value.differs and (is_forward or (is_known and not value.is_output)))
        if (value := next(differing, None)) is not None:
            return one, value
    return None


def _role_of(judge: StepJudge, operation: Operation, finding: RecordFinding) -> Role:
    if not finding.wrong:
        return "right"
    if settings := judge.differs_in_settings if judge.number or finding.phase == "optimizer" else "":
        return "first" if operation.record == settings else "inherited"
    before = PHASES[: PHASES.index(finding.phase)]
    is_first = first(judge, finding.phase) == operation.record
    if is_first and not any(first(judge, phase) for phase in before):
        return "first"
    if finding.phase == "optimizer" or any(found.wrong for found in _reasons(judge, operation)):
        return "inherited"
    return "own" if finding.has_good_inputs or operation.phase == GRADIENTS else "inherited"


def not_judged_before(judge: StepJudge, operation: Operation) -> list[str]:
    """Records of its pass before a record, back to one of which what it gives is judged: they may be wrong."""
    found: list[str] = []
    for one in reversed(judge.logical.operations[: operation.index]):
        if judge.phase(one) == judge.phase(operation):
            if any(value.is_output and value.state != "unjudged" for value in judge.finding(one).values):
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
