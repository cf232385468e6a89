"""Checkpoint files: what tensors and other values each holds, and where. Only descriptions are read here.

Formats: safetensors (https://huggingface.co/docs/safetensors), `torch.save` (a zip archive since PyTorch 1.6, before
that pickles and storages one behind the other: torch/serialization.py), and MindSpore's protobuf
(`mindspore/train/checkpoint_pb2.py`: values of tag, dims, tensor_type, tensor_content).
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from msprobe_checkpoints.pickles import Made, find_storages, flattened, read_objects, shown
from msprobe_checkpoints.tensors import File, LoadedTensor, ReadError, Span, Stored, Tensor
from msprobe_collector.dump_format.pytorch_files import (
    DescriptionError,
    Member,
    Storage,
    StoredZipError,
    TensorDescription,
    stored_members,
)
from msprobe_collector.dump_format.values import Dtype, abbreviated, array_dtype, dtype_of_array, find_dtype, printable

_MOST_MEMBERS = 1_000_000
_MOST_HEADER_BYTES = 100_000_000
_MOST_DESCRIPTION_BYTES = 1 << 30
#: One text or array in a pickle; elements of tensors are elsewhere.
_MOST_TEXT_BYTES = 1 << 26
#: NumPy makes no arrays of more dimensions.
_MOST_DIMENSIONS = 32
#: Names of dtypes in safetensors.
_SAFETENSORS = {
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("I", "Int"), ("U", "UInt")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    "BOOL": "Bool",
    "BF16": "BFloat16",
    "F8_E4M3": "Float8E4M3FN",
    "F8_E5M2": "Float8E5M2",
    "C64": "Complex64",
    "C128": "Complex128",
}
#: Where a storage stands.
_Place = Callable[[Storage], Span]
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass
class Contents:
    """What a checkpoint, or a file of one, holds.

    Attributes:
        form: what wrote it, in words.
        tensors: by name.
        entries: other values by name: numbers, texts, None.
        problems: what could not be read, one line each.
        holds_entries: whether its form can hold other values than tensors.
        files: how many it consists of.
        several: what the name of a tensor is in its file, where several files of a folder hold that name.
    """

    form: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    entries: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    holds_entries: bool = True
    files: int = 1
    several: dict[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def read_file(path: Path) -> Contents:
    """What the file at `path` holds; its form is told by its content.

    Raises:
        ReadError: it is no checkpoint, or damaged as a whole; the text does not name it.
    """
    file = File(path)
    start = file.read(0, min(file.size, 16))
    if start[:4] == b"PK\3\4":
        return read_torch_zip(Span(file, 0, file.size))
    if len(start) > 8 and start[8:9] == b"{":
        return read_safetensors(file)
    if start[1:4] == b"\x5e\x3a\x7f":
        raise ReadError("is encrypted (MindSpore enc_key); save it without, or decrypt it first")
    if start[:1] == b"\x80":
        return _read_torch_legacy(file)
    if start[:1] == b"\n":
        return read_mindspore(file)
    if start[:6] == b"\x93NUMPY" or start[:4] == b"\x89HDF":
        raise ReadError("is no checkpoint of PyTorch or MindSpore, but a NumPy or HDF5 file")
    what = "is empty" if not file.size else "is no checkpoint: neither safetensors, PyTorch nor MindSpore"
    raise ReadError(what)


def parsed_json(text: bytes) -> tuple[Any, list[str]]:
    """(value of a JSON text, names that stand twice in one of its objects)."""
    twice: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, value in pairs:
            if name in names:
                twice.append(name)
            names[name] = value
        return names

    return json.loads(text, object_pairs_hook=unique), twice


def read_safetensors(file: File) -> Contents:
    """What a safetensors file holds.

    Raises:
        ReadError: its header is damaged or cut off.
    """
    contents = Contents("safetensors", holds_entries=False)
    length = int.from_bytes(file.read(0, 8), "little")
    if not 2 <= length <= min(_MOST_HEADER_BYTES, file.size - 8):
        raise ReadError(f"is not a safetensors file, or cut off: its header should have {length} bytes")
    try:
        header, twice = parsed_json(file.read(8, length))
    except (ValueError, RecursionError):
        raise ReadError("is not a safetensors file: its header is damaged") from None
    if not isinstance(header, dict):
        raise ReadError("is not a safetensors file: its header is no dictionary")
    contents.problems += [f"{abbreviated(name)} stands twice in its header" for name in twice]
    begin = 8 + length
    spans: list[tuple[int, int, str]] = []
    for name, described in header.items():
        if name == "__metadata__":
            continue
        try:
            tensor = _safetensor(described, file, begin)
        except ReadError as error:
            contents.problems.append(f"{abbreviated(name)}: {error}")
            continue
        contents.tensors[name] = tensor
        spans.append((tensor.spans[0].start, tensor.spans[0].size, name))
    spans.sort()
    for (start, size, name), (following, _, other) in pairwise(spans):
        if following < start + size:
            contents.problems.append(f"{abbreviated(name)} and {abbreviated(other)} overlap in the file")
    return contents


def _safetensor(described: Any, file: File, begin: int) -> Stored:
    try:
        code, shape, (first, last) = described["dtype"], described["shape"], described["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ReadError(f"its description is damaged: {abbreviated(described)}") from None
    dtype = find_dtype(_SAFETENSORS[code]) if isinstance(code, str) and code in _SAFETENSORS else None
    if dtype is None:
        raise ReadError(f"dtype {abbreviated(code)} is not known")
    if type(first) is not int or type(last) is not int or not 0 <= first <= last:
        raise ReadError(f"its offsets are {abbreviated(described['data_offsets'])}")
    checked = _shape(shape)
    _check_size(checked, dtype, last - first)
    if begin + last > file.size:
        raise ReadError(f"is cut off: it ends at byte {begin + last}, the file at {file.size}")
    return Stored(dtype, checked, (Span(file, begin + first, last - first),))


def _shape(written: object) -> tuple[int, ...]:
    if not isinstance(written, (list, tuple)) or any(type(size) is not int or size < 0 for size in written):
        raise ReadError(f"its shape is {abbreviated(written)}")
    if len(written) > _MOST_DIMENSIONS or prod(written) >= 1 << 62:
        raise ReadError(f"no tensor has the shape {abbreviated(written)}")
    return tuple(written)


def _check_size(shape: tuple[int, ...], dtype: Dtype, held: int) -> None:
    array = array_dtype(dtype)
    if array is None:
        raise ReadError(f"there is no array type for {dtype.name}")
    if prod(shape) * array.itemsize != held:
        raise ReadError(f"{dtype.name} {shape} needs {prod(shape) * array.itemsize} bytes, the file has {held}")


def read_torch_zip(span: Span) -> Contents:
    """What an archive of `torch.save` holds, which may be a part of a file.

    Raises:
        ReadError: it is no such archive, damaged or cut off.
    """
    members = _members(span)
    descriptions = [name for name in members if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(descriptions) != 1:
        is_program = any(name.endswith("constants.pkl") for name in members)
        what = "TorchScript" if is_program else "a zip archive"
        raise ReadError(f"is {what}, not a checkpoint: it has {len(descriptions)} members data.pkl")
    prefix = descriptions[0].removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in members:
        raise ReadError("is TorchScript, a program; save its state_dict instead")
    order = members.get(f"{prefix}byteorder")
    if order is not None and span[order.start : order.start + min(order.size, 16)] != b"little":
        raise ReadError("was not written on a little-endian machine; save it again")
    member = members[descriptions[0]]
    if member.size > _MOST_DESCRIPTION_BYTES:
        raise ReadError(f"its description has {member.size} bytes")
    pickled = span[member.start : member.start + member.size]
    if zlib.crc32(pickled) != member.checksum:
        raise ReadError("is damaged: the checksum of its description is wrong")

    def place(storage: Storage) -> Span:
        """Where a storage stands.

        Raises:
            ReadError: it is damaged or cut off.
        """
        stored = members.get(f"{prefix}data/{storage.key}")
        if stored is None:
            raise ReadError(f"its storage {abbreviated(storage.key)} is missing")
        return Span(span.file, span.start + stored.start, stored.size)

    return _described(_objects(io.BytesIO(pickled)), place)


def _members(span: Span) -> dict[str, Member]:
    try:
        listed = stored_members(span, _MOST_MEMBERS)
    except StoredZipError as error:
        raise ReadError(str(error)) from None
    members = {member.name: member for member in listed}
    if len(members) < len(listed):
        raise ReadError("has several members of one name")
    return members


class _Bounded:
    """A file of which a pickle may ask no more than there is: a number in it must not take that much memory."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.tell = file.tell
        self.readline = lambda: file.readline(_MOST_TEXT_BYTES)

    def read(self, count: int) -> bytes:
        """The next bytes; none where so many are not there, as at the end of a file."""
        return self._file.read(count) if count <= min(_MOST_TEXT_BYTES, self._size - self.tell()) else b""


