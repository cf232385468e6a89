"""What is to blame for the differences of two runs: operations, and values that no operation made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.comparison.accounting.account import (
    BORN_GOLDEN,
    BORN_TARGET,
    DEFINED,
    AccountStep,
    ValueKey,
    any_beyond,
    any_differs,
    key_at,
    largest_distance,
    listed_differences,
    numbers_of,
)
from pytest_msprobe.suites.comparison.accounting.causes import OBSERVED, Causes, Fault, FaultKind, from_another_rank
from pytest_msprobe.suites.comparison.accounting.evidence import (
    OtherLeaves,
    has_other_number,
    is_cast,
    is_inside,
    is_policy,
    other_ends,
    overwrites,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, ValueSource
from pytest_msprobe.suites.comparison.accounting.observed import ARGUMENTS, FIRST
from pytest_msprobe.suites.comparison.accounting.tracing import IsWrongSum, RunTraits, Traced, Tracer, TraceState
from pytest_msprobe.suites.comparison.cells import DifferenceOrigin


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The first of such calls.

    Attributes:
        step: its backward.
        side: `target` or `golden`: where its two results differ.
        reached: its backward and those of the calls that got its result: they were made of values that no record holds.
    """

    step: AccountStep
    side: str
    reached: list[AccountStep]

    @property
    def run(self) -> str:
        """`side` in words."""
        return "golden run" if self.side == "golden" else self.side


def recomputed_otherwise(flow: DataFlow) -> Iterator[Recomputed]:
    """The first calls of each side, in the order of execution of the forward.

    Where both runs have other results the second time, nothing tells which of them the other one should have.
    """
    for side, name in enumerate(("target", "golden")):
        recomputed = (step for step in flow.steps.values() if step.account.recomputed == (side == 0, side == 1))
        marked = {step.operation.call: step for step in recomputed if flow.forward_of(step) is not None}
        first: dict[str, set[str]] = {}
        reached: dict[str, list[AccountStep]] = {}
        for call in [step.operation.call for step in flow.forwards if step.operation.call in marked]:
            before = [first[maker] for maker in _makers(flow, side, call) if maker in first]
            first[call] = set().union(*before) or {call}
            for earliest in first[call]:
                reached.setdefault(earliest, []).append(marked[call])
        for call, steps in reached.items():
            yield Recomputed(marked[call], name, steps)


def _makers(flow: DataFlow, side: int, call: str) -> Iterator[str]:
    """The calls whose results `call` gets, also through calls that have no gradient."""
    waiting, calls = [flow.steps[f"{call}.forward"]], {call}
    while waiting:
        step = waiting.pop()
        for maker in [maker for key in step.inputs for maker in flow.sides[side].source(step, key).makers]:
            name = maker.step.operation.call
            if name not in calls and maker.step.operation.phase == "forward":
                calls.add(name)
                yield name
                if f"{name}.backward" not in flow.steps:
                    waiting.append(maker.step)


_SIDES = {BORN_TARGET: "target", BORN_GOLDEN: "golden"}
_KINDS: dict[str, FaultKind] = {DEFINED: "defined", FIRST: "first", ARGUMENTS: "arguments"}

#: Inputs of an optimizer that it alone writes to.
_STATE = "input.state."


@dataclass(frozen=True, slots=True)
class FlowFaults:
    """What the flow of values and the accounts of records show.

    Attributes:
        faults: that with the largest effect first, those of unknown origin last; without tensors,
            where differences begin, which need be no faults.
        unknown: inputs of unknown origin that differ by more than they may and are not at fault.
        unexplained: records beyond their limits that no benchmark computed and that no fault reaches.
        passed_on: (record, place) of the outputs that differ and that another record uses.
        origins: where differences begin: at the faults, and at what has equal inputs and another output although
            nothing could compute it again.
    """

    faults: tuple[Fault, ...]
    unknown: tuple[Fault, ...]
    unexplained: tuple[AccountStep, ...]
    passed_on: frozenset[tuple[str, str]]
    origins: tuple[DifferenceOrigin, ...]


