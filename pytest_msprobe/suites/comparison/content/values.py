"""What one run holds: its float values by their statistics, and which record uses which."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from msprobe_collector.dump_format import DIRECTIONS, DumpError, is_optimizer_record
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import array_dtype, find_dtype
from pytest_msprobe.numerics import unit_roundoff
from pytest_msprobe.suites.comparison.sides import ComparedDump


@dataclass(frozen=True, slots=True)
class HeldValue:
    """One tensor, as far as its statistics tell.

    Attributes:
        record, path: where it stands: `Torch.exp.0.forward`, `output.0`.
        place: of the record in the order of execution.
        size: number of elements.
        shape: of the tensor.
        norm, most, least, mean: in the 2-norm, largest and smallest element, mean.
        unit: roundoff of its dtype; 0 for integers.
    """

    record: str
    path: str
    place: int
    size: int
    shape: tuple[int, ...]
    norm: float
    most: float
    least: float
    mean: float
    unit: float

    @property
    def name(self) -> str:
        """`Torch.exp.0.forward.output.0`."""
        return f"{self.record}.{self.path}"

    @property
    def is_plain(self) -> bool:
        """Whether all elements are equal, as the only one is: an equal value elsewhere says nothing."""
        return self.most == self.least

    def is_like(self, other: HeldValue) -> bool:
        """Whether both are one value that no operation changed, in one shape or its transpose."""
        return not self.is_plain and self.size == other.size and self.distance(other) < 1e-6

    def distance(self, other: HeldValue) -> float:
        """How far both are apart at least, as the norm of the difference over the larger norm.

        Each statistic of a tensor x changes by at most |x - y|, the mean by at most |x - y| / sqrt(n).
        """
        scale = max(self.norm, other.norm)
        if scale == 0:
            return 0.0
        largest = max(abs(self.most), abs(self.least), abs(other.most), abs(other.least))
        return max(
            abs(self.norm - other.norm) / scale,
            abs(self.most - other.most) / largest,
            abs(self.least - other.least) / largest,
            abs(self.mean - other.mean) * math.sqrt(self.size) / scale,
        )


@dataclass(slots=True)
class HeldRecord:
    """One API call, forward or backward.

    Attributes:
        operation: its name taken apart.
        outputs: values that it made.
        leaves: parameters that went in.
        makers: values of other records that went in, by name.
        users: records that use its outputs, by path of the output.
    """

    operation: Operation
    outputs: list[HeldValue] = field(default_factory=list)
    leaves: list[HeldValue] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    users: dict[str, set[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`Torch.exp.0.forward`."""
        return self.operation.record


def held_records(dump: ComparedDump) -> dict[str, HeldRecord]:
    """Return the API calls of a dump in the order of execution, linked by the values that they use."""
    records: dict[str, HeldRecord] = {}
    last_alike: dict[tuple[object, ...], str] = {}
    for operation in dump.operations:
        if operation.holds_calls or operation.phase not in DIRECTIONS:
            continue
        try:
            leaves = dump.leaves(operation.record)
        except DumpError:
            continue
        held = records[operation.record] = HeldRecord(operation)
        for leaf in leaves:
            value = held_value(operation, leaf)
            if value is None:
                continue
            if leaf.is_output:
                held.outputs.append(value)
            elif leaf.provenance.leaf is not None:
                held.leaves.append(value)
            else:
                maker = leaf.provenance.made_by or ("" if value.is_plain else last_alike.get(_look(value), ""))
                record, path = split_name(maker)
                if record in records and record != operation.record:
                    held.makers.append(maker)
                    records[record].users.setdefault(path, set()).add(operation.record)
        for value in held.outputs:
            last_alike[_look(value)] = value.name
    return records


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """What became of one parameter in the step.

    Attributes:
        before: the parameter as the optimizer got it.
        results: its gradient, and the parameter behind the step, as far as the dump has them.
    """

    before: HeldValue
    results: tuple[HeldValue, ...]


def held_parameters(dump: ComparedDump) -> list[HeldParameter]:
    """Return the parameters that optimizers of a dump changed, with their gradients."""
    parameters: list[HeldParameter] = []
    for operation in dump.operations:
        if not is_optimizer_record(operation.record):
            continue
        values: dict[str, dict[str, HeldValue]] = {}
        for leaf in dump.leaves(operation.record):
            part, _, rest = leaf.path.partition(".")
            kind, _, name = rest.partition(".")
            value = held_value(operation, leaf)
            if value is not None and kind in ("parameters", "gradients"):
                values.setdefault(name, {})[f"{part}.{kind}"] = value
        for of_name in values.values():
            before = of_name.pop("input.parameters", None)
            if before is not None:
                parameters.append(HeldParameter(before, tuple(of_name.values())))
    return parameters


def _look(value: HeldValue) -> tuple[object, ...]:
    is_backward = value.record.endswith(".backward")
    return is_backward, value.size, value.norm, value.most, value.least, value.mean


def split_name(name: str) -> tuple[str, str]:
    """(record, path) of `Torch.chunk.0.forward.output.1`."""
    for mark in (".output.", ".input.", ".other_gradients."):
        record, found, rest = name.rpartition(mark)
        if found:
            return record, f"{mark[1:]}{rest}"
    return name, ""


def held_value(operation: Operation, leaf: Leaf) -> HeldValue | None:
    """The value of a leaf; None of what is no tensor, or whose statistics are not all known and finite."""
    if leaf.tensor is None:
        return None
    numbers = list(_finite(leaf))
    dtype = find_dtype(leaf.dtype)
    if len(numbers) != 4 or dtype is None:
        return None
    most, least, mean, norm = numbers
    elements = array_dtype(dtype)
    unit = unit_roundoff(elements) if elements is not None and dtype.kind in ("float", "complex") else 0.0
    size = math.prod(leaf.shape)
    return HeldValue(operation.record, leaf.path, operation.index, size, leaf.shape, norm, most, least, mean, unit)


def _finite(leaf: Leaf) -> Iterator[float]:
    for number in leaf.statistics:
        if isinstance(number, (bool, int, float)) and math.isfinite(number):
            yield float(number)
