"""Tensors in `.pt` files, as PyTorch dumps hold them, read without PyTorch and without running what they say.

Layout (torch.save since 1.6): a zip of stored members; `*/data.pkl` describes one tensor over a storage whose bytes are
the member `*/data/KEY`. What is allocated is bounded by the shape that the caller expects, not by what the file says.

The description of a tensor is a pickle, evaluated by a stack machine that can only make inert
values. `pickle` is not used: it would have to be kept from calling, from setting attributes and
from filling a memo of any size. The operations here are those that torch.save writes for one
tensor, in pickle protocols 2 to 5.

`zipfile` is not used either: it reads a directory of any length and inflates a member of any size,
and takes most of the time that a small tensor takes. Here both are bounded, and a member is a span
of the file, which can be mapped.
"""

from __future__ import annotations

import mmap
import os
import pickletools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from msprobe_collector.dump_format.values import Dtype, abbreviated, array_dtype, find_dtype, printable

if TYPE_CHECKING:
    import numpy as np


class ByteSource(Protocol):
    """The bytes of a file, or of a part of one."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __getitem__(self, places: slice, /) -> bytes | bytearray:
        """Those at some places, without a step."""

    def rfind(self, sub: bytes, start: int, /) -> int:
        """Return where `sub` stands last, from `start` on; -1 where it does not."""


#: From this size on the values of a file are memory-mapped. Below, one read is faster and leaves no file open.
MAP_FROM_BYTES = 1 << 16
#: torch.save writes about 60 for one tensor.
_MOST_OPERATIONS = 1000
#: Offsets, sizes and strides count elements; a file system holds fewer bytes than this.
_LARGEST_INTEGER = 1 << 62


class DescriptionError(ValueError):
    """Why a pickle does not describe one tensor."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the elements are.

    Attributes:
        dtype: of the elements.
        key: name of the member that holds them.
        size: how many there are.
    """

    dtype: Dtype
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor over a storage; offset and strides count elements, as in PyTorch."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@lru_cache(maxsize=256)
def read_description(pickled: bytes) -> TensorDescription:
    """Return the tensor that `pickled` describes; a dump describes many tensors in the same bytes.

    Raises:
        DescriptionError: it names or does what a tensor does not need, or describes something else.
    """
    machine = PickleMachine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(pickled)):
            if count == _MOST_OPERATIONS:
                raise DescriptionError(f"its description has more than {_MOST_OPERATIONS} operations")
            machine.step(operation.name, argument)
        description = machine.stack.pop()
    except DescriptionError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        raise DescriptionError("its description is damaged") from None
    if not isinstance(description, TensorDescription):
        raise DescriptionError(f"it holds a {type(description).__name__}, not a tensor")
    return description


class Mark:
    """Where on the stack a tuple begins."""


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A name that may be called, and what a call of it gives."""

    call: Callable[..., object]


class _NoHooks:
    """The empty OrderedDict of backward hooks."""