def _objects(file: BinaryIO | _Bounded) -> object:
    try:
        return read_objects(cast(BinaryIO, file))
    except DescriptionError as error:
        raise ReadError(str(error)) from None


def _read_torch_legacy(file: File) -> Contents:
    """What a file of `torch.save` before PyTorch 1.6 holds: magic number, protocol, machine, value, keys, storages.

    Raises:
        ReadError: it is no such file, damaged or cut off.
    """
    with file.path.open("rb") as opened:
        stream = _Bounded(opened, file.size)
        if _objects(stream) != _LEGACY_MAGIC:
            raise ReadError("is a pickle, not a checkpoint of torch.save; loading it would run code")
        _objects(stream)
        machine = _objects(stream)
        if not isinstance(machine, dict) or machine.get("little_endian") is not True:
            raise ReadError("was not written on a little-endian machine; save it again")
        value, keys = _objects(stream), _objects(stream)
        at = stream.tell()
    sizes: dict[str, int] = {}
    for storage in _storages_in(value):
        array = array_dtype(storage.dtype)
        sizes[storage.key] = storage.size * (array.itemsize if array is not None else 0)
    places: dict[str, Span] = {}
    for key in keys if isinstance(keys, list) else []:
        size = sizes.get(key)
        if size is None or at + 8 + size > file.size:
            break
        places[key] = Span(file, at + 8, size)
        at += 8 + size

    def place(storage: Storage) -> Span:
        """Where a storage stands.

        Raises:
            ReadError: it is damaged or cut off.
        """
        if storage.key not in places:
            raise ReadError(f"is cut off: its storage {abbreviated(storage.key)} is missing")
        return places[storage.key]

    return _described(value, place)


