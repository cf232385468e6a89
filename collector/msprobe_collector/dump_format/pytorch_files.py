"""Tensors in `.pt` files, as PyTorch dumps hold them, read without PyTorch and without running what they say.

Layout (torch.save since 1.6): a zip of stored members; `*/data.pkl` describes one tensor over a storage whose bytes are
the member `*/data/KEY`. What is allocated is bounded by the shape that the caller expects, not by what the file says.
"""

from __future__ import annotations

import zlib
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from msprobe_collector.dump_format.dtypes import Dtype, array_dtype
from msprobe_collector.dump_format.files import MAP_FROM_BYTES
from msprobe_collector.dump_format.pytorch_description import DescriptionError, TensorDescription, read_description
from msprobe_collector.dump_format.stored_zip import Member, StoredZipError, stored_members
from msprobe_collector.dump_format.text import shortened

if TYPE_CHECKING:
    import numpy as np

_MOST_DESCRIPTION_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20


class PytorchFileError(ValueError):
    """Why a `.pt` file does not hold a tensor that can be read."""


def read_pytorch_tensor(file: BinaryIO, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray[Any, Any]:
    """The tensor in `file`, contiguous, in its own dtype; large ones mapped and read-only.

    Raises:
        PytorchFileError: it is not a `.pt` file of one tensor, or not of `shape` and `dtype`.
        OSError: it cannot be read.
    """
    try:
        members = stored_members(file)
        description = _only([member for member in members if member.name.endswith("/data.pkl")])
        if description.size > _MOST_DESCRIPTION_BYTES:
            raise PytorchFileError("is not a .pt file of one tensor: its description is too long")
        tensor = read_description(_content(file, description))
    except (StoredZipError, DescriptionError) as error:
        raise PytorchFileError(f"is not a .pt file of one tensor: {error}") from None
    prefix = description.name.removesuffix("data.pkl")
    _check_byte_order(file, [member for member in members if member.name == f"{prefix}byteorder"])
    _check_description(tensor, shape, dtype)
    storage = _only([member for member in members if member.name == f"{prefix}data/{tensor.storage.key}"])
    return _elements(file, storage, tensor)


def _only(members: list[Member]) -> Member:
    if len(members) != 1:
        raise PytorchFileError("is not a .pt file of one tensor")
    return members[0]


def _content(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.start)
    content = file.read(member.size)
    if zlib.crc32(content) != member.checksum:
        raise StoredZipError("the checksum of its description is wrong")
    return content


def _check_byte_order(file: BinaryIO, found: list[Member]) -> None:
    for member in found:
        file.seek(member.start)
        if file.read(min(member.size, 16)) != b"little":
            raise PytorchFileError("was not written on a little-endian machine; save the tensor again")


def _check_description(tensor: TensorDescription, shape: tuple[int, ...], dtype: Dtype) -> None:
    if tensor.storage.dtype is not dtype:
        raise PytorchFileError(f"holds {tensor.storage.dtype.name}, the record says {dtype.name}")
    if tensor.shape != shape:
        raise PytorchFileError(f"has shape {shortened(tensor.shape)}, the record says {shortened(shape)}")
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, tensor.strides) if size > 1)
    is_outside = bool(prod(shape)) and last >= tensor.storage.size
    if len(tensor.strides) != len(shape) or is_outside:
        raise PytorchFileError("describes elements outside its storage")
    # A tensor that was expanded is larger than its file: a few bytes must not ask for gigabytes.
    if prod(shape) > max(tensor.storage.size, MAP_FROM_BYTES):
        raise PytorchFileError(f"describes {prod(shape)} elements over a storage of {tensor.storage.size}")


def _elements(file: BinaryIO, storage: Member, tensor: TensorDescription) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype = array_dtype(tensor.storage.dtype)
    if dtype is None:
        raise PytorchFileError(f"there is no array type for {tensor.storage.dtype.name}")
    if storage.size != tensor.storage.size * dtype.itemsize:
        raise PytorchFileError(f"is truncated: its storage does not have {tensor.storage.size * dtype.itemsize} bytes")
    if not prod(tensor.shape):
        return np.empty(tensor.shape, dtype)
    _check_sum(file, storage)
    stored: Any
    if storage.size >= MAP_FROM_BYTES:
        stored = np.memmap(cast(Any, file), dtype, "r", offset=storage.start, shape=(tensor.storage.size,))
    else:
        file.seek(storage.start)
        # A bytearray keeps the array writable, which frameworks that share memory ask for.
        stored = np.frombuffer(bytearray(file.read(storage.size)), dtype=dtype)
    # The stride of a dimension of one element says nothing, and may be any number.
    strides = [stride * dtype.itemsize if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.strides)]
    view: np.ndarray[Any, Any] = np.ndarray(
        tensor.shape, dtype=dtype, buffer=stored, offset=tensor.offset * dtype.itemsize, strides=strides
    )
    return view if view.flags.c_contiguous else view.copy(order="C")


def _check_sum(file: BinaryIO, member: Member) -> None:
    file.seek(member.start)
    found, left = 0, member.size
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        found, left = zlib.crc32(chunk, found), left - len(chunk)
    if found != member.checksum:
        raise PytorchFileError("is damaged: the checksum of its values is wrong")