class PickleMachine:
    """The stack and the memo of a pickle; what it can make are inert values."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self._memo: dict[int, object] = {}

    def step(self, operation: str, argument: Any) -> None:
        """Do one operation.

        Raises:
            DescriptionError: the description of a tensor does not need this operation, or holds no number like this
                one.
        """
        if operation in _VALUES:
            if isinstance(argument, int) and not -_LARGEST_INTEGER < argument < _LARGEST_INTEGER:
                raise DescriptionError("its description holds a number that no tensor has")
            self.stack.append(argument)
        elif operation in _CONSTANTS:
            self.stack.append(_CONSTANTS[operation])
        elif operation in _TUPLES:
            self.stack.append(self.popped(_TUPLES[operation]))
        elif operation in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif operation in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif operation in _STEPS:
            _STEPS[operation](self, argument)
        elif operation not in _NO_EFFECT:
            raise DescriptionError(f"its description uses {operation}, which that of one tensor does not")

    def popped(self, count: int) -> tuple[object, ...]:
        """So many values from the top of the stack, the lowest first.

        Raises:
            IndexError: there are fewer.
        """
        if count > len(self.stack):
            raise IndexError
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return items

    def since_mark(self, _: None) -> None:
        """TUPLE: put a tuple of the values above the last mark in their place.

        Raises:
            IndexError: there is no mark.
        """
        for position in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[position], Mark):
                items = self.popped(len(self.stack) - position)
                self.stack.append(items[1:])
                return
        raise IndexError

    def find_global(self, argument: str) -> None:
        """GLOBAL: a name, written as module and name with a space between."""
        module, _, name = argument.partition(" ")
        self.stack.append(_find(module, name))

    def find_stack_global(self, _: None) -> None:
        """STACK_GLOBAL: a name whose two parts are on the stack."""
        module, name = self.popped(2)
        self.stack.append(_find(str(module), str(name)))

    def call(self, _: None) -> None:
        """REDUCE: put the value of a name for its arguments in their place.

        Raises:
            TypeError: there is no such name below, or the arguments are not a tuple.
        """
        name, arguments = self.popped(2)
        if not isinstance(name, KnownCall) or not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(name.call(*arguments))

    def find_storage(self, _: None) -> None:
        """BINPERSID: put the storage in the place of the tuple that describes it.

        Raises:
            TypeError: the tuple does not describe a storage.
        """
        described = self.stack.pop()
        if not isinstance(described, tuple):
            raise TypeError
        kind, dtype, key, _location, size = described
        if kind != "storage" or not isinstance(dtype, Dtype) or not isinstance(key, str) or not _is_size(size):
            raise TypeError
        self.stack.append(Storage(dtype, key, size))


def find_known(module: str, name: str) -> object | None:
    """What a name in a pickle stands for, where a tensor needs it: a dtype, or `KnownCall`; None for any other."""
    if module == "torch" and (name in STORAGES or name in UNTYPED):
        return find_dtype(STORAGES.get(name, name))
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return find_dtype("UInt8")
    return _KNOWN.get((module, name))


def _find(module: str, name: str) -> object:
    stand_in = find_known(module, name)
    if stand_in is None:
        raise DescriptionError(f"it names {printable(f'{module}.{name}'[:100])}, which a tensor does not need; refused")
    return stand_in


def _rebuild_tensor(
    storage: object, offset: object, shape: object, strides: object, *others: object
) -> TensorDescription:
    # After these come requires_grad, hooks and, for a conjugate view and the like, a dict, which EMPTY_DICT refuses.
    if not isinstance(storage, Storage) or not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(strides):
        raise TypeError
    return TensorDescription(storage, offset, shape, strides)  # type: ignore[arg-type]  # the lines above have seen to it


def _rebuild_untyped(
    storage: object, offset: object, shape: object, strides: object, _grad: object, _hooks: object, dtype: object
) -> TensorDescription:
    # Dtypes that came after the typed storages: the storage counts bytes, and the dtype stands beside it.
    if not isinstance(storage, Storage) or not isinstance(dtype, Dtype):
        raise TypeError
    typed = Storage(dtype, storage.key, storage.size // dtype.item_bytes)
    return _rebuild_tensor(typed, offset, shape, strides)


def _rebuild_parameter(tensor: object, *_others: object) -> object:
    return tensor


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_size, value))


_VALUES = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"})
_CONSTANTS: dict[str, object] = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None, "MARK": Mark()}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STEPS: dict[str, Callable[[PickleMachine, Any], None]] = {
    "TUPLE": PickleMachine.since_mark,
    "GLOBAL": PickleMachine.find_global,
    "STACK_GLOBAL": PickleMachine.find_stack_global,
    "REDUCE": PickleMachine.call,
    "BINPERSID": PickleMachine.find_storage,
}
_NO_EFFECT = frozenset({"PROTO", "FRAME", "STOP"})
#: Names of dtypes by the storage classes of `torch`.
STORAGES = {
    "BoolStorage": "Bool",
    "ByteStorage": "UInt8",
    "CharStorage": "Int8",
    "ShortStorage": "Int16",
    "IntStorage": "Int32",
    "LongStorage": "Int64",
    "HalfStorage": "Float16",
    "BFloat16Storage": "BFloat16",
    "FloatStorage": "Float32",
    "DoubleStorage": "Float64",
    "ComplexFloatStorage": "Complex64",
    "ComplexDoubleStorage": "Complex128",
}
#: Names in `torch` of dtypes without a typed storage.
UNTYPED = frozenset({"float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"})
_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v3"): KnownCall(_rebuild_untyped),
    ("torch._utils", "_rebuild_tensor_v2"): KnownCall(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): KnownCall(_rebuild_parameter),
    ("collections", "OrderedDict"): KnownCall(_NoHooks),
}


_MOST_MEMBERS = 64
_MOST_COMMENT_BYTES = 1 << 16
_LOCAL_HEADER = struct.Struct("<4s22xHH")
#: Flags, method, CRC-32, both sizes, lengths of name, extra fields and comment, and offset of the local header.
_ENTRY = struct.Struct("<4s4xHH4xLLLHHH8xL")
#: Number of entries, and offset of the first: as they are, and where the archive has the fields of 64 bits.
_END, _END_64 = struct.Struct("<4s6xH4xL2x"), struct.Struct("<4s28xQ8xQ")
_SIGNATURE_OF_END = b"PK\5\6"
_LOCATOR = struct.Struct("<4s4xQ4x")
_IS_ENCRYPTED, _IS_LARGE = 1, 0xFFFFFFFF


class StoredZipError(ValueError):
    """Why a file is not an archive that can be read."""


@dataclass(frozen=True, slots=True)
class Member:
    """One stored member.

    Attributes:
        name: as the archive writes it.
        start, size: its bytes in the file, which holds all of them.
        checksum: CRC-32 of these bytes.
    """

    name: str
    start: int
    size: int
    checksum: int


def stored_members(content: ByteSource, most: int = _MOST_MEMBERS) -> list[Member]:
    """Return the members of the archive that `content` is.

    Raises:
        StoredZipError: it is not a zip archive, has more than `most` members, or one that is compressed, encrypted or
            cut off.
    """
    count, at = _directory(content)
    if count > most:
        raise StoredZipError(f"it has {count} members, more than {most}")
    members = []
    for _ in range(count):
        flags, method, checksum, stored, size, *lengths, header = _unpacked(_ENTRY, b"PK\1\2", content, at)
        end_of_name = at + _ENTRY.size + lengths[0]
        name = content[at + _ENTRY.size : end_of_name].decode("utf-8", "replace")
        extra = bytes(content[end_of_name : end_of_name + lengths[1]])
        at = end_of_name + lengths[1] + lengths[2]
        size, stored, header = _with_large(extra, size, stored, header)
        if method or size != stored:
            raise StoredZipError(f"its member {abbreviated(name)} is compressed; torch.save stores members as they are")
        if flags & _IS_ENCRYPTED:
            raise StoredZipError(f"its member {abbreviated(name)} is encrypted")
        members.append(_member(content, name, header, size, checksum))
    return members


def _directory(content: ByteSource) -> tuple[int, int]:
    """(number of members, where the first is described) of an archive."""
    end = content.rfind(_SIGNATURE_OF_END, max(0, len(content) - _END.size - _MOST_COMMENT_BYTES))
    place: tuple[int, int] = _unpacked(_END, _SIGNATURE_OF_END, content, end)
    locator = end - _LOCATOR.size
    if locator >= 0 and content[locator : locator + 4] == b"PK\6\7":
        (at,) = _unpacked(_LOCATOR, b"PK\6\7", content, locator)
        place = _unpacked(_END_64, b"PK\6\6", content, at)
    return place


def _unpacked(layout: struct.Struct, signature: bytes, content: ByteSource, at: int) -> tuple[Any, ...]:
    """Return the fields at a place behind the signature that must stand there."""
    if 0 <= at <= len(content) - layout.size:
        signature_here, *fields = layout.unpack(content[at : at + layout.size])
        if signature_here == signature:
            return tuple(fields)
    raise StoredZipError("it is not a zip archive, or cut off")


def _with_large(extra: bytes, *numbers: int) -> tuple[int, ...]:
    """Sizes and offset of a member; those that need 64 bits stand among its extra fields, in this order."""
    at, count = 0, numbers.count(_IS_LARGE)
    while count and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1 and 8 * count <= min(length, len(extra) - at):
            wide = iter(struct.unpack_from(f"<{count}Q", extra, at))
            return tuple(next(wide) if number == _IS_LARGE else number for number in numbers)
        at += length
    return numbers


def _member(content: ByteSource, name: str, header: int, size: int, checksum: int) -> Member:
    end_of_header = header + _LOCAL_HEADER.size
    if end_of_header <= len(content):
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(content[header:end_of_header])
        start = end_of_header + name_bytes + extra_bytes
        if signature == b"PK\3\4" and start + size <= len(content):
            return Member(name, start, size, checksum)
    raise StoredZipError(f"its member {abbreviated(name)} is truncated")


_MOST_DESCRIPTION_BYTES = 1 << 16


class PytorchFileError(ValueError):
    """Why a `.pt` file does not hold a tensor that can be read."""


def read_pytorch_tensor(file: BinaryIO, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray[Any, Any]:
    """Return the tensor in `file`, contiguous, in its own dtype; large ones mapped and read-only.

    Raises:
        PytorchFileError: it is not a `.pt` file of one tensor, or not of `shape` and `dtype`.
        OSError: it cannot be read.
    """
    content = _content(file)
    try:
        members = stored_members(content)
        description = _only([member for member in members if member.name.endswith("/data.pkl")])
        if description.size > _MOST_DESCRIPTION_BYTES:
            raise PytorchFileError("is not a .pt file of one tensor: its description is too long")
        tensor = read_description(_checked(content, description, "the checksum of its description is wrong"))
    except (StoredZipError, DescriptionError) as error:
        raise PytorchFileError(f"is not a .pt file of one tensor: {error}") from None
    prefix = description.name.removesuffix("data.pkl")
    for member in members:
        is_order = member.name == f"{prefix}byteorder"
        if is_order and content[member.start : member.start + min(member.size, 16)] != b"little":
            raise PytorchFileError("was not written on a little-endian machine; save the tensor again")
    _check_description(tensor, shape, dtype)
    storage = _only([member for member in members if member.name == f"{prefix}data/{tensor.storage.key}"])
    return _elements(content, storage, tensor)


def _only(members: list[Member]) -> Member:
    if len(members) != 1:
        raise PytorchFileError("is not a .pt file of one tensor")
    return members[0]


def _content(file: BinaryIO) -> bytearray | mmap.mmap:
    """Return the file as a whole: a large one is mapped, and read where it is looked at."""
    size = file.seek(0, os.SEEK_END)
    if size >= MAP_FROM_BYTES:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file.seek(0)
    return bytearray(file.read(size))


def _checked(content: ByteSource, member: Member, otherwise: str) -> bytes:
    stored = bytes(content[member.start : member.start + member.size])
    if zlib.crc32(stored) != member.checksum:
        raise StoredZipError(otherwise)
    return stored


def _check_description(tensor: TensorDescription, shape: tuple[int, ...], dtype: Dtype) -> None:
    if tensor.storage.dtype is not dtype:
        raise PytorchFileError(f"holds {tensor.storage.dtype.name}, the record says {dtype.name}")
    if tensor.shape != shape:
        raise PytorchFileError(f"has shape {abbreviated(tensor.shape)}, the record says {abbreviated(shape)}")
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, tensor.strides) if size > 1)
    is_outside = bool(prod(shape)) and last >= tensor.storage.size
    if len(tensor.strides) != len(shape) or is_outside:
        raise PytorchFileError("describes elements outside its storage")
    # A tensor that was expanded is larger than its file: a few bytes must not ask for gigabytes.
    if prod(shape) > max(tensor.storage.size, MAP_FROM_BYTES):
        raise PytorchFileError(f"describes {prod(shape)} elements over a storage of {tensor.storage.size}")


def _elements(content: bytearray | mmap.mmap, storage: Member, tensor: TensorDescription) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype = array_dtype(tensor.storage.dtype)
    if dtype is None:
        raise PytorchFileError(f"there is no array type for {tensor.storage.dtype.name}")
    if storage.size != tensor.storage.size * dtype.itemsize:
        raise PytorchFileError(f"is truncated: its storage does not have {tensor.storage.size * dtype.itemsize} bytes")
    if not prod(tensor.shape):
        return np.empty(tensor.shape, dtype)
    stored: Any = np.frombuffer(content, np.uint8, storage.size, storage.start)
    if zlib.crc32(stored.data) != storage.checksum:
        raise PytorchFileError("is damaged: the checksum of its values is wrong")
    # The stride of a dimension of one element says nothing, and may be any number.
    strides = [stride * dtype.itemsize if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.strides)]
    view: np.ndarray[Any, Any] = np.ndarray(
        tensor.shape, dtype=dtype, buffer=stored, offset=tensor.offset * dtype.itemsize, strides=strides
    )
    return view if view.flags.c_contiguous and view.flags.aligned else view.copy(order="C")
