"""How the JSON form of a record's values is decoded.

Every form of the existing collectors is known: tensors, Python scalars, slices, Ellipsis, dtypes, NumPy scalars and
arrays, lists, dicts and null. Others (process groups, devices) become an `OpaqueValue`, which no engine can rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msprobe_collector.dump_format.dtypes import find_dtype
from msprobe_collector.dump_format.fields import CHECKSUM, DATA_NAME, FINGERPRINT, INF_COUNT, NAN_COUNT, STATISTICS
from msprobe_collector.dump_format.values import (
    DTYPE_TYPES,
    DtypeValue,
    MalformedValue,
    OpaqueValue,
    Place,
    PlainValue,
    SizeValue,
    Statistic,
    TensorValue,
    Value,
)

#: The existing collector stops at 400; no real argument comes near this, and Python recursion must not be the limit.
_MAX_DEPTH = 100
_MAX_DIMENSION = 1 << 48
_TENSOR_TYPES = frozenset({"mindspore.Tensor", "torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray"})
#: As the reader quotes them, and as dumps of older tools write them, with blanks around them.
_NONFINITE = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "-infinity": float("-inf"),
}


class _Misfit(Exception):
    """What is wrong with a value, and where inside it."""

    def __init__(self, problem: str, *steps: str | int) -> None:
        self.problem = problem
        self.steps = steps


def decode_value(encoded: Any, depth: int = 0) -> Value:
    """The typed form of one JSON value of a record at `depth`; what has none is a `MalformedValue` inside it."""
    if encoded is None:
        return None
    if depth > _MAX_DEPTH:
        problem = f"nested deeper than {_MAX_DEPTH} levels, the limit of this reader"
        return MalformedValue("", tensor=_readable_part({}), problem=problem)
    if isinstance(encoded, list):
        return tuple([decode_value(item, depth + 1) for item in encoded])
    if isinstance(encoded, dict):
        if isinstance(encoded.get("type"), str):
            return _tagged(encoded["type"], encoded)
        found = {key: decode_value(item, depth + 1) for key, item in encoded.items()}
        class_name = encoded.get("class_type")
        return OpaqueValue(class_name, parts=found) if isinstance(class_name, str) else found
    problem = f"expected an object with a type, a list or null, found {_shown(encoded)}"
    return MalformedValue(type(encoded).__name__, encoded, problem=problem)


def refuse_malformed(value: Value, place: Place) -> None:
    """Refuse a `value`, which stands at `place`, when it or a value inside it is malformed.

    Raises:
        DumpError: it is; the text names the innermost place.
    """
    if isinstance(value, MalformedValue):
        raise place.fault(value.problem, *value.steps)
    if isinstance(value, (tuple, dict)):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, (MalformedValue, tuple, dict)):
                refuse_malformed(item, place / step)


def _tagged(type_name: str, encoded: dict[str, Any]) -> Value:
    """The value of an object that gives its type."""
    try:
        return _typed(type_name, encoded)
    except _Misfit as misfit:
        return MalformedValue(type_name, _content(encoded), None, _tensor_part(encoded), misfit.problem, misfit.steps)


def _content(encoded: dict[str, Any]) -> Any:
    return encoded.get("value", encoded.get("group_ranks", ""))


def _typed(type_name: str, encoded: dict[str, Any]) -> Value:
    if type_name in _TENSOR_TYPES:
        return _tensor(type_name, encoded)
    if "value" not in encoded:
        return OpaqueValue(type_name, _content(encoded), tensor=_tensor_part(encoded))
    value = encoded["value"]
    if type_name in DTYPE_TYPES:
        return _dtype(type_name, value)
    if type_name == "slice":
        return _slice(value)
    if type_name == "ellipsis":
        return Ellipsis
    if type_name == "torch.Size" and isinstance(value, list):
        return _size(value)
    return _plain(type_name, value)


def _plain(kind: str, value: Any) -> PlainValue | OpaqueValue:
    base = kind.rstrip("_0123456789")
    if base == "str":
        if isinstance(value, str):
            return PlainValue(kind, value)
    elif base == "bool":
        if isinstance(value, bool):
            return PlainValue(kind, value)
    elif base in ("int", "uint"):
        if _is_int(value):
            return PlainValue(kind, value)
    elif base == "float":
        number = _number(value)
        if isinstance(number, (int, float)) and not isinstance(number, bool) and _fits_float(number):
            return PlainValue(kind, float(number))
    else:
        return OpaqueValue(kind, value)
    raise _Misfit(f"type {kind!r} does not fit its value {_shown(value)}")


def _size(numbers: list[Any]) -> SizeValue:
    for index, number in enumerate(numbers):
        if not _is_int(number):
            raise _Misfit(f"type 'int' does not fit its value {_shown(number)}", index)
    return SizeValue(PlainValue("int", number) for number in numbers)


def _dtype(type_name: str, value: Any) -> DtypeValue | OpaqueValue:
    if not isinstance(value, str) or not value:
        raise _Misfit(f"expected the name of a dtype, found {_shown(value)}")
    dtype = find_dtype(value)
    # A keyword called `dtype` is written with this type whatever its value was ("3" for the number 3).
    return OpaqueValue(type_name, value) if dtype is None else DtypeValue(dtype, type_name, value)


def _slice(value: Any) -> slice:
    if not isinstance(value, list) or len(value) != 3 or not all(bound is None or _is_int(bound) for bound in value):
        raise _Misfit(f"expected [start, stop, step] of whole numbers or null, found {_shown(value)}")
    return slice(*value)


def _tensor(type_name: str, encoded: dict[str, Any]) -> TensorValue:
    is_numpy = type_name == "numpy.ndarray"
    dtype_name = encoded.get("dtype")
    dtype = find_dtype(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None and not is_numpy:
        raise _Misfit(f"unknown tensor dtype {_shown(dtype_name)}", "dtype")
    data_name = encoded.get(DATA_NAME)
    # The existing collector writes -1 where a tensor's file could not be saved.
    if data_name == -1:
        data_name = None
    if data_name is not None and not isinstance(data_name, str):
        raise _Misfit(f"expected a file name, found {_shown(data_name)}", DATA_NAME)
    maximum, minimum, mean, norm = [_statistic(encoded.get(key), key) for key in STATISTICS]
    shape = _shape(encoded.get("shape"))
    return TensorValue(dtype, shape, maximum, minimum, mean, norm, data_name, is_numpy, *_secondary(encoded))


def _secondary(encoded: dict[str, Any]) -> tuple[str, str, int | None, int | None, str, str]:
    """The fields of a tensor that no value can make malformed: those of `TensorValue` from `requires_grad` on."""
    requires_grad, md5, fingerprint = encoded.get("requires_grad"), encoded.get(CHECKSUM), encoded.get(FINGERPRINT)
    return (
        "" if requires_grad is None else str(requires_grad),
        md5 if isinstance(md5, str) else "",
        _count(encoded.get(NAN_COUNT)),
        _count(encoded.get(INF_COUNT)),
        fingerprint if isinstance(fingerprint, str) else "",
        str(encoded.get("dtype")),
    )


def _tensor_part(encoded: dict[str, Any]) -> TensorValue | None:
    return _readable_part(encoded) if "shape" in encoded and "dtype" in encoded else None


def _readable_part(encoded: dict[str, Any]) -> TensorValue:
    """What can be read of a malformed tensor; statistics stand in it as they are written, also words."""
    found: list[Any] = [encoded.get(key) for key in STATISTICS]
    statistics: Iterator[Any] = (one if isinstance(one, (float, int, str)) else None for one in found)
    maximum, minimum, mean, norm = statistics
    data_name = encoded.get(DATA_NAME)
    data_name = data_name if isinstance(data_name, str) else None
    return TensorValue(None, (), maximum, minimum, mean, norm, data_name, False, *_secondary(encoded))


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list):
        raise _Misfit(f"expected a list of whole numbers, found {_shown(shape)}", "shape")
    for dimension in shape:
        if not _is_int(dimension) or not 0 <= dimension <= _MAX_DIMENSION:
            raise _Misfit(f"expected a list of whole numbers from 0 to 2**48, found {_shown(shape)}", "shape")
    return tuple(shape)


def _statistic(value: Any, key: str) -> Statistic:
    if value is None or type(value) is float:
        return value
    number = _number(value)
    if isinstance(number, (bool, int, float)) and _fits_float(number):
        return number
    raise _Misfit(f"expected a number, true, false or null, found {_shown(value)}", key)


def _number(value: Any) -> Any:
    """`value`, or the number that it is a word for."""
    return _NONFINITE.get(value.strip().lower(), value) if isinstance(value, str) else value


def _count(number: Any) -> int | None:
    return number if _is_int(number) and number >= 0 else None


def _fits_float(number: float) -> bool:
    """Whether float(number) is possible: a whole number in JSON has no limit."""
    return not isinstance(number, int) or number.bit_length() < 1024


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