def _storages_in(value: object) -> Iterator[Storage]:
    try:
        for _, leaf in flattened(value):
            if isinstance(leaf, TensorDescription):
                yield leaf.storage
            elif isinstance(leaf, Storage):
                yield leaf
    except DescriptionError as error:
        raise ReadError(str(error)) from None


def _made(described: TensorDescription, place: _Place) -> Tensor:
    """The tensor that a pickle describes.

    Raises:
        ReadError: it is damaged or cut off.
    """
    dtype = described.storage.dtype
    shape = _shape(described.shape)
    array = array_dtype(dtype)
    if array is None:
        raise ReadError(f"there is no array type for {dtype.name}")
    span = place(described.storage)
    if span.size < described.storage.size * array.itemsize:
        raise ReadError(f"its storage has {span.size} of {described.storage.size * array.itemsize} bytes")
    if len(described.strides) != len(shape):
        raise ReadError("its strides do not fit its shape")
    if not prod(shape):
        return LoadedTensor(dtype, shape, np.empty(shape, array))
    last = described.offset + sum((n - 1) * s for n, s in zip(shape, described.strides))
    if last >= described.storage.size:
        raise ReadError("its elements are outside its storage")
    if prod(shape) > max(described.storage.size, 1 << 16):
        raise ReadError(f"describes {prod(shape)} elements over a storage of {described.storage.size}")
    is_plain = _is_row_major(shape, described.strides)
    strides = tuple(stride * (size > 1) for size, stride in zip(shape, described.strides))
    return Stored(dtype, shape, (span,), None if is_plain else strides, described.offset)


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _described(value: object, place: _Place) -> Contents:
    """Tensors and other values of what a pickle describes."""
    contents = Contents("PyTorch")
    needs_code: dict[str, int] = {}
    try:
        for name, leaf in flattened(value):
            _add(contents, name or "value", leaf, place, needs_code)
    except DescriptionError as error:
        raise ReadError(str(error)) from None
    for name, count in needs_code.items():
        times = f", {count} times" if count > 1 else ""
        contents.problems.append(
            f"needs code to load: {name}{times}; it was not run, and what the file gives it is compared"
        )
    return contents


