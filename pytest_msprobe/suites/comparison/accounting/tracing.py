"""What made an input that differs: a fault before it, a connection, or a value that no operation made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from pytest_msprobe.apis.topics import is_batch_argument
from pytest_msprobe.suites.comparison.accounting.account import Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.causes import Causes, Fault, FaultKind
from pytest_msprobe.suites.comparison.accounting.evidence import (
    by_how_much,
    is_enlarged,
    is_passed_on,
    node_of_value,
    other_ends,
    overwrites,
    shared_makers,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Maker, Source
from pytest_msprobe.suites.comparison.accounting.other_leaves import OtherLeaves

#: Of a value and of the gradients that it should be the sum of.
IsWrongSum = Callable[[Step, ValueKey, list[tuple[Step, ValueKey]]], bool | None]


class Tracer:
    """Follows inputs that differ to what made them, and blames what that shows.

    Attributes:
        limits: what rounding explains of a value, by record and place: that of the coarsest dtype on its way.
        shown: whether a record is shown to be right, or named, by name.
        unknown: inputs of unknown origin that differ by more than they may and are not at fault.
        passed_on: (record, place) of the outputs that differ and that another record uses.
        is_one_framework: whether both runs call the APIs of one framework.
        first_place: place of the first record with a value beyond its limit that means something; -1 without one.
    """

    def __init__(
        self, flow: DataFlow, causes: Causes, is_wrong_sum: IsWrongSum, other_leaves: OtherLeaves, *, is_whole: bool
    ) -> None:
        """Prepare to add to `causes`; for the others see `FaultFinder`."""
        self._flow, self._causes, self._is_whole = flow, causes, is_whole
        self._is_wrong_sum, self._other_leaves = is_wrong_sum, other_leaves
        self.limits: dict[tuple[str, str], float] = {}
        self.shown: dict[str, bool] = {}
        self.unknown: list[Fault] = []
        self.passed_on: set[tuple[str, str]] = set()
        self.is_one_framework, self.first_place = True, -1

    def is_off(self, step: Step, key: ValueKey) -> bool:
        """Whether an input is off by more than it may."""
        return self.is_beyond(step, key) or self._other_leaves.has(step, key)

    def is_beyond(self, step: Step, key: ValueKey) -> bool:
        """Whether a value is off by more than the coarsest dtype on its way explains."""
        if not key.is_beyond or key.excess is None or key.excess == math.inf:
            return key.is_beyond
        limit = max(key.limits)
        return key.excess * limit > max(limit, self.limits.get((step.record, key.path), 0.0))

    def trace(self, step: Step, key: ValueKey) -> bool:
        """Follow an input that differs to what made it; whether that shows it to be right, or names a fault."""
        mine, theirs = self._flow.sources(step, key)
        if "uninitialized" in (mine.how, theirs.how):
            return self._trace_uninitialized(step, key)
        if step.operation.phase == "backward":
            sums = self._flow.gradient_sources(step, key)
            if self.is_one_framework and not any(maker.step.account.partner for maker in sums):
                sums = []
            if any(maker.key.differs for maker in sums) or (sums and not shared_makers(mine, theirs)):
                return self._trace_sum(step, key, sums)
        shared = shared_makers(mine, theirs)
        if shared:
            return self._inherit(step, key, shared, mine, theirs)
        if mine.how == theirs.how == "gradient" and mine.name == theirs.name:
            sums = self._flow.gradients_of(mine.name, step.account.place)
            return self._trace_sum(step, key, sums) if sums else self._note_unknown(step, key)
        lone = self._lone(mine, theirs)
        if lone is not None:
            return self._note_unknown(step, key, compiled=lone.step.account.is_compiled)
        if mine.how == theirs.how == "leaf" and mine.name == theirs.name:
            return self._blame_value(step, key, "parameter", mine.name)
        if "elements" in (mine.how, theirs.how) and overwrites(step, key):
            return self._note_unknown(step, key)
        if mine.is_certain and theirs.is_certain:
            return self._rewired(step, key, mine, theirs)
        makers = (*mine.makers[:1], *theirs.makers[:1])
        if makers and self._is_made_on_one_side(mine, theirs):
            return self._rewired(step, key, mine, theirs)
        if makers:
            self._take(step, key, makers)
            if any(self.is_beyond(maker.step, maker.key) for maker in makers):
                return self._are_shown(makers)
            return self._note_unknown(step, key, makers[0])
        return self._trace_unknown(step, key)

    def _is_made_on_one_side(self, *sources: Source) -> bool:
        """Whether one run gets what a record made, and the other one what none did, as both dumps tell."""
        hows = [source.how for source in sources if not source.is_changed]
        return set(hows) == {"written", "unknown"} and all(side.says_makers for side in self._flow.sides)

    def _take(self, step: Step, key: ValueKey, makers: Iterable[Maker]) -> None:
        """Note that a value comes from `makers`: their faults reach it, and so do their limits."""
        for maker in makers:
            self._causes.link(step, maker.step.record)
            self.passed_on.add((maker.step.record, maker.key.path))
            limit = self.limits.get((maker.step.record, maker.key.path), 0.0)
            self.limits[step.record, key.path] = max(limit, self.limits[step.record, key.path])

    def _are_shown(self, makers: Iterable[Maker]) -> bool:
        return all(self.shown.get(maker.step.record, True) for maker in makers)

    def _trace_uninitialized(self, step: Step, key: ValueKey) -> bool:
        """Memory that nobody wrote to is never blamed; who reads it without writing to it cannot be judged."""
        if overwrites(step, key) or not self.is_beyond(step, key):
            return True
        sentence = f"{key.path} is memory that no call wrote to, and {step.operation.bare} reads it"
        self.unknown.append(Fault(step, "unknown", "both", key.path, sentence, "", key.distance, records=[step.record]))
        return False

    def _inherit(self, step: Step, key: ValueKey, makers: list[Maker], mine: Source, theirs: Source) -> bool:
        """A value that the same record made on both sides; unless something changed it on its way here."""
        self._take(step, key, makers)
        if not self.is_beyond(step, key) or any(self.is_beyond(maker.step, maker.key) for maker in makers):
            return self._are_shown(makers)
        if not makers[0].key.is_output:
            return self._blame_writer(step, key, makers[0])
        name = makers[0].name
        is_view = mine.how == theirs.how == "elements" and not {mine.view, theirs.view} & {"extended", "cast"}
        agree = not any(maker.key.differs for maker in makers)
        if mine.view != theirs.view or (is_view and (agree or is_enlarged(key, makers))):
            words = f"gets another part or order of {name} in the target than in the golden run"
            return self._blame_wiring(step, key, words, name, makers)
        if agree:
            is_changed = mine.is_changed or theirs.is_changed
            unseen = "something that is no record changed it since"
            changed = unseen if is_changed else "it is another value where it is used"
            sentence = f"{name} agrees in both runs, {key.path} was made of it and differs: {changed}"
            fault = Fault(step, "unrecorded", "both", key.path, sentence, "", key.distance)
            self._causes.blame(step, fault, node_of_value(key))
            return True
        if mine.is_changed or theirs.is_changed:
            return self._note_unknown(step, key, makers[0])
        if not is_enlarged(key, makers):
            return self._are_shown(makers)
        return self._note_unknown(step, key, makers[0])

    def _blame_writer(self, step: Step, key: ValueKey, written: Maker) -> bool:
        """A value that a call left in its argument, and that no record shows before it is used: here."""
        writer = written.step
        self._causes.link(step, writer.operation.call)
        if any(self.is_beyond(writer, other) for other in writer.inputs):
            return self.shown.get(writer.record, True)
        if any(other.differs for other in writer.inputs):
            return self._note_unknown(step, key, written)
        sentence = f"what it leaves in {written.key.path} differs, and all that it gets agrees"
        self._causes.blame(writer, Fault(writer, "born", "both", written.key.path, sentence, "", key.distance))
        return True

    def _trace_sum(self, step: Step, key: ValueKey, sources: list[Maker]) -> bool:
        """A gradient that is the sum of the gradients of its uses."""
        differing = [maker for maker in sources if maker.key.differs]
        self._take(step, key, differing)
        if not self.is_beyond(step, key) or any(self.is_beyond(maker.step, maker.key) for maker in differing):
            return self._are_shown(differing)
        matched = (maker for maker in sources if maker.step.account.partner)
        lone = next((maker for maker in matched if bool(maker.key.target) != bool(maker.key.golden)), None)
        if lone is not None:
            side = "target" if lone.key.target else "golden run"
            sentence = f"the gradient of its use in {lone.step.operation.call} enters in the {side} only"
            self._causes.blame(
                step, Fault(step, "gradient", "both", key.path, sentence, "", key.distance), f"{step.record} {key.path}"
            )
            return True
        is_wrong = self._is_wrong_sum(step, key, [(maker.step, maker.key) for maker in sources])
        if is_wrong:
            names = " and ".join(dict.fromkeys(maker.step.record for maker in sources))
            sentence = f"the gradient that enters is not what its uses give: {names} agree in both runs"
            fault = Fault(step, "gradient", "both", key.path, sentence, "", key.distance)
            self._causes.blame(step, fault, f"{step.record} {key.path}")
            return True
        if is_wrong is None or not differing:
            return self._note_unknown(step, key, *sources[:1])
        return self._are_shown(differing)

    def _lone(self, mine: Source, theirs: Source) -> Maker | None:
        """The maker that only one run has: what both hold says what it is for, and compiled code is not in a dump."""
        makers = (maker for source in (mine, theirs) for maker in source.makers[:1])
        return next((maker for maker in makers if not maker.step.account.partner), None)

    def _rewired(self, step: Step, key: ValueKey, mine: Source, theirs: Source, what: str = "") -> bool:
        """An input that comes from another output, another maker or another parameter than on the other side."""
        makers = (*mine.makers[:1], *theirs.makers[:1])
        self._take(step, key, makers)
        if not self.is_beyond(step, key):
            return self._are_shown(makers)
        sentence = other_ends(mine, theirs)
        # Two values that are exchanged are one cause; the earliest name of each is that of the call that made it.
        values = (source.makers[-1].name if source.makers else source.text for source in (mine, theirs))
        others = {maker.identity for maker in mine.makers} ^ {maker.identity for maker in theirs.makers}
        moved = [maker for maker in (*mine.makers, *theirs.makers) if maker.identity in others]
        return self._blame_wiring(step, key, sentence, what or " ".join(sorted(values)), moved)

    def _blame_wiring(self, step: Step, key: ValueKey, sentence: str, what: str, makers: Sequence[Maker]) -> bool:
        fault = Fault(step, "rewired", "both", key.path, f"{key.path} {sentence}", "", key.distance)
        # All inputs of one call, and all calls that get one wrong value, are one cause.
        cause = next(
            (node for node in self._causes.parents(step.record) if node.startswith("rewired ")), f"rewired {what}"
        )
        self._causes.blame(step, fault, cause)
        self._link_gradients(makers, cause)
        return True

    def _link_gradients(self, makers: Iterable[Maker], node: str) -> None:
        """What is used elsewhere gets another gradient."""
        for maker in makers:
            backward = self._flow.steps.get(f"{maker.step.operation.call}.backward")
            if backward is not None:
                self._causes.link(backward, node)

    def _trace_unknown(self, step: Step, key: ValueKey) -> bool:
        """A value that no record made: of the batch where an argument or a layer says so, else of unknown origin."""
        if key.is_frozen_on_one_side:
            return self._blame_value(step, key, "parameter", "")
        if self._flow.unheld(key):
            return self._note_unknown(step, key)
        exchanged = self._flow.given_elsewhere(key)
        if exchanged is not None and step.operation.phase == "forward":
            sentence = f"gets in the target what {exchanged} is in the golden run"
            return self._blame_wiring(step, key, sentence, f"{key.target} {key.golden}", ())
        # What goes into an outermost layer may also be what unrecorded code made of what differs before.
        is_first = step.account.place <= self.first_place or self._causes.get(node_of_value(key)) is not None
        is_of_layers = is_first and (key.target, key.golden) in self._flow.batch
        is_given = self._other_leaves.has_of_batch(step, key)
        is_batch = step.operation.phase == "forward" and (is_of_layers or is_given or self._is_batch(step, key))
        if is_batch and self._is_whole:
            return self._blame_value(step, key, "batch", "")
        return self._note_unknown(step, key)

    def _is_batch(self, step: Step, key: ValueKey) -> bool:
        """Whether a value, or what casts and reshapes make of it, is an argument that is data."""
        if is_batch_argument(step.operation.name, key.path):
            return True
        if not (key.is_integer and is_passed_on(step)):
            return False
        return any(self._is_batch(*user) for out in step.outputs for user in self._flow.users(step, out.path))

    def _note_unknown(self, step: Step, key: ValueKey, maker: Maker | None = None, *, compiled: bool = False) -> bool:
        """A difference whose origin is not known; at fault only where nothing before it differs.

        Memory that a call overwrites may never have been written to: where a dump does not say so, what differs behind
        the call is of unknown origin again.
        """
        is_unmarked = not any(side.says_makers for side in self._flow.sides)
        if not self.is_off(step, key) or (is_unmarked and overwrites(step, key)):
            return True
        if maker is not None:
            less = f"it comes from {maker.name}, which differs by less"
            origin = less if maker.key.differs else f"{maker.name}, which made it in one run, agrees"
            sentence = f"{key.path} differs: {origin}, and something that the dump does not hold changed it"
            kind: FaultKind = "unrecorded"
        elif compiled:
            sentence, kind = f"{key.path} differs: compiled code made it in one run", "unknown"
        elif made_by := self._flow.unheld(key):
            sentence, kind = f"{key.path} differs: {made_by} made it, which the dumps do not hold", "unknown"
        else:
            far, gradient = by_how_much(key), _gradient_of(key)
            is_earlier = all(side.says_makers for side in self._flow.sides)
            earlier = "it was made before the collection began, or by what no record shows"
            origin = earlier if is_earlier else "nothing says what it is"
            origin = "the dumps do not hold what made it" if gradient else origin
            what = f"{key.path}, {gradient}," if gradient else key.path
            sentence, kind = f"{what} differs {far}before any operation, and {origin}", "unknown"
        fault = Fault(step, kind, "both", key.path, sentence, "", key.distance)
        # What a call overwrites has no meaning of its own.
        is_first = step.operation.phase == "forward" and step.account.place <= self.first_place
        is_first &= all(fault.kind == "unknown" for fault in self._causes) and not self._flow.unheld(key)
        if self._is_whole and is_first and not overwrites(step, key):
            self._causes.blame(step, fault, node_of_value(key))
            return True
        fault.records.append(step.record)
        self.unknown.append(fault)
        return False

    def _blame_value(self, step: Step, key: ValueKey, kind: FaultKind, name: str) -> bool:
        if not (self.is_off(step, key) or key.is_frozen_on_one_side):
            return True
        what = f"parameter {name}".strip() if kind == "parameter" else "a value of the batch"
        if key.is_frozen_on_one_side:
            sentence = f"{what} requires a gradient on one side only: target {key.trains[0]}, golden {key.trains[1]}"
        else:
            far = by_how_much(key)
            sentence = f"{what} differs {far}before any operation"
        node = f"parameter {name}" if name else node_of_value(key)
        if self._causes.get(node) is None:
            self._causes.add(node, Fault(step, kind, "both", key.path, sentence, name, key.distance), step.record)
        self._causes.link(step, node)
        return True


def _gradient_of(key: ValueKey) -> str:
    """Which gradient a value is on both sides, in words; "" for another value."""
    names = {origin.grad_of for origin in key.origins}
    return f"the gradient of parameter {names.pop()}" if len(names) == 1 and "" not in names else ""
