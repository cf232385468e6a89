"""Records, typed: the two of an API call as its execution needs them, and any record value by value.

- Names of records of every kind, taken apart: what ran, which call of it, and in which direction,
  as in `Mint.linalg.inv.0.forward` or `Cell.net.Dense.forward.3`.
- How the JSON form of a record's values is decoded.

Every form of the existing collectors is known: tensors, Python scalars, slices, Ellipsis, dtypes, NumPy scalars and
arrays, lists, dicts and null. Others (process groups, devices) become an `OpaqueValue`, which no engine can rebuild.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msprobe_collector.dump_format.values import (
    ARGUMENTS,
    ATTRIBUTES,
    AUTOCAST,
    CHANGED,
    CHECKSUM,
    DATA_NAME,
    DIFFERS,
    DTYPE_TYPES,
    FINGERPRINT,
    GRADIENT_OF,
    INCOMING,
    INF_COUNT,
    KEYWORDS,
    LEAF,
    MADE_BY,
    NAN_COUNT,
    OTHER_GRADIENTS,
    OUTPUT,
    RECOMPUTED,
    SKETCH,
    SLICE,
    SPREAD,
    STATISTICS,
    UNINITIALIZED,
    UNKNOWN,
    VALUE_FIELDS,
    VIEW,
    Dtype,
    DtypeValue,
    DumpError,
    FieldPath,
    MalformedValue,
    OpaqueValue,
    PlainValue,
    Provenance,
    SizeValue,
    SketchPlace,
    Spread,
    Statistic,
    TensorValue,
    Value,
    abbreviated,
    find_dtype,
    items_of,
)

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")

#: API types that the existing collectors write, each with what it records.
API_TYPES = {
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "MintDistributed": "mindspore.mint.distributed",
    "Tensor": "Tensor methods",
    "Functional": "mindspore.ops, or torch.nn.functional in a PyTorch dump",
    "Primitive": "Primitive instances on a Cell",
    "Distributed": "communication functions",
    "Jit": "jit functions",
    "Torch": "torch functions",
    "Aten": "torch.ops.aten",
    "VF": "torch._VF",
    "NPU": "torch_npu functions",
    "Optimizer": "updates of parameters by optimizers, and the clipping of gradients",
}
_CELL_TYPES = frozenset({"Cell", "Module"})
_COMMUNICATION_TYPES = frozenset({"MintDistributed", "Distributed"})
_MAX_NUMBER_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ApiName:
    """Name of an API call: `Mint.linalg.inv.0` is type `Mint`, api `linalg.inv`, number 0.

    Attributes:
        short: the callable's own name, without the module path or the holding attribute: `inv`, `matmul`, and the class
            of a Primitive, `Conv2D` in `Primitive.conv.Conv2D.0`.
        table_name: the name under which tables of APIs know it: the class for a Primitive, else the api.
    """

    type: str
    api: str
    number: int
    short: str = field(init=False, repr=False, compare=False)
    table_name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        short = self.api.rpartition(".")[2]
        object.__setattr__(self, "short", short)
        object.__setattr__(self, "table_name", short if self.type == "Primitive" else self.api)

    def __str__(self) -> str:
        return f"{self.type}.{self.api}.{self.number}"


def split_record_name(text: str) -> tuple[str, Direction] | None:
    """(API call's name, direction) of an API record's full name, or None when `text` is not such a name.

    Only cuts the text, since a collection of 100,000 names has no time for more; see `parse_api_name`.
    """
    call, _, last = text.rpartition(".")
    if last == "forward" or last == "backward":
        front, _, number = call.rpartition(".")
        if number.isdecimal() and number.isascii() and len(number) <= _MAX_NUMBER_DIGITS and "." in front.strip("."):
            return call, "forward" if last == "forward" else "backward"
    return None


def api_of(record: str) -> str:
    """`Tensor.add_` of `Tensor.add_.0.forward`."""
    return record.rsplit(".", 2)[0]


def is_cell_record(text: str) -> bool:
    """Whether `text` names a Cell (or Module) record, which other suites read: a call, backward or its gradients."""
    return text.partition(".")[0] in _CELL_TYPES


def is_compiled_record(text: str) -> bool:
    """Whether `text` names what goes into a compiled graph and comes out of it: no engine computes it."""
    return text.startswith("Compiled.")


def is_optimizer_record(text: str) -> bool:
    """Whether `text` names what an optimizer gets and leaves, or a clipping of gradients: no engine computes it."""
    return text.startswith("Optimizer.")


def is_communication(text: str) -> bool:
    """Whether `text`, a name or its type alone, names something that moves values between processes."""
    return text.partition(".")[0] in _COMMUNICATION_TYPES


def parse_api_name(call: str) -> ApiName:
    """Return the parts of an API call's name that `split_record_name` has accepted."""
    api_type, _, rest = call.partition(".")
    api, _, number = rest.rpartition(".")
    return ApiName(api_type, api, int(number))


def name_fault(text: str) -> str:
    """One line on why `text` is not a record name."""
    parts = text.split(".")
    if parts[-1] not in DIRECTIONS:
        return f"the record name {text!r} does not end in .forward or .backward"
    if len(parts) < 3 or not parts[-2].isdecimal():
        return f"the record name {text!r} has no call number before .{parts[-1]}"
    return f"the record name {text!r} is not <type>.<api>.<number>.{parts[-1]}"


GRADIENTS = "parameters_grad"


@dataclass(frozen=True, slots=True)
class Operation:
    """A record of a dump, of which only the name is known yet.

    Attributes:
        record: full name.
        name: what ran, without the call number: `Mint.matmul`, `Cell.net.fc.Dense`.
        number: which call of it; "" where the name has none.
        phase: `forward`, `backward`, `parameters_grad`, or "" for other records.
        index: place in the order of execution.
    """

    record: str
    name: str
    number: str
    phase: str
    index: int

    @classmethod
    def of(cls, record: str, index: int) -> Operation:
        """Return the operation that the full record name `record` names."""
        parts = split_record_name(record)
        if is_cell_record(record):
            return cls._of_cell(record, index)
        if parts is not None:
            name, _, number = parts[0].rpartition(".")
            return cls(record, name, number, parts[1], index)
        front, _, last = record.rpartition(".")
        if last == "debug":  # saved by hand: {name}.{number}.debug
            name, _, number = front.rpartition(".")
            return cls(record, name or front, number if name else "", "", index)
        return cls(record, record, "", "", index)

    @classmethod
    def _of_cell(cls, record: str, index: int) -> Operation:
        front, _, last = record.rpartition(".")
        if last == GRADIENTS:
            return cls(record, front, "", GRADIENTS, index)
        name, _, phase = front.rpartition(".")
        if last.isdecimal() and phase in ("forward", "backward", GRADIENTS):
            return cls(record, name, last, phase, index)
        return cls(record, record, "", "", index)

    @property
    def is_cell(self) -> bool:
        """Whether a Cell or Module ran, not an API."""
        return is_cell_record(self.record)

    @property
    def holds_calls(self) -> bool:
        """Whether a layer or an optimizer ran, which is made of other calls."""
        return self.is_cell or is_optimizer_record(self.record)

    @property
    def call(self) -> str:
        """Name that its directions share: `Mint.matmul.3`, `Cell.net.fc.Dense.0`; the record's own for others."""
        return f"{self.name}.{self.number}" if self.phase in ("forward", "backward") else self.record

    @property
    def bare(self) -> str:
        """The callable's own name: `matmul` of `Mint.matmul`, `Dense` of `Primitive.dense.Dense`."""
        return self.name.rpartition(".")[2]


#: The existing collector stops at 400; no real argument comes near this, and Python recursion must not be the limit.
_MAX_DEPTH = 100
_MAX_DIMENSION = 1 << 48
#: Of float64, and of what it is divided by.
_MOST_EXPONENT = 2200
_TENSOR_TYPES = frozenset({"mindspore.Tensor", "torch.Tensor", "torch.nn.parameter.Parameter", "numpy.ndarray"})
_PLAIN_TYPES: dict[str, Any] = {"str": str, "bool": bool, "int": int, "uint": int}
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
        parts = {key: decode_value(item, depth + 1) for key, item in encoded.items()}
        class_name = encoded.get("class_type")
        return OpaqueValue(class_name, parts=parts) if isinstance(class_name, str) else parts
    problem = f"expected an object with a type, a list or null, found {abbreviated(encoded)}"
    return MalformedValue(type(encoded).__name__, encoded, problem=problem)


def refuse_malformed(value: Value, place: FieldPath) -> None:
    """Refuse a `value`, which stands at `place`, when it or a value inside it is malformed.

    Raises:
        DumpError: it is; the text names the innermost place.
    """
    if isinstance(value, MalformedValue):
        raise place.fault(value.problem, *value.steps)
    if value and isinstance(value, (tuple, dict)):
        for step, item in items_of(value):
            if isinstance(item, (MalformedValue, tuple, dict)):
                refuse_malformed(item, place / step)


def _tagged(type_name: str, encoded: dict[str, Any]) -> Value:
    """Return the value of an object that gives its type."""
    try:
        return _typed(type_name, encoded)
    except _Misfit as misfit:
        content = encoded.get("value", encoded.get("group_ranks", ""))
        return MalformedValue(type_name, content, None, _tensor_part(encoded), misfit.problem, misfit.steps)


def _typed(type_name: str, encoded: dict[str, Any]) -> Value:
    if type_name in _TENSOR_TYPES:
        return _tensor(type_name, encoded)
    if "value" not in encoded:
        return OpaqueValue(type_name, encoded.get("group_ranks", ""), tensor=_tensor_part(encoded))
    value = encoded["value"]
    if type_name in DTYPE_TYPES:
        return _dtype(type_name, value)
    if type_name == "slice":
        is_bounds = isinstance(value, list) and all(bound is None or _is_int(bound) for bound in value)
        if not is_bounds or len(value) != 3:
            raise _Misfit(f"expected [start, stop, step] of whole numbers or null, found {abbreviated(value)}")
        return slice(*value)
    if type_name == "ellipsis":
        return Ellipsis
    if type_name == "torch.Size" and isinstance(value, list):
        return _size(value)
    return _plain(type_name, value)


def _plain(kind: str, value: Any) -> PlainValue | OpaqueValue:
    base = kind.rstrip("_0123456789")
    if base == "float":
        number = _number(value)
        if type(number) in (int, float) and _fits_float(number):
            return PlainValue(kind, float(number))
    elif base not in _PLAIN_TYPES:
        return OpaqueValue(kind, value)
    elif type(value) is _PLAIN_TYPES[base]:
        return PlainValue(kind, value)
    raise _Misfit(f"type {kind!r} does not fit its value {abbreviated(value)}")


def _size(numbers: list[Any]) -> SizeValue:
    for index, number in enumerate(numbers):
        if not _is_int(number):
            raise _Misfit(f"type 'int' does not fit its value {abbreviated(number)}", index)
    return SizeValue(PlainValue("int", number) for number in numbers)


def _dtype(type_name: str, value: Any) -> DtypeValue | OpaqueValue:
    if not isinstance(value, str) or not value:
        raise _Misfit(f"expected the name of a dtype, found {abbreviated(value)}")
    dtype = find_dtype(value)
    # A keyword called `dtype` is written with this type whatever its value was ("3" for the number 3).
    return OpaqueValue(type_name, value) if dtype is None else DtypeValue(dtype, type_name, value)


def _tensor(type_name: str, encoded: dict[str, Any]) -> TensorValue:
    is_numpy = type_name == "numpy.ndarray"
    dtype_name = encoded.get("dtype")
    dtype = find_dtype(dtype_name) if isinstance(dtype_name, str) else None
    if dtype is None and not is_numpy:
        raise _Misfit(f"unknown tensor dtype {abbreviated(dtype_name)}", "dtype")
    data_name = encoded.get(DATA_NAME)
    # The existing collector writes -1 where a tensor's file could not be saved.
    if data_name == -1:
        data_name = None
    if data_name is not None and not isinstance(data_name, str):
        raise _Misfit(f"expected a file name, found {abbreviated(data_name)}", DATA_NAME)
    maximum, minimum, mean, norm = [_statistic(encoded.get(key), key) for key in STATISTICS]
    shape = _shape(encoded.get("shape"))
    return TensorValue(dtype, shape, maximum, minimum, mean, norm, data_name, is_numpy, *_secondary(encoded))


def _secondary(
    encoded: dict[str, Any],
) -> tuple[str, str, int | None, int | None, str, str, Provenance, Spread | None, SketchPlace | None, bool]:
    """The fields of a tensor that no value can make malformed: those of `TensorValue` from `requires_grad` on."""
    requires_grad = encoded.get("requires_grad")
    return (
        "" if requires_grad is None else str(requires_grad),
        _only(encoded.get(CHECKSUM), str) or "",
        _count(encoded.get(NAN_COUNT)),
        _count(encoded.get(INF_COUNT)),
        _only(encoded.get(FINGERPRINT), str) or "",
        str(encoded.get("dtype")),
        _provenance(encoded),
        _spread(encoded.get(SPREAD)),
        _sketch_place(encoded[SKETCH]) if SKETCH in encoded else None,
        SLICE in encoded,
    )


def _sketch_place(encoded: Any) -> SketchPlace:
    fields = encoded if isinstance(encoded, dict) else {"row": encoded}
    exponent, not_finite = fields.get("exponent", 0), fields.get("not_finite", [0, 0, 0])
    if not isinstance(not_finite, list) or len(not_finite) != 3:
        not_finite = [None] * 3
    row, *counts = map(_count, [fields.get("row"), *not_finite])
    if row is None or None in counts or not _is_int(exponent) or abs(exponent) > _MOST_EXPONENT:
        return SketchPlace(-1, problem=f"expected the number of a row, found {abbreviated(encoded)}")
    nan, above, below = (count or 0 for count in counts)
    return SketchPlace(row, exponent, (nan, above, below))


def _spread(encoded: Any) -> Spread | None:
    """How a DTensor is spread; None for other tensors, and where it is not said in the form of this collector."""
    if not isinstance(encoded, dict):
        return None
    placements, mesh, shape = encoded.get("placements"), _lengths(encoded.get("mesh")), encoded.get("global_shape")
    if not isinstance(placements, list) or not all(isinstance(text, str) for text in placements):
        return None
    if len(placements) != len(mesh) or not isinstance(shape, list) or not all(map(_is_int, shape)):
        return None
    return Spread(tuple(placements), mesh, tuple(shape))


def _lengths(mesh: Any) -> tuple[int, ...]:
    """Lengths of the dimensions of nested lists."""
    lengths: list[int] = []
    while isinstance(mesh, list) and mesh and len(lengths) < _MAX_DEPTH:
        lengths.append(len(mesh))
        mesh = mesh[0]
    return tuple(lengths)


#: Keys of which a tensor of known origin has at least one.
_ORIGINS = frozenset((MADE_BY, VIEW, GRADIENT_OF, LEAF, UNINITIALIZED))


def _provenance(encoded: dict[str, Any]) -> Provenance:
    if encoded.keys().isdisjoint(_ORIGINS):
        return UNKNOWN
    texts = {key: _only(encoded.get(key), str) or "" for key in (MADE_BY, VIEW, GRADIENT_OF)}
    return Provenance(
        texts[MADE_BY],
        encoded.get(CHANGED) is True,
        texts[VIEW],
        _only(encoded.get(LEAF), str),
        texts[GRADIENT_OF],
        encoded.get(UNINITIALIZED) is True,
    )


def _tensor_part(encoded: dict[str, Any]) -> TensorValue | None:
    return _readable_part(encoded) if "shape" in encoded and "dtype" in encoded else None


def _readable_part(encoded: dict[str, Any]) -> TensorValue:
    """What can be read of a malformed tensor; statistics stand in it as they are written, also words."""
    maximum, minimum, mean, norm = (_only(encoded.get(key), float, int, str) for key in STATISTICS)
    data_name = _only(encoded.get(DATA_NAME), str)
    return TensorValue(None, (), maximum, minimum, mean, norm, data_name, False, *_secondary(encoded))


def _only(value: Any, *kinds: type) -> Any:
    return value if isinstance(value, kinds) else None


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list):
        raise _Misfit(f"expected a list of whole numbers, found {abbreviated(shape)}", "shape")
    for dimension in shape:
        if not _is_int(dimension) or not 0 <= dimension <= _MAX_DIMENSION:
            raise _Misfit(f"expected a list of whole numbers from 0 to 2**48, found {abbreviated(shape)}", "shape")
    return tuple(shape)


