"""What the values of a step tell without a logical run: which calls belong together, and how values are spread."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msprobe_collector.dump_format import DumpError, is_communication
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.numerics.expected import Relative, Roundoffs
from pytest_msprobe.suites.sharded.judgement import (
    SETTINGS,
    Form,
    State,
    ValueFinding,
    form_of,
    leaves_of,
    loaded,
    roundoff_of,
    widened,
)
from pytest_msprobe.suites.sharded.matching import CLIP, Key, MatchingIndex
from pytest_msprobe.suites.sharded.ranks import RankDump, ShardedStep, has_numbers, listed

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: How the values of ranks are to each other. `constant`: equal, of one number each, as zeros: shards may be so, too.
Alike = Literal["equal", "different", "constant", "unknown"]
#: What ranks of a group share: the whole model, not all parameters, not the layers.
Sharing = Literal["data", "model", "pipeline", "unknown"]
_GROUP = re.compile(rb'"group_ranks"\s*:\s*\[([0-9,\s]{1,100000})\]')
#: Names of groups whose ranks are stages of a pipeline.
STAGES = ("pp", "pipe", "pipeline", "stage")
_PARAMETER = re.compile(r"(input|output)\.(?:\d+\.)?(parameters|gradients|state)\.(.*)", re.DOTALL)
MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that make up one process group.

    Attributes:
        name: of the group.
        ranks: their numbers, ascending.
        is_stages: whether every name that these ranks have as a group is that of pipeline stages.
    """

    name: str
    ranks: tuple[int, ...]
    is_stages: bool = True

    def __str__(self) -> str:
        return f"{self.name}: ranks {listed(self.ranks)}"


@dataclass(slots=True)
class Parameter:
    """What the optimizers of one rank have of a parameter; None for what they have not.

    Attributes:
        dump: of the rank.
        record: of the step of its optimizer.
        before, gradient, after: the step.
    """

    dump: RankDump
    record: str
    before: Leaf | None = None
    gradient: Leaf | None = None
    after: Leaf | None = None


def alike(held: Sequence[tuple[RankDump, Leaf]]) -> Alike:
    """Whether values of ranks are copies; statistics tell where no tensors are.

    They are different when they are farther apart than the rounding of a whole step explains, and equal when they are
    as near as copies in float32 are: in a half dtype that rounding is nearly as large as the values, and terms of a sum
    may be within it. In between it is unknown.

    Raises:
        DumpError: a file cannot be read.
    """
    leaves = leaves_of(held)
    shape, dtype = leaves[0].shape, leaves[0].dtype
    if any((leaf.shape, leaf.dtype) != (shape, dtype) for leaf in leaves):
        return "different"
    if not all(map(are_numbers, leaves)):
        return "unknown"
    tolerance = tolerance_of(dtype)
    norms = [float(leaf.statistics[3]) for leaf in leaves]
    limit = tolerance * max(norms)
    if any(abs(norm - norms[0]) > limit for norm in norms):
        return "different"
    if (form := form_of(leaves)) == "statistics":
        said = _alike_statistics(leaves, limit)
    else:
        said = _alike_elements(held, tolerance, form)
    return "constant" if said == "equal" and all(map(is_constant, leaves)) else said


def _alike_statistics(leaves: Sequence[Leaf], most: float) -> Alike:
    """What statistics tell; no distance of copies is larger than `most`.

    None of them differs by more than the values do, the mean times the root of the number of elements among them.
    Terms of a sum and shards of a large value differ by far less: copies have the same ones, each by its own size.
    """
    first = leaves[0].statistics
    root = math.sqrt(math.prod(leaves[0].shape))
    height, norm = max(abs(first[0]), abs(first[1])), first[3]
    sizes = (height, height, norm / root, norm)
    said: Alike = "equal"
    for leaf in leaves[1:]:
        apart = [abs(other - number) for other, number in zip(leaf.statistics, first)]
        if max(*apart[:2], apart[2] * root) > most:
            return "different"
        if any(distance > Relative.LONG_SUMS * size for distance, size in zip(apart, sizes)):
            said = "unknown"
    return said


def _alike_elements(held: Sequence[tuple[RankDump, Leaf]], tolerance: float, form: Form) -> Alike:
    from pytest_msprobe.suites.sharded.placements import distance, norm_of

    whole = loaded(held[0][1], held[0][0], form)
    size = norm_of(whole)
    farthest = max(distance(loaded(leaf, dump, form), whole, 1.0) for dump, leaf in held[1:])
    most = widened(tolerance, form)
    if not farthest <= most * size:
        return "different"
    surely = tolerance / most * tolerance if most else 0.0  # an estimate of a sketch may be too small
    return "equal" if farthest <= min(surely, tolerance_of("float32")) * size else "unknown"


def are_numbers(leaf: Leaf) -> bool:
    """Whether a value has elements, and all of its statistics are finite."""
    return math.prod(leaf.shape) > 0 and has_numbers(leaf)


