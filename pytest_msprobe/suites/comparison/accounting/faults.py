"""What is to blame for the differences of two runs: operations, and values that no operation made."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, DEFINED, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.arguments import listed_differences, numbers_of
from pytest_msprobe.suites.comparison.accounting.causes import OBSERVED, Causes, Fault, FaultKind, from_another_rank
from pytest_msprobe.suites.comparison.accounting.evidence import (
    has_other_number,
    is_cast,
    is_inside,
    is_policy,
    other_ends,
    overwrites,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Source
from pytest_msprobe.suites.comparison.accounting.observed import ARGUMENTS, FIRST
from pytest_msprobe.suites.comparison.accounting.other_leaves import OtherLeaves
from pytest_msprobe.suites.comparison.accounting.recomputed import recomputed_otherwise
from pytest_msprobe.suites.comparison.accounting.tracing import IsWrongSum, Tracer
from pytest_msprobe.suites.comparison.cells import Origin

_SIDES = {BORN_TARGET: "target", BORN_GOLDEN: "golden"}
_KINDS: dict[str, FaultKind] = {DEFINED: "defined", FIRST: "first", ARGUMENTS: "arguments"}

#: Inputs of an optimizer that it alone writes to.
_STATE = "input.state."


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
        self._flow = flow
        self._other_leaves = other_leaves or OtherLeaves(flow)
        self._causes = Causes(flow)
        self._tracer = Tracer(flow, self._causes, is_wrong_sum, self._other_leaves, is_whole=is_whole)
        self._tells_dtypes = False
        self.unknown = self._tracer.unknown
        self.unexplained: list[Step] = []
        self.passed_on = self._tracer.passed_on

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
        self._tracer.is_one_framework = not any(step.has_other_type for step in steps)
        self._tracer.first_place = self._first_beyond()
        for step in steps:
            self._visit(step)
        self._blame_recomputed()
        self._blame_updates()
        self.unexplained += self._unexplained_cells()
        if not self._causes and self._tracer.is_one_framework and self._tells_dtypes:
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
            self._tracer.limits[step.record, key.path] = self._own_limit(key)
            if key.differs or key.is_frozen_on_one_side:
                is_shown &= self._tracer.trace(step, key)
            limit = max(limit, self._tracer.limits[step.record, key.path])
        forward = self._flow.forward_of(step)
        if forward is not None:
            self._causes.inherit(step, forward)
            is_shown &= self._tracer.shown.get(forward.record, True)
            limits = (self._tracer.limits.get((forward.record, key.path), 0.0) for key in forward.account.keys)
            limit = max((limit, *limits))
        for key in step.outputs:
            self._tracer.limits[step.record, key.path] = max(limit, self._own_limit(key))
        if step.account.kind == "fault" or is_received:
            is_shown = True
        elif step.account.kind == "unaccounted" and any(self._tracer.is_beyond(step, key) for key in step.outputs):
            if is_shown:
                self.unexplained.append(step)
            is_shown = False
        self._tracer.shown[step.record] = is_shown

    def _own_limit(self, key: ValueKey) -> float:
        """What rounding in the dtypes of a value explains further on; where another dtype is a fault, in the finer."""
        return min(key.limits) if self._tells_dtypes else max(key.limits)

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
            step.account.place <= self._tracer.first_place or self._tracer.first_place < 0
        )
        if not is_first or Operation.of(account.partner, 0).name != step.operation.name:
            return
        effect = max((output.sizes.get(DEFINED, 0.0) for output in account.outputs), default=0.0)
        if effect > (Relative.ARGUMENT_ROUNDED if all(map(numbers_of, account.definition)) else Relative.EXACT_RESULTS):
            words = f"its exact result is another one by {effect:.3g}"
        elif has_other_number(account.definition):
            words = "no value of this step shows an effect"
        else:
            return
        sentence = f"called otherwise: {listed_differences(account.definition)}; {words}"
        self._causes.blame(step, Fault(step, "arguments", "both", "output.0", sentence, "", effect))

    def _takes_from_forward(self, step: Step, path: str) -> bool:
        """Whether a backward may have its difference at `path` from what its forward kept, or a checkpoint made again.

        Of elements that are off by a share d, as many may lie on the other side of a kink: sqrt(d) in the norm.
        """
        forward = self._flow.forward_of(step)
        is_recomputed = step.account.recomputed in ((True, False), (False, True))
        if forward is None or is_recomputed or any(key.is_beyond for key in forward.account.keys):
            return forward is not None
        kept = max((key.distance or 0.0 for key in forward.account.keys), default=0.0)
        return any(key.path == path and (key.distance or 0.0) <= math.sqrt(kept) for key in step.outputs if kept)

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
            elif any(self._tracer.is_beyond(step, key) for step in found.reached for key in step.outputs):
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
