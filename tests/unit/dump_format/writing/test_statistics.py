"""Max, Min, Mean and Norm of arrays: against exact arithmetic, in every dtype, and at every awkward value."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from msprobe_collector.dump_format.writing.encoding import statistics_of


@pytest.mark.parametrize("folder", ["gpt_tiny_tensor/step0/proc0", "gpt_tiny_float16/step0/rank0"])
def test_real_tensors_have_the_statistics_that_the_existing_collector_wrote(dumps, folder):
    records = json.loads((dumps / folder / "dump.json").read_text())["data"]
    tensors = [
        value
        for record in records.values()
        for part in ("input_args", "input", "output")
        for value in record.get(part, ())
        if isinstance(value, dict) and "data_name" in value and value["dtype"] != "Bool"
    ]
    assert len(tensors) > 300
    tolerance = 2e-3 if "float16" in folder else 2e-5  # there reduced in the tensor's own dtype
    for value in tensors:
        array = np.load(dumps / folder / "dump_tensor_data" / value["data_name"])
        found = statistics_of(array)
        assert (found.maximum, found.minimum) == (value["Max"], value["Min"])
        scale = float(np.abs(array).mean()) if array.size else 1.0
        assert found.mean == pytest.approx(value["Mean"], rel=tolerance, abs=tolerance * scale)
        if array.ndim:  # there the norm of a 0-d tensor is its value, negative or not
            assert found.norm == pytest.approx(value["Norm"], rel=tolerance)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (8192,), (8193,), (3, 5000)])
@pytest.mark.parametrize(
    "dtype",
    [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2],
)
def test_chunks_and_dtypes_agree_with_exact_sums(shape, dtype):
    array = np.random.default_rng(0).integers(-9 if np.dtype(dtype).kind != "u" else 0, 9, shape).astype(dtype)
    values = [Fraction(float(value)) for value in array.ravel()]
    found = statistics_of(array)
    assert (found.maximum, found.minimum) == (max(values), min(values))
    assert found.mean == pytest.approx(float(sum(values) / len(values)), rel=1e-12, abs=1e-12)
    assert found.norm == pytest.approx(math.sqrt(sum(value * value for value in values)), rel=1e-12)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(-3), (-3, -3, -3.0, 3.0, 0, 0)),
        (np.array(-3.5, np.float32), (-3.5, -3.5, -3.5, 3.5, 0, 0)),
        (np.array([2**40 + 1, 5]), (2**40 + 1, 5, (2**40 + 6) / 2, math.sqrt((2**40 + 1) ** 2 + 25), 0, 0)),
        (np.array([2**63 - 1, -(2**63)]), (2**63 - 1, -(2**63), 0.0, math.sqrt(2) * 2.0**63, 0, 0)),
        (np.array([1e300, 1e300]), (1e300, 1e300, 1e300, math.sqrt(2) * 1e300, 0, 0)),
        (np.array([3e-200, 4e-200]), (4e-200, 3e-200, 3.5e-200, 5e-200, 0, 0)),
        (np.array([3e38, 3e38], np.float32), (3e38, 3e38, 3e38, math.sqrt(2) * 3e38, 0, 0)),
        (np.array([True, False]), (True, False, None, None, 0, 0)),
        (np.zeros((0, 3), np.float32), (None, None, None, None, 0, 0)),
        (np.array([3 + 4j, 0]), (5.0, 0.0, 2.5, 5.0, 0, 0)),
        (np.array(["a"]), (None, None, None, None, 0, 0)),
    ],
)
def test_special_arrays(array, expected):
    for found, value in zip(statistics_of(array), expected):
        assert found == (value if value is None or isinstance(value, (bool, int)) else pytest.approx(value, rel=1e-7))
        assert type(found) is type(value)


@pytest.mark.parametrize("place", [0, 1, 8191, 8192, 9999])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_seen_and_counted_wherever_they_stand(place, value):
    array = np.zeros(10_000, np.float32)
    array[place] = value
    with np.errstate(all="ignore"):
        found = statistics_of(array)
    assert (found.nan_count, found.inf_count) == ((1, 0) if math.isnan(value) else (0, 1))
    wanted = [found.maximum, found.minimum] if math.isnan(value) else [found.maximum if value > 0 else found.minimum]
    assert all(number == value or (math.isnan(number) and math.isnan(value)) for number in wanted)


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_bounds(array):
    found = statistics_of(array)
    assert found.minimum <= found.maximum
    assert found.norm >= max(abs(found.maximum), abs(found.minimum)) * (1 - 1e-12)
    assert statistics_of(array.T)[:2] == found[:2]
