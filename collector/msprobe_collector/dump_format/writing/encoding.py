"""The fingerprint of a tensor: a hash of dtype, shape and content that tells two tensors apart.

- Arguments and outputs as the JSON text of a dump, written piece by piece: formatting is a third of the cost.
- The forms are those that `dump_format.records` reads.
- What the writer of a dump must know of a framework's values.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import xxhash

from msprobe_collector.dump_format.sketches import WITHOUT_NUMBERS, SketchRow, memory_order, row_of
from msprobe_collector.dump_format.values import CHECKSUM, DATA_NAME, FINGERPRINT, SLICE, dtype_of_array
from msprobe_collector.dump_format.writing.files import quoted, quoted_key
from msprobe_collector.dump_format.writing.parts import ValueParts
from msprobe_collector.dump_format.writing.statistics import (
    Statistics,
    number_text,
    rest,
    slot,
    statistics_of,
    statistics_text,
)

if TYPE_CHECKING:
    from msprobe_collector.dump_format.sketch_files import SketchRows


class Fingerprint:
    """XXH3 (64 bits) of dtype, shape and the elements of an array in C order, which `add` takes piece by piece.

    Equal fingerprints mean equal bits, but for a chance of 2**-64: elements that are swapped, permuted, transposed or
    reshaped change it, and so do the sign of a zero, the payload of a NaN and another dtype. The dtype counts by its
    name in dumps, so that tensors of different frameworks can be equal.

    XXH3 because it costs next to nothing beside the statistics: 4 MiB in 0.05 ms, where zlib.crc32 takes 1.7 ms,
    zlib.adler32 3.4 ms, hashlib.md5 16 ms and the statistics 3.3 ms. It is no protection against forgery.
    """

    __slots__ = ("_digest",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        """Begin with dtype and shape of `array`."""
        self._digest = xxhash.xxh3_64(_kind_of(array.dtype, array.shape))

    def add(self, flat: np.ndarray[Any, Any]) -> None:
        """Take the next elements, of one dimension and contiguous."""
        if not flat.dtype.isnative:
            flat = flat.astype(flat.dtype.newbyteorder("="))
        # As bytes, since bfloat16 and its like have no buffer format of their own.
        self._digest.update(flat.view(np.uint8).data)

    def text(self) -> str:
        """16 hexadecimal digits."""
        return self._digest.hexdigest()


@lru_cache(4096)
def _kind_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    description = dtype_of_array(dtype)
    return f"{dtype.name if description is None else description.name}{shape}\n".encode()


def fingerprint_of(array: np.ndarray[Any, Any]) -> str:
    """The fingerprint of a whole array of any shape, as 16 hexadecimal digits."""
    fingerprint = Fingerprint(array)
    fingerprint.add(array.ravel())
    return fingerprint.text()


class Origin(Protocol):
    """Where one tensor of a record comes from."""

    def keys(self, described: str) -> str:
        """The keys of `Provenance` as JSON text, each after a comma; `described` is what the entry says before them.

        Called once, in the order in which records end.
        """


class Origins(Protocol):
    """Follows the tensors of one record."""

    def of(self, tensor: Any, path: str) -> Origin | None:
        """Where `tensor` comes from, which stands at `path` (`input.0`, `output.1`) of the record; raises nothing."""

    def end(self) -> None:
        """The call has run and its outputs have been taken; raises nothing."""


class PendingStatistics(Protocol):
    """Statistics of a step that are computed after the records that hold them, many at once."""

    @property
    def has_device(self) -> bool:
        """Whether elements are better fetched by another thread."""

    def entry(self, tensor: Any) -> str | None:
        """The entry of a tensor that comes later, as text without origin and closing brace; None for any other."""

    @property
    def is_full(self) -> bool:
        """Whether it is time to fetch them."""

    def fetch(self) -> Iterator[tuple[int, Statistics, Sketched]]:
        """The number, the statistics and what has the sketch of each value since the last time; waits for devices."""

    def texts(self) -> Mapping[int, str]:
        """Return what else stands in slots by its number, asked for after `fetch`, also where that has failed."""


class WrittenPart(Protocol):
    """Which part of a tensor is written; as text, JSON."""

    def part_of(self, tensor: Any) -> Any:
        """The part; None of a tensor that is whole."""


class Sketched(Protocol):
    """What has a sketch: see `TensorValues`."""

    def content(self) -> Hashable | None:
        """See `TensorValues`."""

    def sketch(self, largest: float | None) -> SketchRow | None:
        """See `TensorValues`."""


class TensorValues:
    """The values of a tensor at one moment, and what a dump says about the tensor besides its statistics.

    Attributes:
        array: its elements, in its own dtype (bfloat16 and its like through ml_dtypes); a subclass may have None for a
            tensor whose elements nobody can read.
        dtype_name: name of the dtype as the framework's dumps write it: `Float32`, `torch.float32`.
        type_name: the entry's `type`: `mindspore.Tensor`.
        fields: further fields of the entry as JSON text that begins with a comma: `, "requires_grad": true`.
        origin: where it comes from, as far as that is followed.
        number: under which statistics come later; None where they are computed now.
        is_rest: what is left of a gradient: where that is nothing but zeros, a dump holds null.

    A framework that computes statistics where its tensors are overrides `shape`, `statistics`, `keep`, `held_bytes`
    and `array`, which is then asked for only where the elements are written.
    """

    __slots__ = ("array", "dtype_name", "fields", "is_rest", "number", "origin", "type_name")

    def __init__(self, array: np.ndarray[Any, Any], dtype_name: str, type_name: str, fields: str = "") -> None:
        self.origin: Origin | None = None
        self.number: int | None = None
        self.is_rest = False
        self.array = array
        self.dtype_name = dtype_name
        self.type_name = type_name
        self.fields = fields

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return self.array.shape

    def statistics(self) -> Statistics:
        """Statistics of the elements, for the dump."""
        return statistics_of(self.array)

    def later(self, pending: PendingStatistics) -> int | None:
        """The number under which `pending` will have the statistics; None where they are computed now."""
        return None

    def keep(self, *, has_elements: bool) -> None:
        """Take a copy, since the training may change the tensor; with `has_elements` one that `array` will have."""
        if self.array is not None and self.array.base is not None and self.array.flags.writeable:
            self.array = self.array.copy()

    def take(self, part: WrittenPart) -> bool:
        """Keep a part of the tensor alone; False of one that stays whole."""
        inside = part.part_of(self.array)
        if inside is not None:
            self.array = inside
        return inside is not None

    @property
    def held_bytes(self) -> int:
        """What the values take in memory, about."""
        return 0 if self.array is None else self.array.nbytes

    def plus(self, other: TensorValues, *, factor: int = 1) -> TensorValues | None:
        """The sum with `factor` times `other`, computed where both are, in their dtype; None where that is the host."""
        return None

    def minus(self, other: TensorValues) -> TensorValues | None:
        """The difference, likewise, 0 where both are equal or NaN; None where that is the host."""
        return None

    def sketch(self, largest: float | None) -> SketchRow | None:
        """Sketch of the elements, of which the largest magnitude may be known; None where they are no numbers."""
        array = self.array
        if array is None or array.dtype.kind in WITHOUT_NUMBERS:
            return None
        return row_of(array, largest=largest)

    def content(self) -> Hashable | None:
        """A key that values of the same dtype, shape and bits share, and (but for a chance of 2**-64) no others."""
        array = self.array
        if array is None or array.dtype.kind in WITHOUT_NUMBERS:
            return None
        order = None
        if not array.flags.c_contiguous:
            order = memory_order(array.strides)
            array = array.transpose(order)
        flat = np.ascontiguousarray(array.reshape(-1)).view(np.uint8)  # one number may be broadcast
        return self.dtype_name, array.shape, order, xxhash.xxh3_64_intdigest(flat.data)


#: Encodes a value that stands inside another: (value, last step of its path) -> JSON text.
EncodeInner: TypeAlias = Callable[[Any, str], str]


class FrameworkValues(Protocol):
    """How the values of one framework are read.

    Attributes:
        tensor_types: the classes of its tensors, for isinstance.
        dtype_type: the class of its dtypes.
        dtype_type_name: the `type` of a dtype's entry: `mindspore.dtype`.
        parts: takes values apart that hold tensors.
        hidden_lines: parts of source lines that hand a call on inside the framework; their frames are in no stack.
        file_suffix: of tensor files: `.npy`, or `.pt` for files that `torch.load` reads.
    """

    tensor_types: tuple[type, ...]
    dtype_type: type
    dtype_type_name: str
    file_suffix: str
    parts: ValueParts
    hidden_lines: tuple[str, ...]

    def read(self, tensor: Any) -> TensorValues:
        """The values of `tensor` as they are now; the array may share memory with it.

        Waits until a device has computed them.

        Raises:
            BaseException: what the script had started raised an error, which reading has brought up; no Exception, so
                that it is known from faults of the reading.
        """

    def frozen(self, tensor: Any) -> TensorValues:
        """Values as of `read`, in memory of their own: the training may change the tensor afterwards."""

    def pending(self, *, has_sketches: bool) -> PendingStatistics | None:
        """Collects what is to be computed later in a step; None where all statistics are computed at once."""

    def dtype_text(self, dtype: Any) -> str:
        """The `value` of a dtype's entry."""

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """JSON text of a value that only this framework has (a process group, a peer operation), None for others."""


