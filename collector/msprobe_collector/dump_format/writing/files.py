"""Files of a dump as they are written: a JSON object that is whole after each entry, and .npy and .pt files.

A tensor in a `.pt` file is as `torch.save` would write it, without PyTorch: `torch.load`, also
with `weights_only`, reads it. Layout (torch.save since 1.6): a zip of stored members;
`archive/data.pkl` describes one contiguous tensor over the storage `archive/data/0`, which begins
at a multiple of 64 bytes so that it can be mapped.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from msprobe_collector.dump_format.pytorch_files import STORAGES, UNTYPED
from msprobe_collector.dump_format.values import find_dtype

_DECODER = json.JSONDecoder()


class GrowingFile:
    """The JSON object at `path`: `head` fields, then entries one per line.

    Every entry is one write, which takes the closing brackets along: a process that is killed leaves a file that can be
    read, and one that is killed inside a write leaves one that lacks its tail. Nothing is kept in memory. It has one
    user at a time: whoever shares it among processes holds a lock from `reopen` to `close`.

    Attributes:
        path: the file; it is created with the first entry, or by `create`.
    """

    def __init__(
        self,
        path: Path,
        *,
        head: Mapping[str, object] | None = None,
        entries_key: str | None = None,
        entries_per_write: int = 1,
    ) -> None:
        """Prepare the file.

        Args:
            path: where it will stand.
            head: fields before the entries.
            entries_key: field that holds the entries; None when the object itself does.
            entries_per_write: entries that a kill may cost, to write less often.
        """
        self.path = path
        self._opening, self._tail = (
            ("", b"\n}\n") if entries_key is None else (f"{json.dumps(entries_key)}: {{", b"\n}\n}\n")
        )
        self._head = self._head_of(head or {})
        self._descriptor = -1
        self._end = 0
        self._entries_per_write = entries_per_write
        self._waiting: list[str] = []

    def create(self, entries: bytes = b"") -> None:
        """Write the file with `entries`, in place of one that stood there. Raises OSError; no new file is left then.

        It gets its name when it is whole: neither a full disk nor a kill leaves an empty one.
        """
        if self._descriptor >= 0:
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        self._descriptor = _opened(partial, os.O_TRUNC)
        self._end = len(self._head) + len(entries)
        try:
            write_at(self._descriptor, self._head + entries + self._tail, 0)
            os.replace(partial, self.path)
        except OSError:
            self._shut()
            with suppress(OSError):
                partial.unlink()
            raise

    def reopen(self) -> frozenset[str]:
        """Go on after the last whole entry of the file that stands at `path`, or create it; the keys of its entries.

        The file was written here with the same head; what a kill cut off of its end is dropped. Raises OSError.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        if not content.startswith(self._head):
            self.create()
            return frozenset()
        self._descriptor = _opened(self.path)
        if content.endswith(self._tail) and len(content) >= len(self._head) + len(self._tail):
            self._end = len(content) - len(self._tail)
        else:
            # An entry holds no line breaks, so that these two characters stand only between entries.
            self._end = max(len(self._head), content.rfind(b",\n", len(self._head)))
            self._mend()
        lines = content[len(self._head) : self._end].decode().split("\n")
        return frozenset(_DECODER.raw_decode(line)[0] for line in lines if line)

    def change(self, path: Path, head: Mapping[str, object]) -> None:
        """The file stands at `path`, where it may have been moved to: write another `head`. Raises OSError.

        Where the new head is longer than the old one, the whole file is written anew.
        """
        self.path = path
        missing = len(self._head) - len(self._head_of(head))
        if self._descriptor < 0:
            return
        if missing >= 0:
            self._head = self._head_of(head, padding=" " * missing)
            write_at(self._descriptor, self._head, 0)
            return
        self.flush()
        entries = os.pread(self._descriptor, self._end - len(self._head), len(self._head))
        self._shut()
        old, self._head = self._head, self._head_of(head)
        try:
            self.create(entries)
        except OSError:
            self._head = old
            self.reopen()
            raise

    def add(self, entry: str) -> None:
        """Append `entry`, the text of a key and its value. Raises OSError."""
        self._waiting.append(entry)
        if len(self._waiting) >= self._entries_per_write:
            self.flush()

    def flush(self) -> None:
        """Write the entries that wait. Raises OSError; they are given up then, and the file is whole without them."""
        if not self._waiting:
            return
        if self._descriptor < 0:
            self.create()
        text = ",\n".join(self._waiting).encode()
        self._waiting.clear()
        separator = b"\n" if self._end == len(self._head) else b",\n"
        try:
            write_at(self._descriptor, separator + text + self._tail, self._end)
            self._end += len(separator) + len(text)
        except BaseException:  # a full disk, or Ctrl-C inside the write
            self._mend()
            raise

    def close(self) -> None:
        """Write what waits and close the file; it stays whole. Raises OSError."""
        try:
            self.flush()
        finally:
            self._shut()

    def _shut(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _mend(self) -> None:
        """Put the closing brackets back where a write that failed half-way ran over them."""
        with suppress(OSError):
            write_at(self._descriptor, self._tail, self._end)
            os.ftruncate(self._descriptor, self._end + len(self._tail))

    def _head_of(self, head: Mapping[str, object], *, padding: str = "") -> bytes:
        fields = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
        return f"{{{fields}{padding}{self._opening}".encode()


def write_at(descriptor: int, content: bytes, at: int) -> None:
    """Write all of `content` at a place of an open file. Raises OSError."""
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _opened(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | flags | getattr(os, "O_CLOEXEC", 0), 0o640)


def quoted(name: str) -> str:
    """`name` as a JSON string; quicker than json.dumps for the names that records have."""
    if name.isascii() and name.isprintable() and '"' not in name and "\\" not in name:
        return f'"{name}"'
    return json.dumps(name)


#: Of what stands in many records.
quoted_key = lru_cache(4096)(quoted)
#: Names of the storage classes that a description refers to, by the name of the array's dtype.
_STORAGES = {dtype.lower(): storage for storage, dtype in STORAGES.items()}
_ALIGNMENT = 64
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_DATE = (1 << 5) | 1  # 1 January 1980, the first that zip knows
_LARGEST = (1 << 32) - 1


def pytorch_file(array: np.ndarray[Any, Any]) -> tuple[bytes, memoryview, bytes]:
    """The parts of the file of `array`, to be written one after the other: what precedes the elements, they, the rest.

    Raises:
        ValueError: no storage of PyTorch has its dtype, or it has 4 GiB or more.
    """
    if array.nbytes >= _LARGEST - (1 << 20):
        raise ValueError(f"{array.nbytes} bytes are too many for one tensor file")
    elements = _bytes_in(array)
    before, entries = _front(array.dtype.name, array.shape)
    checksum = zlib.crc32(elements)
    name = b"archive/data/0"
    padding = -(len(before) + _LOCAL.size + len(name) + 4) % _ALIGNMENT
    extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    sizes = (checksum, len(elements), len(elements))
    header = _LOCAL.pack(b"PK\x03\x04", 0, 0, 0, 0, _DATE, *sizes, len(name), len(extra)) + name + extra
    directory = entries + _entry(name, sizes, len(before))
    start = len(before) + len(header) + len(elements)
    end = _END.pack(b"PK\x05\x06", 0, 0, _MEMBERS, _MEMBERS, len(directory), start, 0)
    return before + header, elements, directory + end


_MEMBERS = 4


@lru_cache(maxsize=4096)
def _front(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """(members before the storage, their entries in the directory)."""
    members, entries = b"", b""
    for name, content in (
        (b"archive/data.pkl", _description(dtype, shape)),
        (b"archive/byteorder", b"little"),
        (b"archive/version", b"3\n"),
    ):
        sizes = (zlib.crc32(content), len(content), len(content))
        entries += _entry(name, sizes, len(members))
        members += _LOCAL.pack(b"PK\x03\x04", 0, 0, 0, 0, _DATE, *sizes, len(name), 0) + name + content
    return members, entries


def _entry(name: bytes, sizes: tuple[int, int, int], offset: int) -> bytes:
    return _CENTRAL.pack(b"PK\x01\x02", 0, 0, 0, 0, 0, _DATE, *sizes, len(name), 0, 0, 0, 0, 0, offset) + name


def _description(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The pickle of `_rebuild_tensor_v2(storage, 0, shape, strides, requires_grad=False, hooks={})`.

    A dtype without a typed storage has `_rebuild_tensor_v3`, which takes the dtype at the end.
    """
    if dtype not in _STORAGES and dtype not in UNTYPED:
        raise ValueError(f"PyTorch has no storage of dtype {dtype}")
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    is_typed = dtype in _STORAGES
    storage_class = f"ctorch\n{_STORAGES[dtype]}\n" if is_typed else "ctorch.storage\nUntypedStorage\n"
    count = prod(shape) * (1 if is_typed else _bytes_of(dtype))
    return (
        f"\x80\x02ctorch._utils\n_rebuild_tensor_v{2 if is_typed else 3}\n(".encode("latin-1")
        + (b"(" + _text("storage") + storage_class.encode() + _text("0") + _text("cpu") + _number(count) + b"tQ")
        + _number(0)
        + _numbers(shape)
        + _numbers(strides)
        + b"\x89ccollections\nOrderedDict\n)R"
        + (b"" if is_typed else f"ctorch\n{dtype}\n".encode())
        + b"tR."
    )


def _bytes_of(dtype: str) -> int:
    dtype_known = find_dtype(dtype)
    assert dtype_known is not None
    return dtype_known.item_bytes


def _text(text: str) -> bytes:
    content = text.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def _number(number: int) -> bytes:
    content = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content  # LONG1, of any size


def _numbers(numbers: Any) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


class TensorFiles:
    """Writes arrays into the dump_tensor_data of a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_there = False

    def save(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `array` to the file `name`, which is whole afterwards or not there.

        Raises:
            OSError: the disk refuses, or the name is longer than file systems take.
        """
        if "/" in name:
            raise OSError(errno.EINVAL, "a name with '/' is not a file name", name)
        if not self._is_there:
            self.folder.mkdir(mode=0o750, exist_ok=True)
            self._is_there = True
        path = self.folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                if name.endswith(".npy"):
                    write_npy(file, array)
                else:
                    _write_parts(file.fileno(), pytorch_file(array))
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise


def write_npy(file: BinaryIO, array: np.ndarray[Any, Any]) -> None:
    """Write `array`, of a dtype that .npy files hold, into an open file. Raises OSError."""
    file.flush()
    _write_all(file.fileno(), _header(array.dtype.str, array.shape))
    _write_all(file.fileno(), _bytes_in(array))


def _bytes_in(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the elements of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _write_parts(descriptor: int, parts: tuple[bytes | memoryview, ...]) -> None:
    written = os.writev(descriptor, parts)
    for part in parts:
        if written < len(part):
            _write_all(descriptor, memoryview(part)[written:])
        written = max(0, written - len(part))


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    buffer = BytesIO()
    description = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)  # type: ignore[no-untyped-call]
    return buffer.getvalue()
