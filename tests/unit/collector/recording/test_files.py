"""What lies on disk: growing JSON, tensor files, stacks, the error log."""

from __future__ import annotations

import json
import os
import stat

import numpy as np
import pytest

from msprobe_collector.recording.faults import ERROR_LOG, FaultLog
from msprobe_collector.recording.growing_file import GrowingFile, quoted
from msprobe_collector.recording.stacks import StackRecorder
from msprobe_collector.recording.tensor_files import TensorFiles


def test_a_growing_file_is_whole_after_each_entry(tmp_path):
    file = GrowingFile(tmp_path / "dump.json", head={"task": "tensor", "dump_data_dir": None}, entries_key="data")
    file.create()
    for count in range(5):
        content = json.loads(file.path.read_text())
        assert list(content) == ["task", "dump_data_dir", "data"]
        assert list(content["data"]) == [f"a.{number}" for number in range(count)]
        file.add(f'"a.{count}": {{"é": {count}}}')
    file.close()
    assert stat.S_IMODE(file.path.stat().st_mode) & 0o137 == 0


def test_entries_may_wait_but_close_writes_them(tmp_path):
    file = GrowingFile(tmp_path / "construct.json", entries_per_write=3)
    for name in "abcd":
        file.add(f'"{name}": null')
    assert list(json.loads(file.path.read_text())) == ["a", "b", "c"]
    file.close()
    assert list(json.loads(file.path.read_text())) == ["a", "b", "c", "d"]


def test_a_file_of_an_earlier_run_is_replaced(tmp_path):
    (tmp_path / "dump.json").write_text("x" * 1000)
    file = GrowingFile(tmp_path / "dump.json", entries_key="data")
    file.create()
    assert json.loads(file.path.read_text()) == {"data": {}}
    file.close()


@pytest.mark.parametrize("name", ["Mint.add.0.forward", 'a"b', "a\\b", "é", "a\nb", "\x7f", ""])
def test_quoted_is_json(name):
    assert json.loads(quoted(name)) == name


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array(2.5),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([1 + 2j]),
    ],
)
def test_tensor_files_load_as_they_were(tmp_path, array):
    TensorFiles(tmp_path / "tensors").save("x.npy", array)
    loaded = np.load(tmp_path / "tensors" / "x.npy", allow_pickle=False)
    np.testing.assert_array_equal(loaded, array)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)


def test_a_name_that_no_file_can_have_is_warned_about(tmp_path, caplog):
    TensorFiles(tmp_path).save(f"{'x' * 300}.npy", np.zeros(1))
    TensorFiles(tmp_path).save("../out.npy", np.zeros(1))
    assert caplog.text.count("the tensor is not saved") == 2
    assert list(tmp_path.iterdir()) == []


def test_stacks_are_grouped_and_innermost_first(tmp_path):
    recorder = StackRecorder(own_package="/nowhere")
    file = GrowingFile(tmp_path / "stack.json")
    for number in range(3):
        recorder.add(f"Mint.add.{number}.forward", recorder.capture(), file)
    recorder.add("Mint.mul.0.forward", recorder.capture(), file)
    recorder.flush(file)
    groups = json.loads(file.path.read_text())
    assert [group[0] for group in groups.values()] == [
        [f"Mint.add.{number}.forward" for number in range(3)],
        ["Mint.mul.0.forward"],
    ]
    first = groups["0"][1][0]
    assert first.startswith(f"File {__file__}, line ")
    assert first.endswith(
        "in test_stacks_are_grouped_and_innermost_first, \n "
        + 'recorder.add(f"Mint.add.{number}.forward", recorder.capture(), file)'
    )
    file.close()


def test_each_kind_of_fault_is_logged_once(tmp_path, caplog):
    log = FaultLog()
    log.write_to(tmp_path)
    for _ in range(3):
        try:
            os.stat(tmp_path / "nowhere")
        except OSError as error:
            log.note("Mint.add.0.forward", error)
    log.note("Mint.add.1.forward", ValueError("other"))
    text = (tmp_path / ERROR_LOG).read_text()
    assert text.count("Call stack (most recent call last):") == 2
    assert "Mint.add.0.forward: FileNotFoundError" in text
    assert len(log.summary()) == 1
    assert log.summary()[0].endswith("3 times")