def is_constant(leaf: Leaf) -> bool:
    """Whether all elements are one number, so that equal contents say nothing."""
    return bool(leaf.statistics[0] == leaf.statistics[1])


def tolerance_of(dtype: str) -> float:
    """How far copies of this dtype may be apart, relative to their norm."""
    return min(Relative.LARGEST_OF_A_RUN, Roundoffs.OTHER_ORDER * roundoff_of(dtype))


class StepSpread:
    """How a step is spread over its ranks.

    Attributes:
        step: the ranks.
        rows: the process groups whose ranks all have dumps; all ranks, where no header says groups.
    """

    def __init__(self, step: ShardedStep) -> None:
        self.step = step
        self.rows = _rows(step)
        self._indexes: dict[int, dict[str, tuple[Key, int]]] = {}
        self._counts: dict[int, Mapping[Key, int]] = {}
        self._records: dict[int, dict[tuple[Key, int], str]] = {}
        for number, dump in step.ranks.items():
            identities, self._counts[number] = _identities(dump)
            self._indexes[number] = identities
            self._records[number] = dict(zip(identities.values(), identities))
        self._sharing = cache(self._sharing_of)

    def together(self, dump: RankDump, record: str) -> dict[int, str]:
        """The records that are the same call as `record` of a rank, by ranks that run the same program."""
        identity = self._indexes[dump.number][record]
        count = self._counts[dump.number][identity[0]]
        together, is_communicated = {}, identity[0][0] == "communication"
        for number, records in self._records.items():
            is_there = identity in records and self._counts[number].get(identity[0]) == count
            # Equal names mean equal calls on two ranks of a communication's group, and where they are not two stages.
            if number == dump.number or (is_there and (is_communicated or not self.are_stages(dump.number, number))):
                together[number] = records[identity]
        return together

    def are_stages(self, rank: int, other: int) -> bool:
        """Whether two ranks are stages of one pipeline."""
        return any(other in row.ranks for row in self.rows_of(rank, "pipeline"))

    def crossed(self, rank: int) -> list[RankGroup]:
        """The groups that a rank is in."""
        return [row for row in self.rows if rank in row.ranks]

    def group_of(self, dump: RankDump, record: str) -> tuple[int, ...]:
        """The ranks that a communication is between; all of them, where it names none."""
        return group_of(dump, record) or tuple(self.step.ranks)

    def sharing(self, row: RankGroup) -> Sharing:
        """What the ranks of a group share, as their parameters tell."""
        return self._sharing(row)

    def _sharing_of(self, row: RankGroup) -> Sharing:
        tables = [self.parameters[number] for number in row.ranks]
        if row.is_stages:
            return "pipeline"
        names, first = [*map(set, tables)], self.step.ranks[row.ranks[0]]
        are_others = any(others - names[0] and names[0] - others for others in names[1:])
        if are_others and any(map(is_message, first.operations)):
            return "pipeline"
        sharing: Sharing = "unknown"
        for name in sorted(set.intersection(*names)):
            held = [
                (it.dump, it.before) for it in map(itemgetter(name), tables) if it.before and are_numbers(it.before)
            ]
            if len(held) < len(tables):
                continue
            with suppress(DumpError):
                # No rounding comes between copies of a parameter: what is nearly equal is a shard in a half dtype.
                if alike(held) not in ("equal", "constant"):
                    return "model"
                sharing = "data"
        return sharing

    @cached_property
    def parameters(self) -> dict[int, dict[str, Parameter]]:
        """What the optimizers of each rank have, by the names of parameters."""
        return {number: _parameters(dump) for number, dump in self.step.ranks.items()}

    def rows_of(self, rank: int, *sharing: Sharing) -> list[RankGroup]:
        """The groups that a rank is in, of these kinds."""
        return [row for row in self.crossed(rank) if self.sharing(row) in sharing]


def is_message(operation: Operation) -> bool:
    """Whether a call sends to one other rank, or receives from it."""
    return is_communication(operation.record) and operation.bare in MESSAGES


def group_of(dump: RankDump, record: str) -> tuple[int, ...]:
    """The ranks of the process group that a communication names; () for none."""
    match = _GROUP.search(dump.text(record))
    return () if match is None else tuple(map(int, re.findall(rb"\d+", match[1])))


def _rows(step: ShardedStep) -> list[RankGroup]:
    rows: dict[tuple[int, ...], RankGroup] = {}
    for dump in step.ranks.values():
        for name, group in dump.membership.groups.items():
            ranks = tuple(sorted(group.ranks))
            if all(rank in step.ranks for rank in ranks):
                row = rows.get(ranks, RankGroup(name, ranks))
                rows[ranks] = replace(row, is_stages=row.is_stages and name.lower() in STAGES)
    everyone = tuple(step.ranks)
    if not rows and len(everyone) > 1:
        rows[everyone] = RankGroup("all", everyone, is_stages=False)
    return list(rows.values())


