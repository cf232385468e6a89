"""One step: each logical record judged once, and what the layer around it or an optimizer behind it makes of that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.fitting import FittedParts, Fitting, order_of_wrong
from pytest_msprobe.suites.sharded.inference import settings_of
from pytest_msprobe.suites.sharded.judgement import (
    SETTINGS,
    RecordFinding,
    ValueFinding,
    form_of,
    forward_of,
    is_given,
    leaves_of,
    loaded,
    phase_of,
    roundoff_of,
)
from pytest_msprobe.suites.sharded.matching import Calls, LogicalCopies, layer_path, parameter_of
from pytest_msprobe.suites.sharded.orders import Along, Kind, Order, disordered
from pytest_msprobe.suites.sharded.outline import StepOutline
from pytest_msprobe.suites.sharded.ranks import RankDump
from pytest_msprobe.suites.sharded.tolerances import Tolerances

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.orders import Rows
    from pytest_msprobe.suites.sharded.outline import Held, Whole
    from pytest_msprobe.suites.sharded.placements import Grid, Placement

    #: What is found of a value, and how it is held; None for no placement.
    Judged = tuple[ValueFinding, Placement | None]

_ARITHMETIC = "it is arithmetic behind the last backward: the records of optimizer.step hold what it amounts to"
_BEHIND_UPDATES = "what goes into it, behind the step of the optimizer, is no part of the logical value for certain"
_BEYOND = "its rows beyond the own part of a rank are not those of the logical run, and what is made of it is wrong"
_NOISE = "what it is made of is within its own noise"
_ONLY_RANKS = "only ranks hold it"
_OTHER_ORDER = "it fits only in another order than what belongs to it"


class RecordJudge:
    """Judges one record after the other; those before tell how far values may be off, and in which order they are."""

    def __init__(self, outline: StepOutline, tolerances: Tolerances) -> None:
        self._outline, self._tolerances = outline, tolerances
        self._fitting = Fitting(outline, tolerances)
        self._orders: dict[tuple[str, bool], dict[Kind, Order]] = {}
        self._latest_rows: tuple[str, Rows] | None = None

    def judge(self, operation: Operation) -> RecordFinding:
        """What is found of a logical record; each is to be judged once."""
        outline = self._outline
        parts, reason = outline.matching.parts(operation.record)
        finding = RecordFinding(operation.record, operation.index, outline.phase(operation))
        is_behind_updates = outline.is_behind_updates(operation)
        if outline.is_arithmetic_of_update(operation) and not is_behind_updates:
            reason = _ARITHMETIC
        if reason:
            return replace(finding, reason=reason)
        try:
            leaves = outline.matching.tensors(outline.logical, operation.record)
            held = outline.held(parts)
        except DumpError as error:
            return replace(finding, reason=str(error))
        grids = outline.grids_of(parts)
        # What an optimizer gets says which elements of what it leaves can be judged.
        paths = sorted(leaves, key=lambda path: not path.startswith("input.gradients."))
        judged = [self._value(operation, leaves[path], path, held, grids) for path in paths]
        ranks = tuple(calls.dump.number for calls in parts)
        finding = replace(finding, values=tuple(value for value, _ in judged), ranks=ranks)
        if any(value.is_output for value in finding.wrong):
            beyond = (value for value, placement in judged if placement is not None and placement.has_others_beyond)
            finding = finding.changed(beyond, state="unexplained", message=_BEYOND)
        if is_behind_updates and finding.states(is_output=False) - {"placed"}:
            finding = finding.changed(finding.wrong, state="unjudged", message=_BEHIND_UPDATES)
        finding = finding.changed(self._in_other_orders(operation, judged))
        values = (*self._settings(operation, parts), *finding.values, *self._only_on_ranks(operation, leaves, held))
        return replace(finding, values=values)

    def _value(self, operation: Operation, leaf: Leaf, path: str, held: Held, grids: Sequence[Grid]) -> Judged:
        """What is found of the value at `path`, and how it is held; ranks without a parameter have others."""
        value = FittedParts(operation, leaf, path, (), grids)
        if operation.record.startswith("Optimizer."):
            held = _outermost(_having(held, path) or held)
            grids = self._grids_of_updates(held)
            if not grids:
                return value.empty("several steps of a rank's optimizers have it"), None
        lacking = [f"rank {dump.number}" for dump, tensors in held if path not in tensors]
        if lacking:
            if (of_row := self._in_a_row(value, held)) is not None:
                return of_row
            self._tolerances.unknown(operation, leaf, path)
            ranks = ", ".join(dict.fromkeys(lacking[:4]))
            return value.empty(f"{ranks} of {len(held)} parts has no such tensor", "missing"), None
        parts = [(dump, tensors[path]) for dump, tensors in held]
        if roundoff_of(leaf.dtype):
            dtypes = map(attrgetter("dtype"), (leaf, *leaves_of(parts)))
            leaf = replace(leaf, dtype=max(dtypes, key=roundoff_of))
        is_gradient = phase_of(operation) == "backward" and bool(leaf.shape)
        factor = self._fitting.gradient_factor if is_gradient else 1
        try:
            return self._measured(FittedParts(operation, leaf, path, parts, grids, factor))
        except DumpError as error:
            return value.empty(str(error), "unreadable"), None

    def _grids_of_updates(self, held: Held) -> Sequence[Grid]:
        """What the ranks of these steps of optimizers may be to each other; () for none, and for several of a rank."""
        owners = [dump for dump, _ in held]
        if not owners or len({dump.number for dump in owners}) < len(owners):
            return ()
        return self._outline.grids.of(owners, 1)

    def _measured(self, value: FittedParts) -> Judged:
        """What is found of a value that all parts have.

        Raises:
            DumpError: a file cannot be read.
        """
        tolerances = self._tolerances
        fit = self._fitting.fit(value)
        if fit[0].is_wrong and value.factor != 1 and value.operation.phase == GRADIENTS:
            averaged = self._fitting.fit(replace(value, factor=1))  # they may be averaged already
            fit = min(fit, averaged, key=lambda fit: (fit[0].is_wrong, *order_of_wrong(fit)))
        finding, placement = fit[0], next(iter(fit[1]), None)
        if finding.is_wrong and tolerances.of(value.operation, value.leaf, value.path) > Relative.LARGEST_OF_A_RUN:
            finding = replace(finding, state="unjudged", message=_NOISE, reason=_NOISE, is_noise=True)
        tolerances.arrived(value.operation, finding, value.leaf, placement)
        if finding.state == "illegal" and all(dump.is_partial(part) for dump, part in value.parts):
            # Terms of a sum are legal where the run itself says so: who reads them adds them up.
            words = f"{finding.placement}, as its DTensor says"
            return replace(finding, state="placed", message="", placement=words), placement
        return _unless_uncertain(self._outline, value, finding), placement

    def _in_a_row(self, value: FittedParts, held: Held) -> Judged | None:
        """What is found of a value that stands in a row with those of all other parameters; None for none."""
        outline, operation, leaf = self._outline, value.operation, value.leaf
        is_on_one_rank = len(outline.run.ranks) == 1 and form_of([leaf]) == "tensor"
        if not is_on_one_rank or not outline.matching.is_update(operation.record):
            return None
        from pytest_msprobe.suites.sharded.placements import Grid

        with suppress(DumpError):
            part = self._rows(operation, held).value(value.path)
            if part is None:
                return None
            whole: Whole = (), loaded(leaf, outline.logical)
            of_one_rank = replace(value, grids=[Grid((), (), ((),))])
            finding, placements = self._fitting.fit_to(of_one_rank, whole, [part], "tensor")
            finding = replace(finding, placement="S(flat), all parameters in a row", held_as="S")
            self._tolerances.arrived(operation, finding, leaf, placements[0])
            return finding, placements[0]
        return None

    def _rows(self, operation: Operation, held: Held) -> Rows:
        """The rows of this step of the ranks' optimizers; those of the last one are kept."""
        from pytest_msprobe.suites.sharded.orders import Rows

        if self._latest_rows is None or self._latest_rows[0] != operation.record:
            leaves = self._outline.matching.tensors(self._outline.logical, operation.record)
            self._latest_rows = operation.record, Rows(leaves, self._outline.logical, held)
        return self._latest_rows[1]

    def _only_on_ranks(self, operation: Operation, leaves: Mapping[str, Leaf], held: Held) -> Iterator[ValueFinding]:
        """What is found of values that the logical record lacks: those of copies of its parameters can be judged."""
        others: dict[str, Leaf] = {}
        for _, tensors in held:
            for path, leaf in tensors.items():
                if path not in leaves:
                    others.setdefault(path, leaf)
        for path, leaf in others.items():
            whole, reason = "", _ONLY_RANKS
            if operation.record.startswith("Optimizer."):
                whole, reason = self._copies.original(path)
            logical = leaves.get(whole)
            if logical is None and self._outline.matching.is_update(operation.record):
                logical = self._copies.leaf(whole)
            if logical is None:
                words = reason or f"{_ONLY_RANKS}, and the logical run has no {whole}"
                finding = FittedParts(operation, leaf, path, (), ()).empty(words)
                yield replace(finding, reason=reason or _ONLY_RANKS)
                continue
            finding, _ = self._value(operation, logical, path, held, ())
            words = f"a copy of {parameter_of(whole)}"
            if finding.is_wrong:
                yield replace(finding, message=f"{words}: {finding.message}")
            else:
                yield replace(finding, placement=finding.placement and f"{finding.placement}, {words}")

    @cached_property
    def _copies(self) -> LogicalCopies:
        """What the logical run has for parameters that only ranks have."""
        logical, of_ranks = self._outline.matching.updates()
        leaves: dict[str, Leaf] = {}
        counts = Counter[str]()
        for dump, record in logical:
            tensors = self._tensors(dump, record)
            leaves |= tensors
            counts.update(tensors.keys())
        unique = {path: leaf for path, leaf in leaves.items() if counts[path] == 1}
        held = [(dump, self._tensors(dump, record)) for dump, record in of_ranks]

        def fits(path: str, leaf: Leaf) -> bool:
            having = _outermost(_having(held, path))
            grids = self._grids_of_updates(having)
            if not self._outline.updates or not grids:
                return False
            parts = [(dump, tensors[path]) for dump, tensors in having]
            with suppress(DumpError):  # a trial: nothing is noted of it
                finding, _ = self._fitting.fit(FittedParts(self._outline.updates[0], leaf, path, parts, grids))
                return finding.state == "placed"
            return False

        return LogicalCopies(unique, fits)

    def _tensors(self, dump: RankDump, record: str) -> dict[str, Leaf]:
        """The tensors of a record; none where it cannot be decoded, which its own item says."""
        with suppress(DumpError):
            return self._outline.matching.tensors(dump, record)
        return {}

    def _settings(self, operation: Operation, parts: Sequence[Calls]) -> Iterator[ValueFinding]:
        """What is found of the first setting of an optimizer, such as its learning rate, that a rank has otherwise."""
        if not self._outline.matching.is_update(operation.record):
            return
        whole = settings_of(self._outline.logical, operation.record)
        for calls in parts:
            for record in calls.records:
                if Operation.of(record, 0).name != operation.name:
                    continue
                for name, values in settings_of(calls.dump, record).items():
                    if others := [value for value in values if value not in whole.get(name, values)]:
                        logical = ", ".join(map(str, whole[name]))
                        words = f"rank {calls.dump.number} has {name} {others[0]}, the logical run {logical}"
                        yield ValueFinding(f"{SETTINGS}{name}", "unexplained", message=words)
                        return

    def _in_other_orders(self, operation: Operation, judged: Sequence[Judged]) -> Iterator[ValueFinding]:
        """The values that fit only in another order than what belongs to them, as wrong ones."""
        along: list[Along] = []
        for finding, placement in judged:
            if finding.state == "placed" and finding.tolerance is not None:
                along += Along.of(finding.path, placement, finding.tolerance)
        wrong: dict[str, str] = {}
        if operation.record.startswith("Optimizer."):
            of_parameters: dict[str, list[Along]] = defaultdict(list)
            for value in along:
                of_parameters[parameter_of(value.path)].append(value)
            for of_parameter in of_parameters.values():
                wrong |= disordered(of_parameter, {})[0]
        elif operation.phase != GRADIENTS:
            is_backward = operation.phase == "backward"
            for side in ("input.", "output."):
                # What comes into a backward is as what its forward gave.
                key = forward_of(operation), (side == "output.") is not is_backward
                of_side = [value for value in along if value.path.startswith(side)]
                moved, self._orders[key] = disordered(of_side, self._orders.get(key, {}))
                wrong |= moved
        for finding, _ in judged:
            if finding.path in wrong and (operation.phase == "backward" or not finding.is_output):
                words = f"{wrong[finding.path]}: {_OTHER_ORDER}"
                yield replace(finding, state="unexplained", message=words)


