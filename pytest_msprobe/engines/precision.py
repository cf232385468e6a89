"""What the benchmark computes in: float64 in place of every smaller float, from exactly the values the device got."""

from __future__ import annotations

from msprobe_collector.dump_format import Dtype, dtype_of_array, find_dtype
from pytest_msprobe.engines.protocol import Array

#: APIs whose whole purpose is the dtype that they are given: in float64 they would do nothing.
_CASTS = frozenset({"to", "type", "astype", "cast", "half", "bfloat16", "float", "double", "Cast", "ToDtype"})
#: APIs that answer about the dtype of their argument, which must then keep it.
_ABOUT_DTYPE = frozenset({"dtype", "type", "typeof", "element_size", "itemsize", "nbytes", "result_type"})


def copy_of(array: Array, *, is_raised: bool) -> Array:
    """A writable copy of `array`; with `is_raised`, floats as float64 and complex as complex128, which is exact."""
    import numpy as np

    if is_raised:
        dtype = dtype_of_array(array.dtype)
        if dtype is not None and dtype.kind == "float":
            return np.array(array, dtype=np.float64, order="C")
        if dtype is not None and dtype.kind == "complex":
            return np.array(array, dtype=np.complex128, order="C")
    return np.array(array, order="C")


def argument_dtype(dtype: Dtype, api: str, *, is_raised: bool) -> Dtype:
    """The dtype to pass where the dump has the argument `dtype`.

    A sum with dtype=float32 accumulates in float64 in the benchmark; a cast to float32 stays a cast to float32.
    """
    if is_raised and dtype.kind in ("float", "complex") and api not in _CASTS:
        raised = find_dtype("Float64" if dtype.kind == "float" else "Complex128")
        assert raised is not None
        return raised
    return dtype


def describes_dtype(api: str) -> bool:
    """Whether the API of this short name answers about a dtype."""
    return api in _ABOUT_DTYPE


def is_differentiable(array: Array) -> bool:
    """Whether gradients with respect to `array` exist: floats and complex numbers."""
    dtype = dtype_of_array(array.dtype)
    return dtype is not None and dtype.kind in ("float", "complex")