def _identities(dump: RankDump) -> tuple[dict[str, tuple[Key, int]], Counter[Key]]:
    """What each record is, and which one of these: the same on ranks that run the same program; how many there are."""
    keys = MatchingIndex(dump).keys
    counts = Counter[Key]()
    identities = {}
    for operation in dump.operations:
        if is_communication(operation.record):
            ranks = dump.number if is_message(operation) else group_of(dump, operation.record)
            key: Key = ("communication", operation.name, str(ranks))
        else:
            key = keys[operation.record]
            if operation.record.startswith("Optimizer."):
                key = (*key, operation.name)
        identities[operation.record] = key, counts[key]
        counts[key] += 1
    return identities, counts


def parameter_values(dump: RankDump, record: str) -> Iterator[tuple[str, str, str, Leaf]]:
    """(`input` or `output`, `parameters`, `gradients` or `state`, name, value) of what an optimizer's record holds.

    Raises:
        DumpError: the record cannot be decoded.
    """
    for leaf in dump.leaves(record):
        match = _PARAMETER.fullmatch(leaf.path)
        if match is not None and leaf.tensor is not None:
            yield match[1], match[2], match[3], leaf


#: What of a parameter stands at a place of an optimizer's record.
_FIELDS = {("input", "parameters"): "before", ("input", "gradients"): "gradient"}


def _parameters(dump: RankDump) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for operation in dump.operations:
        if not operation.record.startswith("Optimizer.") or operation.record.startswith(CLIP):
            continue
        with suppress(DumpError):
            for side, what, name, leaf in parameter_values(dump, operation.record):
                if what != "state":
                    field = _FIELDS.get((side, what), "after")
                    setattr(parameters.setdefault(name, Parameter(dump, operation.record)), field, leaf)
    return parameters


def plain(leaf: Leaf | None) -> Any:
    """The number or text of a plain value; None for another one."""
    return getattr(leaf.value, "value", None) if leaf is not None else None


@dataclass(frozen=True)
class RankCall:
    """One call, on the ranks that made it.

    Attributes:
        spread: of the step.
        dump: of the rank whose item it is.
        operation: there.
        records: its records, by rank.
    """

    spread: StepSpread
    dump: RankDump
    operation: Operation
    records: Mapping[int, str]

    @cached_property
    def leaves(self) -> dict[int, dict[str, Leaf]]:
        """Tensors of each rank by their places. Raises DumpError."""
        ranks = self.spread.step.ranks
        return {number: ranks[number].held(record) for number, record in self.records.items()}

    def places(self, front: str) -> list[str]:
        """The places of the tensors of the rank whose item it is that begin so."""
        return [path for path in self.leaves[self.dump.number] if path.startswith(front)]

    def values(self, path: str) -> dict[int, Leaf]:
        """One value on the ranks that have it."""
        return {number: leaves[path] for number, leaves in self.leaves.items() if path in leaves}

    def alike(self, path: str, ranks: Sequence[int]) -> Alike:
        """How one value is on these ranks; `unknown` where one of them has not got it. Raises DumpError."""
        held = self.values(path)
        if not held.keys() >= set(ranks):
            return "unknown"
        return alike([(self.spread.step.ranks[rank], held[rank]) for rank in ranks])

    def found(self, path: str, state: State, message: str = "", **more: Any) -> ValueFinding:
        """A finding on the value at `path`."""
        leaf = self.leaves[self.dump.number].get(path) or next(iter(self.values(path).values()))
        return replace(ValueFinding.of(leaf, path, state, message), **more)

    def array(self, number: int, path: str) -> Array:
        """A tensor of a rank in float64. Raises DumpError."""
        array: Array = loaded(self.leaves[number][path], self.spread.step.ranks[number])
        return array

    def has_tensors(self, path: str) -> bool:
        """Whether all ranks have the elements of a value."""
        return all(leaf.data_name for leaf in self.values(path).values())


class RankLaw(Protocol):
    """One law."""

    def findings(self, call: RankCall) -> Iterator[ValueFinding]:
        """What it says of the values of a call. Raises DumpError when a file cannot be read."""


#: Settings that say how an optimizer computes, not what.
_HOW = ("parameters", "foreach", "fused", "capturable", "differentiable")


def settings_of(dump: RankDump, record: str) -> dict[str, list[object]]:
    """What the groups of an optimizer were set to, by the names of settings that say what it computes."""
    settings: dict[str, list[object]] = {}
    with suppress(DumpError):
        for leaf in dump.leaves(record):
            value, name = plain(leaf), leaf.path.removeprefix(SETTINGS).partition(".")[2]
            if leaf.path.startswith(SETTINGS) and isinstance(value, (int, float)) and name not in _HOW:
                settings.setdefault(name, []).append(value)
    return settings
