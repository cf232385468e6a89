"""A tensor as `torch.save` would write it, without PyTorch: `torch.load`, also with `weights_only`, reads it.

Layout (torch.save since 1.6): a zip of stored members; `archive/data.pkl` describes one contiguous tensor over the
storage `archive/data/0`, which begins at a multiple of 64 bytes so that it can be mapped.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from msprobe_collector.dump_format.dtypes import find_dtype
from msprobe_collector.dump_format.pytorch_description import UNTYPED

#: Names of the storage classes that a description refers to, by the name of the array's dtype.
_STORAGES = {
    "bool": "BoolStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "bfloat16": "BFloat16Storage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
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
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if contiguous.nbytes >= _LARGEST - (1 << 20):
        raise ValueError(f"{contiguous.nbytes} bytes are too many for one tensor file")
    elements = contiguous.reshape(-1).view(np.uint8).data if contiguous.size else memoryview(b"")
    before, entries = _front(contiguous.dtype.name, contiguous.shape)
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
    known = find_dtype(dtype)
    assert known is not None
    return known.item_bytes


def _text(text: str) -> bytes:
    content = text.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def _number(number: int) -> bytes:
    content = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content  # LONG1, of any size


def _numbers(numbers: Any) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"