def find_faults(
    flow: DataFlow, is_wrong_sum: IsWrongSum, *, is_whole: bool = True, other_leaves: OtherLeaves | None = None
) -> FlowFaults:
    """Return the faults in `flow`, and what each of them reaches.

    Args:
        flow: of a step.
        is_wrong_sum: whether gradients were added up wrongly.
        is_whole: whether no record was left out, which may have made what none of the others did.
        other_leaves: which leaves differ in any bit.
    """
    leaves = other_leaves or OtherLeaves(flow)
    run = _traits(flow, leaves, is_whole=is_whole)
    causes = Causes(flow)
    state = TraceState(causes)
    tracer = Tracer(flow, state, run, leaves, is_wrong_sum)
    for step in flow.steps.values():
        _visit(step, flow, state, tracer, run)
    _add_recomputed(flow, state)
    for step, fault in _wrong_updates(flow):
        if fault is not None:
            causes.blame(step, fault, step.record)
        elif not causes:
            state.unexplained.append(step)
    state.unexplained += _unexplained_cells(flow, has_causes=bool(causes))
    tells_gradients = run.is_one_framework and run.tells_dtypes
    is_open = bool(state.unknown or state.unexplained)
    hidden = (tells_gradients, _lone_gradient), (is_open, _equal_wiring), (True, _shared_parameter)
    for applies, look in hidden:
        fault = look(flow) if applies and not causes else None
        if fault is not None:
            causes.blame(fault.step, fault)
    reached = causes.settle()
    unexplained = tuple(step for step in state.unexplained if step.record not in reached)
    unknown = tuple(fault for fault in state.unknown if fault.step.record not in reached)
    origins = (*_origins_of_faults(flow, causes), *_origins_without_faults(flow))
    return FlowFaults(tuple(causes.ranked()), unknown, unexplained, frozenset(state.passed_on), origins)


def _traits(flow: DataFlow, leaves: OtherLeaves, *, is_whole: bool) -> RunTraits:
    """What is known of the two runs before any record is judged."""
    steps = flow.steps.values()
    with_floats = [step for step in steps if step.account.partner and step.gives_floats]
    # A run in another precision changes the dtypes of most of its outputs, and is no fault.
    casts = len([*filter(attrgetter("account.dtype"), with_floats)])
    is_other_precision = 2 * casts >= len(with_floats) or is_policy(with_floats)
    basis = with_floats[0].account.basis if with_floats else "none"
    return RunTraits(
        is_whole=is_whole,
        # Frameworks cut one formula into other calls: a call of one side says nothing while the values agree.
        is_one_framework=not any(map(attrgetter("has_other_type"), steps)),
        tells_dtypes=not is_other_precision and basis in ("tensors", "sketches"),
        first_place=_first_beyond(flow, leaves),
    )


def _first_beyond(flow: DataFlow, leaves: OtherLeaves) -> int:
    """Place of the first record with a value beyond its limit that means something; -1 without one."""
    meaningless: set[tuple[str, str]] = set()
    for step in flow.steps.values():
        inputs = [key for key in step.inputs if key.is_beyond or leaves.has(step, key)]
        if inputs and all(_means_nothing(flow, step, key, meaningless) for key in inputs):
            meaningless |= {(step.record, key.path) for key in step.outputs if key.is_beyond}
        elif inputs or any_beyond(step.outputs):
            return step.account.place
    return -1


def _means_nothing(flow: DataFlow, step: AccountStep, key: ValueKey, meaningless: Container[tuple[str, str]]) -> bool:
    """Whether a value is memory that nothing was written to, or is overwritten here."""
    for source in flow.sources(step, key):
        maker = source.makers[0] if source.makers else None
        is_made_of_it = maker is not None and (maker.step.record, maker.key.path) in meaningless
        if source.how == "uninitialized" or is_made_of_it:
            return True
    return overwrites(step, key)


def _visit(step: AccountStep, flow: DataFlow, state: TraceState, tracer: Tracer, run: RunTraits) -> None:
    """Blame what the account of a record shows, and follow its inputs to what made them.

    A record is shown to be right when all that differs in it comes, through records that were computed again, from
    differences within limits. The limit along a path is that of the coarsest dtype on it.
    """
    received = from_another_rank(step)
    if received is not None:
        state.causes.blame(step, received)
    else:
        for fault in _own_faults(step, flow, state, run):
            state.causes.blame(step, fault)
        state.causes.pass_numbers(step)
    is_shown, limit = True, 0.0
    for key in step.inputs:
        value = Traced(step, key, run.limit(key))
        if key.differs or key.is_frozen_on_one_side:
            value = tracer.trace(value)
        state.add(value)
        is_shown &= value.is_shown
        limit = max(limit, value.limit)
    forward = flow.forward_of(step)
    if forward is not None:
        state.causes.inherit(step, forward)
        is_shown &= state.shown.get(forward.record, True)
        limit = max((limit, *(state.limit(forward, key) for key in forward.account.keys)))
    for key in step.outputs:
        state.limits[step.record, key.path] = max(limit, run.limit(key))
    if step.account.kind == "fault" or received is not None:
        is_shown = True
    elif step.account.kind == "unaccounted" and state.gives_beyond(step):
        if is_shown:
            state.unexplained.append(step)
        is_shown = False
    state.shown[step.record] = is_shown