def _statistic(value: Any, key: str) -> Statistic:
    if value is None or type(value) is float:
        return value
    number = _number(value)
    if isinstance(number, (bool, int, float)) and _fits_float(number):
        return number
    raise _Misfit(f"expected a number, true, false or null, found {abbreviated(value)}", key)


def _number(value: Any) -> Any:
    """`value`, or the number that it is a word for."""
    return _NONFINITE.get(value.strip().lower(), value) if isinstance(value, str) else value


def _count(number: Any) -> int | None:
    return number if _is_int(number) and number >= 0 else None


def _fits_float(number: float) -> bool:
    """Return whether float(number) is possible: a whole number in JSON has no limit."""
    return not isinstance(number, int) or number.bit_length() < 1024


def _is_int(value: Any) -> bool:
    return type(value) is int


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
        incoming: gradient of the i-th top-level tensor that the forward returned; None where that one was unused. An
            output that holds tensors has a dict or tuple of their gradients in its place.
        outgoing: gradient of the i-th top-level *tensor* argument; None where no gradient was recorded.
        others: gradients of tensors in lists, dicts and keywords, by path: `input.0.1` is the second tensor of the list
            that is the first argument, `kwargs.weight` a keyword. Empty for dumps of the existing tool.
        is_recomputed_otherwise: whether the forward, computed again in the backward (activation checkpointing), got or
            gave other values than the forward record holds. False where the dump does not say.
    """

    incoming: tuple[Value, ...] | None
    outgoing: tuple[Value, ...] | None
    others: Mapping[str, Value] = field(default_factory=dict)
    is_recomputed_otherwise: bool = False


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
    fields: dict[str, Any] = {"": encoded}
    if not record.endswith(".debug"):  # which is any nesting of values that a script saved by hand
        entry = _object(encoded, file, record)
        fields = {name: entry[name] for name in VALUE_FIELDS if name in entry} or fields
    return Record(file, record, {name: decode_value(value, depth=-1) for name, value in fields.items()})


def decode_forward(encoded: Any, *, file: str, record: str) -> ForwardRecord:
    """The typed forward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    return ForwardRecord(
        _values(fields, FieldPath(file, record, ARGUMENTS)),
        _named_values(fields, FieldPath(file, record, KEYWORDS), "keyword arguments"),
        _values(fields, FieldPath(file, record, OUTPUT)),
        _named_values(fields, FieldPath(file, record, ATTRIBUTES), "constructor attributes")
        if ATTRIBUTES in fields
        else None,
        _autocast(fields, FieldPath(file, record, AUTOCAST)),
    )


