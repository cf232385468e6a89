"""What the values of a step tell without a logical run: which calls belong together, and how values are spread."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
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
    loaded,
    roundoff_of,
    widened,
)
from pytest_msprobe.suites.sharded.matching import CLIP, Key, MatchingIndex
from pytest_msprobe.suites.sharded.ranks import RankDump, ShardedStep, listed

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
    first = held[0][1]
    if any((leaf.shape, leaf.dtype) != (first.shape, first.dtype) for _, leaf in held):
        return "different"
    if any(not are_numbers(leaf) for _, leaf in held):
        return "unknown"
    tolerance = tolerance_of(first.dtype)
    scale = max(float(leaf.statistics[3]) for _, leaf in held)
    if any(abs(leaf.statistics[3] - first.statistics[3]) > tolerance * scale for _, leaf in held):
        return "different"
    said: Alike
    if (form := form_of(leaf for _, leaf in held)) == "statistics":
        said = _alike_statistics([leaf for _, leaf in held], tolerance * scale)
    else:
        said = _alike_elements(held, tolerance, form)
    return "constant" if said == "equal" and all(is_constant(leaf) for _, leaf in held) else said


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
    is_finite = all(isinstance(number, (int, float)) and math.isfinite(number) for number in leaf.statistics)
    return is_finite and math.prod(leaf.shape) > 0


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
        self._indexes = {number: _identities(dump) for number, dump in step.ranks.items()}
        self._counts = {number: _counted(identities) for number, identities in self._indexes.items()}
        self._records = {
            number: dict(zip(identities.values(), identities)) for number, identities in self._indexes.items()
        }
        self._sharing: dict[RankGroup, Sharing] = {}

    def together(self, dump: RankDump, record: str) -> dict[int, str]:
        """The records that are the same call as `record` of a rank, by ranks that run the same program."""
        identity = self._indexes[dump.number][record]
        count = self._counts[dump.number][identity[0]]
        together = {}
        for number, records in self._records.items():
            is_there = identity in records and self._counts[number][identity[0]] == count
            if number == dump.number or (is_there and self._is_beside(dump.number, number, identity[0])):
                together[number] = records[identity]
        return together

    def _is_beside(self, rank: int, other: int, key: Key) -> bool:
        """Whether equal names mean equal calls on two ranks: communication is its group's, others not of two stages."""
        if key[0] == "communication":
            return True
        return not any(
            self.sharing(row) == "pipeline" and {rank, other} <= set(row.ranks) for row in self._crossed(rank)
        )

    def _crossed(self, rank: int) -> list[RankGroup]:
        return [row for row in self.rows if rank in row.ranks]

    def group_of(self, dump: RankDump, record: str) -> tuple[int, ...]:
        """The ranks that a communication is between; all of them, where it names none."""
        return group_of(dump, record) or tuple(self.step.ranks)

    def sharing(self, row: RankGroup) -> Sharing:
        """What the ranks of a group share, as their parameters tell."""
        if row not in self._sharing:
            self._sharing[row] = self._sharing_of(row)
        return self._sharing[row]

    def _sharing_of(self, row: RankGroup) -> Sharing:
        tables = [self.parameters[number] for number in row.ranks]
        if row.is_stages:
            return "pipeline"
        names = [set(table) for table in tables]
        if any(others - names[0] and names[0] - others for others in names[1:]) and self._has_messages(row):
            return "pipeline"
        sharing: Sharing = "unknown"
        for name in sorted(set.intersection(*names)):
            parameters = [table[name] for table in tables]
            held = [
                (parameter.dump, parameter.before)
                for parameter in parameters
                if parameter.before is not None and are_numbers(parameter.before)
            ]
            if len(held) < len(tables):
                continue
            with suppress(DumpError):
                # No rounding comes between copies of a parameter: what is nearly equal is a shard in a half dtype.
                if alike(held) not in ("equal", "constant"):
                    return "model"
                sharing = "data"
        return sharing

    def _has_messages(self, row: RankGroup) -> bool:
        dump = self.step.ranks[row.ranks[0]]
        return any(is_communication(operation.record) and operation.bare in MESSAGES for operation in dump.operations)

    @cached_property
    def parameters(self) -> dict[int, dict[str, Parameter]]:
        """What the optimizers of each rank have, by the names of parameters."""
        return {number: _parameters(dump) for number, dump in self.step.ranks.items()}

    def rows_of(self, rank: int, *sharing: Sharing) -> list[RankGroup]:
        """The groups that a rank is in, of these kinds."""
        return [row for row in self._crossed(rank) if self.sharing(row) in sharing]

    def kinds(self, leaves: Mapping[int, Leaf], rank: int) -> dict[RankGroup, Alike]:
        """How a value of the same call is over each group of `rank` of which all ranks have it. Raises DumpError."""
        kinds: dict[RankGroup, Alike] = {}
        for row in self._crossed(rank):
            if all(number in leaves for number in row.ranks):
                kinds[row] = alike([(self.step.ranks[number], leaves[number]) for number in row.ranks])
        return kinds


