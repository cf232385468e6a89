"""Any record of a dump, API or Cell, taken apart into named values that can be paired and compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format import DumpError, Place, TensorValue, find_dtype
from msprobe_collector.dump_format.values import decode_value

_FIELDS = (
    ("input_args", "input"),
    ("input_kwargs", "input"),
    ("input", "input"),
    ("parameters", "parameters"),
    ("output", "output"),
)
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_EXTENSIONS = (".npy", ".pt")
#: Arguments by which a process group or a peer is meant; their numbers differ between runs that agree.
_GROUPS = ("src", "dst", "group_src", "group_dst")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a record.

    Attributes:
        path: place in the record, `input.0`, `parameters.weight`; what both dumps call the same.
        name: full name, that of its tensor file where the dump names one: `Mint.add.0.forward.input.0`.
        field: JSON field that holds it, for messages.
        dtype: as the dump writes it (`Float32`, `torch.float32`), or the class of a plain value (`<class 'int'>`).
        shape: of a tensor; () for plain values.
        statistics: Max, Min, Mean and Norm as recorded; the value itself, four times, for plain values.
        requires_grad, md5, data_name: as recorded, "" where the dump has none.
        tensor: what `TensorFolder.load` takes; None for plain values and unreadable tensors.
        fault: why the value cannot be read, "" when it can.
    """

    path: str
    name: str
    field: str
    dtype: str
    shape: tuple[int, ...]
    statistics: tuple[Any, Any, Any, Any]
    requires_grad: str = ""
    md5: str = ""
    data_name: str = ""
    tensor: TensorValue | None = None
    fault: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether it stands for numbers, readable or not."""
        return self.tensor is not None or bool(self.fault)

    @property
    def is_none(self) -> bool:
        """Whether it is an argument or output that was None."""
        return self.dtype == "None"

    @property
    def is_output(self) -> bool:
        """Whether the operation made it: outputs and gradients of parameters."""
        return not (self.path.startswith("parameters.") or self.path.partition(".")[0] == "input")

    @property
    def is_peer(self) -> bool:
        """Whether it names a process or a group of processes."""
        return self.path.rpartition(".")[2] in _GROUPS


def flatten(encoded: Any, *, file: str, record: str) -> list[Leaf]:
    """Every value of a decoded record, in the order of tables: inputs, parameters, outputs, gradients of parameters.

    None inside lists is a value, an empty list or object none. A tensor that has not the documented form is a leaf
    with a `fault`.

    Raises:
        DumpError: the record is no object.
    """
    if record.endswith(".debug"):  # any nesting of values that a script saved by hand
        return list(_walk(encoded, "", Place(file, record, "")))
    if not isinstance(encoded, dict):
        raise DumpError(f"expected an object, found {type(encoded).__name__}", file=file, record=record)
    known = [(field, prefix) for field, prefix in _FIELDS if field in encoded]
    if not known:  # gradients of parameters: names at the top
        place = Place(file, record, "")
        is_gradients = ".parameters_grad" in record
        return list(_walk(encoded, "", place, first_only=is_gradients))
    return [leaf for field, prefix in known for leaf in _walk(encoded[field], prefix, Place(file, record, field))]


def _walk(encoded: Any, path: str, place: Place, *, first_only: bool = False) -> Iterator[Leaf]:
    if isinstance(encoded, list):
        if first_only and len(encoded) == 1:
            yield from _walk(encoded[0], path, place / 0)
            return
        for index, item in enumerate(encoded):
            yield from _walk(item, _join(path, str(index)), place / index)
    elif isinstance(encoded, dict) and not isinstance(encoded.get("type"), str):
        if isinstance(encoded.get("class_type"), str) and "tensor" in encoded:
            encoded = {"tensor": encoded["tensor"]}
        for key, item in encoded.items():
            yield from _walk(item, _join(path, key), place / key, first_only=first_only)
    else:
        yield _leaf(encoded, path, place)


def _join(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


def _leaf(encoded: Any, path: str, place: Place) -> Leaf:
    name = _join(place.record, path)
    if isinstance(encoded, dict) and "shape" in encoded and "dtype" in encoded:
        return _tensor(encoded, path, name, place)
    if isinstance(encoded, dict):
        kind, value = encoded["type"], encoded.get("value", encoded.get("group_ranks", ""))
    else:
        kind, value = type(encoded).__name__, encoded
    shown = str(value)
    dtype = f"<class '{kind}'>" if encoded is not None else "None"
    return Leaf(path, name, place.field, dtype, (), (shown, shown, shown, shown))


def _tensor(encoded: dict[str, Any], path: str, name: str, place: Place) -> Leaf:
    data_name = encoded.get("data_name")
    data_name = data_name if isinstance(data_name, str) else ""
    for extension in _EXTENSIONS:
        if data_name.endswith(extension):
            name = data_name.removesuffix(extension)
    fault, tensor = "", None
    try:
        decoded = decode_value(encoded, place)
        tensor = decoded if isinstance(decoded, TensorValue) else None
    except DumpError as error:
        fault = str(error)
    if tensor is None and not fault:
        fault = str(place.fault(f"a tensor of unknown type {encoded.get('type')!r}"))
    statistics = tuple(_plain(encoded.get(key)) for key in _STATISTICS)
    if tensor is not None:
        statistics = (tensor.maximum, tensor.minimum, tensor.mean, tensor.norm)
    md5, grad = encoded.get("md5"), encoded.get("requires_grad")
    return Leaf(
        path,
        name,
        place.field,
        str(encoded.get("dtype")),
        tensor.shape if tensor is not None else (),
        statistics,
        "" if grad is None else str(grad),
        md5 if isinstance(md5, str) else "",
        data_name,
        tensor,
        fault,
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else None


def canonical_dtype(text: str) -> str:
    """One name for the spellings of both frameworks, so that `Float32` and `torch.float32` are equal."""
    dtype = find_dtype(text) if not text.startswith("<") else None
    return dtype.name if dtype is not None else text
