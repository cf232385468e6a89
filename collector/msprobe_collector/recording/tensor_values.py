"""The values of a MindSpore tensor as a NumPy array, the cheapest way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from msprobe_collector.dump_format import array_dtype, find_dtype

#: Up to this size copying the bytes (0.6 us) is cheaper than `asnumpy`, whose description NumPy must parse (5 us).
_MOST_COPIED_BYTES = 1 << 16


class FrozenTensor:
    """A tensor whose values were copied, for a time when the tensor itself may have others."""

    __slots__ = ("array", "dtype_name")

    def __init__(self, array: np.ndarray[Any, Any], dtype_name: str) -> None:
        self.array = array
        self.dtype_name = dtype_name


class TensorReader:
    """Reads tensors; waits until their values are there, and raises what the kernel that makes them raised."""

    def __init__(self) -> None:
        import mindspore

        # Not tried on a device, where `asnumpy` is the documented way.
        self._copies = mindspore.get_context("device_target") == "CPU"
        self._dtypes: dict[Any, tuple[str, np.dtype[Any] | None]] = {}

    def read(self, tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
        """(values, name of the dtype as dumps write it). The array may share memory with the tensor."""
        dtype = tensor.dtype
        known = self._dtypes.get(dtype)
        if known is None:
            known = self._dtypes[dtype] = _described(str(dtype))
        name, numpy_dtype = known
        if self._copies and numpy_dtype is not None:
            shape = tensor.shape
            if 0 < math.prod(shape) * numpy_dtype.itemsize <= _MOST_COPIED_BYTES:
                return np.frombuffer(tensor.get_bytes(), numpy_dtype).reshape(shape), name
        return tensor.asnumpy(), name

    def frozen(self, tensor: Any) -> FrozenTensor:
        """A copy of the values of `tensor` as they are now."""
        array, name = self.read(tensor)
        return FrozenTensor(array.copy() if array.base is not None and array.flags.writeable else array, name)


def _described(name: str) -> tuple[str, np.dtype[Any] | None]:
    dtype = find_dtype(name)
    return name, None if dtype is None or dtype.name == "Int4" else array_dtype(dtype)
