"""A dump.json as a file: header, records on demand, and every way in which the file can be broken."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from real_dumps import real_dumps

from msprobe_collector.dump_format import Dump, DumpError, PlainValue, TensorValue

HEADER = {"task": "statistics", "level": "L1", "framework": "mindspore", "dump_data_dir": None}
TENSOR = {
    "type": "mindspore.Tensor",
    "dtype": "Float32",
    "shape": [2],
    "Max": 1.0,
    "Min": 0.0,
    "Mean": 0.5,
    "Norm": 1.0,
}
DUMPS = real_dumps()


def write(folder: Path, content: Any) -> Path:
    path = folder / "dump.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=1).encode())
    return path


def dump_of(folder: Path, data: dict[str, Any], **header: Any) -> Dump:
    return Dump(write(folder, {**HEADER, **header, "data": data}))


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in {**HEADER, "data": {}}.items() if name != key}


def test_names_keep_the_order_of_the_file(tmp_path: Path) -> None:
    names = ["Mint.b.0.forward", "Cell.x.forward.0", "Mint.a.0.forward", "strange"]
    dump = dump_of(tmp_path, {name: {} for name in names})
    assert dump.record_names == names
    assert "strange" in dump
    assert "Mint.b.0" not in dump
    assert dump.path == tmp_path / "dump.json"


@pytest.mark.parametrize(
    ("header", "framework", "level"),
    [
        ({"framework": "mindtorch", "level": "mix"}, "mindtorch", "mix"),
        ({"framework": "pytorch", "level": None}, "pytorch", None),
        ({"framework": None}, "mindspore", "L1"),
        ({"framework": ""}, "mindspore", "L1"),
        ({"unknown_key": [1, {"a": float("nan")}]}, "mindspore", "L1"),
    ],
)
def test_the_header_is_read(tmp_path: Path, header: dict[str, Any], framework: str, level: str | None) -> None:
    dump = dump_of(tmp_path, {}, **header)
    assert (dump.task, dump.framework, dump.level) == ("statistics", framework, level)


@pytest.mark.parametrize(
    ("kind", "framework"), [("torch.Tensor", "pytorch"), ("mindspore.Tensor", "mindspore"), ("int", "mindspore")]
)
def test_a_dump_without_framework_is_of_that_of_its_values(tmp_path: Path, kind: str, framework: str) -> None:
    record = {"input_args": [{"type": "slice", "value": [0, 1, None]}, {"type": kind, "dtype": "x", "shape": [2]}]}
    dump = Dump(write(tmp_path, {"task": "statistics", "data": {"Torch.cat.0.forward": record}}))
    assert dump.framework == framework


def test_level_and_framework_may_be_missing(tmp_path: Path) -> None:
    dump = Dump(write(tmp_path, {"task": "tensor", "data": {}}))
    assert (dump.framework, dump.level) == ("mindspore", None)


@pytest.mark.parametrize(
    ("task", "tensor", "holds"),
    [
        ("tensor", TENSOR, True),
        ("statistics", TENSOR, False),
        ("statistics", TENSOR | {"data_name": "a.npy"}, True),  # chosen by tensor_list
    ],
)
def test_whether_a_dump_holds_real_data(tmp_path: Path, task: str, tensor: Any, holds: bool) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    (tmp_path / "dump_tensor_data" / "a.npy").touch()
    assert dump_of(tmp_path, {"Mint.a.0.forward": {"output": [tensor]}}, task=task).holds_real_data is holds


@pytest.mark.parametrize("folder", [True, False])
def test_a_tensor_dump_without_its_files_is_one_of_statistics(tmp_path: Path, folder: bool) -> None:
    if folder:
        (tmp_path / "dump_tensor_data").mkdir()
    dump = dump_of(tmp_path, {"Mint.a.0.forward": {"output": [TENSOR | {"data_name": "a.npy"}]}}, task="tensor")
    assert (dump.task, dump.holds_real_data) == ("statistics", False)
    assert dump.lost == (
        f"{dump.path}: there are no tensor files in {tmp_path / 'dump_tensor_data'}: "
        "only the statistics of the dump are used"
    )
    forward = dump.forward("Mint.a.0")
    assert forward is not None
    (output,) = forward.outputs or ()
    assert isinstance(output, TensorValue)
    assert output.data_name is None


def test_files_elsewhere_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "dump_tensor_data").symlink_to(tmp_path / "elsewhere")
    tensor = TENSOR | {"data_name": "a.npy"}
    dump = dump_of(tmp_path / "dump", {"Mint.a.0.forward": {"output": [tensor]}}, task="tensor")
    assert (dump.lost, dump.holds_real_data) == ("", True)


def test_records_are_read_on_demand_with_bare_nan(tmp_path: Path) -> None:
    text = b"""{"task": "statistics", "level": "L1", "framework": "mindspore", "dump_data_dir": null, "data": {
        "Mint.a.0.forward": {"input_args": [{"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], "Max": NaN,
            "Min": -Infinity, "Mean": NaN, "Norm": Infinity}, {"type": "str", "value": "NaN"}], "input_kwargs": {}},
        "Mint.a.0.backward": {"input": [null], "output": [{"type": "int", "value": 3}]}}}"""
    dump = Dump(write(tmp_path, text))
    forward = dump.forward("Mint.a.0")
    assert forward is not None
    assert forward.arguments is not None
    tensor, word = forward.arguments
    assert isinstance(tensor, TensorValue)
    assert math.isnan(tensor.maximum)
    assert (tensor.minimum, tensor.norm) == (-math.inf, math.inf)
    assert word == PlainValue("str", "NaN")
    backward = dump.backward("Mint.a.0")
    assert backward is not None
    assert backward.incoming == (None,)
    assert backward.outgoing == (PlainValue("int", 3),)
    assert dump.forward("Mint.b.0") is None
    assert dump.backward("Mint.b.0") is None


def test_one_bad_record_leaves_the_others(tmp_path: Path) -> None:
    dump = dump_of(tmp_path, {"Mint.a.0.forward": {"output": [5]}, "Mint.b.0.forward": {"output": []}})
    with pytest.raises(DumpError) as caught:
        dump.forward("Mint.a.0")
    place = f"{tmp_path / 'dump.json'}: Mint.a.0.forward: output[0]"
    assert str(caught.value) == f"{place}: expected an object with a type, a list or null, found 5"
    assert dump.forward("Mint.b.0") is not None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not valid JSON: Input data was truncated (incomplete file?); dump the step again"),
        (b"PK\x03\x04 zip", "is not valid JSON: JSON is malformed: invalid character (byte 0); dump the step again"),
        (b'{"task": "statistics", "data": {"Mint.a.0.forward": {"output": [', "(incomplete file?)"),
        (b'{"task": "statistics", "data": {}} trailing', "is not valid JSON"),
        (b'{"task": "statistics", "data": {"a": [NaNNaN]}}', "is not valid JSON"),
        (b"[" * 100_000, "is not a dump.json of an API dump"),
        (b'{"data": ' + b"[" * 100_000, "is not a dump.json of an API dump: Expected `object`, got `array`"),
        (b'{"task": "statistics", "data": {"a": ' + b"[" * 100_000, "is nested too deeply to be a dump"),
        (b'{"more": ' + b'{"a":' * 100_000, "is nested too deeply to be a dump"),
        (b'{"task": "\xff", "data": {}}', "is not UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
        (b'{"task": "statistics", "data": {"\xff": {}}}', "is not UTF-8 text"),
        ([], "is not a dump.json of an API dump: Expected `object`, got `array`"),
        (3, "is not a dump.json of an API dump: Expected `object`, got `int`"),
        (None, "is not a dump.json of an API dump: Expected `object`, got `null`"),
        (without("data"), "is not a dump.json of an API dump: Object missing required field `data`"),
        (without("task"), "is not a dump.json of an API dump: Object missing required field `task`"),
        ({**HEADER, "data": []}, "is not a dump.json of an API dump: Expected `object`, got `array` - at `$.data`"),
        ({**HEADER, "data": None}, "is not a dump.json of an API dump: Expected `object`, got `null` - at `$.data`"),
        ({**HEADER, "data": {}, "level": 1}, "is not a dump.json of an API dump: Expected `str | null`, got `int`"),
        ({**HEADER, "data": {}, "dump_data_dir": [1]}, "is not a dump.json of an API dump: Expected `str | null`"),
        (
            {**HEADER, "data": {}, "task": "free_benchmark"},
            "task: unknown task 'free_benchmark'; known are acc_check, diff_check, exception_dump, nan_check, "
            "overflow_check, statistics, structure, tensor",
        ),
        (
            {**HEADER, "data": {}, "framework": "jax"},
            "framework: unknown framework 'jax'; known are mindspore, mindtorch, pytorch",
        ),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_path(tmp_path: Path, content: Any, problem: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DumpError) as caught:
        Dump(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert problem in text
    assert caught.value.record == ""


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="none\\.json: cannot be read: No such file or directory"):
        Dump(tmp_path / "none.json")
    with pytest.raises(DumpError, match="cannot be read: it is not a plain file"):
        Dump(tmp_path)
    os.mkfifo(tmp_path / "dump.json")
    with pytest.raises(DumpError, match="cannot be read: it is not a plain file"):
        Dump(tmp_path / "dump.json")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b'{"output": ["\xff"]}', "'utf-8' codec can't decode byte 0xff"),
        (b'{"output": [1e999]}', "Number out of range"),
    ],
)
def test_a_record_that_cannot_be_decoded_is_named(tmp_path: Path, record: bytes, reason: str) -> None:
    path = write(tmp_path, b'{"task": "statistics", "data": {"Mint.a.0.forward": ' + record + b"}}")
    dump = Dump(path)
    with pytest.raises(DumpError) as caught:
        dump.forward("Mint.a.0")
    assert str(caught.value).startswith(f"{path}: Mint.a.0.forward: the forward record cannot be decoded: {reason}")


def test_a_record_nested_too_deeply_is_named(tmp_path: Path) -> None:
    deep = b"[" * 150 + b"]" * 150
    path = write(tmp_path, b'{"task": "statistics", "data": {"Mint.a.0.backward": {"input": ' + deep + b"}}}")
    with pytest.raises(DumpError, match=r"Mint\.a\.0\.backward: input.*: nested deeper than 100 levels"):
        Dump(path).backward("Mint.a.0")


REAL = (DUMPS / "quickstart/dump.json").read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example overwrites the one file
@given(st.integers(0, len(REAL)), st.binary(max_size=4), st.integers(0, 4))
def test_a_damaged_real_dump_is_read_or_refused_and_nothing_else(
    tmp_path: Path, at: int, inserted: bytes, dropped: int
) -> None:
    path = write(tmp_path, REAL[:at] + inserted + REAL[at + dropped :])
    errors = []
    try:
        dump = Dump(path)
        for name in dump.record_names:
            dump.forward(name.removesuffix(".forward"))
    except DumpError as error:
        errors.append(str(error))
    assert all(text.startswith(f"{path}: ") for text in errors)


def test_an_existing_absolute_data_folder_wins(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "dump_tensor_data").mkdir()
    assert dump_of(tmp_path, {}, dump_data_dir=str(elsewhere)).tensors.folder == elsewhere


@pytest.mark.parametrize("recorded", [None, "", "elsewhere", "/gone/dump_tensor_data", "a\0b", "/dev/null"])
def test_otherwise_the_folder_beside_the_dump_is_used(
    tmp_path: Path, recorded: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)  # a relative folder must not be looked up in the working folder
    assert dump_of(tmp_path, {}, dump_data_dir=recorded).tensors.folder == tmp_path / "dump_tensor_data"


@pytest.mark.parametrize("folder", sorted(str(path.parent.relative_to(DUMPS)) for path in DUMPS.rglob("dump.json")))
def test_every_record_of_a_real_dump_is_read_and_its_tensors_loaded(folder: str) -> None:
    dump = Dump(DUMPS / folder / "dump.json")
    raw = json.loads((DUMPS / folder / "dump.json").read_bytes())["data"]
    loaded = 0
    for name, encoded in raw.items():
        call, _, direction = name.rpartition(".")
        if direction not in ("forward", "backward") or name.startswith("Cell."):
            continue
        record = dump.forward(call) if direction == "forward" else dump.backward(call)
        assert record is not None
        outputs = record.outputs if direction == "forward" else record.outgoing
        assert outputs is not None
        for value, wanted in zip(outputs, encoded["output"]):
            if isinstance(value, TensorValue) and value.data_name is not None and wanted["dtype"] != "Bool":
                array = dump.tensors.load(value, _place(dump, name))
                assert list(array.shape) == wanted["shape"]
                # Recorded by the collector itself, so this tells a swapped or transposed file.
                if array.size:
                    assert float(array.max()) == pytest.approx(wanted["Max"], rel=1e-6, nan_ok=True)
                    assert float(array.min()) == pytest.approx(wanted["Min"], rel=1e-6, nan_ok=True)
                loaded += 1
    assert loaded > 0 or dump.task == "statistics"


def _place(dump: Dump, name: str) -> Any:
    from msprobe_collector.dump_format import FieldPath

    return FieldPath(os.fspath(dump.path), name, "output")
