"""Values as dump records, read back by the reader of dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import FieldPath, PlainValue, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.records import decode_value
from pytest_msprobe.engines.protocol import NumpyArgument, Output
from pytest_msprobe.evidence.error_data import Recording

PLACE = FieldPath("dump.json", "Mint.x.0.forward", "input_args")
ARRAYS = {
    "float32": np.array([[1.5, -2], [0, 3]], np.float32),
    "bfloat16": np.array([1, -2.5], ml_dtypes.bfloat16),
    "float8": np.array([1, -2.5], ml_dtypes.float8_e4m3fn),
    "int4": np.array([1, -2], ml_dtypes.int4),
    "bool": np.array([True, False]),
    "0-d": np.array(3),
    "empty": np.zeros((0, 2), np.float16),
    "complex": np.array([3 + 4j], np.complex64),
    "column-major": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    array = ARRAYS[name]
    recording = Recording("mindspore")
    encoded = json.loads(recording.encode(array, "x"))
    for file, content in recording.files.items():
        np.save(tmp_path / file, content)
    value = decode_value(encoded)
    assert isinstance(value, TensorValue)
    found = TensorFolder(tmp_path).load(value, PLACE)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype(complex), array.astype(complex))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (ARRAYS["float32"], {"Max": 3.0, "Min": -2.0, "Mean": 0.625, "Norm": pytest.approx(15.25**0.5)}),
        (ARRAYS["complex"], {"Max": 5.0}),
        (ARRAYS["empty"], {"Max": None, "Norm": None}),
        (ARRAYS["bool"], {"Max": True, "Mean": None}),
        (np.array([2**60 + 1, -(2**60) - 1]), {"Max": 2**60 + 1, "Min": -(2**60) - 1}),
        (np.array([1e200, -1e200]), {"Norm": pytest.approx(2**0.5 * 1e200)}),
        (np.array([1e-200, 0.0]), {"Norm": pytest.approx(1e-200)}),
        (np.array([np.nan, np.inf, -np.inf, 1.0]), {"NaN_count": 1, "Inf_count": 2}),
    ],
)
def test_statistics_are_those_of_the_collector(array: Any, expected: dict[str, Any]) -> None:
    entry = json.loads(Recording("mindspore").encode(array, "x"))
    assert {key: entry[key] for key in expected} == expected


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_other_values_come_back_as_they_were(framework: str) -> None:
    value: Any = (1, 2.5, True, "text", None, ..., slice(1, None, 2), {"a": (float("inf"),)}, find_dtype("Float16"))
    recording = Recording(framework)
    decoded: Any = decode_value(json.loads(recording.encode(value, "x")))
    assert decoded[:4] == tuple(PlainValue(type(item).__name__, item) for item in value[:4])
    assert decoded[4:7] == value[4:7]
    assert decoded[7] == {"a": (PlainValue("float", float("inf")),)}
    assert decoded[8].dtype is find_dtype("Float16")
    assert recording.files == {}


def test_names_follow_the_path_into_the_value() -> None:
    recording = Recording("mindspore")
    recording.encode((ARRAYS["0-d"], {"k": [ARRAYS["0-d"]]}, NumpyArgument(ARRAYS["0-d"])), "Mint.x.0.forward.input")
    prefix = "Mint.x.0.forward.input"
    assert list(recording.files) == [f"{prefix}.0.npy", f"{prefix}.1.k.0.npy", f"{prefix}.2.npy"]


def test_output_leaves_go_back_to_their_places() -> None:
    outputs = (Output((0,), 1), Output((1, 0), 2), Output((1, 1), None), Output((2, "k"), 3))
    encoded = json.loads(Recording("mindspore").encode_leaves(outputs, "x"))
    one, two, three = ({"type": "int", "value": value} for value in (1, 2, 3))
    assert encoded == [one, [two, None], {"k": three}]


def test_an_array_of_text_is_named_without_a_file() -> None:
    recording = Recording("mindspore")
    entry = json.loads(recording.encode(np.array(["a"]), "x"))
    assert (entry["type"], entry["shape"], recording.files) == ("numpy.ndarray", [1], {})
