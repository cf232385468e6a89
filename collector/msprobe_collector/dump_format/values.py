"""What an argument or output of a record can be, and how its JSON form is decoded.

Every form of the existing collectors is known: tensors, Python scalars, slices, Ellipsis, dtypes, NumPy scalars and
arrays, lists, dicts and null. Others (process groups, devices) become an `OpaqueValue`, which no engine can rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Union

from msprobe_collector.dump_format.dtypes import Dtype, find_dtype
from msprobe_collector.dump_format.errors import DumpError

#: The existing collector stops at 400; no real argument comes near this, and Python recursion must not be the limit.
_MAX_DEPTH = 100
_MAX_DIMENSION = 1 << 48
_TENSOR_TYPES = frozenset({"mindspore.Tensor", "torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray"})
_DTYPE_TYPES = frozenset({"mindspore.dtype", "torch.dtype"})
_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

Statistic = Union[float, int, bool, None]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """A recorded tensor: its dtype, shape, statistics, and perhaps the file that holds its values.

    Attributes:
        dtype: element type; None for a NumPy array of strings or objects.
        maximum, minimum, mean, norm: recorded statistics in the tensor's own unit; None where the dump holds none.
        data_name: name of the file with the values inside the tensor folder, or None.
        is_numpy: True for a `numpy.ndarray` argument, which is passed to the API as such.
    """

    dtype: Dtype | None
    shape: tuple[int, ...]
    maximum: Statistic
    minimum: Statistic
    mean: Statistic
    norm: Statistic
    data_name: str | None
    is_numpy: bool = False

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
    """A dtype given as an argument."""

    dtype: Dtype


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """Something that the dump names but does not hold, such as a process group."""

    type_name: str


Value = Union[
    TensorValue,
    PlainValue,
    DtypeValue,
    OpaqueValue,
    slice,
    tuple["Value", ...],
    dict[str, "Value"],
    EllipsisType,
    None,
]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a dump a value stands. Its text is only made when it is needed: one is made per value, few are printed.

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

    def fault(self, problem: str) -> DumpError:
        """The error that says `problem` about this place."""
        return DumpError(problem, file=self.file, record=self.record, field=self.field)


def decode_value(encoded: Any, place: Place, *, depth: int = 0) -> Value:
    """The typed form of one JSON value of a record.

    Raises:
        DumpError: the value has none of the documented forms.
    """
    if encoded is None:
        return None
    if depth > _MAX_DEPTH:
        raise place.fault(f"nested deeper than {_MAX_DEPTH} levels, the limit of this reader")
    if isinstance(encoded, list):
        return tuple(decode_value(item, place / index, depth=depth + 1) for index, item in enumerate(encoded))
    if isinstance(encoded, dict):
        if isinstance(encoded.get("type"), str):
            return _decode_tagged(encoded["type"], encoded, place)
        if isinstance(encoded.get("class_type"), str):
            return OpaqueValue(encoded["class_type"])
        return {key: decode_value(item, place / key, depth=depth + 1) for key, item in encoded.items()}
    raise place.fault(f"expected an object with a type, a list or null, found {_shown(encoded)}")


def tensors_in(value: Value) -> Iterator[TensorValue]:
    """Every tensor inside `value`, outermost and leftmost first."""
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def _decode_tagged(type_name: str, encoded: dict[str, Any], place: Place) -> Value:
    if type_name in _TENSOR_TYPES:
        return _decode_tensor(type_name, encoded, place)
    if "value" not in encoded:
        return OpaqueValue(type_name)
    value = encoded["value"]
    if type_name in _DTYPE_TYPES:
        return _decode_dtype(value, place)
    if type_name == "slice":
        return _decode_slice(value, place)
    if type_name == "ellipsis":
        return Ellipsis
    if type_name == "torch.Size" and isinstance(value, list):
        return tuple(_decode_plain("int", item, place / index) for index, item in enumerate(value))
    return _decode_plain(type_name, value, place)


def _decode_plain(kind: str, value: Any, place: Place) -> Value:
    base = kind.rstrip("_0123456789")
    if base == "str":
        if isinstance(value, str):
            return PlainValue(kind, value)
    elif base == "bool":
        if isinstance(value, bool):
            return PlainValue(kind, value)
    elif base in ("int", "uint"):
        if isinstance(value, int) and not isinstance(value, bool):
            return PlainValue(kind, value)
    elif base == "float":
        number = _NONFINITE.get(value, value) if isinstance(value, str) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and _fits_float(number):
            return PlainValue(kind, float(number))
    else:
        return OpaqueValue(kind)
    raise place.fault(f"type {kind!r} does not fit its value {_shown(value)}")


def _decode_dtype(value: Any, place: Place) -> Value:
    dtype = find_dtype(value) if isinstance(value, str) else None
    if dtype is None:
        # A keyword called `dtype` is written with this type whatever its value was ("3" for the number 3).
        if isinstance(value, str) and value:
            return OpaqueValue(f"dtype {value}")
        raise place.fault(f"expected the name of a dtype, found {_shown(value)}")
    return DtypeValue(dtype)


def _decode_slice(value: Any, place: Place) -> slice:
    if not isinstance(value, list) or len(value) != 3 or not all(_is_int_or_none(bound) for bound in value):
        raise place.fault(f"expected [start, stop, step] of whole numbers or null, found {_shown(value)}")
    return slice(*value)


def _decode_tensor(type_name: str, encoded: dict[str, Any], place: Place) -> TensorValue:
    is_numpy = type_name == "numpy.ndarray"
    dtype_name = encoded.get("dtype")
    dtype = find_dtype(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None and not is_numpy:
        raise (place / "dtype").fault(f"unknown tensor dtype {_shown(dtype_name)}")
    data_name = encoded.get("data_name")
    # The existing collector writes -1 where a tensor's file could not be saved.
    if data_name == -1:
        data_name = None
    if data_name is not None and not isinstance(data_name, str):
        raise (place / "data_name").fault(f"expected a file name, found {_shown(data_name)}")
    maximum, minimum, mean, norm = (_statistic(encoded.get(key), place / key) for key in ("Max", "Min", "Mean", "Norm"))
    shape = _decode_shape(encoded.get("shape"), place / "shape")
    return TensorValue(dtype, shape, maximum, minimum, mean, norm, data_name, is_numpy)


def _decode_shape(shape: Any, place: Place) -> tuple[int, ...]:
    if not isinstance(shape, list):
        raise place.fault(f"expected a list of whole numbers, found {_shown(shape)}")
    for dimension in shape:
        if not isinstance(dimension, int) or isinstance(dimension, bool) or not 0 <= dimension <= _MAX_DIMENSION:
            raise place.fault(f"expected a list of whole numbers from 0 to 2**48, found {_shown(shape)}")
    return tuple(shape)


def _statistic(value: Any, place: Place) -> Statistic:
    number = _NONFINITE.get(value, value) if isinstance(value, str) else value
    if number is None or (isinstance(number, (bool, int, float)) and _fits_float(number)):
        return number
    raise place.fault(f"expected a number, true, false or null, found {_shown(value)}")


def _fits_float(number: float) -> bool:
    """Whether float(number) is possible: a whole number in JSON has no limit."""
    return not isinstance(number, int) or number.bit_length() < 1024


def _is_int_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