def _own_faults(step: AccountStep, flow: DataFlow, state: TraceState, run: RunTraits) -> Iterator[Fault]:
    """What a record computes wrongly, or is called with otherwise."""
    account = step.account
    # Numbers that earlier records gave are no arguments of its own.
    is_given = bool(state.causes.makers_of_numbers(step))
    for output, part, sentence in account.blamed:
        if part in (DEFINED, ARGUMENTS) and is_given:
            continue
        if part in OBSERVED and _takes_from_forward(flow, step, output.path):
            continue
        if part == DEFINED and is_cast(step) and not run.tells_dtypes:
            continue
        fault = Fault(step, _KINDS.get(part, "born"), _SIDES.get(part, "both"), output.path, sentence)
        yield replace(fault, size=output.size, share=output.shares.get(part), worst=output.worst)
    if account.blamed:
        return
    if account.definition and not is_given:
        yield from _other_arguments(step, run)
    if account.is_cast and step.operation.phase == "forward" and run.tells_dtypes:
        words = f"the same input dtypes become {account.dtype}"
        yield Fault(step, "dtype", "both", "output.0", words)


def _other_arguments(step: AccountStep, run: RunTraits) -> Iterator[Fault]:
    """A call of one API with other arguments that matter less than the limits, or not to this step.

    So do the momentum of running statistics, or a larger window on a single pixel. Arguments may be computed from
    values, so that nothing that differs may come before it.
    """
    account = step.account
    is_first = account.place <= run.first_place or run.first_place < 0
    is_one_api = Operation.of(account.partner, 0).name == step.operation.name
    if not (is_first and is_one_api and step.operation.phase == "forward"):
        return
    are_numbers = all(map(numbers_of, account.definition))
    effect = max((output.sizes.get(DEFINED, 0.0) for output in account.outputs), default=0.0)
    if effect > (Relative.ARGUMENT_ROUNDED if are_numbers else Relative.EXACT_RESULTS):
        words = f"its exact result is another one by {effect:.3g}"
    elif has_other_number(account.definition):
        words = "no value of this step shows an effect"
    else:
        return
    sentence = f"called otherwise: {listed_differences(account.definition)}; {words}"
    yield Fault(step, "arguments", "both", "output.0", sentence, size=effect)


def _takes_from_forward(flow: DataFlow, step: AccountStep, path: str) -> bool:
    """Whether a backward may have its difference at `path` from what its forward kept, or a checkpoint made again.

    Of elements that are off by a share d, as many may lie on the other side of a kink: sqrt(d) in the norm.
    """
    forward = flow.forward_of(step)
    if forward is None:
        return False
    is_recomputed = step.account.recomputed in ((True, False), (False, True))
    if is_recomputed or any_beyond(forward.account.keys):
        return True
    kept = largest_distance(forward.account.keys)
    output = key_at(step.outputs, path)
    return kept > 0 and output is not None and (output.distance or 0.0) <= math.sqrt(kept)


def _add_recomputed(flow: DataFlow, state: TraceState) -> None:
    """Blame calls that a checkpoint computed again with another result: it reaches the backwards made of it."""
    for recomputed in recomputed_otherwise(flow):
        call = recomputed.step.operation.call
        for step in recomputed.reached:
            state.causes.link(step, call)
        fault = state.causes.get(call)
        if fault is not None:
            more = f"in the {recomputed.run} its recomputation in the backward gave another result"
            fault.sentence = f"{fault.sentence.rstrip('.')}; {more}"
        elif any(map(state.gives_beyond, recomputed.reached)):
            words = "its recomputation in the backward gives another result than its forward"
            sentence = f"{words}, in the {recomputed.run} only"
            fault = Fault(recomputed.step, "recomputed", recomputed.side, "output.0", sentence)
            state.causes.blame(recomputed.step, fault)