class StepJudge:
    """One training step of a sharded run, judged by the logical run.

    What is found of a record depends on those before it, by how far they are off. So records are judged in one order,
    that of execution, as far as the one that is asked about, whoever asks first.

    Attributes:
        outline: of the step.
    """

    def __init__(self, outline: StepOutline) -> None:
        self.outline = outline
        self._judged: dict[str, RecordFinding | Exception] = {}

    @cached_property
    def _judge(self) -> RecordJudge:
        outline = self.outline
        half_from = outline.matching.half_from()
        return RecordJudge(outline, Tolerances(outline.run, outline.phase, outline.number or 0, half_from))

    @cached_property
    def _order(self) -> list[Operation]:
        """All records in the order in which they are judged.

        What optimizers do says how the parameters of a step behind the first one begin.
        """
        updates = self.outline.updates if self.outline.number else []
        others = (operation for operation in self.outline.logical.operations if operation not in updates)
        return [*updates, *others]

    def _judged_alone(self, operation: Operation) -> RecordFinding:
        """What is found of the values of a record, once those before it are judged."""
        while operation.record not in self._judged:
            following = self._order[len(self._judged)]
            try:
                self._judged[following.record] = self._judge.judge(following)
            except Exception as error:  # of the item of this record, and no other
                self._judged[following.record] = error
        finding = self._judged[operation.record]
        if isinstance(finding, Exception):
            raise finding
        return finding

    def finding(self, operation: Operation) -> RecordFinding:
        """What is found of a logical record."""
        finding = self._judged_alone(operation)
        if not finding.wrong:
            return finding
        if operation.phase == GRADIENTS:
            return without_updated(finding, layer_path(operation.name), self._right_at_optimizers)
        around = self.outline.around(operation)
        return finding if around is None else without_local(finding, around.name, self.finding(around))

    @cached_property
    def _right_at_optimizers(self) -> set[str]:
        """The places of all values that records of optimizers have right."""
        right: set[str] = set()
        for operation in self.outline.logical.operations:
            if operation.record.startswith("Optimizer."):
                right.update(value.path for value in self.finding(operation).values if value.state == "placed")
        return right


