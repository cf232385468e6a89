"""What one run holds: its float values by their statistics, and which record uses which."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msprobe_collector.dump_format import DIRECTIONS, DumpError, is_optimizer_record
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import PlainValue, find_dtype
from pytest_msprobe.apis.fact_table import fact_of
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.comparison.sides import ComparedDump

#: Digits of a statistic that do not depend on the order of a sum.
LOOK_DIGITS = 5


@dataclass(frozen=True, slots=True)
class HeldValue:
    """One tensor, as far as its statistics tell.

    Attributes:
        record, path: where it stands: `Torch.exp.0.forward`, `output.0`.
        size: number of elements.
        shape: of the tensor.
        norm, most, least, mean: in the 2-norm, largest and smallest element, mean.
        unit: roundoff of its dtype; 0 for integers.
        is_known: whether the dump has its statistics; they are NaN otherwise.
    """

    record: str
    path: str
    size: int
    shape: tuple[int, ...]
    norm: float
    most: float
    least: float
    mean: float
    unit: float
    is_known: bool = True

    @property
    def name(self) -> str:
        """`Torch.exp.0.forward.output.0`."""
        return f"{self.record}.{self.path}"

    @property
    def look(self) -> tuple[object, ...]:
        """What equal values of one direction have in common, also where sums ran in another order."""
        return self.record.endswith(".backward"), *self.gradient_look[1:]

    @property
    def gradient_look(self) -> tuple[object, ...]:
        """What a gradient of a parameter that an optimizer gets has in common with that of the backward."""
        if not self.is_finite:
            return True, self.size, self.record, self.path
        parts = [self.most, self.least, self.mean * math.sqrt(self.size)]
        if self.norm:
            parts = [round(part / self.norm, LOOK_DIGITS) for part in parts]
        return True, self.size, f"{self.norm:.{LOOK_DIGITS}e}", *parts

    @property
    def is_finite(self) -> bool:
        """Whether its statistics are known, and finite."""
        return all(map(math.isfinite, (self.norm, self.most, self.least, self.mean)))

    @property
    def is_plain(self) -> bool:
        """Whether all elements are equal, as the only one is: an equal value elsewhere says nothing."""
        return self.most == self.least

    def is_like(self, other: HeldValue) -> bool:
        """Whether both are one value that no operation changed, in one shape or its transpose."""
        is_alike = not self.is_plain and self.is_finite and self.size == other.size
        return is_alike and self.distance(other) < Relative.DECIMALS

    def distance(self, other: HeldValue) -> float:
        """How far both are apart at least, as the norm of the difference over the larger norm.

        Each statistic of a tensor x changes by at most |x - y|, the mean by at most |x - y| / sqrt(n).
        """
        if not (self.is_finite and other.is_finite):
            return 0.0 if self.is_finite == other.is_finite else math.inf
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
        inputs, outputs: values that went in, and that it made.
        leaves: parameters that went in.
        makers: values of other records that went in, by name.
        users: records that use its outputs, by path of the output.
    """

    operation: Operation
    inputs: list[HeldValue] = field(default_factory=list)
    outputs: list[HeldValue] = field(default_factory=list)
    leaves: list[HeldValue] = field(default_factory=list)
    makers: list[str] = field(default_factory=list)
    users: dict[str, set[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`Torch.exp.0.forward`."""
        return self.operation.record

    @property
    def sources(self) -> list[str]:
        """Names of the records that made what went in."""
        return [split_name(maker)[0] for maker in self.makers]

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of its outputs."""
        return [value.shape for value in self.outputs]

    @property
    def is_movement(self) -> bool:
        """Whether it computes nothing: its outputs are elements of what went in."""
        return fact_of("movements", self.operation.name) is not None

    @property
    def is_product(self) -> bool:
        """Whether it is one of the APIs that run in a low precision where a training does."""
        return fact_of("mixed_precision", self.operation.name) is not None


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """What became of one parameter in the step.

    Attributes:
        name: in the model.
        before: the parameter as the optimizer got it.
        gradient: None where the dump does not have it.
        after: the parameter behind the step; None where the dump does not have it.
    """

    name: str
    before: HeldValue
    gradient: HeldValue | None
    after: HeldValue | None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """One run, as far as a dump holds it.

    Attributes:
        records: API calls in the order of execution, by name.
        parameters: those that optimizers changed.
        rate: largest learning rate of these.
        gradients: gradients of parameters, whole.
    """

    records: Mapping[str, HeldRecord]
    parameters: Sequence[HeldParameter] = ()
    gradients: Sequence[HeldValue] = ()
    rate: float = 0.0

    @property
    def last_backward(self) -> int:
        """Place of the last record of a gradient; -1 without any."""
        operations = (record.operation for record in self.records.values())
        return max((operation.index for operation in operations if operation.phase == "backward"), default=-1)


def held_run(dump: ComparedDump) -> HeldRun:
    """Return what a dump holds, API calls linked by the values that they use; what cannot be read is left out."""
    records: dict[str, HeldRecord] = {}
    parameters: list[HeldParameter] = []
    gradients: list[HeldValue] = []
    rates: list[float] = []
    last_alike: dict[tuple[object, ...], str] = {}
    for operation in dump.operations:
        try:
            leaves = dump.leaves(operation.record)
        except DumpError:
            continue
        values = [(leaf, value) for leaf in leaves if (value := held_value(leaf, operation)) is not None]
        if is_optimizer_record(operation.record):
            parameters += _parameters(values)
            settings = [leaf.value for leaf in leaves if _RATE.fullmatch(leaf.path)]
            rates += [it.value for it in settings if isinstance(it, PlainValue) and isinstance(it.value, float)]
        elif operation.phase == "parameters_grad":
            gradients += [value for _, value in values]
        elif operation.phase in DIRECTIONS and not operation.holds_calls:
            records[operation.record] = _record(operation, values, records, last_alike)
    gradients += [parameter.gradient for parameter in parameters if parameter.gradient is not None]
    return HeldRun(records, parameters, gradients, max(rates, default=0.0))


def _record(
    operation: Operation,
    values: Sequence[tuple[Leaf, HeldValue]],
    records: Mapping[str, HeldRecord],
    last_alike: dict[tuple[object, ...], str],
) -> HeldRecord:
    """The record of a call, linked to those before it; `last_alike` has the last output of each look."""
    held = HeldRecord(operation)
    for leaf, value in values:
        (held.outputs if leaf.is_output else held.inputs).append(value)
        if leaf.is_output:
            continue
        if leaf.provenance.leaf is not None:
            held.leaves.append(value)
            continue
        maker = leaf.provenance.made_by or ""
        # A dump may not say it, or say which layer made it.
        if split_name(maker)[0] not in records and value.is_finite and not value.is_plain:
            maker = last_alike.get(value.look, "")
        record, path = split_name(maker)
        if record in records:
            held.makers.append(maker)
            records[record].users.setdefault(path, set()).add(operation.record)
    last_alike |= {value.look: value.name for value in held.outputs}
    return held


_RATE = re.compile(r"input\.settings\.\d+\.lr")
#: `input.gradients.block.weight`, `output.0.parameters.block.weight`: side, what, and name of the parameter.
_OF_PARAMETER = re.compile(r"(input|output)(?:\.0)?\.(parameters|gradients)\.(.+)")


def _parameters(values: Sequence[tuple[Leaf, HeldValue]]) -> Iterator[HeldParameter]:
    """What an optimizer did: its record has parameters and gradients by name."""
    by_name: dict[str, dict[str, HeldValue]] = {}
    for leaf, value in values:
        if match := _OF_PARAMETER.fullmatch(leaf.path):
            by_name.setdefault(match[3], {})[f"{match[1]}.{match[2]}"] = value
    for name, parts in by_name.items():
        if "input.parameters" in parts:
            gradient, after = parts.get("input.gradients"), parts.get("output.parameters")
            yield HeldParameter(name, parts["input.parameters"], gradient, after)


def split_name(name: str) -> tuple[str, str]:
    """(record, path) of `Torch.chunk.0.forward.output.1`."""
    for mark in (".output.", ".input.", ".other_gradients."):
        record, separator, rest = name.rpartition(mark)
        if separator:
            return record, f"{mark[1:]}{rest}"
    return name, ""


def held_value(leaf: Leaf, operation: Operation | None = None) -> HeldValue | None:
    """Return the value of a leaf; None of what is no tensor."""
    dtype = find_dtype(leaf.dtype)
    if leaf.tensor is None or dtype is None:
        return None
    numbers = [float(it) for it in leaf.statistics if isinstance(it, (bool, int, float))]
    is_known = len(numbers) == 4
    most, least, mean, norm = numbers if is_known else [math.nan] * 4
    unit = unit_roundoff(dtype.name) if dtype.kind in ("float", "complex") else 0.0
    return HeldValue(
        getattr(operation, "record", ""),
        leaf.path,
        math.prod(leaf.shape),
        leaf.shape,
        norm=norm,
        most=most,
        least=least,
        mean=mean,
        unit=unit,
        is_known=is_known,
    )