def _add(contents: Contents, name: str, leaf: object, place: _Place, needs_code: dict[str, int]) -> None:
    if isinstance(leaf, TensorDescription):
        try:
            contents.tensors[name] = _made(leaf, place)
        except ReadError as error:
            contents.problems.append(f"{abbreviated(name)}: {error}")
    elif isinstance(leaf, np.ndarray):
        dtype = dtype_of_array(cast(Any, leaf.dtype))
        if dtype is not None:
            contents.tensors[name] = LoadedTensor(dtype, leaf.shape, np.ascontiguousarray(leaf))
    elif isinstance(leaf, Made):
        if leaf.needs_code:
            needs_code[shown(leaf)] = needs_code.get(shown(leaf), 0) + 1
        if any(find_storages(list(leaf.arguments))):
            contents.problems.append(f"{abbreviated(name)}: a tensor of a kind that only {shown(leaf)} can make")
        contents.entries[name] = leaf.name
    elif not isinstance(leaf, Storage):
        contents.entries[name] = leaf


_VARINT_BYTES = 10
_CRC_BYTES = 17
#: A header before the bytes of a tensor: name, dims and type.
_MOST_TAG_BYTES = 1 << 16


def read_mindspore(file: File) -> Contents:
    """What a checkpoint of `mindspore.save_checkpoint` holds.

    Raises:
        ReadError: it is none.
    """
    contents = Contents("MindSpore")
    end = file.size
    if end > _CRC_BYTES and file.read(end - _CRC_BYTES, 7) == b"crc_num":
        end -= _CRC_BYTES
    parts: dict[str, list[tuple[tuple[int, ...], str, Span]]] = {}
    at, latest = 0, ""
    while at < end:
        try:
            tag, part, at = _message(file, at, end)
        except ReadError as error:
            if not parts:
                raise ReadError(f"is no MindSpore checkpoint, or damaged: {error}") from None
            contents.problems.append(
                f"is damaged or cut off behind {abbreviated(tag if at > end else latest)}: {error}"
            )
            break
        if tag in parts and tag != latest:
            contents.problems.append(f"{abbreviated(tag)} stands twice in it")
        elif part is None:
            contents.problems.append(f"{abbreviated(tag)}: a hash table (MapParameter), which is not compared")
        else:
            parts.setdefault(tag, []).append(part)
        latest = tag
    for tag, several in parts.items():
        try:
            _add_parameter(contents, tag, several)
        except ReadError as error:
            contents.problems.append(f"{abbreviated(tag)}: {error}")
    return contents


def _add_parameter(contents: Contents, tag: str, parts: list[tuple[tuple[int, ...], str, Span]]) -> None:
    written, type_name, _ = parts[0]
    spans = tuple(span for _, _, span in parts)
    held = sum(span.size for span in spans)
    if type_name == "str":
        contents.entries[tag] = spans[0][: min(held, 1 << 16)].decode("utf-32-le", "replace")
        return
    dtype = find_dtype(type_name)
    if dtype is None:
        raise ReadError(f"dtype {abbreviated(type_name)} is not known")
    shape = _shape(written)
    _check_size(shape, dtype, held)
    tensor = Stored(dtype, shape, spans)
    if shape:
        contents.tensors[tag] = tensor
    else:  # step and epoch numbers, learning rates
        contents.entries[tag] = tensor.read(0, 1)[0].item()


