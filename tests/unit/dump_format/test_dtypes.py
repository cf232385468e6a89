"""Dtype names in every spelling, and storage that loses nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import array_dtype, dtype_of_array, find_dtype

CANONICAL = (
    "Bool Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float16 Float32 Float64 BFloat16 Complex64 Complex128 "
    "Float8E4M3FN Float8E5M2 HiFloat8 Int4"
).split()


@pytest.mark.parametrize("name", CANONICAL)
def test_every_name_that_mindspore_writes_is_its_own_canonical_name(name: str) -> None:
    dtype = find_dtype(name)
    assert dtype is not None
    assert dtype.name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float32", "Float32"),
        ("mindspore.float32", "Float32"),
        ("torch.float32", "Float32"),
        ("torch.float", "Float32"),
        ("torch.half", "Float16"),
        ("torch.float64", "Float64"),
        ("torch.double", "Float64"),
        ("torch.bfloat16", "BFloat16"),
        ("bfloat16", "BFloat16"),
        ("torch.bool", "Bool"),
        ("bool", "Bool"),
        ("bool_", "Bool"),
        ("torch.uint8", "UInt8"),
        ("torch.short", "Int16"),
        ("torch.int", "Int32"),
        ("torch.long", "Int64"),
        ("torch.int64", "Int64"),
        ("torch.complex64", "Complex64"),
        ("complex128", "Complex128"),
        ("torch.float8_e4m3fn", "Float8E4M3FN"),
        ("torch.float8_e5m2", "Float8E5M2"),
        ("int4", "Int4"),
    ],
)
def test_other_spellings_name_the_same_dtype(text: str, name: str) -> None:
    assert find_dtype(text) is find_dtype(name) is not None


@pytest.mark.parametrize(
    "text", ["", ".", "torch.", "Float7", "string", "<U3", "object", "<class 'int'>", "float32 ", "3", "longdouble"]
)
def test_other_words_name_no_dtype(text: str) -> None:
    assert find_dtype(text) is None


@pytest.mark.parametrize("name", [name for name in CANONICAL if name != "HiFloat8"])
def test_a_dtype_and_its_array_type_are_one_pair_of_equal_size(name: str) -> None:
    dtype = find_dtype(name)
    assert dtype is not None
    array_type = array_dtype(dtype)
    assert array_type is not None
    assert array_type.itemsize == dtype.item_bytes
    assert dtype_of_array(array_type) is dtype
    assert dtype_of_array(array_type.newbyteorder(">")) is dtype


@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed")
def test_bfloat16_is_that_of_ml_dtypes_even_after_mindspore_registered_its_own() -> None:
    code = (
        "import ml_dtypes, mindspore, numpy as np, msprobe_collector.dump_format as f;"
        "found = f.array_dtype(f.find_dtype('BFloat16'));"
        "print(found == np.dtype(ml_dtypes.bfloat16), np.dtype('bfloat16') == np.dtype(ml_dtypes.bfloat16))"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    # The second word shows that the danger is real; when it turns True, MindSpore has stopped doing this.
    assert ran.stdout.split() == ["True", "False"]


def test_hifloat8_has_no_array_type() -> None:
    dtype = find_dtype("HiFloat8")
    assert dtype is not None
    assert array_dtype(dtype) is None
    assert dtype.stored_as == "float32"


@pytest.mark.parametrize("other", [np.longdouble, "U4", object, "datetime64[s]", [("a", "f4")]], ids=str)
def test_array_types_that_no_dump_holds_have_no_dtype(other: object) -> None:
    assert dtype_of_array(np.dtype(other)) is None


@pytest.mark.parametrize(
    ("name", "patterns"),
    [
        ("BFloat16", np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)),
        ("Float8E4M3FN", np.arange(1 << 8, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)),
        ("Float8E5M2", np.arange(1 << 8, dtype=np.uint8).view(ml_dtypes.float8_e5m2)),
        ("Int4", np.arange(-8, 8).astype(ml_dtypes.int4)),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # signalling NaNs among the patterns
def test_every_value_of_a_small_dtype_survives_its_storage_type(name: str, patterns: np.ndarray) -> None:
    dtype = find_dtype(name)
    assert dtype is not None
    assert dtype.stored_as is not None
    back = patterns.astype(dtype.stored_as).astype(array_dtype(dtype))
    is_nan = np.isnan(patterns.astype(np.float32))
    assert np.array_equal(back.view(np.uint8 if name != "BFloat16" else np.uint16)[~is_nan], _bits(patterns)[~is_nan])
    assert np.isnan(back.astype(np.float32)[is_nan]).all()


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def test_reading_names_loads_neither_numpy_nor_a_framework() -> None:
    code = (
        "import sys, msprobe_collector.dump_format as f; f.find_dtype('torch.float32');"
        "print([m for m in ('numpy', 'ml_dtypes', 'mindspore', 'torch', 'pytest') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
