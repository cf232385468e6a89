"""Which arithmetic an element type belongs to: two outputs can only be compared within one kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "float", "complex", "other"]

# ml_dtypes is not annotated.
_float_limits: Callable[[np.dtype[Any]], Any] = ml_dtypes.finfo
_integer_limits: Callable[[np.dtype[Any]], Any] = ml_dtypes.iinfo

_WIDEST_FLOAT_BYTES = 8
_WIDEST_COMPLEX_BYTES = 16


@cache
def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of `dtype`.

    bfloat16 and fp8 (which NumPy calls void) are "float", int4 is "int". Extended precision, strings, objects and
    records are "other": float64 cannot hold them, so nothing here measures them.
    """
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iu":
        return "int"
    if dtype.kind == "f" and dtype.itemsize <= _WIDEST_FLOAT_BYTES:
        return "float"
    if dtype.kind == "c" and dtype.itemsize <= _WIDEST_COMPLEX_BYTES:
        return "complex"
    return _kind_of_ml_dtype(dtype) if dtype.kind == "V" else "other"


def _kind_of_ml_dtype(dtype: np.dtype[Any]) -> Kind:
    try:
        _float_limits(dtype)
    except ValueError:
        pass
    else:
        return "float"
    try:
        _integer_limits(dtype)
    except ValueError:
        return "other"
    return "int"
