"""What an argument or output of a record can be, and where in a dump it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Union

from msprobe_collector.dump_format.dtypes import Dtype
from msprobe_collector.dump_format.errors import DumpError

#: Types of a dtype that is given as an argument.
DTYPE_TYPES = frozenset({"mindspore.dtype", "torch.dtype"})

Statistic = Union[float, int, bool, None]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A recorded tensor: its dtype, shape, statistics, and perhaps the file that holds its values.

    Attributes:
        dtype: element type; None for a NumPy array of strings or objects.
        maximum, minimum, mean, norm: recorded statistics in the tensor's own unit; None where the dump holds none.
        data_name: name of the file with the values inside the tensor folder, or None.
        is_numpy: True for a `numpy.ndarray` argument, which is passed to the API as such.
        requires_grad, md5, fingerprint: as recorded; "" where the dump has none.
        nan_count, inf_count: elements that the collector counted; None where it wrote no such number.
        dtype_text: the dtype as the dump spells it: `Float32`, `torch.float32`.
    """

    dtype: Dtype | None
    shape: tuple[int, ...]
    maximum: Statistic
    minimum: Statistic
    mean: Statistic
    norm: Statistic
    data_name: str | None
    is_numpy: bool = False
    requires_grad: str = ""
    md5: str = ""
    nan_count: int | None = None
    inf_count: int | None = None
    fingerprint: str = ""
    dtype_text: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for dimension in self.shape:
            size *= dimension
        return size


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A bool, int, float or str argument; `kind` is its type's name, also a NumPy scalar's (`float32`)."""

    kind: str
    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class DtypeValue:
    """A dtype given as an argument; `type_name` and `text` are the type and name that the dump writes."""

    dtype: Dtype
    type_name: str = field(default="", compare=False)
    text: str = field(default="", compare=False)


class SizeValue(tuple[PlainValue, ...]):
    """A `torch.Size`: a tuple of whole numbers that the dump writes as one value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """Something that the dump names but does not hold, such as a process group.

    Attributes:
        type_name: its type.
        content: the JSON value that stands for it, for tables.
        parts: fields of an object that is written with its own fields, such as a point-to-point operation.
        tensor: what can be read of a tensor of unknown type.
    """

    type_name: str
    content: Any = field(default="", compare=False)
    parts: Mapping[str, Value] | None = field(default=None, compare=False)
    tensor: TensorValue | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"dtype {self.content}" if self.type_name in DTYPE_TYPES else self.type_name


@dataclass(frozen=True, slots=True)
class MalformedValue(OpaqueValue):
    """JSON that has none of the documented forms; `problem` is what is wrong at `steps` inside it.

    `tensor` is what can be read of one that should be a tensor.
    """

    problem: str = ""
    steps: tuple[str | int, ...] = ()


Value = Union[
    TensorValue, PlainValue, DtypeValue, OpaqueValue, slice, tuple["Value", ...], dict[str, "Value"], EllipsisType, None
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a dump a value stands. Its text is only made when it is needed: many are made, few are printed.

    Attributes:
        file, record: path of the dump.json and full record name.
        root: field of the record, `input_args`.
        steps: indices and keys inside that field.
    """

    file: str
    record: str
    root: str
    steps: tuple[str | int, ...] = ()

    def __truediv__(self, step: str | int) -> Place:
        return Place(self.file, self.record, self.root, (*self.steps, step))

    @property
    def field(self) -> str:
        """Field and steps as text: `input_args[0].shape`."""
        return self.root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)

    def fault(self, problem: str, *steps: str | int) -> DumpError:
        """The error that says `problem` about this place, or about the one that `steps` lead to from it."""
        place = Place(self.file, self.record, self.root, (*self.steps, *steps))
        return DumpError(problem, file=self.file, record=self.record, field=place.field)


def tensors_in(value: Value) -> list[TensorValue]:
    """Every tensor inside `value`, outermost and leftmost first."""
    if isinstance(value, TensorValue):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]
