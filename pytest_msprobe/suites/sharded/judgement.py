"""What is found of one logical record: for each of its values how the ranks hold it, and whether that may be.

One logical value is in memory at a time, with the values of the ranks that make it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis.topics import text_of
from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.suites.sharded.ranks import RankDump, Stated, contradicted
from pytest_msprobe.verdicts import FigureWire

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.placements import Grid, Placement

#: `placed`: a legal placement gives it. `illegal`: only one that may not be. `unexplained`: none does.
#: `missing`: not every rank that must has it. `unreadable`: a file cannot be read. `unjudged`: no numbers to judge by.
State = Literal["placed", "illegal", "unexplained", "missing", "unreadable", "unjudged"]
#: What values are judged by.
Form = Literal["tensor", "sketch", "statistics"]
#: Places of what an optimizer was set to.
SETTINGS = "input.settings."
Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
WRONG: tuple[State, ...] = ("illegal", "unexplained")


@dataclass(frozen=True, slots=True)
class ValueFinding(FigureWire):
    """How the ranks hold one value of a logical record.

    Attributes:
        path: of the value in the record.
        state: see `State`.
        dtype, shape: of the logical value.
        placement: the nearest one, in words; "" for none.
        distance: of that one, relative; None where nothing was measured.
        apart: the same, relative to the value alone where it cancels, and with elements that are left out.
        tolerance: largest distance of one that fits.
        message: one line on what is wrong or missing; "" for a value that is placed.
        tried: placements with their distances, the nearest first.
        is_output: whether the operation made it.
        is_ambiguous: whether several placements fit, as of a value of zeros: none is reported.
        is_partial: whether only terms of a sum fit.
        held_as: what a rank holds by that placement: all of it, a shard, or terms of a sum.
        reason: of a value that is not judged, why, without what is its own; "" where `message` has nothing of that.
        is_noise: whether it is not judged because what it is made of is within its own noise.
        differs: of a value that is not judged, whether it is another one, if it is the one that the ranks have.
        may_fit: of a value that is not judged, whether nothing was compared, and what the ranks hold may be right.
    """

    path: str
    state: State
    dtype: str = ""
    shape: tuple[int, ...] = ()
    placement: str = ""
    distance: float | None = None
    apart: float | None = None
    tolerance: float | None = None
    message: str = ""
    tried: tuple[str, ...] = ()
    is_output: bool = False
    is_ambiguous: bool = False
    is_partial: bool = False
    held_as: Literal["R", "S", "P"] = "R"
    reason: str = ""
    is_noise: bool = False
    differs: bool = False
    may_fit: bool = False

    @property
    def is_wrong(self) -> bool:
        """Whether it is not what the logical run has."""
        return self.state in WRONG


@dataclass(frozen=True, slots=True)
class RecordFinding(FigureWire):
    """What is found of one logical record.

    Attributes:
        record: its name.
        order: place in the execution of the logical run.
        phase: forward, backward or optimizer.
        values: in the order of the record; () where nothing was put together.
        ranks: that hold it.
        reason: why it was not put together; "" where it was.
    """

    record: str
    order: int
    phase: Phase
    values: tuple[ValueFinding, ...] = ()
    ranks: tuple[int, ...] = ()
    reason: str = ""

    @property
    def wrong(self) -> tuple[ValueFinding, ...]:
        """Its values that are not what the logical run has; of an optimizer settings come first, then what is worst."""
        found = [value for value in self.values if value.is_wrong]
        return tuple(sorted(found, key=_badness) if self.phase == "optimizer" else found)

    @property
    def has_good_inputs(self) -> bool:
        """Whether inputs are known and none of them is wrong."""
        inputs = [value for value in self.values if not value.is_output]
        return any(value.state == "placed" for value in inputs) and not any(value.is_wrong for value in inputs)


def _badness(value: ValueFinding) -> tuple[bool, bool, float]:
    distance = value.distance if value.state == "unexplained" else None
    return not value.path.startswith(SETTINGS), value.is_output, -(math.inf if distance is None else distance)


def phase_of(operation: Operation) -> Phase:
    """Which of the three passes of a step a record belongs to."""
    if operation.record.startswith("Optimizer."):
        return "optimizer"
    return "backward" if operation.phase in ("backward", GRADIENTS) else "forward"


def may_be_partial(operation: Operation, leaf: Leaf) -> bool:
    """Whether terms of a sum may stand at a place: not in parameters, in the optimizer, before nonlinear operations."""
    if operation.record.startswith("Optimizer.") or leaf.path.startswith("parameters."):
        return False
    if operation.phase == "forward" and not leaf.is_output:
        return text_of("linearity", operation.name) != "nonlinear"
    return True


def form_of(leaves: Iterable[Leaf]) -> Form:
    """What all these values have: tensors, else a sketch where there is no tensor, else statistics at most."""
    found: Form = "tensor"
    for leaf in leaves:
        if not leaf.data_name:
            if leaf.tensor is None or leaf.tensor.sketch is None:
                return "statistics"
            found = "sketch"
    return found


def widened(tolerance: float, form: Form) -> float:
    """A tolerance, with what the estimate of a sketch adds to it, or statistics that are written as decimals."""
    if form == "statistics":
        return max(tolerance, Relative.STATISTICS)
    return tolerance * Times.ESTIMATE if form == "sketch" else tolerance


def loaded(leaf: Leaf, dump: RankDump, form: Form = "tensor") -> Any:
    """The values of a tensor in float64 or complex128, or what is known of them in their place.

    None where statistics are not finite. Raises DumpError.
    """
    import numpy as np

    assert leaf.tensor is not None
    if form == "statistics":
        from pytest_msprobe.suites.sharded.statistics_only import Statistics

        return Statistics.of(leaf)
    if form == "sketch":
        from msprobe_collector.dump_format.sketches import Sketch
        from pytest_msprobe.suites.sharded.sketched import Sketched

        if not leaf.data_name and (sketch := dump.sketch(leaf)) is not None:
            return Sketched.of(sketch)
        array = dump.tensors.load(leaf.tensor, leaf.place)
        return Sketched.of(Sketch.of(array), array)
    found = dump.tensors.load(leaf.tensor, leaf.place)
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)


def roundoff_of(dtype_text: str) -> float:
    """Unit roundoff of a dtype as dumps write it; 0 for what is no number and for whole ones: they must be equal."""
    from pytest_msprobe.numerics.dtypes import unit_roundoff

    try:
        return unit_roundoff(dtype_text)
    except ValueError:
        return 0.0


def is_given(leaf: Leaf) -> bool:
    """Whether a value is a parameter, or whole numbers such as labels: not what the run computes."""
    is_whole = not roundoff_of(leaf.dtype) and "bool" not in leaf.dtype.lower()
    return bool(leaf.provenance.leaf) or leaf.path.startswith("parameters.") or is_whole


def factor_words(placement: Placement, grid: Grid, tolerance: float) -> str:
    """How many times the logical value the ranks have, where that is all that is wrong; "" otherwise."""
    factor, away = placement.factor, placement.distance
    if not math.isfinite(away) or not math.isfinite(factor) or abs(factor - 1) < 1e-6 or factor == 0:
        return ""
    if math.sqrt(max(0.0, away**2 - (factor - 1) ** 2)) > max(tolerance, 1e-6) * abs(factor):
        return ""
    sizes = [f"{name} is {size}" for name, size in zip(grid.names, grid.sizes) if _is_near(factor, size)]
    times = f"{factor:.6g} x what the logical run has"
    return f"{times}: {' or '.join(sizes)}" if sizes else times


def _is_near(factor: float, size: int) -> bool:
    return any(
        abs(factor - wanted) < 1e-3 * wanted for wanted in (size, 1 / size, math.sqrt(size), 1 / math.sqrt(size))
    )


def finding_of(
    leaf: Leaf, path: str, operation: Operation, found: Sequence[Placement], grid: Grid, tolerance: float
) -> ValueFinding:
    """What the placements that were tried say of a value."""
    found = [one for one in found if operation.phase == "forward" or not one.has_others_beyond]
    fitting = [placement for placement in found if placement.distance <= tolerance]
    legal = [one for one in fitting if may_be_partial(operation, leaf) or not one.is_partial]
    best = next(iter(legal or fitting or found), None)
    state: State = "placed" if legal else "illegal" if fitting else "unexplained"
    message = ""
    if state == "illegal":
        message = f"the ranks hold terms of a sum that nothing has added: {best}; it must be equal or sharded"
    elif state == "unexplained":
        words = factor_words(best, grid, tolerance) if best is not None else ""
        near = f"the nearest is {best}, {_away(best.distance)}" if best is not None else "no shapes fit together"
        message = f"nothing that the ranks hold gives it: {words or near}"
    return ValueFinding(
        path,
        state,
        dtype=leaf.dtype,
        shape=leaf.shape,
        placement=str(best) if best is not None else "",
        distance=best.distance if best is not None else None,
        apart=best.apart if best is not None else None,
        tolerance=tolerance,
        message=message,
        tried=tuple(f"{one}: {one.distance:.3g}" for one in found[:4]),
        is_output=leaf.is_output,
        is_ambiguous=len(legal) > 1 or any(one.is_rank_by_rank for one in legal),
        is_partial=bool(fitting) and all(one.is_partial for one in fitting),
        held_as=best.held_as if best is not None else "R",
    )


def where_sketches_fail(
    found: tuple[ValueFinding, list[Placement]],
    by_statistics: tuple[ValueFinding, list[Placement]],
    leaf: Leaf,
    parts: Sequence[Leaf],
) -> tuple[ValueFinding, list[Placement]]:
    """What is said of a value that no placement of sketches gives: shards that they cannot tell may do so.

    Statistics say it alone where no sketches of shards, or of the parts of the logical run, can be put together.

    Args:
        found: by sketches.
        by_statistics: what these say.
        leaf: the logical value.
        parts: of the ranks.
    """
    from pytest_msprobe.suites.sharded.placements import near

    def is_sharded(one: Placement) -> bool:
        return any(axis.kind == "S" for axis in one.axes)

    finding, others = by_statistics
    told = replace(finding, placement=f"{finding.placement}, by statistics" if finding.placement else ""), others
    if found[0].state == "unjudged":
        return told
    if finding.tolerance is None:
        is_sudden = _is_finite(leaf) and not all(map(_is_finite, parts))
        return found if is_sudden or all(map(_is_finite, parts)) else by_statistics
    # Of shards any order may be right. Sums alone are too little: those of gradients may be zero.
    limits = finding.tolerance, near(finding.tolerance)
    fitting = [one for one in others if one.distance <= limits[not is_sharded(one)]]
    fitting = [one for one in fitting if is_sharded(one) or not one.is_partial]
    if not fitting:
        return found
    are_tried = any(is_sharded(one) and math.isfinite(one.distance) for one in found[1])
    if finding.state == "placed" and all(map(is_sharded, fitting)) and not are_tried:
        return told
    words = f"statistics allow {fitting[0]}, and sketches do not tell shards in another order; dump tensors there"
    return replace(finding, state="unjudged", message=words), fitting


def undoubted(finding: ValueFinding, found: Sequence[Placement]) -> ValueFinding:
    """The finding, where what ranks of the logical run hold are terms of a sum for certain if it takes them as such."""
    fitting = [one for one in found if finding.tolerance is not None and one.distance <= finding.tolerance]
    if not fitting or not all(one.is_doubtful for one in fitting):
        return finding
    return replace(
        finding,
        state="unjudged",
        message="only the sum of what ranks of the logical run hold gives it, and they may be parts",
    )


def farness(found: tuple[ValueFinding, list[Placement]]) -> tuple[bool, float]:
    """What is least for the finding that is told where no whole of the logical run fits: an illegal or near one."""
    distance = found[0].distance
    return found[0].state != "illegal", math.inf if distance is None else distance


def checked(
    finding: ValueFinding, tried: Sequence[Placement], stated: Sequence[Stated], dump: RankDump
) -> ValueFinding:
    """The finding; wrong where no placement that fits is the one that a DTensor says of itself."""
    if finding.state not in ("placed", "illegal"):
        return finding
    fitting = [one.axes for one in tried if finding.tolerance is not None and one.distance <= finding.tolerance]
    if (said := contradicted(fitting, stated, dump)) is None:
        return finding
    words = f"its DTensor says {said.placement} over {said.name}, and its values are {finding.placement}"
    return replace(finding, state="unexplained", message=words)


def _away(distance: float) -> str:
    if math.isinf(distance):
        return "at no finite distance: other elements are NaN or Inf, or the logical value is 0"
    return f"{distance:.3g} away"


def _is_finite(leaf: Leaf) -> bool:
    return all(isinstance(one, (int, float)) and math.isfinite(one) for one in leaf.statistics)