def group_of(dump: RankDump, record: str) -> tuple[int, ...]:
    """The ranks of the process group that a communication names; () for none."""
    match = _GROUP.search(dump.text(record))
    if match is None:
        return ()
    return tuple(int(text) for text in match[1].split(b",") if text.strip())


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


def _identities(dump: RankDump) -> dict[str, tuple[Key, int]]:
    """What each record is, and which one of these: the same on all ranks that run the same program."""
    keys = MatchingIndex(dump).keys
    counts: dict[Key, int] = {}
    identities = {}
    for operation in dump.operations:
        if is_communication(operation.record):
            is_message = operation.bare in MESSAGES
            ranks = dump.number if is_message else group_of(dump, operation.record)
            key: Key = ("communication", operation.name, str(ranks))
        else:
            key = keys[operation.record]
            if operation.record.startswith("Optimizer."):
                key = (*key, operation.name)
        identities[operation.record] = key, counts.get(key, 0)
        counts[key] = counts.get(key, 0) + 1
    return identities


def _counted(identities: Mapping[str, tuple[Key, int]]) -> dict[Key, int]:
    counts: dict[Key, int] = {}
    for key, place in identities.values():
        counts[key] = max(counts.get(key, 0), place + 1)
    return counts


def parameter_values(dump: RankDump, record: str) -> Iterator[tuple[str, str, str, Leaf]]:
    """(`input` or `output`, `parameters`, `gradients` or `state`, name, value) of what an optimizer's record holds.

    Raises:
        DumpError: the record cannot be decoded.
    """
    for leaf in dump.leaves(record):
        match = _PARAMETER.fullmatch(leaf.path)
        if match is not None and leaf.tensor is not None:
            yield match[1], match[2], match[3], leaf


def _parameters(dump: RankDump) -> dict[str, Parameter]:
    parameters: dict[str, Parameter] = {}
    for operation in dump.operations:
        if not operation.record.startswith("Optimizer.") or operation.record.startswith(CLIP):
            continue
        try:
            values: list[tuple[str, str, str, Leaf]] = list(parameter_values(dump, operation.record))
        except DumpError:
            continue
        for side, what, name, leaf in values:
            if what == "state":
                continue
            field = {("input", "parameters"): "before", ("input", "gradients"): "gradient"}.get((side, what), "after")
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
        return {number: tensors(self.spread.step.ranks[number], record) for number, record in self.records.items()}

    def values(self, path: str) -> dict[int, Leaf]:
        """One value on the ranks that have it."""
        return {number: leaves[path] for number, leaves in self.leaves.items() if path in leaves}

    def found(self, path: str, state: State, message: str = "", **more: Any) -> ValueFinding:
        """A finding on the value at `path`."""
        leaf = self.leaves[self.dump.number].get(path) or next(iter(self.values(path).values()))
        return ValueFinding(path, state, leaf.dtype, leaf.shape, message=message, is_output=leaf.is_output, **more)

    def array(self, number: int, path: str) -> Array:
        """A tensor of a rank in float64. Raises DumpError."""
        array: Array = loaded(self.leaves[number][path], self.spread.step.ranks[number])
        return array

    def has_tensors(self, path: str) -> bool:
        """Whether all ranks have the elements of a value."""
        return all(leaf.data_name for leaf in self.values(path).values())


def tensors(dump: RankDump, record: str) -> dict[str, Leaf]:
    """The tensors of a record by their places. Raises DumpError."""
    return {leaf.path: leaf for leaf in dump.leaves(record) if leaf.tensor is not None}


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