def _wrong_updates(flow: DataFlow) -> Iterator[tuple[AccountStep, Fault | None]]:
    """Optimizers that get the same and give something else, which no call in the dumps has made.

    With each its fault; None where nothing says why.
    """
    made = {key.target for step in flow.steps.values() for key in step.outputs}
    for step in flow.optimizers:
        key = next((key for key in step.outputs if key.is_beyond and key.target not in made), None)
        if key is None or any(other.is_beyond and not other.path.startswith(_STATE) for other in step.inputs):
            continue
        if not step.account.definition:
            yield step, None
            continue
        sentence = f"called otherwise: {listed_differences(step.account.definition)}"
        yield step, Fault.of_value(step, key, "defined", sentence)


def _unexplained_cells(flow: DataFlow, *, has_causes: bool) -> list[AccountStep]:
    """Layers of which the dumps hold no call: the innermost that make a difference, else the first that has one."""
    beyond = [step for step in flow.cells if step.account.kind == "unaccounted" and step.first_beyond is not None]
    for phase in ("forward", "backward"):
        making = [step for step in beyond if step.operation.phase == phase and not step.account.is_given]
        around = {cell.record for step in making for cell in making if is_inside(step, cell)}
        if making:
            return [step for step in making if step.record not in around]
    return [] if has_causes else beyond[:1]


def _lone_gradient(flow: DataFlow) -> Fault | None:
    """A gradient that one run computes and the other does not: a branch is detached, or a value needs none."""
    for step in flow.steps.values():
        if step.operation.phase != "backward" or not step.account.partner:
            continue
        for key in step.outputs:
            if bool(key.target) != bool(key.golden):
                side, other = ("target", "golden run") if key.target else ("golden run", "target")
                words = f"the {side} computes the gradient {key.path}, the {other} none: detached, or frozen there"
                return Fault(step, "gradient", "both", key.path, words)
    return None


def _connections(flow: DataFlow) -> Iterator[tuple[AccountStep, ValueKey, ValueSource, ValueSource]]:
    """Each input of a forward of both runs, with where they have it from."""
    for step in flow.forwards:
        for key in step.inputs if step.account.partner else ():
            yield step, key, *flow.sources(step, key)


def _equal_wiring(flow: DataFlow) -> Fault | None:
    """An input from another call whose value agrees: only gradients show it."""
    for step, key, mine, theirs in _connections(flow):
        is_written = mine.how == theirs.how == "written" and not (mine.is_changed or theirs.is_changed)
        if not is_written or key.is_beyond:
            continue
        first, other = mine.makers[0], theirs.makers[0]
        if first.identity != other.identity and first.step.account.partner and other.step.account.partner:
            return _rewired(step, key, mine, theirs)
    return None


def _shared_parameter(flow: DataFlow) -> Fault | None:
    """One parameter in one run where the other one has two, whose values need not differ yet: a weight is tied."""
    golden_names, target_names = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for step, key, mine, theirs in _connections(flow):
        if mine.how == theirs.how == "leaf" and mine.name and theirs.name:
            golden_names[mine.name].add(theirs.name)
            target_names[theirs.name].add(mine.name)
            names = max(len(golden_names[mine.name]), len(target_names[theirs.name]))
            if mine.name != theirs.name and names > 1:
                return _rewired(step, key, mine, theirs)
    return None


def _rewired(step: AccountStep, key: ValueKey, mine: ValueSource, theirs: ValueSource) -> Fault:
    """A connection of equal values that is another one."""
    sentence = f"{key.path} {other_ends(mine, theirs)}, of equal values"
    return Fault(step, "rewired", "both", key.path, sentence)


def _origins_of_faults(flow: DataFlow, causes: Causes) -> Iterator[DifferenceOrigin]:
    """Where faults begin that tensors show."""
    for fault in causes:
        if fault.step.account.basis != "tensors":
            continue
        key = key_at(fault.step.account.keys, fault.value)
        content = (key.target, key.golden) if key is not None and not key.is_output else None
        for record in fault.records or [fault.step.record]:
            step = flow.steps.get(record) or flow.golden_only.get(record) or fault.step
            yield DifferenceOrigin(record, step.operation.phase, step.cells, content)


def _origins_without_faults(flow: DataFlow) -> Iterator[DifferenceOrigin]:
    """Records that nothing could compute again, with equal inputs and another output."""
    for step in flow.steps.values():
        forward = flow.forward_of(step)
        if step.account.kind != "unaccounted" or any_beyond(step.inputs):
            continue
        if forward is not None and any_differs(forward.account.keys):
            continue
        if any_beyond(step.outputs):
            yield DifferenceOrigin(step.record, step.operation.phase, step.cells)