def without_updated(finding: RecordFinding, layer: str, right: Collection[str]) -> RecordFinding:
    """Gradients that a dump holds as they were later are not wrong where an optimizer gets the right ones."""
    words = "is not what the backward gave, and what the optimizer gets is right"
    wrong = (value for value in finding.wrong if f"input.gradients.{layer}.{value.path}" in right)
    return finding.changed(wrong, state="unjudged", message=words)


def without_local(finding: RecordFinding, layer: str, outer: RecordFinding) -> RecordFinding:
    """Values that ranks compute otherwise are not wrong where the layer around them gives what it should.

    Args:
        finding: of a record.
        layer: name of the layer around it.
        outer: what is found of that.
    """
    is_right = "placed" in outer.states(is_output=True)
    if outer.wrong or not (is_right or any(value.is_open and value.is_output for value in outer.values)):
        return finding
    reason = "is no part of the logical value"
    words = f"{reason}; what {layer} gives is right, so the ranks compute it otherwise"
    if not is_right:
        reason += " for certain"
        words = f"{reason}; what {layer} gives was not judged"
    wrong = (value for value in finding.wrong if not value.path.startswith("parameters."))
    return finding.changed(wrong, state="unjudged", message=words, reason=reason)


def _unless_uncertain(outline: StepOutline, value: FittedParts, finding: ValueFinding) -> ValueFinding:
    """The finding, where it is certain which value of the ranks this is, and that all of them are there."""
    operation, leaf = value.operation, value.leaf
    if finding.state == "unexplained" and outline.step.missing:
        ranks = ", ".join(map(str, outline.step.missing[:8]))
        return replace(
            finding, state="missing", message=f"ranks {ranks} are missing, and the others do not hold it whole"
        )
    if not finding.is_wrong or operation.is_cell or leaf.path.startswith("parameters."):
        return finding
    if outline.phase(operation) == "optimizer":
        return finding
    has_layers = any(other.is_cell for other in outline.logical.operations)
    is_certain = outline.matching.is_certain(operation.record) and outline.run.is_certain(operation.record)
    if not roundoff_of(leaf.dtype):
        words = "numbers of elements, places or masks of a rank's part"
    elif has_layers and outline.around(operation) is None:
        words = "it is outside of all layers, where a script for several ranks does other things"
    elif not is_certain:
        words = "the ranks make other calls here, so that it is not certain which value this is"
    else:
        return finding
    return replace(finding, state="unjudged", message=words, differs=leaf.is_output or is_given(leaf))


def _outermost(held: Held) -> Held:
    """The outermost of the steps of a rank: a wrapper of optimizers steps all their parameters, and ends last."""
    outermost: list[tuple[RankDump, Mapping[str, Leaf]]] = []
    begins: list[tuple[RankDump, Mapping[str, object]]] = []
    for dump, tensors in reversed(held):
        begin = {path: leaf.statistics for path, leaf in tensors.items() if path.startswith("input.parameters.")}
        if not any(dump is other and begin.items() <= outer.items() for other, outer in begins):
            begins.append((dump, begin))
            outermost.insert(0, (dump, tensors))
    return outermost


def _having(held: Held, path: str) -> Held:
    """Those of the records that have a value at `path`."""
    return [of_record for of_record in held if path in of_record[1]]
