"""What the benchmark computes in: float64 in place of every smaller float, from exactly the values the device got."""

from __future__ import annotations

from typing import Any

from msprobe_collector.dump_format import Dtype, dtype_of_array, find_dtype
from pytest_msprobe.engines.protocol import Array

#: APIs whose whole purpose is the dtype that they are given: in float64 they would do nothing.
_CASTS = frozenset({"to", "type", "astype", "cast", "half", "bfloat16", "float", "double", "Cast", "ToDtype"})
#: APIs that answer about the dtype of their argument, which must then keep it.
_ABOUT_DTYPE = frozenset({"dtype", "type", "typeof", "element_size", "itemsize", "nbytes", "result_type"})


def copy_of(array: Array, *, is_raised: bool) -> Array:
    """A writable copy of `array`; with `is_raised`, floats as float64 and complex as complex128, which is exact."""
    import numpy as np

    return np.array(array, dtype=_dtype(array, is_raised=is_raised), order="C")


def contiguous(array: Array, *, is_raised: bool) -> Array:
    """What `copy_of` returns, or `array` itself where that is the same: for a framework that copies it."""
    import numpy as np

    return np.asarray(array, dtype=_dtype(array, is_raised=is_raised), order="C")


def _dtype(array: Array, *, is_raised: bool) -> Any:
    dtype = dtype_of_array(array.dtype) if is_raised else None
    wide = {"float": "float64", "complex": "complex128"}
    return array.dtype if dtype is None else wide.get(dtype.kind, array.dtype)


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
