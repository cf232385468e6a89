"""The steps of a run in one process, each read when it is asked for, and which of their records are at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.suites.contract import SuiteError
from pytest_msprobe.suites.sharded import ShardedSettings
from pytest_msprobe.suites.sharded.judgement import (
    PHASES,
    SETTINGS,
    Phase,
    RecordFinding,
    State,
    ValueFinding,
    forward_of,
    is_given,
)
from pytest_msprobe.suites.sharded.outline import LogicalRun, StepOutline
from pytest_msprobe.suites.sharded.ranks import RunSteps, step_folders
from pytest_msprobe.suites.sharded.step_judge import StepJudge

#: `first`: the first record of its pass with a wrong value, and the passes before are right. `own`: its inputs are
#: right, its outputs are not. `inherited`: what it got was wrong already. `right`: no value of it is wrong.
Role = Literal["right", "first", "own", "inherited"]
_TERMS = "the ranks hold terms of a sum that nothing has added"
_ANOTHER = "is another one, as far as it is the one of the ranks"


@dataclass(frozen=True, slots=True)
class Start:
    """The first record of a pass that goes wrong.

    Attributes:
        record: its name.
        changed: what is found of it, if a value of it is wrong only for what goes wrong behind it; else None.
    """

    record: str
    changed: RecordFinding | None = None


class Blame:
    """Tells which records of a step are at fault: the first of each pass, others by themselves, and what follows.

    What goes wrong behind calls of which it is not certain which values they are comes from there:
    then the first of those that differs is the place; of a gradient, what labels or parameters
    behind its layer are others.

    Attributes:
        outline: of the step.
    """

    def __init__(self, judge: StepJudge) -> None:
        self._judge, self.outline = judge, judge.outline
        self._start = cache(self._start_of)

    def judged(self, operation: Operation) -> tuple[RecordFinding, Role]:
        """What is found of a record, and what it has to do with the wrong values of its step."""
        finding = self._judge.finding(operation)
        if any(value.is_partial or value.differs for value in finding.values):
            finding = self._finding(operation)
        return finding, self._role(operation, finding)

    def _finding(self, operation: Operation) -> RecordFinding:
        """What is found of a record, with a value that something behind it goes wrong by."""
        start = self._start(self.outline.phase(operation))
        if start is not None and start.record == operation.record and start.changed is not None:
            return start.changed
        return self._judge.finding(operation)

    def _start_of(self, phase: Phase) -> Start | None:
        """Where a pass goes wrong; None where it does not."""
        wrong = self._first_wrong(phase)
        if wrong is None and phase == "forward":
            wrong = self._first_wrong("backward")
            if wrong is None or not self._is_inherited(wrong) or self._start_of_sum(wrong) is not None:
                return None
            return self._suspect(wrong)
        if wrong is None:
            return None
        start = None
        if phase == "backward" or (phase == "forward" and self._is_inherited(wrong)):
            start = self._start_of_sum(wrong)
        if phase == "forward" and self._is_inherited(wrong):
            start = start or self._suspect(wrong)
        return start or Start(wrong.record)

    def _first_wrong(self, phase: Phase) -> Operation | None:
        """The first record of a pass with a wrong value."""
        operations = self.outline.logical.operations
        for operation in operations:
            if self.outline.phase(operation) == phase and self._judge.finding(operation).wrong:
                break
        else:
            return None
        if operation.phase == GRADIENTS:  # they are made of what comes into the layer
            incoming = f"{operation.name}.backward.{operation.number}"
            for following in operations[operation.index :]:
                if following.record == incoming and not self._judge.finding(following).has_good_inputs:
                    return following
        return operation

    def _is_inherited(self, wrong: Operation) -> bool:
        """Whether nothing says that a record got right values."""
        return wrong.phase != GRADIENTS and not self._judge.finding(wrong).has_good_inputs

    def _blamed(self, operation: Operation, value: ValueFinding, message: str) -> Start:
        """The record as the start, of which this value is wrong."""
        finding = self._judge.finding(operation)
        state: State = "illegal" if value.is_partial else "unexplained"
        return Start(operation.record, finding.changed([value], state=state, message=message))

    def _start_of_sum(self, wrong: Operation) -> Start | None:
        """The value from which on the ranks have terms of a sum, if they have gone on from there to the wrong record.

        A backward is linear: what nothing has added up goes wrong only where something else is added to it. Terms that
        the loss itself has are those of parts of the batch.
        """
        is_forward = wrong.phase == "forward"
        start, is_of_loss = None, not is_forward
        for operation in self.outline.logical.operations[: wrong.index + (not is_forward)]:
            if operation.phase != wrong.phase or not (is_forward or operation.is_cell is wrong.is_cell):
                continue
            for value in self._judge.finding(operation).values:
                if value.state == "placed" and value.is_output is is_forward and value.shape:
                    is_of_loss &= value.is_partial
                    if not value.is_partial or is_of_loss:
                        start = None
                    elif start is None:
                        start = operation, value
        if start is None:
            return None
        return self._blamed(*start, f"{_TERMS}: {start[1].placement}; {wrong.record} goes wrong by it")

    def _suspect(self, wrong: Operation) -> Start | None:
        """The value that made the wrong one: the first that differs, of calls that may have other values.

        A gradient is made by all that its forward is followed by: of that it may be what is given, labels or
        parameters, to a call that gets something right besides, which is then the same one.
        """
        is_forward = self.outline.phase(wrong) == "forward"
        for operation in self._made_before(wrong) if is_forward else self._behind_forward(wrong):
            finding = self._judge.finding(operation)
            has_right_input = "placed" in finding.states(is_output=False)
            for value in finding.values:
                if value.differs and (is_forward or (has_right_input and not value.is_output)):
                    return self._blamed(operation, value, f"{_ANOTHER}; {wrong.record} goes wrong behind it")
        return None

    def _made_before(self, wrong: Operation) -> list[Operation]:
        """The calls that may have made what goes into a record of the forward; none of what the run is given."""
        inputs = {value.path for value in self._judge.finding(wrong).wrong if not value.is_output}
        leaves = self.outline.logical.leaves(wrong.record)
        if any(leaf.path in inputs and is_given(leaf) for leaf in leaves):
            return []
        return self.not_judged_before(wrong)

    def _behind_forward(self, wrong: Operation) -> Iterator[Operation]:
        """The calls outside of layers that follow the forward of a record of the backward."""
        begin = self.outline.logical.orders.get(forward_of(wrong), wrong.index)
        for operation in self.outline.logical.operations[begin + 1 :]:
            if self.outline.phase(operation) == "forward" and self.outline.around(operation) is None:
                yield operation

    def not_judged_before(self, operation: Operation) -> list[Operation]:
        """Records of its pass before a record, back to one of which what it gives is judged: they may be wrong."""
        unjudged: list[Operation] = []
        phase = self.outline.phase(operation)
        for before in reversed(self.outline.logical.operations[: operation.index]):
            if self.outline.phase(before) == phase:
                if self._judge.finding(before).states(is_output=True) - {"unjudged"}:
                    break
                unjudged.insert(0, before)
        return unjudged

    def _role(self, operation: Operation, finding: RecordFinding) -> Role:
        if not finding.wrong:
            return "right"
        phase = finding.phase
        if (self.outline.number or phase == "optimizer") and self._differs_in_settings:
            return "first" if operation.record == self._differs_in_settings else "inherited"
        start, earlier = self._start(phase), PHASES[: PHASES.index(phase)]
        is_start = start is not None and start.record == operation.record
        if is_start and all(self._start(before) is None for before in earlier):
            return "first"
        if phase == "optimizer" or any(self._finding(reason).wrong for reason in self._reasons(operation)):
            return "inherited"
        return "own" if finding.has_good_inputs or operation.phase == GRADIENTS else "inherited"

    @cached_property
    def _differs_in_settings(self) -> str:
        """The record of an optimizer that was set otherwise on a rank; "" for none."""
        for operation in self.outline.updates:
            wrong = self._judge.finding(operation).wrong
            if wrong and wrong[0].path.startswith(SETTINGS):
                return operation.record
        return ""

    def _reasons(self, operation: Operation) -> Iterator[Operation]:
        """Records whose wrong values would be the reason for those of `operation`."""
        outline, records = self.outline, []
        if operation.phase == GRADIENTS:
            records = [f"{operation.name}.{phase}.{operation.number}" for phase in ("forward", "backward")]
        elif operation.phase == "backward":
            records = [forward_of(operation)]
        for record in records:
            if (reason := outline.operation(record)) is not None:
                yield reason
        if operation.is_cell and operation.phase in ("forward", "backward"):
            for inner in outline.logical.operations:
                is_in_phase = f".{operation.phase}" in inner.record
                if is_in_phase and operation.record in outline.logical.ancestors(inner.record):
                    yield inner


class ShardedSession(RunSteps):
    """The steps of a run that a logical run judges.

    Attributes:
        settings: what the run was asked to do.
    """

    def __init__(self, settings: ShardedSettings, dumps: Sequence[Path], logical: Sequence[Path]) -> None:
        """A run over `dumps`, judged by the dumps `logical`."""
        super().__init__(step_folders(dumps), settings.data_dir)
        self.settings, self._logical = settings, logical
        self._blames: dict[Path, Blame] = {}

    def blame(self, path: Path) -> Blame:
        """What judges the step that the dump at `path` is of, and tells what is at fault.

        Raises:
            SuiteError: there is no logical run of this step.
            DumpError: it cannot be read.
        """
        folder = self.folders[path]
        if folder not in self._blames:
            logical = LogicalRun.read(self.logical_of(path), self.settings.data_dir)
            self._blames[folder] = Blame(StepJudge(StepOutline(self.step(path), logical)))
        return self._blames[folder]

    def logical_of(self, path: Path) -> list[Path]:
        """The dumps of the logical run for the step of the dump at `path`; of one step each, that one.

        Raises:
            SuiteError: there is none, or there are several.
        """
        steps = step_folders(self._logical)
        if len(self.steps) > 1 or len(steps) > 1:
            number = Slot.of(path).step
            steps = {folder: paths for folder, paths in steps.items() if Slot.of(paths[0]).step == number}
        if len(steps) != 1:
            what = f"{len(steps)} dumps" if steps else "no dump"
            raise SuiteError(f"{path}: the logical run has {what} of {Slot.of(path)}; name one with --msprobe-logical")
        (paths,) = steps.values()
        return paths

    def is_leader(self, path: Path) -> bool:
        """Whether the dump at `path` is the first of its step that can be read, which represents all of them."""
        leader = self.step(path).leader
        return leader is not None and leader.path == path
