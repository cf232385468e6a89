"""How the parts of ranks make up one logical value: placements that fit, by tensors, sketches or statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, filterfalse, product
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.judgement import (
    Form,
    State,
    ValueFinding,
    all_loaded,
    form_of,
    leaves_of,
    loaded,
    may_be_partial,
    phase_of,
    widened,
)
from pytest_msprobe.suites.sharded.outline import StepOutline
from pytest_msprobe.suites.sharded.ranks import RankDump, Stated, contradicted, has_numbers
from pytest_msprobe.suites.sharded.tolerances import Tolerances

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.outline import Whole
    from pytest_msprobe.suites.sharded.placements import Axis, Grid, Placement

    #: What is found of a value, and the placements that come nearest to it.
    Fit = tuple[ValueFinding, list[Placement]]

_UNTOLD = "statistics do not tell what the ranks of the logical run hold together: dump tensors there"
#: Calls of a layer that are put together where no one of them can be.
_MOST_CALLS = 64


@dataclass(frozen=True, slots=True)
class FittedParts:
    """A value of the logical run, and the values of the ranks that ought to make it up.

    Attributes:
        operation: the record that has it.
        leaf: what the logical run has.
        path: place of the value on the ranks, which of a copy of a parameter is another one.
        parts: of the ranks, each with its dump.
        grids: what these ranks may be to each other.
        factor: how many times the logical gradient those of the ranks are.
    """

    operation: Operation
    leaf: Leaf
    path: str
    parts: Sequence[tuple[RankDump, Leaf]]
    grids: Sequence[Grid]
    factor: float = 1

    def empty(self, message: str, state: State = "unjudged", *, may_fit: bool = False) -> ValueFinding:
        """The finding of a value of which nothing was measured, with the reason."""
        return replace(ValueFinding.of(self.leaf, self.path, state, message), may_fit=may_fit)

    @property
    def is_loss(self) -> bool:
        """Whether it is a number that the forward made: ranks with parts of the batch have the mean over theirs."""
        is_made = self.leaf.is_output or bool(self.leaf.provenance.made_by)
        return not self.leaf.shape and is_made and phase_of(self.operation) == "forward"


class Fitting:
    """Finds how ranks hold the values of a step."""

    def __init__(self, outline: StepOutline, tolerances: Tolerances) -> None:
        self._outline, self._run, self._matching = outline, outline.run, outline.matching
        self._tolerances = tolerances
        self._has_backward = "backward" in map(attrgetter("phase"), outline.logical.operations)

    @property
    def gradient_factor(self) -> float:
        """How many times the gradients of the logical run those of the ranks are, before they are averaged."""
        more, less = self._factors
        return more / less

    @cached_property
    def _factors(self) -> tuple[int, int]:
        return factors_of(self._outline, self.fit)

    def fit(self, value: FittedParts) -> Fit:
        """What is found of a value, and its nearest placements.

        Raises:
            DumpError: a file cannot be read.
        """
        leaf, parts = value.leaf, leaves_of(value.parts)
        logical = leaves_of(self._run.held(leaf))
        if not any(math.prod(held.shape) for held in logical):
            return value.empty("it has no elements"), []
        if len(logical) > 1 and len(leaf.shape) == 1 < len(parts[0].shape):
            return value.empty("the logical run holds flat shards of it, which tell no shape"), []
        form = form_of([*parts, *logical])
        if form != "tensor" and len(leaf.shape) > 1 and all(len(part.shape) == 1 for part in parts):
            return value.empty("the ranks hold flat shards of it, which only tensors tell"), []
        fit = self._by(form, value)
        if form == "sketch" and (fit[0].state == "unexplained" or not fit[1]):
            return where_sketches_fail(fit, self._by("statistics", value), leaf, parts)
        return fit

    def _by(self, form: Form, value: FittedParts) -> Fit:
        """What tensors, sketches or statistics say of a value."""
        held = self._run.held(value.leaf)
        parts = all_loaded(value.parts, form)
        if form == "statistics" and None in (*parts, *all_loaded(held, form)):
            return value.empty("not every part has its tensor or finite statistics"), []
        dump, leaf = value.parts[0]
        stated = dump.stated(leaf)
        nearest: Fit | None = None
        is_whole = False
        for whole in self._wholes(value, held, form):
            finding, placements = self.fit_to(value, whole, parts, form)
            finding = replace(checked(finding, placements, stated, dump), shape=whole[1].shape)
            if finding.state == "placed":
                if not self._is_settled(value, whole[0], held):
                    finding = unless_doubtful(finding, placements)
                return finding, placements
            fit = finding, placements
            nearest = min(nearest or fit, fit, key=order_of_wrong)
            is_whole |= all(axis.kind == "R" for axis in whole[0])
        if form == "statistics" and not is_whole and may_be_partial(value.operation, value.leaf):
            return value.empty(_UNTOLD, may_fit=True), []
        if nearest is None:
            return value.empty("what the ranks of the logical run hold makes up no value"), []
        if nearest[0].is_wrong and form != "statistics" and (fit_of_calls := self._fit_of_all_calls(value, form)):
            finding, placements = fit_of_calls
            return checked(finding, placements, stated, dump), placements
        return nearest

    def _wholes(self, value: FittedParts, held: Sequence[tuple[RankDump, Leaf]], form: Form) -> Iterator[Whole]:
        """What the logical run may have, of which its ranks hold `held`."""
        tolerance = min(Relative.LARGEST_OF_A_RUN, self._tolerances.of(value.operation, value.leaf, value.path))
        is_legal = may_be_partial(value.operation, value.leaf)
        for axes, whole in self._run.wholes(held, tolerance, form, may_be_partial=is_legal):
            yield axes, whole / self._shares(axes) if value.is_loss else whole

    def _shares(self, axes: Sequence[Axis]) -> int:
        """How many times the loss of the logical run its ranks have together, where each has the mean over its part."""
        less = self._factors[1]
        added = [axis.size for axis in axes if axis.kind == "P"]
        return less if added and math.prod(added) == less else 1

    def _is_settled(self, value: FittedParts, axes: Sequence[Axis], held: Sequence[tuple[RankDump, Leaf]]) -> bool:
        """Whether it is certain that ranks of the logical run hold terms of a sum, where they are taken for that."""
        if not axes or self._run.is_partial(held):
            return True
        if value.is_loss:
            return self._shares(axes) > 1
        # Gradients that optimizers get are judged there, and are no terms of a sum.
        return value.operation.phase == GRADIENTS and all(self._matching.updates())

    def fit_to(self, value: FittedParts, whole: Whole, parts: list[Any], form: Form) -> Fit:
        """What placements of the values `parts` say, where `whole` is what the logical run has."""
        operation, leaf, path, tolerances = value.operation, value.leaf, value.path, self._tolerances
        room = tolerances.room(leaf, path) if form == "tensor" else None
        if value.factor != 1:
            parts = [part / value.factor for part in parts]
        tolerance = widened(min(Relative.LARGEST_OF_A_RUN, tolerances.of(operation, leaf, path)), form)
        ranks = len(parts) + len(self._run.ranks) - 1
        close = widened(tolerances.close(operation, leaf, path, ranks), form)
        if tolerances.is_only_close(operation):
            tolerance = min(close, tolerance)
        fit = self._tried(value, whole, parts, min(close, tolerance), room=room)
        if fit[0].state != "placed" and close < tolerance:
            fit = self._tried(value, whole, parts, tolerance, room=room)
        if not (fit[0].is_wrong and value.is_loss):
            return fit
        for count in self._counts_of_means(value):
            finding, placements = self._tried(value, whole, [part / count for part in parts], tolerance)
            if finding.state == "placed":
                return replace(finding, placement=finding.placement.replace("P(sum)", "mean")), placements
        return fit

    def _counts_of_means(self, value: FittedParts) -> Collection[int]:
        """Over how many parts of the batch a loss may be the mean."""
        if not self._has_backward:
            return _products(value.grids[0].sizes)[1:]
        return {self._factors[0], len(self._matching.parts(value.operation.record)[0][0].records)}

    def _tried(
        self,
        value: FittedParts,
        whole: Whole,
        parts: list[Any],
        tolerance: float,
        *,
        room: Any = None,
        calls: int = 1,
    ) -> Fit:
        """What the placements of `parts` say that fit within `tolerance`, over the first grid that has such ones."""
        from pytest_msprobe.suites.sharded.placements import tried

        floor = calls * self._tolerances.floor(value.operation, value.leaf, value.path)
        nearest: list[Placement] = []
        for grid in value.grids:
            placements = tried(whole[1], parts, grid, tolerance, floor, room)
            if whole[0]:
                placements = [replace(placement, logical=whole[0]) for placement in placements]
            if placements and placements[0].distance <= tolerance:
                return finding_of(value, placements, grid, tolerance), placements
            nearest += placements
        nearest.sort(key=lambda placement: placement.distance)
        return finding_of(value, nearest, value.grids[0], tolerance), nearest

    def _fit_of_all_calls(self, value: FittedParts, form: Form) -> Fit | None:
        """What is found of a value of all calls of a layer together, where the ranks cut the batch in another order.

        Ranks that each take several microbatches of their own part of the batch have none of those of the logical run.
        """
        operation, leaf, path = value.operation, value.leaf, value.path
        records, calls_of_ranks = self._matching.all_calls(operation.record)
        if not 1 < len(records) <= _MOST_CALLS or not calls_of_ranks:
            return None
        logical, parts, shapes = [], [], set()
        try:
            for name in records:
                held = self._run.held(self._matching.tensors(self._outline.logical, name)[path])
                logical.append(held)
                shapes.add(tuple(leaf.shape for _, leaf in held))
            for calls in calls_of_ranks:
                parts += [(calls.dump, self._matching.tensors(calls.dump, name)[path]) for name in calls.records]
            by_rank = list(chain.from_iterable(zip(*logical)))
            if len(shapes) > 1 or form_of(leaves_of((*parts, *by_rank))) != form:
                return None
            values = [loaded(leaf, dump, form) / value.factor for dump, leaf in parts]
        except (DumpError, KeyError):
            return None
        if leaf.is_output and not leaf.shape and value.factor == 1:
            # The mean of the loss over more parts than the logical run has calls.
            values = [part / self.gradient_factor for part in values]
        together = replace(value, grids=self._outline.grids_of(calls_of_ranks))
        tolerance = widened(min(Relative.LARGEST_OF_A_RUN, self._tolerances.of(operation, leaf, path)), form)
        is_legal = may_be_partial(operation, leaf)
        for whole in self._run.wholes(by_rank, tolerance, form, may_be_partial=is_legal, calls=len(records)):
            finding, placements = self._tried(together, whole, values, tolerance, calls=len(records))
            if finding.state == "placed":
                words = f"{finding.placement}, all {len(records)} calls together"
                # The calls are in the order of the ranks, which that of the logical run need not be.
                placements = [replace(placement, pair=None) for placement in placements]
                return replace(finding, placement=words, shape=whole[1].shape), placements
        return None


def factors_of(outline: StepOutline, fit: Callable[[FittedParts], Fit]) -> tuple[int, int]:
    """How many times those of the whole model the gradients of the ranks are, and those of the logical run.

    Where each rank, or each microbatch, takes the mean of the loss over its own part of the batch, gradients are as
    many times larger as there are parts; so are those of the ranks of a logical run. The first gradient that is
    sharded along the batch tells.
    """
    backwards = [operation for operation in outline.logical.operations if operation.phase == "backward"]
    of_layers = list(filter(attrgetter("is_cell"), backwards))
    for operation in of_layers or backwards:
        with suppress(DumpError):
            if factors := _factors_of_record(outline, fit, operation):
                return factors
    return 1, 1


def _factors_of_record(
    outline: StepOutline, fit: Callable[[FittedParts], Fit], operation: Operation
) -> tuple[int, int] | None:
    """The factors that the first gradient of a record tells; None for none."""
    calls_of_ranks, reason = outline.matching.parts(operation.record)
    tensors = outline.matching.tensors(outline.logical, operation.record)
    leaf = next((leaf for leaf in tensors.values() if leaf.shape), None)
    if reason or leaf is None:
        return None
    held = outline.held(calls_of_ranks)
    parts = [(dump, of_record[leaf.path]) for dump, of_record in held if leaf.path in of_record]
    if len(parts) < len(held):
        return None
    value = FittedParts(operation, leaf, leaf.path, parts, outline.grids_of(calls_of_ranks))
    owners = [dump for dump, _ in outline.run.held(leaf)]
    of_sum = None
    for less, more in product(_counts(outline.run.grids.of(owners, 1)), _counts(value.grids)):
        finding, placements = fit(replace(value, factor=more / less))
        is_by_parts = any(_is_by_parts(held.axes, more) and _is_by_parts(held.logical, less) for held in placements)
        if is_by_parts and (finding.state == "placed" or finding.is_open):
            if not finding.is_partial:
                return more, less
            of_sum = of_sum or (more, less)  # half of what all ranks have makes up a sum, too
    return of_sum


def _counts(grids: Sequence[Grid]) -> list[int]:
    """How many parts groups of these ranks may make up together, ascending."""
    return sorted(set(chain.from_iterable(_products(grid.sizes) for grid in grids)))


def _products(sizes: Sequence[int]) -> list[int]:
    subsets = chain.from_iterable(combinations(sizes, count) for count in range(len(sizes) + 1))
    return sorted(set(map(math.prod, subsets)))


def _is_by_parts(axes: Sequence[Axis], factor: int) -> bool:
    """Whether a value is sharded over groups that make up the `factor`."""
    return factor == 1 or factor in _products([axis.size for axis in axes if axis.kind == "S"])


def finding_of(value: FittedParts, placements: Sequence[Placement], grid: Grid, tolerance: float) -> ValueFinding:
    """What the placements that were tried over `grid`, the nearest first, say of a value."""
    leaf, operation = value.leaf, value.operation
    if operation.phase != "forward":
        placements = list(filterfalse(attrgetter("has_others_beyond"), placements))
    is_partial, fitting = attrgetter("is_partial"), _fitting(placements, tolerance)
    legal = fitting
    if not may_be_partial(operation, leaf):
        legal = list(filterfalse(is_partial, fitting))
    best = next(iter(legal or fitting or placements), None)
    state: State = "placed" if legal else "unexplained"
    message = ""
    if fitting and not legal:
        state = "illegal"
        message = f"the ranks hold terms of a sum that nothing has added: {best}; it must be equal or sharded"
    elif best is None:
        message = "nothing that the ranks hold gives it: no shapes fit together"
    elif not legal:
        away = f"{best.distance:.3g} away"
        if math.isinf(best.distance):
            away = "at no finite distance: other elements are NaN or Inf, or the logical value is 0"
        nearest = factor_words(best, grid, tolerance) or f"the nearest is {best}, {away}"
        message = f"nothing that the ranks hold gives it: {nearest}"
    finding = replace(
        value.empty(message, state),
        tolerance=tolerance,
        tried=tuple(f"{placement}: {placement.distance:.3g}" for placement in placements[:4]),
        is_ambiguous=len(legal) > 1 or any(map(attrgetter("is_rank_by_rank"), legal)),
        is_partial=bool(fitting) and all(map(is_partial, fitting)),
    )
    if best is None:
        return finding
    return replace(finding, placement=str(best), distance=best.distance, apart=best.apart, held_as=best.held_as)


def factor_words(placement: Placement, grid: Grid, tolerance: float) -> str:
    """How many times the logical value the ranks have, where that is all that is wrong; "" otherwise."""
    factor, away = placement.factor, placement.distance
    if not math.isfinite(away) or not math.isfinite(factor) or abs(factor - 1) < Relative.DECIMALS or factor == 0:
        return ""
    if math.sqrt(max(0.0, away**2 - (factor - 1) ** 2)) > max(tolerance, Relative.DECIMALS) * abs(factor):
        return ""
    sizes = [f"{name} is {size}" for name, size in zip(grid.names, grid.sizes) if _is_near(factor, size)]
    times = f"{factor:.6g} x what the logical run has"
    return f"{times}: {' or '.join(sizes)}" if sizes else times


def _is_near(factor: float, size: int) -> bool:
    root = math.sqrt(size)
    sizes = size, 1 / size, root, 1 / root
    return any(abs(factor - wanted) < Relative.SIZE_OF_DIMENSION * wanted for wanted in sizes)


def where_sketches_fail(fit: Fit, by_statistics: Fit, leaf: Leaf, parts: Sequence[Leaf]) -> Fit:
    """What is said of a value that no placement of sketches gives: shards that they cannot tell may do so.

    Statistics say it alone where no sketches of shards, or of the parts of the logical run, can be put together.

    Args:
        fit: by sketches.
        by_statistics: what these say.
        leaf: the logical value.
        parts: of the ranks.
    """
    from pytest_msprobe.suites.sharded.placements import near

    finding, placements = by_statistics
    words = f"{finding.placement}, by statistics" if finding.placement else ""
    only_statistics = replace(finding, placement=words), placements
    if fit[0].state == "unjudged":
        return only_statistics
    if finding.tolerance is None:
        return fit if has_numbers(leaf) or all(map(has_numbers, parts)) else by_statistics
    # Of shards any order may be right. Sums alone are too little: those of gradients may be zero.
    fitting = []
    for placement in placements:
        limit = finding.tolerance if placement.has_shards else near(finding.tolerance)
        if placement.distance <= limit and (placement.has_shards or not placement.is_partial):
            fitting.append(placement)
    if not fitting:
        return fit
    has_shards = attrgetter("has_shards")
    are_tried = any(math.isfinite(placement.distance) for placement in filter(has_shards, fit[1]))
    if finding.state == "placed" and all(map(has_shards, fitting)) and not are_tried:
        return only_statistics
    words = f"statistics allow {fitting[0]}, and sketches do not tell shards in another order; dump tensors there"
    return replace(finding, state="unjudged", message=words), fitting


def unless_doubtful(finding: ValueFinding, placements: Sequence[Placement]) -> ValueFinding:
    """The finding, where what ranks of the logical run hold are terms of a sum for certain if it takes them as such."""
    fitting = _fitting(placements, finding.tolerance)
    if not fitting or not all(map(attrgetter("is_doubtful"), fitting)):
        return finding
    words = "only the sum of what ranks of the logical run hold gives it, and they may be parts"
    return replace(finding, state="unjudged", message=words)


def _fitting(placements: Sequence[Placement], tolerance: float | None) -> list[Placement]:
    if tolerance is None:
        return []
    return [placement for placement in placements if placement.distance <= tolerance]


def order_of_wrong(fit: Fit) -> tuple[bool, float]:
    """What is least for the finding to report where no whole of the logical run fits: an illegal or near one."""
    distance = fit[0].distance
    return fit[0].state != "illegal", math.inf if distance is None else distance


def checked(
    finding: ValueFinding, placements: Sequence[Placement], stated: Sequence[Stated], dump: RankDump
) -> ValueFinding:
    """The finding; wrong where no placement that fits is the one that a DTensor says of itself."""
    if finding.state not in ("placed", "illegal"):
        return finding
    readings = map(attrgetter("axes"), _fitting(placements, finding.tolerance))
    if (said := contradicted([*readings], stated, dump)) is None:
        return finding
    words = f"its DTensor says {said.placement} over {said.name}, and its values are {finding.placement}"
    return replace(finding, state="unexplained", message=words)
