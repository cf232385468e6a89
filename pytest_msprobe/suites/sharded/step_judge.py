"""One step: each logical record put together once, and the first wrong place of each pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DumpError, Frame
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis.topics import fact_of
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.copies import Copies, parameter_of
from pytest_msprobe.suites.sharded.inference import settings_of
from pytest_msprobe.suites.sharded.judgement import (
    SETTINGS,
    Form,
    Phase,
    RecordFinding,
    ValueFinding,
    checked,
    farness,
    finding_of,
    form_of,
    is_given,
    loaded,
    may_be_partial,
    phase_of,
    roundoff_of,
    undoubted,
    where_sketches_fail,
    widened,
)
from pytest_msprobe.suites.sharded.layer_names import layer_path, offsets_of
from pytest_msprobe.suites.sharded.logical import LogicalRun
from pytest_msprobe.suites.sharded.matching import Calls, RecordMatching
from pytest_msprobe.suites.sharded.orders import Along, Kind, Order, disordered
from pytest_msprobe.suites.sharded.ranks import (
    Grids,
    RankDump,
    ShardedStep,
)
from pytest_msprobe.suites.sharded.tolerances import Tolerances, forward_of

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.logical import Whole
    from pytest_msprobe.suites.sharded.placements import Axis, Grid, Placement
    from pytest_msprobe.suites.sharded.rows import Rows

    #: The tensors of each record of a rank that is a part, by their places.
    Held = Sequence[tuple[RankDump, dict[str, Leaf]]]

_UNTOLD = "statistics do not tell what the ranks of the logical run hold together: dump tensors there"
_BEYOND = "its rows beyond the own part of a rank are not those of the logical run, and what is made of it is wrong"
_OTHER_ORDER = "it fits only in another order than what belongs to it"


class StepJudge:
    """One training step of a sharded run, and the logical run's.

    Attributes:
        step: the ranks.
        run: the logical run, by which it is judged.
        logical: its first rank.
        first: the record of each pass that goes wrong first, as far as it was asked for; see `blame`.
    """

    def __init__(self, step: ShardedStep, run: LogicalRun) -> None:
        self.step = step
        self.run, self.logical = run, run.leader
        self._findings: dict[str, RecordFinding] = {}
        self.first: dict[Phase, str | None] = {}
        self._grids = Grids()
        self._rows: dict[str, Rows] = {}
        self._has_begun = False
        self._orders: dict[str, tuple[dict[Kind, Order], dict[Kind, Order]]] = {}

    @cached_property
    def matching(self) -> RecordMatching:
        """Which records of ranks are parts of which logical record."""
        ranks = list(self.step.ranks.values())
        return RecordMatching(self.logical, ranks, offsets_of(self.logical, ranks))

    @cached_property
    def _tolerances(self) -> Tolerances:
        return Tolerances(self.run, self.phase, self.number or 0, self.matching.half_from())

    @cached_property
    def _last_backward(self) -> int:
        """Place of the last record of a backward; -1 for none."""
        return max((one.index for one in self.logical.operations if phase_of(one) == "backward"), default=-1)

    @cached_property
    def _last_update(self) -> int:
        """Place of the last step of an optimizer; -1 for none."""
        return max((one.index for one in self.logical.operations if self.matching.is_update(one.record)), default=-1)

    def phase(self, operation: Operation) -> Phase:
        """Which pass of the step a record belongs to: what is called behind the last backward updates parameters."""
        found = phase_of(operation)
        is_update = found == "forward" and not operation.is_cell and -1 < self._last_backward < operation.index
        return "optimizer" if is_update and self.around(operation) is None else found

    def _is_behind_updates(self, operation: Operation) -> bool:
        """Whether it computes element by element behind the last step of an optimizer, as an averaged copy is."""
        is_outside = phase_of(operation) == "forward" and self.phase(operation) == "optimizer"
        is_behind = -1 < self._last_update < operation.index
        return is_outside and is_behind and bool(fact_of("elementwise", operation.name))

    def finding(self, operation: Operation) -> RecordFinding:
        """What is found of a logical record; each is put together once."""
        if operation.record not in self._findings:
            for update in self._updates_first():
                self.finding(update)
            found = self._findings[operation.record] = self._put_together(operation)
            before = [one for one in self.logical.operations[: operation.index] if one.record not in self._findings]
            if found.wrong and before and found.phase != "optimizer":  # what is handed on comes from those
                for one in before:
                    self.finding(one)
                found = self._findings[operation.record] = self._put_together(operation)
            if found.wrong:
                narrow = self._without_updated if operation.phase == GRADIENTS else self._without_local
                self._findings[operation.record] = narrow(found, operation)
        return self._findings[operation.record]

    def _updates_first(self) -> Sequence[Operation]:
        """The steps of optimizers that say how the parameters of a step behind the first one begin; each once."""
        if not self.number or self._has_begun:
            return ()
        self._has_begun = True
        return [one for one in self.logical.operations if self.matching.is_update(one.record)]

    def change(self, finding: RecordFinding) -> None:
        """Put another finding in the place of that of a record."""
        self._findings[finding.record] = finding

    @cached_property
    def _has_updates(self) -> bool:
        """Whether what optimizers get is judged: gradients that are no terms of a sum."""
        return all(self.matching.updates())

    @cached_property
    def _has_layers(self) -> bool:
        return any(operation.is_cell for operation in self.logical.operations)

    @property
    def items(self) -> list[Operation]:
        """The records that are judged one by one: what optimizers amount to is in records of their own."""
        operations = self.logical.operations
        if not any(self.matching.is_update(one.record) for one in operations):
            return operations
        return [
            one
            for one in operations
            if self.phase(one) != "optimizer" or phase_of(one) == "optimizer" or self._is_behind_updates(one)
        ]

    @property
    def number(self) -> int | None:
        """Of the step, as its folder says."""
        leader = self.step.leader
        return Slot.of(leader.path).step if leader is not None else None

    def frames(self, operation: Operation) -> Sequence[Frame]:
        """Call stack of the first rank that has a record, innermost first; of the logical run where no rank has it."""
        for dump, record in self._stacked(operation):
            if found := dump.stacks.frames(record):
                return found
        return ()

    def source(self, operation: Operation) -> str:
        """The line of the script that made the call, on the first rank that says it."""
        for dump, record in self._stacked(operation):
            if (frame := dump.stacks.user_frame(record)) is not None:
                return str(frame)
        return ""

    def _stacked(self, operation: Operation) -> Iterator[tuple[RankDump, str]]:
        """Records whose stacks tell where a record was called: those of its parts, then its own; of its forward too."""
        owners = [(calls.dump, calls.records[0]) for calls in self.matching.parts(operation.record)[0][:1]]
        for dump, record in [*owners, (self.logical, operation.record)]:
            own = Operation.of(record, 0)
            yield dump, record
            yield dump, f"{own.name}.forward.{own.number}" if own.is_cell else f"{own.call}.forward"

    def _without_updated(self, found: RecordFinding, operation: Operation) -> RecordFinding:
        """Gradients that a dump holds as they were later are not wrong where the optimizer gets the right ones."""
        layer, right = layer_path(operation.name), set()
        for one in self.logical.operations:
            if one.record.startswith("Optimizer."):
                right |= {value.path for value in self.finding(one).values if value.state == "placed"}
        values = []
        for value in found.values:
            gets = f"input.gradients.{layer}.{value.path}" in right
            words = "is not what the backward gave, and what the optimizer gets is right"
            values.append(replace(value, state="unjudged", message=words) if value.is_wrong and gets else value)
        return replace(found, values=tuple(values))

    def _without_local(self, found: RecordFinding, operation: Operation) -> RecordFinding:
        """Values that ranks compute otherwise are not wrong where the layer around them gives what it should."""
        around = self.around(operation)
        if around is None:
            return found
        outer = self.finding(around)
        given = [value for value in outer.values if value.is_output]
        is_right = any(value.state == "placed" for value in given)
        if outer.wrong or not (is_right or any(_is_open(value) for value in given)):
            return found
        reason = "is no part of the logical value"
        words = f"{reason}; what {around.name} gives is right, so the ranks compute it otherwise"
        if not is_right:
            reason += " for certain"
            words = f"{reason}; what {around.name} gives was not judged"
        values = (
            replace(value, state="unjudged", message=words, reason=reason)
            if value.is_wrong and not value.path.startswith("parameters.")
            else value
            for value in found.values
        )
        return replace(found, values=tuple(values))

    def around(self, operation: Operation) -> Operation | None:
        """The record of the layer in which an operation ran, in its direction."""
        parent = self.logical.parents.get(operation.record)
        if parent is None and operation.phase == "backward":
            parent = self.logical.parents.get(f"{operation.call}.forward")
            parent = parent.replace(".forward.", ".backward.") if parent else None
        if parent is None or parent not in self.logical.orders:
            return None
        return Operation.of(parent, self.logical.orders[parent])

    def _put_together(self, operation: Operation) -> RecordFinding:
        empty = RecordFinding(operation.record, operation.index, self.phase(operation))
        parts, reason = self.matching.parts(operation.record)
        is_kept = self._is_behind_updates(operation)
        if empty.phase == "optimizer" and phase_of(operation) == "forward" and not is_kept:
            reason = "it is arithmetic behind the last backward: the records of optimizer.step hold what it amounts to"
        if reason:
            return replace(empty, reason=reason)
        try:
            leaves = self.matching.tensors(self.logical, operation.record)
            held = [(one.dump, self.matching.tensors(one.dump, name)) for one in parts for name in one.records]
        except DumpError as error:
            return replace(empty, reason=str(error))
        grids = self._grids_of(parts)
        values: list[ValueFinding] = []
        parts_along: list[Along] = []
        beyond: set[str] = set()
        # What an optimizer gets says which elements of what it leaves can be judged.
        for path, leaf in sorted(leaves.items(), key=lambda one: not one[0].startswith("input.gradients.")):
            finding, best = self._value(operation, leaf, path, held, grids)
            values.append(finding)
            beyond |= {path} if best is not None and best.has_others_beyond else set()
            if finding.state == "placed" and finding.tolerance is not None:
                parts_along += Along.of(path, best, finding.tolerance)
        if any(value.is_wrong and value.is_output for value in values):
            values = [
                replace(one, state="unexplained", message=_BEYOND) if one.path in beyond else one for one in values
            ]
        if is_kept and any(value.state != "placed" for value in values if not value.is_output):
            words = "what goes into it, behind the step of the optimizer, is no part of the logical value for certain"
            values = [replace(one, state="unjudged", message=words) if one.is_wrong else one for one in values]
        values = [*self._settings(operation, parts), *self._in_order(operation, values, parts_along)]
        values += self._only_on_ranks(operation, leaves, held)
        return replace(empty, values=tuple(values), ranks=tuple(calls.dump.number for calls in parts))

    def _only_on_ranks(self, operation: Operation, leaves: Mapping[str, Leaf], held: Held) -> Iterator[ValueFinding]:
        """What is found of values that the logical record lacks: those of copies of its parameters can be judged."""
        is_optimizer = operation.record.startswith("Optimizer.")
        for path in dict.fromkeys(path for _, found in held for path in found if path not in leaves):
            own = next(found[path] for _, found in held if path in found)
            unjudged = ValueFinding(path, "unjudged", own.dtype, own.shape, is_output=own.is_output)
            whole, reason = self._copies.original(path) if is_optimizer else ("", "only ranks hold it")
            leaf = leaves.get(whole)
            if leaf is None and self.matching.is_update(operation.record):
                leaf = self._copies.leaf(whole)
            if leaf is None:
                words = reason or f"only ranks hold it, and the logical run has no {whole}"
                yield replace(unjudged, message=words, reason=reason or "only ranks hold it")
                continue
            finding, _ = self._value(operation, leaf, path, held, ())
            words = f"a copy of {parameter_of(whole)}"
            if finding.is_wrong:
                yield replace(finding, message=f"{words}: {finding.message}")
            else:
                yield replace(finding, placement=f"{finding.placement}, {words}" if finding.placement else "")

    @cached_property
    def _copies(self) -> Copies:
        """What the logical run has for parameters that only ranks have."""
        own, of_ranks = ([(dump, self._tensors(dump, name)) for dump, name in side] for side in self.matching.updates())
        counted = Counter(path for _, found in own for path in found)
        known = {path: leaf for _, found in own for path, leaf in found.items() if counted[path] == 1}
        first = next((one for one in self.logical.operations if self.matching.is_update(one.record)), None)

        def fits(path: str, leaf: Leaf) -> bool:
            held = _outermost([one for one in of_ranks if path in one[1]])
            owners = [dump for dump, _ in held]
            if first is None or not held or len({dump.number for dump in owners}) < len(owners):
                return False
            with suppress(DumpError):  # a trial: nothing is noted of it
                return self._measured(first, leaf, path, held, self._grids.of(owners, 1), 1)[0].state == "placed"
            return False

        return Copies(known, fits)

    def _tensors(self, dump: RankDump, record: str) -> dict[str, Leaf]:
        """The tensors of a record; none where it cannot be decoded, which its own item says."""
        with suppress(DumpError):
            return self.matching.tensors(dump, record)
        return {}

    def _settings(self, operation: Operation, parts: Sequence[Calls]) -> Iterator[ValueFinding]:
        """What is found of settings of an optimizer, such as its learning rate, that ranks have otherwise."""
        if not self.matching.is_update(operation.record):
            return
        whole = settings_of(self.logical, operation.record)
        for calls in parts:
            for record in calls.records:
                if Operation.of(record, 0).name != operation.name:
                    continue
                for name, values in settings_of(calls.dump, record).items():
                    if other := [one for one in values if one not in whole.get(name, values)]:
                        had = ", ".join(map(str, whole[name]))
                        words = f"rank {calls.dump.number} has {name} {other[0]}, the logical run {had}"
                        yield ValueFinding(f"{SETTINGS}{name}", "unexplained", message=words)
                        return

    @cached_property
    def differs_in_settings(self) -> str:
        """The record of an optimizer that was set otherwise on a rank; "" for none."""
        found = (self.finding(one) for one in self.logical.operations if self.matching.is_update(one.record))
        return next((one.record for one in found if one.wrong and one.wrong[0].path.startswith(SETTINGS)), "")

    def _in_order(
        self, operation: Operation, values: Sequence[ValueFinding], found: Sequence[Along]
    ) -> list[ValueFinding]:
        """The values, of which those are wrong that fit only in another order than what belongs to them."""
        wrong: dict[str, str] = {}
        if operation.record.startswith("Optimizer."):
            for name in dict.fromkeys(parameter_of(one.path) for one in found):
                wrong |= disordered([one for one in found if parameter_of(one.path) == name], {})
        elif operation.phase != GRADIENTS:
            is_backward = operation.phase == "backward"
            known = self._orders.setdefault(forward_of(operation), ({}, {}))
            for is_output in (False, True):
                own = [one for one in found if one.path.startswith("output." if is_output else "input.")]
                # What comes into a backward is as what its forward gave.
                wrong |= disordered(own, known[is_output is not is_backward])
        return [
            replace(value, state="unexplained", message=f"{words}: {_OTHER_ORDER}")
            if (words := wrong.get(value.path)) and (operation.phase == "backward" or not value.is_output)
            else value
            for value in values
        ]

    def _value(
        self, operation: Operation, leaf: Leaf, path: str, held: Held, grids: Sequence[Grid]
    ) -> tuple[ValueFinding, Placement | None]:
        """What is found of the value at `path`, and how it is held; ranks without a parameter have others."""
        empty = ValueFinding(path, "unjudged", dtype=leaf.dtype, shape=leaf.shape, is_output=leaf.is_output)
        if operation.record.startswith("Optimizer."):
            held = _outermost([one for one in held if path in one[1]] or held)
            owners = [dump for dump, _ in held]
            if len({dump.number for dump in owners}) < len(owners):
                return replace(empty, message="several steps of a rank's optimizers have it"), None
            grids = self._grids.of(owners, 1)
        lacking = [f"rank {dump.number}" for dump, found in held if path not in found]
        if lacking:
            if (of_row := self._in_a_row(operation, leaf, path, held)) is not None:
                return of_row
            self._tolerances.unknown(operation, leaf, path)
            words = ", ".join(dict.fromkeys(lacking[:4]))
            return replace(empty, state="missing", message=f"{words} of {len(held)} parts has no such tensor"), None
        factor = self._gradient_factor if phase_of(operation) == "backward" and leaf.shape else 1
        coarsest = max((leaf, *(found[path] for _, found in held)), key=lambda one: roundoff_of(one.dtype))
        leaf = replace(leaf, dtype=coarsest.dtype) if roundoff_of(leaf.dtype) else leaf
        try:
            finding, found = self._measured(operation, leaf, path, held, grids, factor)
            if finding.is_wrong and factor != 1 and operation.phase == GRADIENTS:  # they may be averaged already
                averaged = self._measured(operation, leaf, path, held, grids, 1)
                finding, found = min((finding, found), averaged, key=lambda one: (one[0].is_wrong, *farness(one)))
            is_partial = all(dump.is_partial(tensors[path]) for dump, tensors in held)
            if finding.is_wrong and self._tolerances.of(operation, leaf, path) > Relative.LARGEST_OF_A_RUN:
                words = "what it is made of is within its own noise"
                finding = replace(finding, state="unjudged", message=words, reason=words, is_noise=True)
            best = next(iter(found), None)
            self._tolerances.arrived(operation, finding, leaf, best)
        except DumpError as error:
            return replace(empty, state="unreadable", message=str(error)), None
        return self._judged(operation, leaf, finding, is_said=finding.state == "illegal" and is_partial), best

    def _in_a_row(
        self, operation: Operation, leaf: Leaf, path: str, held: Held
    ) -> tuple[ValueFinding, Placement | None] | None:
        """What is found of a value that stands in a row with those of all other parameters; None for none."""
        if not self.matching.is_update(operation.record) or len(self.run.ranks) > 1 or form_of([leaf]) != "tensor":
            return None
        from pytest_msprobe.suites.sharded.placements import Grid
        from pytest_msprobe.suites.sharded.rows import Rows

        with suppress(DumpError):
            if operation.record not in self._rows:
                leaves = self.matching.tensors(self.logical, operation.record)
                self._rows[operation.record] = Rows(leaves, self.logical, held)
            value = self._rows[operation.record].value(path)
            if value is None:
                return None
            whole: Whole = (), loaded(leaf, self.logical)
            finding, found = self._found(operation, leaf, path, (whole, [value], [Grid((), (), ((),))]), 1, "tensor")
            finding = replace(finding, placement="S(flat), all parameters in a row", held_as="S")
            self._tolerances.arrived(operation, finding, leaf, found[0])
            return finding, found[0]
        return None

    def _measured(
        self, operation: Operation, leaf: Leaf, path: str, held: Held, grids: Sequence[Grid], factor: float
    ) -> tuple[ValueFinding, list[Placement]]:
        """What is found of a value and its nearest placements; gradients of ranks are divided by `factor`.

        Raises:
            DumpError: a file cannot be read.
        """
        own, leaves = self.run.held(leaf), [found[path] for _, found in held]
        empty = ValueFinding(path, "unjudged", leaf.dtype, leaf.shape, is_output=leaf.is_output)
        if not any(math.prod(one.shape) for _, one in own):
            return replace(empty, message="it has no elements"), []
        if len(own) > 1 and len(leaf.shape) == 1 < len(leaves[0].shape):
            return replace(empty, message="the logical run holds flat shards of it, which tell no shape"), []
        form = form_of([*leaves, *(one for _, one in own)])
        if form != "tensor" and len(leaf.shape) > 1 and all(len(one.shape) == 1 for one in leaves):
            return replace(empty, message="the ranks hold flat shards of it, which only tensors tell"), []
        result = self._by(form, operation, leaf, path, held, grids, factor)
        if form == "sketch" and (result[0].state == "unexplained" or not result[1]):
            by_statistics = self._by("statistics", operation, leaf, path, held, grids, factor)
            return where_sketches_fail(result, by_statistics, leaf, leaves)
        return result

    def _by(
        self, form: Form, operation: Operation, leaf: Leaf, path: str, held: Held, grids: Sequence[Grid], factor: float
    ) -> tuple[ValueFinding, list[Placement]]:
        """What tensors, sketches or statistics say of a value; see `_measured`."""
        own = self.run.held(leaf)
        empty = ValueFinding(path, "unjudged", leaf.dtype, leaf.shape, is_output=leaf.is_output)
        parts = [loaded(found[path], dump, form) for dump, found in held]
        if form == "statistics" and not all(
            part is not None for part in (*parts, *(loaded(one, dump, form) for dump, one in own))
        ):
            return replace(empty, message="not every part has its tensor or finite statistics"), []
        said_by = held[0][0].stated(held[0][1][path]), held[0][0]
        nearest: tuple[ValueFinding, list[Placement]] | None = None
        is_whole = False
        for whole in self._wholes(operation, leaf, path, own, form):
            finding, found = self._found(operation, leaf, path, (whole, parts, grids), factor, form)
            one = replace(checked(finding, found, *said_by), shape=whole[1].shape), found
            if one[0].state == "placed":
                return one if self._is_settled(operation, leaf, whole, own) else (undoubted(*one), found)
            nearest = min(nearest or one, one, key=farness)
            is_whole |= all(axis.kind == "R" for axis in whole[0])
        if form == "statistics" and not is_whole and may_be_partial(operation, leaf):
            return replace(empty, message=_UNTOLD, may_fit=True), []
        if nearest is None:
            return replace(empty, message="what the ranks of the logical run hold makes up no value"), []
        if nearest[0].is_wrong and form != "statistics":
            together = self._joined(operation, leaf, path, factor, form)
            return nearest if together is None else (checked(*together, *said_by), together[1])
        return nearest

    def _wholes(
        self, operation: Operation, leaf: Leaf, path: str, own: Sequence[tuple[RankDump, Leaf]], form: Form
    ) -> Iterator[Whole]:
        """What the logical run may have at `path`; the loss of ranks with parts of the batch is a mean."""
        tolerance, is_loss = (
            min(Relative.LARGEST_OF_A_RUN, self._tolerances.of(operation, leaf, path)),
            _is_loss(operation, leaf),
        )
        for axes, whole in self.run.wholes(own, tolerance, form, may_be_partial=may_be_partial(operation, leaf)):
            yield axes, whole / self._shares(axes) if is_loss else whole

    def _is_settled(self, operation: Operation, leaf: Leaf, whole: Whole, own: Sequence[tuple[RankDump, Leaf]]) -> bool:
        """Whether it is certain that ranks of the logical run hold terms of a sum, where they are taken for that."""
        if not whole[0] or self.run.is_partial(own):
            return True
        if _is_loss(operation, leaf):
            return self._shares(whole[0]) > 1
        return operation.phase == GRADIENTS and self._has_updates

    def _found(
        self,
        operation: Operation,
        leaf: Leaf,
        path: str,
        values: tuple[Whole, list[Any], Sequence[Grid]],
        factor: float,
        form: Form,
    ) -> tuple[ValueFinding, list[Placement]]:
        """What placements say of a value, and those that fit best; gradients of ranks are divided by `factor`."""
        whole, parts, grids = values
        tolerance = widened(min(Relative.LARGEST_OF_A_RUN, self._tolerances.of(operation, leaf, path)), form)
        floor = self._tolerances.floor(operation, leaf, path)
        room = self._tolerances.room(leaf, path) if form == "tensor" else None
        scaled = [part / factor for part in parts] if factor != 1 else parts
        close = widened(self._tolerances.close(operation, leaf, path, len(parts) + len(self.run.ranks) - 1), form)
        if close < tolerance:
            found, grid = self._tried(whole, scaled, grids, close, floor, room)
            finding = finding_of(leaf, path, operation, found, grid, close)
            if finding.state == "placed":
                return finding, found
            tolerance = close if self._tolerances.is_only_close(operation) else tolerance
        found, grid = self._tried(whole, scaled, grids, tolerance, floor, room)
        finding = finding_of(leaf, path, operation, found, grid, tolerance)
        if finding.is_wrong and _is_loss(operation, leaf):
            # A loss may be the mean over the ranks' parts of the batch.
            has_backward = any(one.phase == "backward" for one in self.logical.operations)
            calls = len(self.matching.parts(operation.record)[0][0].records)
            for share in {self._factors[0], calls} if has_backward else _products(grids[0].sizes)[1:]:
                means, grid = self._tried(whole, [part / share for part in parts], grids, tolerance, floor)
                mean = finding_of(leaf, path, operation, means, grid, tolerance)
                if mean.state == "placed":
                    return replace(mean, placement=mean.placement.replace("P(sum)", "mean")), means
        return finding, found

    def _judged(self, operation: Operation, leaf: Leaf, finding: ValueFinding, *, is_said: bool) -> ValueFinding:
        """The finding, where it is certain which value of the ranks this is, and that all of them are there.

        Terms of a sum are legal where the run itself says that they are: who reads them adds them up.
        """
        if finding.state == "unexplained" and self.step.missing:
            words = (
                f"ranks {', '.join(map(str, self.step.missing[:8]))} are missing, and the others do not hold it whole"
            )
            return replace(finding, state="missing", message=words)
        if finding.state == "illegal" and is_said:
            return replace(finding, state="placed", message="", placement=f"{finding.placement}, as its DTensor says")
        if not finding.is_wrong or operation.is_cell or leaf.path.startswith("parameters."):
            return finding
        if self.phase(operation) == "optimizer":
            return finding
        if not roundoff_of(leaf.dtype):
            words = "numbers of elements, places or masks of a rank's part"
        elif self._has_layers and self.around(operation) is None:
            words = "it is outside of all layers, where a script for several ranks does other things"
        elif not (self.matching.is_certain(operation.record) and self.run.is_certain(operation.record)):
            words = "the ranks make other calls here, so that it is not certain which value this is"
        else:
            return finding
        return replace(finding, state="unjudged", message=words, differs=leaf.is_output or is_given(leaf))

    def _joined(
        self, operation: Operation, leaf: Leaf, path: str, factor: float, form: Form
    ) -> tuple[ValueFinding, list[Placement]] | None:
        """What is found of a value of all calls of a layer together, where the ranks cut the batch in another order.

        Ranks that each take several microbatches of their own part of the batch have none of those of the logical run.
        """
        records, parts = self.matching.all_calls(operation.record)
        # Calls of a layer that are put together where no one of them can be.
        if not 1 < len(records) <= 64 or not parts:
            return None
        try:
            each = [self.run.held(self.matching.tensors(self.logical, name)[path]) for name in records]
            tensors = [(one.dump, self.matching.tensors(one.dump, name)) for one in parts for name in one.records]
            leaves = [*(found[path] for _, found in tensors), *(one for held in each for _, one in held)]
            if form_of(leaves) != form:
                return None
            values = [loaded(found[path], dump, form) / factor for dump, found in tensors]
        except (DumpError, KeyError):
            return None
        if len({tuple(one.shape for _, one in held) for held in each}) > 1:
            return None
        tolerance, floor = (
            widened(min(Relative.LARGEST_OF_A_RUN, self._tolerances.of(operation, leaf, path)), form),
            self._tolerances.floor(operation, leaf, path) * len(records),
        )
        # The mean of the loss over more parts than the logical run has calls.
        grids, share = self._grids_of(parts), 1 if leaf.shape or factor != 1 else self._gradient_factor
        values = [value / share for value in values] if share != 1 and leaf.is_output else values
        own = [one for rank in zip(*each) for one in rank]
        is_legal = may_be_partial(operation, leaf)
        for whole in self.run.wholes(own, tolerance, form, may_be_partial=is_legal, calls=len(records)):
            found, grid = self._tried(whole, values, grids, tolerance, floor)
            finding = finding_of(leaf, path, operation, found, grid, tolerance)
            if finding.state == "placed":
                words = f"{finding.placement}, all {len(records)} calls together"
                # The calls are in the order of the ranks, which that of the logical run need not be.
                return replace(finding, placement=words, shape=whole[1].shape), [
                    replace(one, pair=None) for one in found
                ]
        return None

    @staticmethod
    def _tried(
        whole: Whole, parts: list[Any], grids: Sequence[Grid], tolerance: float, floor: float, room: Any = None
    ) -> tuple[list[Placement], Grid]:
        from pytest_msprobe.suites.sharded.placements import tried

        nearest: list[Placement] = []
        for grid in grids:
            found = tried(whole[1], parts, grid, tolerance, floor, room)
            found = [replace(one, logical=whole[0]) for one in found] if whole[0] else found
            if found and found[0].distance <= tolerance:
                return found, grid
            nearest += found
        return sorted(nearest, key=lambda one: one.distance), grids[0]

    def _grids_of(self, parts: Sequence[Calls]) -> list[Grid]:
        return self._grids.of([one.dump for one in parts], len(parts[0].records))

    @property
    def _gradient_factor(self) -> float:
        """How many times the gradients of the logical run those of the ranks are, before they are averaged."""
        more, less = self._factors
        return more / less

    def _shares(self, axes: Sequence[Axis]) -> int:
        """How many times the loss of the logical run its ranks have together, where each has the mean over its part."""
        less = self._factors[1] if any(axis.kind == "P" for axis in axes) else 1
        return less if math.prod(axis.size for axis in axes if axis.kind == "P") == less else 1

    @cached_property
    def _factors(self) -> tuple[int, int]:
        """How many times those of the whole model the gradients of the ranks are, and those of the logical run.

        Where each rank, or each microbatch, takes the mean of the loss over its own part of the batch, gradients are as
        many times larger as there are parts; so are those of the ranks of a logical run. The first gradient that is
        sharded along the batch tells.
        """
        backwards = [one for one in self.logical.operations if one.phase == "backward"]
        for operation in [one for one in backwards if one.is_cell] or backwards:
            found = self._factors_of(operation)
            if found is not None:
                return found
        return 1, 1

    def _factors_of(self, operation: Operation) -> tuple[int, int] | None:
        """The factors that the first gradient of a record tells; None for none."""
        parts, reason = self.matching.parts(operation.record)
        if reason:
            return None
        with suppress(DumpError):
            tensors = self.matching.tensors(self.logical, operation.record)
            path, leaf = next(((path, leaf) for path, leaf in tensors.items() if leaf.shape), ("", None))
            held = [(one.dump, self.matching.tensors(one.dump, name)) for one in parts for name in one.records]
            if leaf is None or any(path not in found for _, found in held):
                return None
            grids = self._grids_of(parts)
            sides = self.run.grids.of([dump for dump, _ in self.run.held(leaf)], 1), grids
            told = None
            for less, more in product(*(sorted({n for grid in side for n in _products(grid.sizes)}) for side in sides)):
                finding, found = self._measured(operation, leaf, path, held, grids, more / less)
                by_parts = (_is_by_parts(one.axes, more) and _is_by_parts(one.logical, less) for one in found)
                if (finding.state == "placed" or _is_open(finding)) and any(by_parts):
                    if not finding.is_partial:
                        return more, less
                    told = told or (more, less)  # half of what all ranks have makes up a sum, too
            return told
        return None


def _outermost(held: Held) -> Held:
    """The outermost of the steps of a rank: a wrapper of optimizers steps all their parameters, and ends last."""
    begins = [
        {path: leaf.statistics for path, leaf in own.items() if path.startswith("input.parameters.")} for _, own in held
    ]

    def is_within(one: int, other: int) -> bool:
        return held[one][0] is held[other][0] and begins[one].items() <= begins[other].items()

    places = range(len(held))
    return [held[one] for one in places if not any(is_within(one, other) for other in places[one + 1 :])]


def _products(sizes: Sequence[int]) -> list[int]:
    subsets = chain.from_iterable(combinations(sizes, count) for count in range(len(sizes) + 1))
    return sorted({math.prod(chosen) for chosen in subsets})


def _is_by_parts(axes: Sequence[Axis], factor: int) -> bool:
    """Whether a value is sharded over groups that make up the `factor`."""
    return factor == 1 or factor in _products([axis.size for axis in axes if axis.kind == "S"])


def _is_open(value: ValueFinding) -> bool:
    """Whether something that fits was found of a value that is not judged, such as shards that may be in any order."""
    return value.state == "unjudged" and (value.distance is not None or value.may_fit)


def _is_loss(operation: Operation, leaf: Leaf) -> bool:
    is_made = leaf.is_output or bool(leaf.provenance.made_by)
    return not leaf.shape and is_made and phase_of(operation) == "forward"