#: The reader's limit, which no real argument comes near.
_MAX_DEPTH = 100
#: What is written of each tensor: statistics, and perhaps a checksum, a fingerprint or a sketch.
Summary = Literal["statistics", "md5", "fingerprint", "sketch"]
_SHORT: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "null",
    bool: lambda value: f'{{"type": "bool", "value": {"true" if value else "false"}}}',
    str: lambda value: f'{{"type": "str", "value": {json.dumps(value)}}}',
    float: lambda value: f'{{"type": "float", "value": {number_text(value)}}}',
    int: lambda value: f'{{"type": "int", "value": {value}}}',
    type(Ellipsis): lambda value: '{"type": "ellipsis", "value": "..."}',
}


#: Bytes of a file's name without its suffix: file systems take 255 in all.
_LONGEST_NAME = 240
#: Characters that are never more bytes than that.
_SHORT_NAME = _LONGEST_NAME // 4


class RecordText:
    """One record while its text is made.

    Attributes:
        name: full record name.
        saves: whether values go to files too, so that tensors get a `data_name`.
        has_nonfinite: whether a tensor so far held NaN or Inf.
        arrays: (file name, values) of the tensors to save, in the form in which they are stored.
        origins: follows its tensors; None where nobody does.
        rows: takes the sketches of its tensors; None where none are wanted.
        pending: takes statistics that are computed later; None where all are computed at once.
        light: the same, where nothing but statistics and sketches is wanted; else None.
    """

    has_nonfinite = False
    origins: Origins | None = None
    rows: SketchRows | None = None
    pending: PendingStatistics | None = None
    light: PendingStatistics | None = None

    def __init__(self, name: str, *, saves: bool) -> None:
        self.name = name
        self.saves = saves
        self._files: set[str] = set()
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []

    def file_name(self, place: str) -> str:
        """The name, without suffix, of the file of the tensor at `place` (`input.0`) of the record.

        One that is longer than file systems take ends in a digest of the whole. Two places never get one name, also
        where keys hold dots: `{"a": {"b": x}, "a.b": y}`.
        """
        name = f"{self.name}.{place}" if place else self.name
        if name in self._files:
            name = f"{name}~{len(self._files)}"
        self._files.add(name)
        if len(name) <= _SHORT_NAME or len(encoded := name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME:
            return name
        kept = encoded[: _LONGEST_NAME - 17].decode("utf-8", "ignore")
        return f"{kept}~{hashlib.sha256(encoded).hexdigest()[:16]}"


class ValueEncoder:
    """Writes values of one framework as JSON text.

    A value that has no form in a dump becomes null and is passed to `on_unknown`: no value can spoil a file.
    """

    def __init__(
        self, values: FrameworkValues, *, summary: Summary = "statistics", on_unknown: Callable[[str, object], None]
    ) -> None:
        """Write what `values` reads.

        Args:
            values: of the framework.
            summary: what each tensor gets besides its statistics: `md5` a CRC-32 of its stored bytes, as eight hex
                digits, `fingerprint` what `fingerprint_of` gives.
            on_unknown: called with the record's name and a value that has no form.
        """
        self._values = values
        self._summary = summary
        self._on_unknown = on_unknown
        self._tensor = values.tensor_types
        self._read = values.read
        self._parts = values.parts
        #: Parts of tensors that are written in place of the whole; see `configuration.RowSlice`.
        self.slices: Sequence[WrittenPart] = ()
        #: Number and bytes of the tensors that go to files, so far.
        self.saved_values = self.saved_bytes = 0
        #: Whether the elements of a value are saved, by record, place in it, elements, and their form in a file.
        self.keeps: Callable[[str, str, np.ndarray[Any, Any], np.ndarray[Any, Any]], bool] | None = None

    def encode(self, value: Any, record: RecordText, path: str, depth: int = 0) -> str:
        """The JSON text of `value`; `path` says where in the record it stands (`input.0`) and names its file."""
        if isinstance(value, self._tensor):
            if record.light is not None and not self.slices and (text := record.light.entry(value)) is not None:
                origin = None if record.origins is None else record.origins.of(value, path)
                return f"{text}}}" if origin is None else f"{text}{origin.keys(text)}}}"
            return self._array(_followed(self._values_of(value), value, record, path), record, path)
        kind = type(value)
        if (kind is list or kind is tuple) and depth < _MAX_DEPTH:  # as `_container` does, and quicker
            texts = [self.encode(item, record, f"{path}.{at}", depth + 1) for at, item in enumerate(value)]
            return f"[{', '.join(texts)}]"
        try:
            short = _SHORT.get(kind)
            if short is not None:
                return short(value)
            if kind is dict and depth < _MAX_DEPTH:
                return self._mapping(value, record, path, depth + 1) if value else "{}"
            if depth < _MAX_DEPTH:
                return self._container(value, record, path, depth + 1)
        except (ValueError, TypeError, AttributeError):  # an int of 5,000 digits, a slice of tensors, an odd subclass
            pass
        return self._unknown(value, record)

    def freeze(self, value: Any, record: RecordText, path: str) -> Any:
        """`value` with every tensor replaced by a copy of its values, so that training may go on and change them."""
        if isinstance(value, (self._tensor, TensorValues)):
            values = self._values_of(value)
            values.number = None if record.pending is None else values.later(record.pending)
            values.keep(has_elements=self._needs_elements(record) or values.number is None)
            return values if values is value else _followed(values, value, record, path)
        if isinstance(value, np.ndarray):
            return value.copy()
        if type(value) in _SHORT:
            return value
        parts = self._parts.of(value)
        if parts is None:
            parts = self._parts.tree(value)
        if isinstance(parts, Mapping):
            return {key: self.freeze(item, record, f"{path}.{key}") for key, item in parts.items()}
        if parts is None:
            return value
        return tuple(self.freeze(item, record, f"{path}.{index}") for index, item in enumerate(parts))

    def _values_of(self, value: Any) -> TensorValues:
        """The values of a tensor, or of the part of it that is asked for, which they then say."""
        values = value if isinstance(value, TensorValues) else self._read(value)
        is_whole = self.slices and SLICE not in values.fields
        if is_whole and (cut := [str(part) for part in self.slices if values.take(part)]):
            values.fields += f', "{SLICE}": [{", ".join(cut)}]'
        return values

    def _container(self, value: Any, record: RecordText, path: str, depth: int) -> str:
        if isinstance(value, TensorValues):
            return self._array(self._values_of(value), record, path)
        parts = self._parts.of(value)
        if isinstance(parts, Mapping):
            return self._mapping(parts, record, path, depth)
        if parts is not None:
            texts = [self.encode(item, record, f"{path}.{index}", depth) for index, item in enumerate(parts)]
            return f"[{', '.join(texts)}]"
        return self._leaf(value, record, path)

    def _mapping(self, value: Mapping[Any, Any], record: RecordText, path: str, depth: int) -> str:
        parts: dict[str, str] = {}
        for key, item in value.items():
            name = str(key)
            if name in parts:  # {1: x, "1": y}
                name = f"{name}~{len(parts)}"
            if key == "dtype" and item is not None:
                is_dtype = isinstance(item, self._values.dtype_type)
                text = self._dtype(self._values.dtype_text(item) if is_dtype else str(item))
            else:
                text = self.encode(item, record, f"{path}.{name}", depth)
            parts[name] = text
        return f"{{{', '.join([f'{quoted_key(name)}: {text}' for name, text in parts.items()])}}}"

    def _dtype(self, text: str) -> str:
        return f'{{"type": "{self._values.dtype_type_name}", "value": {json.dumps(text)}}}'

    def _leaf(self, value: Any, record: RecordText, path: str) -> str:
        if isinstance(value, self._values.dtype_type):
            return self._dtype(self._values.dtype_text(value))
        if isinstance(value, slice):
            bounds = [None if bound is None else int(bound) for bound in (value.start, value.stop, value.step)]
            return f'{{"type": "slice", "value": {json.dumps(bounds)}}}'
        if isinstance(value, np.ndarray):
            return self._array(TensorValues(value, value.dtype.name, "numpy.ndarray"), record, path)
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            item = value.item()
            text = json.dumps(item) if isinstance(item, str) else number_text(item)
            return f'{{"type": "{type(value).__name__}", "value": {text}}}'
        special = self._values.special(value, lambda inner, step: self.encode(inner, record, f"{path}.{step}"))
        if special is not None:
            return special
        for base in (bool, int, float, str):  # an enum, a subclass
            if isinstance(value, base):
                return _SHORT[base](base(value))
        if self._parts.is_whole(value):
            return self._unknown(value, record)
        # Of a cache that is empty yet nothing is lost.
        return self.encode(self._parts.tree(value), record, path)

    def _array(self, tensor: TensorValues, record: RecordText, path: str) -> str:
        text = self._entry(tensor, record, path)
        return rest(text) if tensor.is_rest and record.pending is not None else text

    def _entry(self, tensor: TensorValues, record: RecordText, path: str) -> str:
        shape = _shape_text(tensor.shape)
        if not shape:
            return self._unknown(next(length for length in tensor.shape if type(length) is not int), record)
        # Elements are asked for only where they are written: statistics may be computed on a device.
        array = tensor.array if self._needs_elements(record) else None
        if array is not None and array.dtype.kind not in "biufcV":
            array = None
        if tensor.is_rest and array is not None and not array.any():
            return "null"
        fingerprint = Fingerprint(array) if array is not None and self._summary == "fingerprint" else None
        text = f'{{"type": "{tensor.type_name}", "dtype": "{tensor.dtype_name}", "shape": {shape}, '
        number = tensor.number
        if number is None and record.pending is not None:
            number = tensor.later(record.pending)
        if number is None:
            statistics = _statistics(tensor, fingerprint)
            record.has_nonfinite |= bool(statistics.nan_count or statistics.inf_count)
            text += statistics_text(statistics)
            if record.rows is not None:
                text += sketched(tensor, statistics, record.rows)
        else:
            text += slot(number)
        text += tensor.fields
        if fingerprint is not None:
            text += f', "{FINGERPRINT}": "{fingerprint.text()}"'
        if tensor.origin is not None:
            text += tensor.origin.keys(text)
        if not (record.saves or self._summary == "md5") or array is None:
            return text + "}"
        stored = stored_form(array)
        place = path.removeprefix(".")
        if record.saves and (self.keeps is None or self.keeps(record.name, place, array, stored)):
            file_name = record.file_name(place) + self._values.file_suffix
            self.saved_values += 1
            self.saved_bytes += array.nbytes
            record.arrays.append((file_name, stored if file_name.endswith(".npy") else array))
            text += _naming(file_name)
        if self._summary == "md5":
            text += f', "{CHECKSUM}": "{zlib.crc32(np.ascontiguousarray(stored).data):08x}"'
        return text + "}"

    def _needs_elements(self, record: RecordText) -> bool:
        return record.saves or self._summary in ("md5", "fingerprint")

    def _unknown(self, value: object, record: RecordText) -> str:
        self._on_unknown(record.name, value)
        return "null"


def _followed(values: TensorValues, tensor: Any, record: RecordText, path: str) -> TensorValues:
    """`values` of `tensor` with its origin; after reading, so that nothing waits for a device that would not anyway."""
    if record.origins is not None:
        values.origin = record.origins.of(tensor, path)
    return values


def without_files(text: str, names: Iterable[str]) -> str:
    """`text`, as a `ValueEncoder` made it, naming no file that could not be written."""
    for name in names:
        # As it stands here it stands in no string: there its quotes would be escaped.
        text = text.replace(_naming(name), "")
    return text


def _naming(file_name: str) -> str:
    return f', "{DATA_NAME}": {quoted(file_name)}'


def _shape_text(shape: Iterable[int]) -> str:
    """`[2, 3]`; "" where a length is no number, as long as a graph is traced with symbolic ones."""
    try:
        return f"[{', '.join(map(int.__repr__, shape))}]"
    except TypeError:
        return ""


def _statistics(tensor: TensorValues, fingerprint: Fingerprint | None) -> Statistics:
    """The statistics of `tensor`; `fingerprint` takes the elements meanwhile."""
    with np.errstate(all="ignore"):  # a training may turn warnings into errors
        return tensor.statistics() if fingerprint is None else statistics_of(tensor.array, fingerprint.add)


def sketched(tensor: Sketched, statistics: Statistics, rows: SketchRows) -> str:
    """The key of the sketch of a tensor: that of the same bits before, where there were such in the step."""
    content = tensor.content()
    if content is not None and (row_before := rows.known(content)):
        return row_before
    maximum, minimum = statistics.maximum, statistics.minimum
    is_known = maximum is not None and minimum is not None
    row = tensor.sketch(max(abs(maximum), abs(minimum)) if is_known else None)  # type: ignore[arg-type]
    return "" if row is None else rows.add(row, content)


def stored_form(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` as .npy files hold it: bfloat16, float8 and int4, which NumPy lacks, as float32 (int4 as int8)."""
    if array.dtype.isbuiltin == 1:
        return array
    dtype = dtype_of_array(array.dtype)
    with np.errstate(all="ignore"):
        return array.astype(np.float32 if dtype is None else dtype.stored_as)
