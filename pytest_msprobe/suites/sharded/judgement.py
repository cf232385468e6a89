"""What is found of one logical record: for each of its values how the ranks hold it, and whether that may be.

One logical value is in memory at a time, with the values of the ranks that make it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis.fact_table import text_of
from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.suites.sharded.ranks import RankDump
from pytest_msprobe.verdicts import FigureWire

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

    @classmethod
    def of(cls, leaf: Leaf, path: str, state: State, message: str = "") -> ValueFinding:
        """The finding on the value of `leaf`, called `path` on the ranks."""
        return cls(path, state, leaf.dtype, leaf.shape, message=message, is_output=leaf.is_output)

    @property
    def is_wrong(self) -> bool:
        """Whether it is not what the logical run has."""
        return self.state in WRONG

    @property
    def is_open(self) -> bool:
        """Whether something that fits was found, though it is not judged, such as shards that may be in any order."""
        return self.state == "unjudged" and (self.distance is not None or self.may_fit)


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
        wrong = filter(attrgetter("is_wrong"), self.values)
        return tuple(sorted(wrong, key=_badness) if self.phase == "optimizer" else wrong)

    def changed(self, values: Iterable[ValueFinding], **fields: Any) -> RecordFinding:
        """The finding with these values, `fields` of them changed, in place of those that it has at the same places."""
        changes = {value.path: replace(value, **fields) for value in values}
        return replace(self, values=tuple(changes.get(value.path, value) for value in self.values))

    def states(self, *, is_output: bool) -> set[State]:
        """The states of what comes out, or of what goes in."""
        return {value.state for value in self.values if value.is_output is is_output}

    @property
    def has_good_inputs(self) -> bool:
        """Whether inputs are known and none of them is wrong."""
        states = self.states(is_output=False)
        return "placed" in states and states.isdisjoint(WRONG)


def _badness(value: ValueFinding) -> tuple[bool, bool, float]:
    distance = value.distance if value.state == "unexplained" else None
    return not value.path.startswith(SETTINGS), value.is_output, -(math.inf if distance is None else distance)


def phase_of(operation: Operation) -> Phase:
    """Which of the three passes of a step a record belongs to."""
    if operation.record.startswith("Optimizer."):
        return "optimizer"
    return "backward" if operation.phase in ("backward", GRADIENTS) else "forward"


def forward_of(operation: Operation) -> str:
    """The forward record of a call or layer."""
    if operation.is_cell:
        return f"{operation.name}.forward.{operation.number}"
    return f"{operation.call}.forward"


def may_be_partial(operation: Operation, leaf: Leaf) -> bool:
    """Whether terms of a sum may stand at a place: not in parameters, in the optimizer, before nonlinear operations."""
    if operation.record.startswith("Optimizer.") or leaf.path.startswith("parameters."):
        return False
    if operation.phase == "forward" and not leaf.is_output:
        return text_of("linearity", operation.name) != "nonlinear"
    return True


def form_of(leaves: Iterable[Leaf]) -> Form:
    """What all these values have: tensors, else a sketch where there is no tensor, else statistics at most."""
    form: Form = "tensor"
    for leaf in leaves:
        if not leaf.data_name:
            if leaf.tensor is None or leaf.tensor.sketch is None:
                return "statistics"
            form = "sketch"
    return form


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
        from pytest_msprobe.suites.sharded.without_tensors import PartStatistics

        return PartStatistics.of(leaf)
    if form == "sketch":
        from msprobe_collector.dump_format.sketches import Sketch
        from pytest_msprobe.suites.sharded.without_tensors import SketchedValue

        if not leaf.data_name and (sketch := dump.sketch(leaf)) is not None:
            return SketchedValue.of(sketch)
        array = dump.tensors.load(leaf.tensor, leaf.place)
        return SketchedValue.of(Sketch.of(array), array)
    values = dump.tensors.load(leaf.tensor, leaf.place)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def leaves_of(held: Iterable[tuple[RankDump, Leaf]]) -> list[Leaf]:
    """The values that ranks hold, without the ranks."""
    return [leaf for _, leaf in held]


def all_loaded(held: Iterable[tuple[RankDump, Leaf]], form: Form = "tensor") -> list[Any]:
    """The values that ranks hold, as `loaded` gives them. Raises DumpError."""
    return [loaded(leaf, dump, form) for dump, leaf in held]


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
