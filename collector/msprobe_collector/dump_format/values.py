"""What an argument or output of a record can be, and where in a dump it stands.

- Fields of a record in dump.json, and of a tensor in it, by the names that the file gives them.
- Names of tensor dtypes as dumps write them, and the NumPy dtype behind each.
- The one way in which a dump says that it cannot be used.
- Text of a dump made safe to show: on a terminal, in a message, in a table.
- Bare NaN and Infinity in a JSON text, made readable for a strict parser.

Sources of dtypes: the `dtype` names of MindSpore dumps (`Float32`), of PyTorch dumps
(`torch.float32`), and of a keyword argument called `dtype` (`float32`). NumPy and ml_dtypes load
only when an array dtype is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """A tensor element type.

    Attributes:
        name: canonical name, as MindSpore dumps write it.
        kind: what class of numbers it holds.
        item_bytes: size of one element in memory.
        array_name: NumPy (or ml_dtypes) name, or None when there is no such array type.
        stored_as: NumPy name of the element type in `.npy` files, which lack the small floats.
    """

    name: str
    kind: Kind
    item_bytes: int
    array_name: str | None
    stored_as: str | None


def _plain(name: str, kind: Kind, item_bytes: int) -> Dtype:
    return Dtype(name, kind, item_bytes, name.lower(), name.lower())


_DTYPES = (
    _plain("Bool", "bool", 1),
    *(_plain(f"{sign}{bits}", "int", bits // 8) for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)),
    *(_plain(f"Float{bits}", "float", bits // 8) for bits in (16, 32, 64)),
    *(_plain(f"Complex{bits}", "complex", bits // 8) for bits in (64, 128)),
    Dtype("BFloat16", "float", 2, "bfloat16", "float32"),
    Dtype("Float8E4M3FN", "float", 1, "float8_e4m3fn", "float32"),
    Dtype("Float8E5M2", "float", 1, "float8_e5m2", "float32"),
    Dtype("HiFloat8", "float", 1, None, "float32"),
    Dtype("Int4", "int", 1, "int4", "int8"),
)

_ALIASES = {
    "bool_": "Bool",
    "half": "Float16",
    "float": "Float32",
    "double": "Float64",
    "short": "Int16",
    "int": "Int32",
    "long": "Int64",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
}

_BY_LOWER_NAME = {dtype.name.lower(): dtype for dtype in _DTYPES}
_BY_LOWER_NAME |= {alias: _BY_LOWER_NAME[name.lower()] for alias, name in _ALIASES.items()}


@cache
def find_dtype(text: str) -> Dtype | None:
    """The dtype that `text` names in any spelling a dump may hold (`Float32`, `torch.float32`, `float32`), or None."""
    return _BY_LOWER_NAME.get(text.rpartition(".")[2].lower())


@cache
def array_dtype(dtype: Dtype | None) -> np.dtype[np.generic] | None:
    """NumPy dtype for arrays of `dtype` (bfloat16, float8 and int4 through ml_dtypes); None when there is none."""
    if dtype is None or dtype.array_name is None:
        return None
    import ml_dtypes
    import numpy as np

    # Not by name alone: MindSpore, once imported, registers a bfloat16 of its own under the same name.
    return np.dtype(getattr(ml_dtypes, dtype.array_name, dtype.array_name))


@cache
def dtype_of_array(numpy_dtype: np.dtype[np.generic]) -> Dtype | None:
    """Return the dtype whose arrays are `numpy_dtype`, or None for one that no dump can hold."""
    return _BY_LOWER_NAME.get(numpy_dtype.name.lower())


ARGUMENTS = "input_args"
KEYWORDS = "input_kwargs"
#: Incoming gradients of a backward record.
INCOMING = "input"
PARAMETERS = "parameters"
OUTPUT = "output"
OTHER_GRADIENTS = "other_gradients"
#: What the class of a Primitive was called with.
ATTRIBUTES = "attributes"
#: Device type and dtype of the autocast under which a PyTorch call ran.
AUTOCAST = "autocast"

#: Of a backward record, with this value: its forward, computed again in the backward, got or gave other values.
RECOMPUTED, DIFFERS = "recomputed", "differs"
#: Of a part of a DTensor: how the whole is spread.
SPREAD = "dtensor"
#: Of a record in a pipeline: which part of the batch it belongs to, a whole number from 0.
MICROBATCH = "microbatch"

#: Fields that hold values of the run, in the order of tables.
VALUE_FIELDS = (ARGUMENTS, KEYWORDS, INCOMING, PARAMETERS, OUTPUT, OTHER_GRADIENTS)
#: Fields of values that existed before the call.
INPUT_FIELDS = frozenset({ARGUMENTS, KEYWORDS, INCOMING, PARAMETERS})

#: Statistics of a tensor: maximum, minimum, mean and Euclidean norm.
STATISTICS = ("Max", "Min", "Mean", "Norm")
NAN_COUNT = "NaN_count"
INF_COUNT = "Inf_count"
DATA_NAME = "data_name"
CHECKSUM = "md5"
FINGERPRINT = "fingerprint"
#: Row of the side file with sketches.
SKETCH = "sketch"
#: Of a tensor of which a part was collected: which, as a list of dim, size, begin and end.
SLICE = "slice"
#: Where a tensor comes from, see `Provenance`.
MADE_BY = "made_by"
CHANGED = "changed_since"
VIEW = "view"
LEAF = "leaf"
GRADIENT_OF = "grad_of"
UNINITIALIZED = "uninitialized"


_LONGEST = 80


def printable(text: str) -> str:
    r"""`text` with every character that is not printable as its Python escape: `\x1b`, `\n`, `\u202e`, `\ud800`.

    Names, file names and source lines of a dump may hold control characters, which a terminal would obey, line breaks,
    which would make one line of a report two, and marks that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_lines(text: str) -> str:
    """Text as of `printable` that we laid out in lines: the line breaks stay, everything else is escaped."""
    return "\n".join(map(printable, text.split("\n")))


