"""Tensors in `.pt` files, as PyTorch dumps hold them, read without PyTorch and without running what they say.

Layout (torch.save since 1.6): a zip of stored members; `*/data.pkl` describes one tensor over a storage whose bytes are
the member `*/data/KEY`. The description is a pickle, so it is read by an unpickler that knows four inert names and no
others: whatever else a file names is refused before it is looked up.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from msprobe_collector.dump_format.dtypes import Dtype, array_dtype, find_dtype

if TYPE_CHECKING:
    import numpy as np

_MOST_DESCRIPTION_BYTES = 1 << 16


class PytorchFileError(ValueError):
    """Why a `.pt` file is no tensor that can be read."""


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: Dtype
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pytorch_tensor(file: BinaryIO, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray[Any, Any]:
    """The tensor in `file`, contiguous, in its own dtype.

    Raises:
        PytorchFileError: it is no `.pt` file of one tensor, or not of `shape` and `dtype`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return _read(archive, shape, dtype)
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, KeyError, IndexError) as error:
        raise PytorchFileError(f"is not a .pt file of a tensor: {error}") from None
    except (AttributeError, TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, PytorchFileError):
            raise
        raise PytorchFileError(f"is not a .pt file of a tensor: {type(error).__name__}") from None


def _read(archive: zipfile.ZipFile, shape: tuple[int, ...], dtype: Dtype) -> np.ndarray[Any, Any]:
    import numpy as np

    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1 or archive.getinfo(names[0]).file_size > _MOST_DESCRIPTION_BYTES:
        raise PytorchFileError("is not a .pt file of one tensor")
    with archive.open(names[0]) as description:
        tensor = _Describer(description).load()
    if not isinstance(tensor, _Tensor):
        raise PytorchFileError(f"holds a {type(tensor).__name__}, not a tensor")
    _check(tensor, shape, dtype)
    target = array_dtype(tensor.storage.dtype)
    if target is None:
        raise PytorchFileError(f"there is no array type for {tensor.storage.dtype.name}")
    prefix = names[0].removesuffix("data.pkl")
    wanted = tensor.storage.size * target.itemsize
    if archive.getinfo(f"{prefix}data/{tensor.storage.key}").file_size != wanted:
        raise PytorchFileError(f"is cut off: its storage does not have {wanted} bytes")
    stored = np.frombuffer(bytearray(archive.read(f"{prefix}data/{tensor.storage.key}")), dtype=target)
    strides = tuple(stride * target.itemsize for stride in tensor.strides)
    view: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype=target, buffer=stored, offset=tensor.offset * target.itemsize, strides=strides
    )
    return np.ascontiguousarray(view).reshape(shape)


def _check(tensor: _Tensor, shape: tuple[int, ...], dtype: Dtype) -> None:
    if tensor.storage.dtype is not dtype:
        raise PytorchFileError(f"holds {tensor.storage.dtype.name}, the record says {dtype.name}")
    if tensor.shape != shape:
        raise PytorchFileError(f"has shape {tensor.shape}, the record says {shape}")
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, tensor.strides) if size > 1)
    is_empty = 0 in shape
    negative = tensor.offset < 0 or any(stride < 0 for stride in tensor.strides)
    if len(tensor.strides) != len(shape) or negative or (not is_empty and last >= tensor.storage.size):
        raise PytorchFileError("describes elements outside its storage")


class _Describer(pickle.Unpickler):
    """Reads a tensor's description. Names resolve to the inert functions here, or the file is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return find_dtype(_STORAGES[name])
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which a tensor does not need; refused")
        return known

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _location, size = pid
        if kind != "storage" or not isinstance(dtype, Dtype) or not isinstance(size, int):
            raise pickle.UnpicklingError("unknown storage")
        return _Storage(dtype, str(key), size)


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_others: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("a tensor without storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _rebuild_parameter(tensor: _Tensor, *_others: Any) -> _Tensor:
    return tensor


_STORAGES = {
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
_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("collections", "OrderedDict"): OrderedDict,
}
