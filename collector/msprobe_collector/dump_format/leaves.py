"""Any record of a dump, API or Cell, taken apart into named values that can be paired and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format.records import Record
from msprobe_collector.dump_format.values import (
    ARGUMENTS,
    INPUT_FIELDS,
    KEYWORDS,
    UNKNOWN,
    DtypeValue,
    FieldPath,
    MalformedValue,
    OpaqueValue,
    PlainValue,
    Provenance,
    SizeValue,
    TensorValue,
    Value,
    find_dtype,
    items_of,
)

#: Arguments by which a process group or a peer is meant; their numbers differ between runs that agree.
_GROUPS = ("src", "dst", "group_src", "group_dst")


_TABLE_NAMES = {ARGUMENTS: "input", KEYWORDS: "input"}
_EXTENSIONS = (".npy", ".pt")
_NONFINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a record.

    Attributes:
        path: place in the record, `input.0`, `parameters.weight`; what both dumps call the same.
        place: the same in the dump.json.
        name: full name, that of its tensor file where the dump names one: `Mint.add.0.forward.input.0`.
        dtype: as the dump writes it (`Float32`, `torch.float32`), or the class of a plain value (`<class 'int'>`).
        shape: of a tensor; () for plain values.
        statistics: Max, Min, Mean and Norm as recorded; the value itself, four times, for plain values.
        requires_grad, md5, data_name: as recorded, "" where the dump has none.
        value: what the dump holds there.
        fault: why a tensor cannot be read, "" when it can.
    """

    path: str
    place: FieldPath
    name: str
    dtype: str
    shape: tuple[int, ...]
    statistics: tuple[Any, Any, Any, Any]
    requires_grad: str
    md5: str
    data_name: str
    value: Value
    fault: str

    @property
    def fingerprint(self) -> str:
        """Fingerprint as recorded, "" where the dump has none."""
        return self.value.fingerprint if isinstance(self.value, TensorValue) else ""

    @property
    def provenance(self) -> Provenance:
        """Where it comes from, as far as the dump says."""
        return self.value.provenance if isinstance(self.value, TensorValue) else UNKNOWN

    @property
    def tensor(self) -> TensorValue | None:
        """What `TensorFolder.load` takes; None for plain values and unreadable tensors."""
        return self.value if isinstance(self.value, TensorValue) else None

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, readable or not."""
        return isinstance(self.value, TensorValue) or bool(self.fault)

    @property
    def is_known(self) -> bool:
        """Whether the dump holds anything of a tensor beside its dtype and shape; not of one inside of `vmap`."""
        return self.statistics != (None,) * 4 or bool(self.data_name or self.md5 or self.fingerprint)

    @property
    def is_none(self) -> bool:
        """Whether it is an argument or output that was None."""
        return self.value is None

    @property
    def is_output(self) -> bool:
        """Whether the operation made it: outputs and gradients of parameters."""
        return self.place.root not in INPUT_FIELDS

    @property
    def is_peer(self) -> bool:
        """Whether it names a process or a group of processes."""
        return self.path.rpartition(".")[2] in _GROUPS


def flatten(record: Record) -> list[Leaf]:
    """Every value of a record, in the order of tables: inputs, parameters, outputs, gradients of parameters.

    None inside lists is a value, an empty list or object none. A tensor that has not the documented form is a leaf
    with a `fault`.
    """
    leaves: list[Leaf] = []
    for field, value in record.fields.items():
        is_gradients = not field and ".parameters_grad" in record.name
        _collect(
            value, _TABLE_NAMES.get(field, field), FieldPath(record.file, record.name, field), leaves, is_gradients
        )
    return leaves


def _collect(value: Value, path: str, place: FieldPath, leaves: list[Leaf], is_gradients: bool) -> None:
    """Add the leaves of `value` to `found`. A gradient of a parameter stands alone in a list."""
    if isinstance(value, OpaqueValue) and value.parts is not None:
        # The tensor of a message is a value; its peer and group differ between ranks.
        value = {"tensor": value.parts["tensor"]} if "tensor" in value.parts else dict(value.parts)
    if isinstance(value, SizeValue) or not isinstance(value, (dict, tuple)):
        leaves.append(_leaf(value, path, place))
        return
    if is_gradients and isinstance(value, tuple):
        is_gradients = False
        if len(value) == 1:
            _collect(value[0], path, place / 0, leaves, False)
            return
    for step, item in items_of(value):
        _collect(item, f"{path}.{step}" if path else str(step), place / step, leaves, is_gradients)


def _leaf(value: Value, path: str, place: FieldPath) -> Leaf:
    tensor, fault = value if isinstance(value, TensorValue) else None, ""
    if isinstance(value, MalformedValue) and value.tensor is not None:
        tensor, fault = value.tensor, str(place.fault(value.problem, *value.steps))
    elif isinstance(value, OpaqueValue) and value.tensor is not None:
        tensor, fault = (value.tensor, str(place.fault(f"a tensor of unknown type {value.type_name!r}")))
    name = f"{place.record}.{path}" if path else place.record
    if tensor is None:
        dtype, text = _class_and_text(value)
        return Leaf(path, place, name, dtype, (), (text, text, text, text), "", "", "", value, "")
    data_name = tensor.data_name or ""
    if data_name.endswith(_EXTENSIONS):
        name = data_name.rpartition(".")[0]
    statistics = tensor.maximum, tensor.minimum, tensor.mean, tensor.norm
    dtype, grad, md5 = tensor.dtype_text, tensor.requires_grad, tensor.md5
    return Leaf(path, place, name, dtype, tensor.shape, statistics, grad, md5, data_name, value, fault)


def _class_and_text(value: Value) -> tuple[str, str]:
    """(dtype, text) of a value that is not a tensor, as tables show them."""
    if isinstance(value, PlainValue):
        text = str(value.value)
        kind, text = (value.kind, _NONFINITE.get(text, text) if isinstance(value.value, float) else text)
    elif isinstance(value, DtypeValue):
        kind, text = value.type_name, value.text
    elif isinstance(value, OpaqueValue):
        kind, text = value.type_name, str(value.content)
    elif isinstance(value, slice):
        kind, text = "slice", str([value.start, value.stop, value.step])
    elif isinstance(value, SizeValue):
        kind, text = "torch.Size", str([number.value for number in value])
    else:
        return ("<class 'ellipsis'>", "...") if value is Ellipsis else ("None", "None")
    return f"<class '{kind}'>", text


def canonical_dtype(text: str) -> str:
    """One name for the spellings of both frameworks, so that `Float32` and `torch.float32` are equal."""
    dtype = find_dtype(text) if not text.startswith("<") else None
    return dtype.name if dtype is not None else text