_SINGULAR = {"are": "is", "were": "was", "have": "has"}


def counted(count: int, nouns: str, verb: str = "") -> str:
    """Give a count with its nouns and their verb: `2 calls of it differ`, or `1 call of it differs`."""
    if count == 1:
        first, of, others = nouns.partition(" of ")
        nouns = f"{first.removesuffix('s')}{of}{others}"
        verb = verb and _SINGULAR.get(verb, f"{verb}s")
    return " ".join(filter(None, (str(count), nouns, verb)))


def optional(words: str, value: object) -> str:
    """Return `words` with a value in their braces; "" for None, 0 and what is empty."""
    return words.format(value) if value else ""


def first_of(texts: Collection[str], most: int) -> str:
    """Return `a, b and 4 more`, of which `most` are named."""
    more = optional(" and {} more", max(0, len(texts) - most))
    return f"{', '.join(islice(texts, most))}{more}"


def abbreviated(value: Any) -> str:
    """Return the representation of a value from a dump in at most 80 characters."""
    try:
        text = printable(repr(value))
    except (ValueError, RecursionError):  # Python writes no whole number of more than 4,300 digits
        return f"a {type(value).__name__} too large to show"
    return shortened(text, _LONGEST)


def shortened(text: str, longest: int) -> str:
    """Return a text, cut to `longest` characters with three dots at its end."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class DumpError(Exception):
    """One line on a fault of a dump: what is wrong, where, the value found, and what to do.

    Attributes:
        file: path of the file at fault, as text.
        record: full record name, or "" when the whole file is meant.
        field: place inside the record (`input_args[1].shape`), or "".
    """

    def __init__(self, problem: str, *, file: str, record: str = "", field: str = "") -> None:
        self.file = file
        self.record = record
        self.field = field
        self.problem = problem
        place = ": ".join(filter(None, (file, record, field)))
        super().__init__(printable(f"{place}: {problem}"))


#: Types of a dtype that is given as an argument.
DTYPE_TYPES = frozenset({"mindspore.dtype", "torch.dtype"})

Statistic = Union[float, int, bool, None]


class Provenance(NamedTuple):
    """Where a tensor comes from, as far as the collector knew when it was recorded.

    Dumps of the existing tool do not say.

    Attributes:
        made_by: record and place of the value that was written last to its memory: `Torch.chunk.0.forward.output.1`; of
            an argument that a call changed and did not return `Functional.batch_norm.3.forward.input.1`. Of several
            names of one value, as a call that returns its argument has, the last.
        is_changed: whether something that is no record wrote to this memory since.
        view: offset and strides in the memory of `made_by`, where it is another part or order of that value; "" where
            it is that value whole.
        leaf: name of the parameter or buffer; "" for a leaf of autograd of which no name is known; None for no leaf.
        grad_of: name of the parameter whose `.grad` it is; "" for none.
        is_uninitialized: whether its memory was never written to (`torch.empty`).
    """

    made_by: str = ""
    is_changed: bool = False
    view: str = ""
    leaf: str | None = None
    grad_of: str = ""
    is_uninitialized: bool = False


#: Of a tensor of which the dump does not say where it comes from.
UNKNOWN = Provenance()


class SketchPlace(NamedTuple):
    """Where the sketch of a tensor is, see `sketch_files`.

    Attributes:
        row: in the side file, from 0.
        exponent, not_finite: as in `sketches.Row`.
        problem: why the entry cannot be used, "" where it can.
    """

    row: int
    exponent: int = 0
    not_finite: tuple[int, int, int] = (0, 0, 0)
    problem: str = ""


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
        provenance: where it comes from, as far as the dump says.
        spread: of a DTensor, whose part of one rank this is; None for other tensors.
        sketch: where its sketch is; None where the dump has none.
        is_part: whether the dump holds a part of it alone, as the key `slice` asked for.
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
    provenance: Provenance = field(default=UNKNOWN, compare=False)
    spread: Spread | None = field(default=None, compare=False)
    sketch: SketchPlace | None = field(default=None, compare=False)
    is_part: bool = field(default=False, compare=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a DTensor is spread over a mesh of ranks, of which the dump holds the part of one.

    Attributes:
        placements: for each dimension of the mesh, as PyTorch writes it: `R`, `S(0)`, `P(sum)`.
        mesh: lengths of the dimensions of the mesh.
        shape: of the whole tensor.
    """

    placements: tuple[str, ...]
    mesh: tuple[int, ...]
    shape: tuple[int, ...]


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
class FieldPath:
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

    def __truediv__(self, step: str | int) -> FieldPath:
        return FieldPath(self.file, self.record, self.root, (*self.steps, step))

    @property
    def field(self) -> str:
        """Field and steps as text: `input_args[0].shape`."""
        return self.root + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)

    def fault(self, problem: str, *steps: str | int) -> DumpError:
        """The error that says `problem` about this place, or about the one that `steps` lead to from it."""
        place = FieldPath(self.file, self.record, self.root, (*self.steps, *steps))
        return DumpError(problem, file=self.file, record=self.record, field=place.field)


