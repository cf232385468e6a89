"""One unit roundoff for arrays and for names of dtypes as frameworks and dumps write them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format.values import _DTYPES
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import DTYPES


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("Float64", 53),
        ("torch.float32", 24),
        ("Complex64", 24),
        ("half", 11),
        ("bfloat16", 8),
        ("torch.float8_e4m3fn", 4),
        ("Float8E5M2", 3),
        ("HiFloat8", 4),
        ("torch.float8_e5m2fnuz", 3),
    ],
)
def test_each_dtype_has_its_own(name: str, bits: int) -> None:
    assert unit_roundoff(name) == 2.0**-bits


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_no_value_is_rounded_by_more(dtype: type) -> None:
    exact = 1 + np.arange(4096) / 4096
    error = np.abs(exact.astype(dtype).astype(np.complex128).real / exact - 1).max()
    unit = unit_roundoff(np.dtype(dtype))
    assert error <= unit
    assert unit < 1e-4 or error > 0.9 * unit / (1 + unit)


@pytest.mark.parametrize("dtype", ["torch.int64", "Int4", "bool", np.dtype(np.uint8)])
def test_whole_numbers_are_not_rounded(dtype: np.dtype[np.generic] | str) -> None:
    assert unit_roundoff(dtype) == 0.0


@pytest.mark.parametrize("dtype", ["", "str", "float24", "__name__", "finfo", np.dtype(object), np.dtype("U3")])
def test_an_unknown_dtype_is_an_error(dtype: np.dtype[np.generic] | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        unit_roundoff(dtype)


def test_every_float_of_a_dump_is_in_the_table() -> None:
    assert {dtype.name for dtype in _DTYPES if dtype.kind in ("float", "complex")} == set(DTYPES)


@pytest.mark.parametrize("name", DTYPES)
def test_a_step_may_differ_by_more_than_an_operation_and_that_by_more_than_a_rounding(name: str) -> None:
    row = DTYPES[name]
    assert row.step > row.operation > unit_roundoff(name) > row.least
