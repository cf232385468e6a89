from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.dtypes import kind_of


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (np.bool_, "bool"),
        (np.int8, "int"),
        (np.uint64, "int"),
        (ml_dtypes.int4, "int"),
        (ml_dtypes.uint4, "int"),
        (np.float16, "float"),
        (np.float64, "float"),
        (">f4", "float"),
        (ml_dtypes.bfloat16, "float"),
        (ml_dtypes.float8_e4m3fn, "float"),
        (ml_dtypes.float8_e5m2, "float"),
        (np.complex64, "complex"),
        (np.complex128, "complex"),
        (object, "other"),
        ("U3", "other"),
        ("V4", "other"),
        ("M8[s]", "other"),
        ([("a", np.float32)], "other"),
    ],
)
def test_kind(dtype: object, kind: str) -> None:
    assert kind_of(np.dtype(dtype)) == kind


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 here")
def test_extended_precision_is_not_measured_as_if_it_were_float64() -> None:
    assert kind_of(np.dtype(np.longdouble)) == "other"
    assert kind_of(np.dtype(np.clongdouble)) == "other"
