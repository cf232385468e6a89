"""What is to blame for the differences of two runs: operations, and values that no operation made.

One cause of differences: an operation, or a value that no operation of this rank made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from msprobe_collector.dump_format import is_communication
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, DEFINED, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.flow import (
    CallsOfOneRun,
    DataFlow,
    Maker,
    has_other_type,
    has_partner,
    is_cast,
)
from pytest_msprobe.suites.comparison.accounting.observed import ARGUMENTS, FIRST
from pytest_msprobe.suites.comparison.cells import Origin

ValueKind = Literal["parameter", "batch", "constant", "gradient", "unrecorded", "another_rank"]
FaultKind = Literal["born", "defined", "dtype", "only_one_side", "first", "arguments", ValueKind]


@dataclass(slots=True)
class Fault:
    """One cause.

    Attributes:
        step: first record at fault, or first one that uses the value at fault.
        kind: see docs/accounting.md.
        side: `target`, `golden` or `both`.
        value: place in the record.
        name: of a parameter.
        sentence: what is wrong.
        size: relative size of the difference there; None when unknown.
        share: of the difference that is at fault; None when unknown.
        worst: place of the largest element.
        records: all records of the call at fault.
        reached: records that inherit it, in order; without tensors those that differ by more than they may.
        after: without tensors, the first record of another cause that reaches this one; else "".
    """

    step: Step
    kind: FaultKind
    side: str
    value: str
    sentence: str
    name: str = ""
    size: float | None = None
    share: float | None = 1.0
    worst: tuple[int, ...] | None = None
    records: list[str] = field(default_factory=list)
    reached: list[Step] = field(default_factory=list)
    after: str = ""


def unrecorded(step: Step, key: ValueKey, maker: Maker | None) -> Fault:
    """An input that differs although what made it agrees, or that nothing in the dump made."""
    origin = f"; {maker.step.record}, which made it in one run, agrees" if maker is not None else ""
    sentence = f"{key.path} differs, and no record made it{origin}: something that the dump does not hold changed it"
    return Fault(step, "unrecorded", "both", key.path, sentence, "", key.distance, records=[step.record])


def from_another_rank(step: Step) -> Fault | None:
    """A value that a communication call received, when what this rank gave agrees; None of all other records."""
    if (
        step.operation.phase != "forward"
        or not is_communication(step.record)
        or any(key.differs for key in step.inputs)
    ):
        return None
    key = next((key for key in step.outputs if key.is_beyond), None)
    if key is None:
        return None
    sentence = f"{key.path} differs, and what this rank gave agrees: it came from another rank"
    return Fault(step, "another_rank", "both", key.path, sentence, "", key.distance)


_SIDES = {BORN_TARGET: "target", BORN_GOLDEN: "golden"}
_KINDS: dict[str, FaultKind] = {DEFINED: "defined", FIRST: "first", ARGUMENTS: "arguments"}
#: Without tensors the first operation that differs may be right.
_OBSERVED = (FIRST, ARGUMENTS)
#: Kinds of faults of operations, where others are of values.
_OPERATIONS = ("born", "defined", "dtype", "only_one_side", "another_rank", *_OBSERVED)
#: Where an operation has its weights, among its inputs.
_WEIGHTED = ("linear", "dense", "conv", "norm", "embedding", "gather", "matmul", "mul", "add", "bias")


#: Of an incoming gradient and of the gradients that it should be the sum of.
IsWrongSum = Callable[[Step, ValueKey, list[tuple[Step, ValueKey]]], bool]


class FaultFinder:
    """Finds the faults, and what each of them reaches.

    Attributes:
        unknown: inputs that differ, that no record made, and that are no cause of their own.
        passed_on: (record, place) of the outputs that differ and that another record uses.
    """

    def __init__(self, flow: DataFlow, is_wrong_sum: IsWrongSum, *, is_whole: bool = True) -> None:
        """The causes in `flow`; `is_wrong_sum` tells from the values whether gradients were added up wrongly.

        Where the flow is not `is_whole`, a record that was left out may have made what none of the others did.
        """
        self._is_whole = is_whole
        self._flow = flow
        self._is_wrong_sum = is_wrong_sum
        self._by_node: dict[str, Fault] = {}
        self._parents: dict[str, dict[str, None]] = {}
        self._candidates: list[Fault] = []
        self._tells_dtypes = False
        self._of_one_run = CallsOfOneRun(flow)
        self._blames_agreeing = True
        self.unknown: list[Fault] = []
        self.passed_on: set[tuple[str, str]] = set()

    def find(self) -> list[Fault]:
        """The faults, that with the largest effect first."""
        steps = self._flow.steps.values()
        with_floats = [
            step for step in steps if step.account.partner and any(not key.is_integer for key in step.outputs)
        ]
        # A run in another precision changes the dtypes of most of its outputs, and is no fault.
        casts = sum(bool(step.account.dtype) for step in with_floats)
        self._tells_dtypes = 2 * casts < len(with_floats) and with_floats[0].account.basis == "tensors"
        # Frameworks cut one formula into other calls: a call of one side says nothing while the values agree.
        self._blames_agreeing = not any(has_other_type(step) for step in steps)
        for step in steps:
            self._visit(step)
        self.unknown = self._candidates
        if self._candidates and not self._by_node and self._is_whole:
            first, *self.unknown = self._candidates
            node = f"{first.step.record} {first.value}"
            self._by_node[node] = first
            self._link(first.step, node)
        self._reach()
        return sorted(
            self._by_node.values(),
            key=lambda fault: (bool(fault.after), -len(fault.reached), fault.step.account.place),
        )

    def origins(self) -> Iterator[Origin]:
        """Where differences begin: at the faults that were found, and at what has equal inputs and another output
        although nothing could compute it again.
        """
        for fault in (fault for fault in self._by_node.values() if fault.step.account.basis == "tensors"):
            key = next((key for key in fault.step.account.keys if key.path == fault.value), None)
            content = (key.target, key.golden) if key is not None and not key.is_output else None
            for record in fault.records or [fault.step.record]:
                step = self._flow.steps.get(record) or self._flow.golden_only.get(record) or fault.step
                yield Origin(record, step.operation.phase, step.cells, content)
        for step in self._flow.steps.values():
            forward = self._flow.forward_of(step)
            if step.account.kind != "unaccounted" or any(key.is_beyond for key in step.inputs):
                continue
            if forward is not None and any(key.differs for key in forward.account.keys):
                continue
            if any(key.is_beyond for key in step.outputs):
                yield Origin(step.record, step.operation.phase, step.cells)

    def _visit(self, step: Step) -> None:
        account = step.account
        received = from_another_rank(step)
        if received is not None:
            self._blame(step, received)
        for output, part, sentence in account.blamed if received is None else ():
            if part in _OBSERVED and self._takes_from_forward(step):
                continue
            kind, side = _KINDS.get(part, "born"), _SIDES.get(part, "both")
            share, size = output.shares.get(part), output.size
            self._blame(step, Fault(step, kind, side, output.path, sentence, "", size, share, output.worst))
        if account.is_cast and step.operation.phase == "forward" and self._tells_dtypes and not account.blamed:
            self._blame(step, Fault(step, "dtype", "both", "output.0", f"the same input dtypes become {account.dtype}"))
        for key in step.inputs:
            if key.differs or key.is_frozen_on_one_side:
                self._trace(step, key)
        forward = self._flow.forward_of(step)
        if forward is not None:
            self._parents.setdefault(step.record, {}).update(self._parents.get(forward.record, {}))
            self._link(step, forward.operation.call)

    def _takes_from_forward(self, step: Step) -> bool:
        """Whether a backward may have its difference from what its forward kept."""
        forward = self._flow.forward_of(step)
        return forward is not None and any(key.is_beyond for key in forward.account.keys)

    def _blame(self, step: Step, fault: Fault) -> None:
        """Add a fault of an operation; forward and backward of one call are one fault."""
        known = self._by_node.setdefault(step.operation.call, fault)
        if step.record not in known.records:
            known.records.append(step.record)

    def _trace(self, step: Step, key: ValueKey) -> None:
        mine, theirs = self._flow.makers(step, key)
        if mine is not None and theirs is not None and mine.step is theirs.step:
            self._link(step, mine.step.record)
            self.passed_on.add((mine.step.record, mine.path))
            return
        lone = next((maker for maker in (theirs, mine) if maker is not None and not has_partner(maker)), None)
        if lone is not None and (key.is_beyond or (self._tells_dtypes and self._blames_agreeing)):
            self._trace_call_of_one_run(step, lone, "golden" if lone is theirs else "target")
            return
        if step.operation.phase == "backward":
            self._trace_gradient(step, key, mine)
            return
        if mine is not None or theirs is not None:
            maker = mine or theirs
            assert maker is not None
            self._link(step, maker.step.record)
            if key.is_beyond and not any(value.is_beyond for value in maker.step.outputs):
                self._candidates.append(unrecorded(step, key, maker))
            return
        if key.is_beyond or key.is_frozen_on_one_side:
            if self._is_whole:
                self._blame_value(step, key)
            else:
                self._candidates.append(unrecorded(step, key, None))

    def _trace_gradient(self, step: Step, key: ValueKey, maker: Maker | None) -> None:
        sources = self._flow.gradient_sources(step, key)
        differing = [(source, value) for source, value in sources if value.differs]
        for source, value in differing:
            self._link(step, source.record)
            self.passed_on.add((source.record, value.path))
        if maker is not None and not differing:
            self._link(step, maker.step.record)
        if differing or not key.is_beyond:
            return
        if sources and self._is_wrong_sum(step, key, sources):
            names = " and ".join(dict.fromkeys(source.record for source, _ in sources))
            sentence = f"the gradient that enters is not what its uses give: {names} agree in both runs"
            node = f"{step.record} {key.path}"
            self._by_node[node] = Fault(
                step, "gradient", "both", key.path, sentence, "", key.distance, records=[step.record]
            )
            self._link(step, node)
            return
        self._candidates.append(unrecorded(step, key, maker))

    def _trace_call_of_one_run(self, step: Step, maker: Maker, side: str) -> None:
        """Blame the first call that only one side has; not a cast where the two runs have other dtypes anyway."""
        first, before = self._of_one_run.first(maker, side)
        if not self._tells_dtypes and is_cast(first):
            if before is not None:
                self._link(step, before.record)
            return
        has, lacks = ("golden run", "target") if side == "golden" else ("target", "golden run")
        call = self._of_one_run.leader(first, side).operation.call
        fault = Fault(first, "only_one_side", side, "output.0", f"only the {has} calls it, not the {lacks}")
        known = self._by_node.setdefault(call, fault)
        if first.record not in known.records:
            known.records.append(first.record)
        self._link(step, call)

    def _blame_value(self, step: Step, key: ValueKey) -> None:
        node = f"value {key.target} {key.golden}"
        self._link(step, node)
        if node in self._by_node:
            return
        name = (
            self._flow.parameters.get(key.target, "") if "False" not in key.trains or key.is_frozen_on_one_side else ""
        )
        kind = self._kind_of_value(step, key, name)
        what = {"parameter": f"parameter {name}".strip(), "batch": "a value of the batch", "constant": "a constant"}[
            kind
        ]
        if key.is_frozen_on_one_side:
            sentence = f"{what} requires a gradient on one side only: target {key.trains[0]}, golden {key.trains[1]}"
        else:
            far = f"by {key.distance:.3g} " if key.distance is not None and not key.is_integer else ""
            sentence = f"{what} differs {far}before any operation"
            if step.account.basis != "tensors":
                sentence = f"{key.path} differs {far}".rstrip() + f", and no record before it made it: {what}, it seems"
        self._by_node[node] = Fault(step, kind, "both", key.path, sentence, name, key.distance, records=[step.record])

    def _kind_of_value(self, step: Step, key: ValueKey, name: str) -> FaultKind:
        if name or "True" in key.trains:
            return "parameter"
        if key.is_integer:
            return "batch"
        if "False" in key.trains:
            return "constant" if step.account.place else "batch"
        place = [value.path for value in step.inputs].index(key.path)
        is_weight = place > 0 and any(word in step.operation.bare.lower() for word in _WEIGHTED)
        return "parameter" if is_weight and self._flow.may_train(step, key) else "batch"

    def _link(self, step: Step, node: str) -> None:
        if node != step.operation.call or step.operation.phase == "backward":
            self._parents.setdefault(step.record, {})[node] = None

    def _reach(self) -> None:
        """Which records each fault reaches: those that differ and inherit from it."""
        children: dict[str, list[str]] = {}
        for record, parents in self._parents.items():
            for parent in parents:
                children.setdefault(parent, []).append(record)
        first_at: dict[str, str] = {}
        for node, fault in sorted(self._by_node.items(), key=lambda item: item[1].step.account.place):
            waiting, seen = [node, *fault.records], {node, *fault.records}
            while waiting:
                for record in children.get(waiting.pop(), ()):
                    if record not in seen and any(key.differs for key in self._flow.steps[record].account.keys):
                        seen.add(record)
                        waiting.append(record)
            own = {node, *fault.records} if fault.kind in _OPERATIONS else {node}
            found = (self._flow.steps[record] for record in seen - own if record in self._flow.steps)
            fault.reached = sorted(filter(_is_reached, found), key=lambda step: step.account.place)
            if fault.kind in _OBSERVED:
                fault.after = first_at.get(fault.step.record, "")
            for record in seen:
                first_at.setdefault(record, fault.step.record)


def _is_reached(step: Step) -> bool:
    """Whether a record differs; without tensors, beyond its tolerances."""
    is_known = step.account.basis == "tensors"
    return any(key.differs if is_known else key.is_beyond for key in step.account.keys)
