"""Records, typed: the two of an API call as its execution needs them, and any record value by value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msprobe_collector.dump_format.decoding import decode_value, refuse_malformed
from msprobe_collector.dump_format.dtypes import Dtype
from msprobe_collector.dump_format.errors import DumpError
from msprobe_collector.dump_format.fields import (
    ARGUMENTS,
    ATTRIBUTES,
    AUTOCAST,
    INCOMING,
    KEYWORDS,
    OTHER_GRADIENTS,
    OUTPUT,
    VALUE_FIELDS,
)
from msprobe_collector.dump_format.values import DtypeValue, Place, TensorValue, Value


@dataclass(frozen=True, slots=True)
class ForwardRecord:
    """A forward call as recorded. A part is None where the dump lacks it, as after data_mode or scope cut it.

    Attributes:
        arguments: positional arguments; for a Tensor method the tensor itself comes first.
        keywords: keyword arguments by name.
        outputs: what the call returned; a single return value is a tuple of one.
        attributes: what the class of a Primitive was called with (`stride`, `transpose_b`), by name; None where the
            dump does not say, as those of the existing tool.
        autocast: dtype of the autocast that was on for the devices of a PyTorch call; None for none, or where the dump
            does not say.
    """

    arguments: tuple[Value, ...] | None
    keywords: dict[str, Value]
    outputs: tuple[Value, ...] | None
    attributes: Mapping[str, Value] | None = None
    autocast: Dtype | None = None


@dataclass(frozen=True, slots=True)
class BackwardRecord:
    """A backward as recorded. A part is None where the dump lacks it.

    Attributes:
        incoming: gradient of the i-th top-level tensor that the forward returned; None where that one was unused.
        outgoing: gradient of the i-th top-level *tensor* argument; None where no gradient was recorded.
        others: gradients of tensors in lists, dicts and keywords, by path: `input.0.1` is the second tensor of the list
            that is the first argument, `kwargs.weight` a keyword. Empty for dumps of the existing tool.
    """

    incoming: tuple[Value, ...] | None
    outgoing: tuple[Value, ...] | None
    others: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of any kind, of which no malformed value is lost: it stands there as a `MalformedValue`.

    Attributes:
        file, name: path of the dump.json and full name of the record.
        fields: its values by field, in the order of tables. A record without such fields (gradients of parameters,
            values that a script saved) is one value under "".
    """

    file: str
    name: str
    fields: Mapping[str, Value]


def decode_record(encoded: Any, *, file: str, record: str) -> Record:
    """The record of any kind that `encoded` is. Raises DumpError when it is not an object."""
    known: dict[str, Any] = {"": encoded}
    if not record.endswith(".debug"):  # which is any nesting of values that a script saved by hand
        found = _object(encoded, file, record)
        known = {name: found[name] for name in VALUE_FIELDS if name in found} or known
    return Record(file, record, {name: decode_value(value, depth=-1) for name, value in known.items()})


def decode_forward(encoded: Any, *, file: str, record: str) -> ForwardRecord:
    """The typed forward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    return ForwardRecord(
        _values(fields, Place(file, record, ARGUMENTS)),
        _named_values(fields, Place(file, record, KEYWORDS), "keyword arguments"),
        _values(fields, Place(file, record, OUTPUT)),
        _named_values(fields, Place(file, record, ATTRIBUTES), "constructor attributes")
        if ATTRIBUTES in fields
        else None,
        _autocast(fields, Place(file, record, AUTOCAST)),
    )


def decode_backward(encoded: Any, *, file: str, record: str) -> BackwardRecord:
    """The typed backward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    return BackwardRecord(
        _values(fields, Place(file, record, INCOMING)),
        _values(fields, Place(file, record, OUTPUT)),
        _named_values(fields, Place(file, record, OTHER_GRADIENTS), "gradients by path"),
    )


def tensor_positions(arguments: tuple[Value, ...]) -> tuple[int, ...]:
    """Argument positions of the top-level tensors: entry i of a backward's `output` belongs to the i-th of them."""
    return tuple(
        position for position, value in enumerate(arguments) if isinstance(value, TensorValue) and not value.is_numpy
    )


def _object(encoded: Any, file: str, record: str) -> dict[str, Any]:
    if not isinstance(encoded, dict):
        raise DumpError(f"expected an object, found {type(encoded).__name__}", file=file, record=record)
    return encoded


def _named_values(fields: dict[str, Any], place: Place, what: str) -> dict[str, Value]:
    values = decode_value(fields.get(place.root, {}))
    refuse_malformed(values, place)
    if not isinstance(values, dict):
        raise place.fault(f"expected an object of {what}")
    return values


def _autocast(fields: dict[str, Any], place: Place) -> Dtype | None:
    if place.root not in fields:
        return None
    dtype = _named_values(fields, place, "the dtype of autocast").get("dtype")
    if not isinstance(dtype, DtypeValue):
        raise (place / "dtype").fault("expected a dtype")
    return dtype.dtype


def _values(fields: dict[str, Any], place: Place) -> tuple[Value, ...] | None:
    if place.root not in fields:
        return None
    values = decode_value(encoded := fields[place.root], depth=-1)
    if not isinstance(values, tuple) or not isinstance(encoded, list):  # a torch.Size is a tuple as well
        raise place.fault(f"expected a list, found {type(encoded).__name__}")
    refuse_malformed(values, place)
    return values