def items_of(value: Value) -> Iterable[tuple[str | int, Value]]:
    """Steps and values directly inside a tuple or dict; nothing of any other value."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, tuple) else ()


def tensors_in(value: Value) -> list[TensorValue]:
    """Every tensor inside `value`, outermost and leftmost first."""
    if isinstance(value, TensorValue):
        return [value]
    return [tensor for _, item in items_of(value) for tensor in tensors_in(item)]


_TOKEN = re.compile(rb"-?(?:NaN|Infinity)")
_QUOTE_OR_ESCAPE = re.compile(rb'"|\\.', re.DOTALL)


def quote_nonfinite(text: bytes) -> bytes:
    """`text` with every bare NaN, Infinity and -Infinity as a JSON string; those inside strings stay as they are.

    Dumps hold these tokens where a statistic is not finite. Linear in the length; returns a text without them itself.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    pieces: list[bytes] = []
    copied = scanned = 0
    inside_string = False
    for match in _TOKEN.finditer(text):
        inside_string ^= _toggles_string(text, scanned, match.start())
        scanned = match.end()
        if not inside_string:
            pieces += (text[copied : match.start()], b'"', match.group(), b'"')
            copied = match.end()
    if not pieces:
        return text
    pieces.append(text[copied:])
    return b"".join(pieces)


def _toggles_string(text: bytes, start: int, end: int) -> bool:
    """Return whether text[start:end] holds an odd number of unescaped quotes."""
    if text.find(b"\\", start, end) < 0:
        return text.count(b'"', start, end) % 2 == 1
    return sum(token.group() == b'"' for token in _QUOTE_OR_ESCAPE.finditer(text, start, end)) % 2 == 1
