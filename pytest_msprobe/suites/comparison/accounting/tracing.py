"""What made an input that differs: a fault before it, a connection, or a value that no operation made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_msprobe.apis.fact_table import is_batch_argument
from pytest_msprobe.suites.comparison.accounting.account import AccountStep, ValueKey, any_differs
from pytest_msprobe.suites.comparison.accounting.causes import Causes, Fault, FaultKind
from pytest_msprobe.suites.comparison.accounting.evidence import (
    OtherLeaves,
    by_how_much,
    is_enlarged,
    is_passed_on,
    node_of_value,
    other_ends,
    overwrites,
    shared_makers,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Maker, ValueSource

#: Whether a maker differs between the two runs.
_DIFFERS = attrgetter("key.differs")
#: Of a value and of the gradients that it should be the sum of.
IsWrongSum = Callable[[AccountStep, ValueKey, list[tuple[AccountStep, ValueKey]]], bool | None]


@dataclass(frozen=True, slots=True)
class RunTraits:
    """What is known of two runs as a whole.

    Attributes:
        is_whole: whether no record was left out, which may have made what none of the others did.
        is_one_framework: whether both runs call the APIs of one framework.
        tells_dtypes: whether another dtype is a fault, and not that of a run in another precision.
        first_place: place of the first record with a value beyond its limit that means something; -1 without one.
    """

    is_whole: bool
    is_one_framework: bool
    tells_dtypes: bool
    first_place: int

    def limit(self, key: ValueKey) -> float:
        """Return what rounding in the dtypes of a value explains; where another dtype is a fault, in the finer."""
        return min(key.limits) if self.tells_dtypes else max(key.limits)


@dataclass(frozen=True, slots=True)
class Traced:
    """An input of a record, and what following it to what made it shows.

    Attributes:
        step, key: the record and its input.
        limit: what rounding explains of it: that of the coarsest dtype on its way.
        makers: what it comes from, whose faults reach it.
        is_shown: whether it is shown to be right, or a fault is named.
        fault: what is at fault; where it `is_open`, the difference of unknown origin.
        node: which node of `Causes` is at fault; "" for the call of the fault.
        is_open: whether nothing shows that this is a fault.
        heirs: (record, node) of what else inherits from a node.
    """

    step: AccountStep
    key: ValueKey
    limit: float
    makers: Sequence[Maker] = ()
    is_shown: bool = True
    fault: Fault | None = None
    node: str = ""
    is_open: bool = False
    heirs: Sequence[tuple[AccountStep, str]] = ()

    @property
    def is_beyond(self) -> bool:
        """Whether it is off by more than the coarsest dtype on its way explains."""
        return exceeds(self.key, self.limit)

    def blaming(self, kind: FaultKind, sentence: str, node: str) -> Traced:
        """Return it with a fault of a node that it shows."""
        return replace(self, fault=Fault.of_value(self.step, self.key, kind, sentence), node=node)

    def opened(self, kind: FaultKind, sentence: str) -> Traced:
        """Return it with a difference of unknown origin."""
        fault = Fault.of_value(self.step, self.key, kind, sentence)
        fault.records.append(self.step.record)
        return replace(self, fault=fault, is_open=True, is_shown=False)


def exceeds(key: ValueKey, limit: float) -> bool:
    """Return whether a value is off by more than its dtypes and `limit`, that of its way, explain."""
    if not key.is_beyond or key.excess is None or key.excess == math.inf:
        return key.is_beyond
    of_dtypes = max(key.limits)
    return key.excess * of_dtypes > max(of_dtypes, limit)


@dataclass(slots=True)
class TraceState:
    """What is known behind some of the records of a run; `add` alone changes it.

    Attributes:
        causes: the faults, and what inherits from them.
        limits: what rounding explains of a value, by record and place: that of the coarsest dtype on its way.
        shown: whether a record is shown to be right, or named, by name.
        unknown: inputs of unknown origin that differ by more than they may and are not at fault.
        unexplained: records beyond their limits that no benchmark computed.
        passed_on: (record, place) of the outputs that differ and that another record uses.
    """

    causes: Causes
    limits: dict[tuple[str, str], float] = field(default_factory=dict)
    shown: dict[str, bool] = field(default_factory=dict)
    unknown: list[Fault] = field(default_factory=list)
    unexplained: list[AccountStep] = field(default_factory=list)
    passed_on: set[tuple[str, str]] = field(default_factory=set)

    def limit(self, step: AccountStep, key: ValueKey) -> float:
        """Return what rounding explains of a value; 0 where it is not known yet."""
        return self.limits.get((step.record, key.path), 0.0)

    def is_beyond(self, step: AccountStep, key: ValueKey) -> bool:
        """Return whether a value is off by more than the coarsest dtype on its way explains."""
        return exceeds(key, self.limit(step, key))

    def gives_beyond(self, step: AccountStep) -> bool:
        """Return whether an output of a record is off by more than the coarsest dtype on its way explains."""
        return any(self.is_beyond(step, key) for key in step.outputs)

    def any_beyond(self, makers: Iterable[Maker]) -> bool:
        """Return whether one of the makers of a value is off by more than it may."""
        return any(self.is_beyond(maker.step, maker.key) for maker in makers)

    def add(self, traced: Traced) -> None:
        """Take what an input shows: its faults, and those of its makers, reach the record."""
        step = traced.step
        for maker in traced.makers:
            self.causes.link(step, maker.step.record)
            self.passed_on.add((maker.step.record, maker.key.path))
        self.limits[step.record, traced.key.path] = traced.limit
        for heir, node in traced.heirs:
            self.causes.link(heir, node)
        if traced.fault is None:
            return
        if traced.is_open:
            self.unknown.append(traced.fault)
        else:
            self.causes.blame(traced.fault.step, traced.fault, traced.node)


class Tracer:
    """Follows inputs that differ to what made them. It changes nothing: `TraceState.add` takes what it gives."""

    def __init__(
        self, flow: DataFlow, state: TraceState, run: RunTraits, other_leaves: OtherLeaves, is_wrong_sum: IsWrongSum
    ) -> None:
        """Prepare to trace in `flow` with what `state` says; for the others see `find_faults`."""
        self._flow, self._state, self._run = flow, state, run
        self._is_wrong_sum, self._other_leaves = is_wrong_sum, other_leaves

    def trace(self, value: Traced) -> Traced:
        """Return an input that differs with what its makers show."""
        step, key = value.step, value.key
        mine, theirs = self._flow.sources(step, key)
        shared = shared_makers(mine, theirs)
        if "uninitialized" in (mine.how, theirs.how):
            return self._uninitialized(value)
        if step.operation.phase == "backward":
            sums = self._flow.gradient_sources(step, key)
            if self._run.is_one_framework and not any(maker.step.account.partner for maker in sums):
                sums = []
            if any(map(_DIFFERS, sums)) or (sums and not shared):
                return self._sum(value, sums)
        if shared:
            return self._inherited(value, shared, mine, theirs)
        is_one_name = mine.how == theirs.how and mine.name == theirs.name
        if is_one_name and mine.how == "gradient":
            sums = self._flow.gradients_of(mine.name, step.account.place)
            return self._sum(value, sums) if sums else self._unknown(value)
        return self._of_other_makers(value, mine, theirs)

    def _of_other_makers(self, value: Traced, mine: ValueSource, theirs: ValueSource) -> Traced:
        """A value that no record made on both sides."""
        makers = (*mine.makers[:1], *theirs.makers[:1])
        # What both hold says what it is for, and compiled code is not in a dump.
        lone = next((maker for maker in makers if not maker.step.account.partner), None)
        if lone is not None:
            return self._unknown(value, compiled=lone.step.account.is_compiled)
        hows = {mine.how, theirs.how}
        if hows == {"leaf"} and mine.name == theirs.name:
            return self._outer(value, "parameter", mine.name)
        if "elements" in hows and overwrites(value.step, value.key):
            return self._unknown(value)
        if (mine.is_certain and theirs.is_certain) or self._is_made_on_one_side(mine, theirs):
            return self._rewired(value, mine, theirs)
        if not makers:
            return self._unmade(value)
        value = self._made_by(value, makers)
        if self._state.any_beyond(makers):
            return self._passed(value)
        return self._unknown(value, makers[0])

    def _is_made_on_one_side(self, *sources: ValueSource) -> bool:
        """Whether one run gets what a record made, and the other one what none did, as both dumps tell."""
        hows = {source.how for source in sources if not source.is_changed}
        return hows == {"written", "unknown"} and self._flow.says_makers

    def _made_by(self, value: Traced, makers: Sequence[Maker]) -> Traced:
        """An input with its makers, whose limits reach it as their faults do."""
        limits = (self._state.limit(maker.step, maker.key) for maker in makers)
        return replace(value, makers=makers, limit=max((value.limit, *limits)))

    def _passed(self, value: Traced) -> Traced:
        """An input that is right where its makers are."""
        is_shown = all(self._state.shown.get(maker.step.record, True) for maker in value.makers)
        return replace(value, is_shown=is_shown)

    def _uninitialized(self, value: Traced) -> Traced:
        """Memory that nobody wrote to is never blamed; who reads it without writing to it cannot be judged."""
        if overwrites(value.step, value.key) or not value.is_beyond:
            return value
        reader = value.step.operation.bare
        words = f"{value.key.path} is memory that no call wrote to, and {reader} reads it"
        return value.opened("unknown", words)

    def _inherited(self, value: Traced, makers: Sequence[Maker], mine: ValueSource, theirs: ValueSource) -> Traced:
        """A value that the same record made on both sides; unless something changed it on its way here."""
        value, key, maker = self._made_by(value, makers), value.key, makers[0]
        if not value.is_beyond or self._state.any_beyond(makers):
            return self._passed(value)
        if not maker.key.is_output:
            return self._written(value, maker)
        is_part = not {mine.view, theirs.view} & {"extended", "cast"}
        is_view = mine.how == theirs.how == "elements" and is_part
        is_changed = mine.is_changed or theirs.is_changed
        agree = not any(map(_DIFFERS, makers))
        if mine.view != theirs.view or (is_view and (agree or is_enlarged(key, makers))):
            words = f"gets another part or order of {maker.name} in the target than in the golden run"
            return self._wired(value, words, maker.name, makers)
        if agree:
            unseen = "something that is no record changed it since"
            changed = unseen if is_changed else "it is another value where it is used"
            words = f"{maker.name} agrees in both runs, {key.path} was made of it and differs: {changed}"
            return value.blaming("unrecorded", words, node_of_value(key))
        if is_changed or is_enlarged(key, makers):
            return self._unknown(value, maker)
        return self._passed(value)

    def _written(self, value: Traced, maker: Maker) -> Traced:
        """A value that a call left in its argument, and that no record shows before it is used: here."""
        writer = maker.step
        value = replace(value, heirs=((value.step, writer.operation.call),))
        if any(self._state.is_beyond(writer, key) for key in writer.inputs):
            return replace(value, is_shown=self._state.shown.get(writer.record, True))
        if any_differs(writer.inputs):
            return self._unknown(value, maker)
        path = maker.key.path
        words = f"what it leaves in {path} differs, and all that it gets agrees"
        fault = Fault(writer, "born", "both", path, words, size=value.key.distance)
        return replace(value, fault=fault)

    def _sum(self, value: Traced, sources: list[Maker]) -> Traced:
        """A gradient that is the sum of the gradients of its uses."""
        differing = list(filter(_DIFFERS, sources))
        value = self._made_by(value, differing)
        if not value.is_beyond or self._state.any_beyond(differing):
            return self._passed(value)
        node = f"{value.step.record} {value.key.path}"
        for maker in sources:
            if maker.step.account.partner and bool(maker.key.target) != bool(maker.key.golden):
                side = "target" if maker.key.target else "golden run"
                use = maker.step.operation.call
                words = f"the gradient of its use in {use} enters in the {side} only"
                return value.blaming("gradient", words, node)
        values = [(maker.step, maker.key) for maker in sources]
        is_wrong = self._is_wrong_sum(value.step, value.key, values)
        if is_wrong:
            names = " and ".join(dict.fromkeys(step.record for step, _ in values))
            words = f"the gradient that enters is not what its uses give: {names} agree in both runs"
            return value.blaming("gradient", words, node)
        if is_wrong is None or not differing:
            return self._unknown(value, *sources[:1])
        return self._passed(value)

    def _rewired(self, value: Traced, mine: ValueSource, theirs: ValueSource) -> Traced:
        """An input that comes from another output, another maker or another parameter than on the other side."""
        value = self._made_by(value, (*mine.makers[:1], *theirs.makers[:1]))
        if not value.is_beyond:
            return self._passed(value)
        # Two values that are exchanged are one cause.
        name = " ".join(sorted((mine.first_name, theirs.first_name)))
        others = {*mine.identities} ^ {*theirs.identities}
        moved = [maker for maker in (*mine.makers, *theirs.makers) if maker.identity in others]
        return self._wired(value, other_ends(mine, theirs), name, moved)

    def _wired(self, value: Traced, words: str, name: str, makers: Iterable[Maker]) -> Traced:
        """A wrong connection. All inputs of one call, and all calls that get one wrong value, are one cause."""
        nodes = self._state.causes.parents(value.step.record)
        node = next((node for node in nodes if node.startswith("rewired ")), f"rewired {name}")
        # What is used elsewhere gets another gradient.
        backwards = map(self._flow.backward_of, map(attrgetter("step"), makers))
        heirs = tuple((backward, node) for backward in filter(None, backwards))
        return replace(value.blaming("rewired", f"{value.key.path} {words}", node), heirs=heirs)

    def _unmade(self, value: Traced) -> Traced:
        """A value that no record made: of the batch where an argument or a layer says so, else of unknown origin."""
        step, key = value.step, value.key
        if key.is_frozen_on_one_side:
            return self._outer(value, "parameter", "")
        if self._flow.unheld(key):
            return self._unknown(value)
        exchanged = self._flow.given_elsewhere(key)
        if exchanged is not None and step.operation.phase == "forward":
            words = f"gets in the target what {exchanged} is in the golden run"
            return self._wired(value, words, f"{key.target} {key.golden}", ())
        if self._run.is_whole and step.operation.phase == "forward" and self._is_of_batch(step, key):
            return self._outer(value, "batch", "")
        return self._unknown(value)

    def _is_of_batch(self, step: AccountStep, key: ValueKey) -> bool:
        """Whether an argument, a layer or the manifests say that a value is of the batch."""
        if self._is_data(step, key) or self._other_leaves.has_of_batch(step, key):
            return True
        # What goes into an outermost layer may also be what unrecorded code made of what differs before.
        is_blamed = self._state.causes.get(node_of_value(key)) is not None
        is_first = is_blamed or step.account.place <= self._run.first_place
        return is_first and (key.target, key.golden) in self._flow.batch

    def _is_data(self, step: AccountStep, key: ValueKey) -> bool:
        """Whether a value, or what casts and reshapes make of it, is an argument that is data."""
        if is_batch_argument(step.operation.name, key.path):
            return True
        if not (key.is_integer and is_passed_on(step)):
            return False
        return any(self._is_data(*user) for out in step.outputs for user in self._flow.users(step, out.path))

    def _is_off(self, value: Traced) -> bool:
        """Whether an input is off by more than it may."""
        return value.is_beyond or self._other_leaves.has(value.step, value.key)

    def _unknown(self, value: Traced, maker: Maker | None = None, *, compiled: bool = False) -> Traced:
        """A difference whose origin is not known; at fault only where nothing before it differs.

        Memory that a call overwrites may never have been written to: where a dump does not say so, what differs behind
        the call is of unknown origin again.
        """
        step, key = value.step, value.key
        is_overwritten = overwrites(step, key)
        if not self._is_off(value) or (is_overwritten and self._flow.says_no_makers):
            return value
        kind: FaultKind = "unknown" if maker is None else "unrecorded"
        words = self._origin(key, maker, compiled=compiled)
        # What a call overwrites has no meaning of its own.
        is_first = step.operation.phase == "forward" and step.account.place <= self._run.first_place
        is_first &= {fault.kind for fault in self._state.causes} <= {"unknown"}
        is_first &= self._run.is_whole and not is_overwritten and not self._flow.unheld(key)
        if is_first:
            return value.blaming(kind, words, node_of_value(key))
        return value.opened(kind, words)

    def _origin(self, key: ValueKey, maker: Maker | None, *, compiled: bool) -> str:
        """What is known of where a value of unknown origin comes from, as a sentence."""
        if maker is not None:
            less = f"it comes from {maker.name}, which differs by less"
            origin = less if maker.key.differs else f"{maker.name}, which made it in one run, agrees"
            return f"{key.path} differs: {origin}, and something that the dump does not hold changed it"
        if compiled:
            return f"{key.path} differs: compiled code made it in one run"
        if made_by := self._flow.unheld(key):
            return f"{key.path} differs: {made_by} made it, which the dumps do not hold"
        far, what, origin = by_how_much(key), key.path, "nothing says what it is"
        if gradient := _gradient_of(key):
            what, origin = f"{what}, {gradient},", "the dumps do not hold what made it"
        elif self._flow.says_makers:
            origin = "it was made before the collection began, or by what no record shows"
        return f"{what} differs {far}before any operation, and {origin}"

    def _outer(self, value: Traced, kind: FaultKind, name: str) -> Traced:
        """A parameter, or a value of the batch: each of them is one cause, wherever it is used."""
        step, key = value.step, value.key
        if not (self._is_off(value) or key.is_frozen_on_one_side):
            return value
        node = f"parameter {name}" if name else node_of_value(key)
        if self._state.causes.get(node) is not None:
            return replace(value, heirs=((step, node),))
        what = f"parameter {name}".strip() if kind == "parameter" else "a value of the batch"
        words = f"{what} differs {by_how_much(key)}before any operation"
        if key.is_frozen_on_one_side:
            sides = f"target {key.trains[0]}, golden {key.trains[1]}"
            words = f"{what} requires a gradient on one side only: {sides}"
        fault = Fault.of_value(step, key, kind, words, name)
        return replace(value, fault=fault, node=node)


def _gradient_of(key: ValueKey) -> str:
    """Which gradient a value is on both sides, in words; "" for another value."""
    names = {origin.grad_of for origin in key.origins}
    return f"the gradient of parameter {names.pop()}" if len(names) == 1 and "" not in names else ""