def decode_backward(encoded: Any, *, file: str, record: str) -> BackwardRecord:
    """The typed backward record of `encoded`. Raises DumpError where it has not the documented form."""
    fields = _object(encoded, file, record)
    return BackwardRecord(
        _values(fields, FieldPath(file, record, INCOMING)),
        _values(fields, FieldPath(file, record, OUTPUT)),
        _named_values(fields, FieldPath(file, record, OTHER_GRADIENTS), "gradients by path"),
        decode_value(fields.get(RECOMPUTED)) == PlainValue("str", DIFFERS),
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


def _named_values(fields: dict[str, Any], place: FieldPath, what: str) -> dict[str, Value]:
    values = decode_value(fields.get(place.root, {}))
    refuse_malformed(values, place)
    if not isinstance(values, dict):
        raise place.fault(f"expected an object of {what}")
    return values


def _autocast(fields: dict[str, Any], place: FieldPath) -> Dtype | None:
    if place.root not in fields:
        return None
    dtype = _named_values(fields, place, "the dtype of autocast").get("dtype")
    if not isinstance(dtype, DtypeValue):
        raise (place / "dtype").fault("expected a dtype")
    return dtype.dtype


def _values(fields: dict[str, Any], place: FieldPath) -> tuple[Value, ...] | None:
    if place.root not in fields:
        return None
    values = decode_value(encoded := fields[place.root], depth=-1)
    if not isinstance(values, tuple) or not isinstance(encoded, list):  # a torch.Size is a tuple as well
        raise place.fault(f"expected a list, found {type(encoded).__name__}")
    refuse_malformed(values, place)
    return values
