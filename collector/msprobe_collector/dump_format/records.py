"""The two records of an API call, typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format.values import Place, TensorValue, Value, decode_value


@dataclass(frozen=True, slots=True)
class ForwardRecord:
    """A forward call as recorded. A part is None where the dump lacks it, as after data_mode or scope cut it.

    Attributes:
        arguments: positional arguments; for a Tensor method the tensor itself comes first.
        keywords: keyword arguments by name.
        outputs: what the call returned; a single return value is a tuple of one.
    """

    arguments: tuple[Value, ...] | None
    keywords: dict[str, Value]
    outputs: tuple[Value, ...] | None


@dataclass(frozen=True, slots=True)
class BackwardRecord:
    """A backward as recorded. A part is None where the dump lacks it.

    Attributes:
        incoming: gradient of the i-th top-level tensor that the forward returned; None where that one was unused.
        outgoing: gradient of the i-th top-level *tensor* argument; None where no gradient was recorded.
    """

    incoming: tuple[Value, ...] | None
    outgoing: tuple[Value, ...] | None


def decode_forward(encoded: Any, *, file: str, record: str) -> ForwardRecord:
    """The typed forward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    keywords = decode_value(fields.get("input_kwargs", {}), Place(file, record, "input_kwargs"))
    if not isinstance(keywords, dict):
        raise Place(file, record, "input_kwargs").fault("expected an object of keyword arguments")
    return ForwardRecord(_values(fields, "input_args", file, record), keywords, _values(fields, "output", file, record))


def decode_backward(encoded: Any, *, file: str, record: str) -> BackwardRecord:
    """The typed backward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    return BackwardRecord(_values(fields, "input", file, record), _values(fields, "output", file, record))


def tensor_positions(arguments: tuple[Value, ...]) -> tuple[int, ...]:
    """Argument positions of the top-level tensors: entry i of a backward's `output` belongs to the i-th of them."""
    return tuple(
        position for position, value in enumerate(arguments) if isinstance(value, TensorValue) and not value.is_numpy
    )


def _object(encoded: Any, file: str, record: str) -> dict[str, Any]:
    if not isinstance(encoded, dict):
        raise Place(file, record, "").fault(f"expected an object, found {type(encoded).__name__}")
    return encoded


def _values(fields: dict[str, Any], field: str, file: str, record: str) -> tuple[Value, ...] | None:
    if field not in fields:
        return None
    place = Place(file, record, field)
    encoded = fields[field]
    if not isinstance(encoded, list):
        raise place.fault(f"expected a list, found {type(encoded).__name__}")
    return tuple(decode_value(item, place / index) for index, item in enumerate(encoded))
