"""What is to blame for the differences of two runs: operations, and values that no operation made."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.topics import is_batch_argument
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, DEFINED, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.arguments import listed_differences, numbers_of
from pytest_msprobe.suites.comparison.accounting.causes import OBSERVED, Causes, Fault, FaultKind, from_another_rank
from pytest_msprobe.suites.comparison.accounting.evidence import (
    ARGUMENT_EXACT,
    ARGUMENT_ROUNDED,
    by_how_much,
    has_other_number,
    is_cast,
    is_enlarged,
    is_inside,
    is_passed_on,
    is_policy,
    node_of_value,
    other_ends,
    overwrites,
    shared_makers,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Maker, Source
from pytest_msprobe.suites.comparison.accounting.observed import ARGUMENTS, FIRST
from pytest_msprobe.suites.comparison.accounting.other_leaves import OtherLeaves
from pytest_msprobe.suites.comparison.accounting.recomputed import recomputed_otherwise
from pytest_msprobe.suites.comparison.cells import Origin

_SIDES = {BORN_TARGET: "target", BORN_GOLDEN: "golden"}
_KINDS: dict[str, FaultKind] = {DEFINED: "defined", FIRST: "first", ARGUMENTS: "arguments"}

#: Inputs of an optimizer that it alone writes to.
_STATE = "input.state."

#: Of a value and of the gradients that it should be the sum of.
IsWrongSum = Callable[[Step, ValueKey, list[tuple[Step, ValueKey]]], bool | None]


class FaultFinder:
    """Finds the faults, and what each of them reaches.

    Attributes:
        unknown: inputs of unknown origin that differ by more than they may and are not at fault.
        unexplained: records beyond their limits that no benchmark computed and that no fault reaches.
        passed_on: (record, place) of the outputs that differ and that another record uses.
    """

    def __init__(
        self,
        flow: DataFlow,
        is_wrong_sum: IsWrongSum,
        *,
        is_whole: bool = True,
        other_leaves: OtherLeaves | None = None,
    ) -> None:
        """Prepare to find the causes in `flow`; `is_wrong_sum` tells whether gradients were added up wrongly.

        Where the flow is not `is_whole`, a record that was left out may have made what none of the others did.
        """
        self._is_whole = is_whole
        self._flow = flow
        self._other_leaves = other_leaves or OtherLeaves(flow)
        self._is_wrong_sum = is_wrong_sum
        self._causes = Causes(flow)
        self._limits: dict[tuple[str, str], float] = {}
        self._shown: dict[str, bool] = {}
        self._tells_dtypes = False
        self._is_one_framework = True
        self._first_place = -1
        self.unknown: list[Fault] = []
        self.unexplained: list[Step] = []
        self.passed_on: set[tuple[str, str]] = set()

    def find(self) -> list[Fault]:
        """The faults, that with the largest effect first; those of unknown origin last."""
        steps = self._flow.steps.values()
        with_floats = [
            step for step in steps if step.account.partner and any(not key.is_integer for key in step.outputs)
        ]
        # A run in another precision changes the dtypes of most of its outputs, and is no fault.
        casts = sum(bool(step.account.dtype) for step in with_floats)
        is_other_precision = 2 * casts >= len(with_floats) or is_policy(with_floats)
        basis = with_floats[0].account.basis if with_floats else "none"
        self._tells_dtypes = not is_other_precision and basis in ("tensors", "sketches")
        # Frameworks cut one formula into other calls: a call of one side says nothing while the values agree.
        self._is_one_framework = not any(step.has_other_type for step in steps)
        self._first_place = self._first_beyond()
        for step in steps:
            self._visit(step)
        self._blame_recomputed()
        self._blame_updates()
        self.unexplained += self._unexplained_cells()
        if not self._causes and self._is_one_framework and self._tells_dtypes:
            self._blame_lone_gradient()
        if not self._causes and (self.unknown or self.unexplained):
            self._blame_equal_wiring()
        if not self._causes:
            self._blame_sharing()
        reached = self._causes.settle()
        self.unknown = [fault for fault in self.unknown if fault.step.record not in reached]
        self.unexplained = [step for step in self.unexplained if step.record not in reached]
        return self._causes.ranked()

    def _first_beyond(self) -> int:
        """Place of the first record with a value beyond its limit that means something; -1 without one."""
        meaningless: set[tuple[str, str]] = set()
        for step in self._flow.steps.values():
            given = [key for key in step.inputs if key.is_beyond or self._other_leaves.has(step, key)]
            made = [key for key in step.outputs if key.is_beyond]
            if given and all(self._means_nothing(step, key, meaningless) for key in given):
                meaningless |= {(step.record, key.path) for key in made}
            elif given or made:
                return step.account.place
        return -1

    def _means_nothing(self, step: Step, key: ValueKey, known: Container[tuple[str, str]]) -> bool:
        """Whether a value is memory that nothing was written to, or is overwritten here."""
        sources = self._flow.sources(step, key)
        makers = [maker for source in sources for maker in source.makers[:1]]
        is_from_such = any((maker.step.record, maker.key.path) in known for maker in makers)
        is_unwritten = any(source.how == "uninitialized" for source in sources)
        return is_unwritten or is_from_such or overwrites(step, key)

    def _is_off(self, step: Step, key: ValueKey) -> bool:
        """Whether an input is off by more than it may."""
        return self._is_beyond(step, key) or self._other_leaves.has(step, key)

    def origins(self) -> Iterator[Origin]:
        """Where differences begin: at the faults that were found, and at what has equal inputs and another output
        although nothing could compute it again.
        """
        for fault in (fault for fault in self._causes if fault.step.account.basis == "tensors"):
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
        """Blame what the account of a record shows, and follow its inputs to what made them.

        A record is shown to be right when all that differs in it comes, through records that were computed again, from
        differences within limits. The limit along a path is that of the coarsest dtype on it.
        """
        is_received = self._blame_account(step)
        is_shown, limit = True, 0.0
        for key in step.inputs:
            self._limits[step.record, key.path] = self._own_limit(key)
            if key.differs or key.is_frozen_on_one_side:
                is_shown &= self._trace(step, key)
            limit = max(limit, self._limits[step.record, key.path])
        forward = self._flow.forward_of(step)
        if forward is not None:
            self._causes.inherit(step, forward)
            is_shown &= self._shown.get(forward.record, True)
            limits = (self._limits.get((forward.record, key.path), 0.0) for key in forward.account.keys)
            limit = max((limit, *limits))
        for key in step.outputs:
            self._limits[step.record, key.path] = max(limit, self._own_limit(key))
        if step.account.kind == "fault" or is_received:
            is_shown = True
        elif step.account.kind == "unaccounted" and any(self._is_beyond(step, key) for key in step.outputs):
            if is_shown:
                self.unexplained.append(step)
            is_shown = False
        self._shown[step.record] = is_shown

    def _own_limit(self, key: ValueKey) -> float:
        """What rounding in the dtypes of a value explains further on; where another dtype is a fault, in the finer."""
        return min(key.limits) if self._tells_dtypes else max(key.limits)

    def _is_beyond(self, step: Step, key: ValueKey) -> bool:
        """Whether a value is off by more than the coarsest dtype on its way explains."""
        if not key.is_beyond or key.excess is None or key.excess == math.inf:
            return key.is_beyond
        own = max(key.limits)
        return key.excess * own > max(own, self._limits.get((step.record, key.path), 0.0))

    def _blame_account(self, step: Step) -> bool:
        """Blame what was computed; whether the record received a value from another rank."""
        account = step.account
        received = from_another_rank(step)
        if received is not None:
            self._causes.blame(step, received)
            return True
        is_given = self._causes.inherit_numbers(step)
        for output, part, sentence in account.blamed:
            if part in (DEFINED, ARGUMENTS) and is_given:
                continue
            if part in OBSERVED and self._takes_from_forward(step, output.path):
                continue
            if part == DEFINED and is_cast(step) and not self._tells_dtypes:
                continue
            kind, side = _KINDS.get(part, "born"), _SIDES.get(part, "both")
            share, size = output.shares.get(part), output.size
            self._causes.blame(step, Fault(step, kind, side, output.path, sentence, "", size, share, output.worst))
        if account.definition and not account.blamed and not is_given:
            self._blame_arguments(step)
        if account.is_cast and step.operation.phase == "forward" and self._tells_dtypes and not account.blamed:
            self._causes.blame(
                step, Fault(step, "dtype", "both", "output.0", f"the same input dtypes become {account.dtype}")
            )
        return False

    def _blame_arguments(self, step: Step) -> None:
        """Blame a call of one API with other arguments that matter less than the limits, or not to this step.

        So do the momentum of running statistics, or a larger window on a single pixel. Arguments may be computed from
        values, so that nothing that differs may come before it.
        """
        account = step.account
        is_first = step.operation.phase == "forward" and (
            step.account.place <= self._first_place or self._first_place < 0
        )
        if not is_first or Operation.of(account.partner, 0).name != step.operation.name:
            return
        effect = max((output.sizes.get(DEFINED, 0.0) for output in account.outputs), default=0.0)
        if effect > (ARGUMENT_ROUNDED if all(map(numbers_of, account.definition)) else ARGUMENT_EXACT):
            words = f"its exact result is another one by {effect:.3g}"
        elif has_other_number(account.definition):
            words = "no value of this step shows an effect"
        else:
            return
        sentence = f"called otherwise: {listed_differences(account.definition)}; {words}"
        self._causes.blame(step, Fault(step, "arguments", "both", "output.0", sentence, "", effect))

    def _takes_from_forward(self, step: Step, path: str) -> bool:
        """Whether a backward may have its difference at `path` from what its forward kept.

        Of elements that are off by a share d, as many may lie on the other side of a kink: sqrt(d) in the norm.
        """
        forward = self._flow.forward_of(step)
        if forward is None or any(key.is_beyond for key in forward.account.keys):
            return forward is not None
        kept = max((key.distance or 0.0 for key in forward.account.keys), default=0.0)
        return any(key.path == path and (key.distance or 0.0) <= math.sqrt(kept) for key in step.outputs if kept)

    def _trace(self, step: Step, key: ValueKey) -> bool:
        """Follow an input that differs to what made it; whether that shows it to be right, or names a fault."""
        mine, theirs = self._flow.sources(step, key)
        if "uninitialized" in (mine.how, theirs.how):
            return self._trace_uninitialized(step, key)
        if step.operation.phase == "backward":
            sums = self._flow.gradient_sources(step, key)
            if self._is_one_framework and not any(maker.step.account.partner for maker in sums):
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
            if any(self._is_beyond(maker.step, maker.key) for maker in makers):
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
            limit = self._limits.get((maker.step.record, maker.key.path), 0.0)
            self._limits[step.record, key.path] = max(limit, self._limits[step.record, key.path])

    def _are_shown(self, makers: Iterable[Maker]) -> bool:
        return all(self._shown.get(maker.step.record, True) for maker in makers)

    def _trace_uninitialized(self, step: Step, key: ValueKey) -> bool:
        """Memory that nobody wrote to is never blamed; who reads it without writing to it cannot be judged."""
        if overwrites(step, key) or not self._is_beyond(step, key):
            return True
        sentence = f"{key.path} is memory that no call wrote to, and {step.operation.bare} reads it"
        self.unknown.append(Fault(step, "unknown", "both", key.path, sentence, "", key.distance, records=[step.record]))
        return False

    def _inherit(self, step: Step, key: ValueKey, makers: list[Maker], mine: Source, theirs: Source) -> bool:
        """A value that the same record made on both sides; unless something changed it on its way here."""
        self._take(step, key, makers)
        if not self._is_beyond(step, key) or any(self._is_beyond(maker.step, maker.key) for maker in makers):
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
        if any(self._is_beyond(writer, other) for other in writer.inputs):
            return self._shown.get(writer.record, True)
        if any(other.differs for other in writer.inputs):
            return self._note_unknown(step, key, written)
        sentence = f"what it leaves in {written.key.path} differs, and all that it gets agrees"
        self._causes.blame(writer, Fault(writer, "born", "both", written.key.path, sentence, "", key.distance))
        return True

    def _trace_sum(self, step: Step, key: ValueKey, sources: list[Maker]) -> bool:
        """A gradient that is the sum of the gradients of its uses."""
        differing = [maker for maker in sources if maker.key.differs]
        self._take(step, key, differing)
        if not self._is_beyond(step, key) or any(self._is_beyond(maker.step, maker.key) for maker in differing):
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

    def _unexplained_cells(self) -> list[Step]:
        """Layers of which the dumps hold no call: the innermost that make a difference, else the first that has one."""
        steps = self._flow.cells
        beyond = [
            step for step in steps if step.account.kind == "unaccounted" and any(k.is_beyond for k in step.outputs)
        ]
        for phase in ("forward", "backward"):
            own = [step for step in beyond if step.operation.phase == phase and not step.account.is_given]
            if own:
                return [step for step in own if not any(is_inside(other, step) for other in own)]
        return [] if self._causes else beyond[:1]

    def _blame_updates(self) -> None:
        """Optimizers that get the same and give something else, which no call in the dumps has made."""
        made = {key.target for step in self._flow.steps.values() for key in step.outputs}
        for step in self._flow.optimizers:
            own = [key for key in step.outputs if key.is_beyond and key.target not in made]
            if not own or any(key.is_beyond and not key.path.startswith(_STATE) for key in step.inputs):
                continue
            if step.account.definition:
                sentence = f"called otherwise: {listed_differences(step.account.definition)}"
                fault = Fault(step, "defined", "both", own[0].path, sentence, "", own[0].distance)
                self._causes.blame(step, fault, step.record)
            elif not self._causes:
                self.unexplained.append(step)

    def _blame_recomputed(self) -> None:
        """A checkpoint computed a call again with another result: that reaches the backwards made of it."""
        for found in recomputed_otherwise(self._flow):
            call = found.step.operation.call
            for step in found.reached:
                self._causes.link(step, call)
            known = self._causes.get(call)
            if known is not None:
                more = f"in the {found.run} its recomputation in the backward gave another result"
                known.sentence = f"{known.sentence.rstrip('.')}; {more}"
            elif any(self._is_beyond(step, key) for step in found.reached for key in step.outputs):
                words = "its recomputation in the backward gives another result than its forward"
                sentence = f"{words}, in the {found.run} only"
                self._causes.blame(found.step, Fault(found.step, "recomputed", found.side, "output.0", sentence))

    def _blame_lone_gradient(self) -> None:
        """A gradient that one run computes and the other does not: a branch is detached, or a value needs none."""
        for step in self._flow.steps.values():
            lone = (key for key in step.outputs if bool(key.target) != bool(key.golden))
            key = next(lone, None) if step.operation.phase == "backward" and step.account.partner else None
            if key is not None:
                side, other = ("target", "golden run") if key.target else ("golden run", "target")
                sentence = f"the {side} computes the gradient {key.path}, the {other} none: detached, or frozen there"
                self._causes.blame(step, Fault(step, "gradient", "both", key.path, sentence))
                return

    def _connections(self) -> Iterator[tuple[Step, ValueKey, Source, Source]]:
        """Each input of a forward of both runs, with where they have it from."""
        for step in self._flow.steps.values():
            for key in step.inputs if step.operation.phase == "forward" and step.account.partner else ():
                yield step, key, *self._flow.sources(step, key)

    def _blame_equal_wiring(self) -> None:
        """An input from another call whose value agrees: only gradients show it."""
        for step, key, mine, theirs in self._connections():
            ends = (*mine.makers[:1], *theirs.makers[:1])
            is_seen = mine.how == theirs.how == "written" and not (mine.is_changed or theirs.is_changed)
            is_known = is_seen and all(maker.step.account.partner for maker in ends)
            if is_known and not key.is_beyond and len({maker.identity for maker in ends}) > 1:
                self._rewire_equal(step, key, mine, theirs)
                return

    def _blame_sharing(self) -> None:
        """One parameter in one run where the other one has two, whose values need not differ yet: a weight is tied."""
        uses: tuple[dict[str, dict[str, None]], ...] = ({}, {})
        for step, key, mine, theirs in self._connections():
            if not (mine.how == theirs.how == "leaf" and mine.name and theirs.name):
                continue
            for names, one, other in ((uses[0], mine, theirs), (uses[1], theirs, mine)):
                names.setdefault(one.name, {})[other.name] = None
            is_shared = len(uses[0][mine.name]) > 1 or len(uses[1][theirs.name]) > 1
            if is_shared and mine.name != theirs.name:
                self._rewire_equal(step, key, mine, theirs)
                return

    def _rewire_equal(self, step: Step, key: ValueKey, mine: Source, theirs: Source) -> None:
        """Blame a connection of equal values."""
        sentence = f"{key.path} {other_ends(mine, theirs)}, of equal values"
        self._causes.blame(step, Fault(step, "rewired", "both", key.path, sentence))

    def _lone(self, mine: Source, theirs: Source) -> Maker | None:
        """The maker that only one run has: what both hold says what it is for, and compiled code is not in a dump."""
        makers = (maker for source in (mine, theirs) for maker in source.makers[:1])
        return next((maker for maker in makers if not maker.step.account.partner), None)

    def _rewired(self, step: Step, key: ValueKey, mine: Source, theirs: Source, what: str = "") -> bool:
        """An input that comes from another output, another maker or another parameter than on the other side."""
        makers = (*mine.makers[:1], *theirs.makers[:1])
        self._take(step, key, makers)
        if not self._is_beyond(step, key):
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
        known = next(
            (node for node in self._causes.parents(step.record) if node.startswith("rewired ")), f"rewired {what}"
        )
        self._causes.blame(step, fault, known)
        self._link_gradients(makers, known)
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
        is_first = step.account.place <= self._first_place or self._causes.get(node_of_value(key)) is not None
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
        """A difference whose origin is not known; at fault only where nothing before it differs."""
        if not self._is_off(step, key):
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
        is_first = step.operation.phase == "forward" and step.account.place <= self._first_place
        is_first &= all(fault.kind == "unknown" for fault in self._causes) and not self._flow.unheld(key)
        if self._is_whole and is_first and not overwrites(step, key):
            self._causes.blame(step, fault, node_of_value(key))
            return True
        fault.records.append(step.record)
        self.unknown.append(fault)
        return False

    def _blame_value(self, step: Step, key: ValueKey, kind: FaultKind, name: str) -> bool:
        if not (self._is_off(step, key) or key.is_frozen_on_one_side):
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