def _message(file: File, at: int, end: int) -> tuple[str, tuple[tuple[int, ...], str, Span] | None, int]:
    """(tag, part of a tensor or None for a hash table, where the next message begins)."""
    head = _Head(file, at, end)
    inner = head.entered(1)
    tag, part, is_table = "", None, False
    while head.at < inner:
        number, kind = head.key()
        if number == 1 and kind == 2:
            tag = head.text(inner)
        elif number == 2 and kind == 2:
            part = _tensor(head, head.length(inner))
        elif number == 3 and kind == 2:
            head.at, is_table = head.length(inner), True
        else:
            raise ReadError(f"an unknown field at byte {head.at}")
    if not tag or (part is None and not is_table):
        raise ReadError(f"a value without a name or a tensor at byte {at}")
    return tag, part, inner


def _tensor(head: _Head, end: int) -> tuple[tuple[int, ...], str, Span]:
    dims: list[int] = []
    type_name, span = "", None
    while head.at < end:
        number, kind = head.key()
        if number == 1 and kind == 0:
            dims.append(head.number())
        elif number == 1 and kind == 2:
            packed = head.length(end)
            while head.at < packed:
                dims.append(head.number())
        elif number == 2 and kind == 2:
            type_name = head.text(end)
        elif number == 3 and kind == 2:
            last = head.length(end)
            span = Span(head.file, head.at, last - head.at)
            head.at = last
        else:
            raise ReadError(f"an unknown field at byte {head.at}")
        if len(dims) > _MOST_DIMENSIONS:
            raise ReadError(f"a tensor of more than {_MOST_DIMENSIONS} dimensions")
    if span is None:
        raise ReadError(f"a tensor without content at byte {head.at}")
    signed = (size if size < 1 << 63 else size - (1 << 64) for size in dims)
    return tuple(signed), type_name, span


class _Head:
    """Reads fields of protobuf messages from a file, a block at a time."""

    _BLOCK = 512

    def __init__(self, file: File, at: int, end: int) -> None:
        """The fields from byte `at` on; none reaches behind `end`."""
        self.file, self.at, self._end = file, at, end
        self._start, self._held = at, b""

    def entered(self, number: int) -> int:
        """Go into the message that must stand here; where it ends.

        Raises:
            ReadError: it is damaged or cut off.
        """
        if self.key() != (number, 2):
            raise ReadError(f"no value begins at byte {self.at}")
        return self.length(self._end)

    def key(self) -> tuple[int, int]:
        """Number and kind of the next field."""
        read = self.number()
        return read >> 3, read & 7

    def length(self, end: int) -> int:
        """Where the next field ends, whose length stands here.

        Raises:
            ReadError: it is damaged or cut off.
        """
        size = self.number()
        if self.at + size > end:
            raise ReadError(f"a field at byte {self.at} of {size} bytes ends outside its message")
        return self.at + size

    def text(self, end: int) -> str:
        """The text that stands here.

        Raises:
            ReadError: it is damaged or cut off.
        """
        last = self.length(end)
        if last - self.at > _MOST_TAG_BYTES:
            raise ReadError(f"a name of {last - self.at} bytes")
        text = self.file.read(self.at, last - self.at).decode("utf-8", "replace")
        self.at = last
        return text

    def number(self) -> int:
        """The number that stands here.

        Raises:
            ReadError: it is damaged or cut off.
        """
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self._byte()
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise ReadError(f"a number of more than 64 bits at byte {self.at}")

    def _byte(self) -> int:
        place = self.at - self._start
        if not 0 <= place < len(self._held):
            if self.at >= self._end:
                raise ReadError(f"it ends within a value, at byte {self._end}")
            self._start, place = self.at, 0
            self._held = self.file.read(self.at, min(self._BLOCK, self._end - self.at))
        self.at += 1
        return self._held[place]


def is_inside(name: str) -> bool:
    """Whether a name in a checkpoint is that of a file in its folder, and leads nowhere else."""
    parts = Path(name).parts
    return bool(parts) and not os.path.isabs(name) and ".." not in parts and "\0" not in name


def refused(name: str) -> str:
    """Why a name is not followed."""
    return f"names {printable(repr(name)[:100])}, which is not a file in this folder; not followed"
