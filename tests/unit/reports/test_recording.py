"""Values as dump records, read back by the reader of dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import Frame, Place, PlainValue, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.values import decode_value
from pytest_msprobe.reports.evidence import NumpyValue
from pytest_msprobe.reports.recording import Recording, frame_text, stored

PLACE = Place("dump.json", "Mint.x.0.forward", "input_args")
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
    encoded = json.loads(json.dumps(recording.encode(array, "x")))
    for file, content in recording.files.items():
        np.save(tmp_path / file, stored(content))
    value = decode_value(encoded, PLACE)
    assert isinstance(value, TensorValue)
    found = TensorFolder(tmp_path).load(value, PLACE)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype(complex), array.astype(complex))


def test_statistics_are_those_of_the_values() -> None:
    entry = Recording("mindspore").encode(ARRAYS["float32"], "x")
    assert (entry["Max"], entry["Min"], entry["Mean"]) == (3.0, -2.0, 0.625)
    assert entry["Norm"] == pytest.approx(15.25**0.5)
    assert Recording("mindspore").encode(ARRAYS["complex"], "x")["Max"] == 5.0
    assert Recording("mindspore").encode(ARRAYS["empty"], "x")["Max"] is None
    assert Recording("mindspore").encode(ARRAYS["bool"], "x")["Max"] is True


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_other_values_come_back_as_they_were(framework: str) -> None:
    value: Any = (1, 2.5, True, "text", None, ..., slice(1, None, 2), {"a": (float("inf"),)}, find_dtype("Float16"))
    recording = Recording(framework)
    decoded: Any = decode_value(recording.encode(value, "x"), PLACE)
    assert decoded[:4] == tuple(PlainValue(type(item).__name__, item) for item in value[:4])
    assert decoded[4:7] == value[4:7]
    assert decoded[7] == {"a": (PlainValue("float", float("inf")),)}
    assert decoded[8].dtype is find_dtype("Float16")
    assert recording.files == {}


def test_names_follow_the_path_into_the_value() -> None:
    recording = Recording("mindspore")
    recording.encode((ARRAYS["0-d"], {"k": [ARRAYS["0-d"]]}, NumpyValue(ARRAYS["0-d"])), "Mint.x.0.forward.input")
    prefix = "Mint.x.0.forward.input"
    assert list(recording.files) == [f"{prefix}.0.npy", f"{prefix}.1.k.0.npy", f"{prefix}.2.npy"]


def test_output_leaves_go_back_to_their_places() -> None:
    encoded = Recording("mindspore").encode_leaves((((0,), 1), ((1, 0), 2), ((1, 1), None), ((2, "k"), 3)), "x")
    one, two, three = ({"type": "int", "value": value} for value in (1, 2, 3))
    assert encoded == [one, [two, None], {"k": three}]


def test_an_array_that_no_dump_can_hold_is_null() -> None:
    assert Recording("mindspore").encode(np.array(["a"]), "x") is None


def test_frames_are_written_as_they_are_read() -> None:
    text = "File /a b/net.py, line 7, in construct, \n y = f(x)"
    assert frame_text(Frame("/a b/net.py", 7, "construct", "y = f(x)")) == text
    assert frame_text(Frame("", 0, "", "strange")) == "strange"
