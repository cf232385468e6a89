"""Files as TensorDump names and fills them on Ascend (MindSpore's documentation of it) become records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from msprobe_collector.configuration.reader import read_configuration
from msprobe_collector.mindspore.static_graph import files as staged_records
from msprobe_collector.mindspore.static_graph.files import StagedRecords, group_calls, parse_staged_name, staged_name
from msprobe_collector.recording.guard import FaultLog
from msprobe_collector.recording.recorder import Recorder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Cell.net.Dense.forward.input.0_float32_17.npy", (17, "Cell.net.Dense", "forward", "input", 0, "Float32")),
        ("Cell.a.0.B_1.forward.output.3_bfloat16_2.npy", (2, "Cell.a.0.B_1", "forward", "output", 3, "BFloat16")),
        ("Cell.x.C.backward.output.1_in_float16_9.npy", (9, "Cell.x.C", "backward", "output", 1, "Float16")),
        ("Cell.x.C.forward.input.0_bool_0.npy", (0, "Cell.x.C", "forward", "input", 0, "Bool")),
    ],
)
def test_names_tell_what_a_file_holds(tmp_path, name, expected):
    file = parse_staged_name(tmp_path / name)
    assert file is not None
    assert (file.id, file.label, file.direction, file.part, file.index, file.dtype_name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "step_is_over_int32_4.npy",
        "Cell.x.C.forward.input.0.npy",
        "Cell.x.C.forward.input.0_what_4.npy",
        "Cell.x.C.forward.input.0_float32_4.npy.tmp",
        "Mint.add.0.forward.input.0_float32_4.npy",
    ],
)
def test_other_files_are_none_of_ours(tmp_path, name):
    assert parse_staged_name(tmp_path / name) is None


def names_of(*names):
    files = [parse_staged_name(Path(f"{name}_float32_{number}.npy")) for number, name in enumerate(names)]
    return [(call.direction, call.number, sorted(call.files)) for call in group_calls(files)]


def test_calls_count_forwards_in_order_and_gradients_from_the_end():
    one = [staged_name("Cell.a.A", "forward", part, 0) for part in ("input", "output")]
    back = [staged_name("Cell.a.A", "backward", part, 0) for part in ("input", "output")]
    parts = [("input", 0), ("output", 0)]
    assert names_of(*one, *one, *back, *back) == [
        ("forward", 0, parts),
        ("forward", 1, parts),
        ("backward", 1, parts),
        ("backward", 0, parts),
    ]


def test_gradients_alone_count_from_the_first():
    assert names_of("Cell.a.A.backward.input.0", "Cell.a.A.backward.input.0") == [
        ("backward", 0, [("input", 0)]),
        ("backward", 1, [("input", 0)]),
    ]


@pytest.fixture
def staged(tmp_path, monkeypatch):
    """(StagedRecords of the folder `staged`, the recorder that they write with)."""
    from msprobe_collector.mindspore.tensor_values import mindspore_values

    monkeypatch.setattr(staged_records, "wait_for_files", lambda folder: None)  # TensorDump runs on Ascend only
    (tmp_path / "config.json").write_text(json.dumps({"task": "tensor", "level": "L0", "dump_path": str(tmp_path)}))
    configuration = read_configuration(tmp_path / "config.json")
    faults = FaultLog()
    recorder = Recorder(configuration, "mindspore", mindspore_values(), faults)
    records = StagedRecords(recorder, faults, folder=tmp_path / "staged")
    records.watch({"Cell.a.A": "", "Cell.a.b.B": "Cell.a.A"}, {"Cell.a.A", "Cell.a.b.B"})
    return records, recorder


@pytest.fixture
def records_of(tmp_path, staged):
    """records_of(files): dump.json and construct.json after a step that left `files` (name: array)."""
    records, recorder = staged

    def run(files, *, opens=True):
        if opens:
            recorder.open_step(tmp_path / "step0" / "rank0")
        for name, array in files.items():
            np.save(tmp_path / "staged" / name, array)
        assert records.close_step()
        recorder.close_step()
        records.remove()
        assert not (tmp_path / "staged").exists()
        if not opens:
            return None
        folder = tmp_path / "step0" / "rank0"
        return json.loads((folder / "dump.json").read_text())["data"], json.loads(
            (folder / "construct.json").read_text()
        )

    return run


@pytest.mark.needs("mindspore")
def test_files_become_records_of_the_same_form_as_elsewhere(records_of, tmp_path):
    x = np.array([[1.0, -2.0]], np.float32)
    data, construct = records_of(
        {
            "Cell.a.A.forward.input.0_float32_0.npy": x,
            "Cell.a.A.forward.input.2_int64_1.npy": np.array([5]),
            "Cell.a.b.B.forward.input.0_bfloat16_2.npy": x,
            "Cell.a.b.B.forward.output.0_bfloat16_3.npy": 2 * x,
            "Cell.a.A.forward.output.0_float32_4.npy": 3 * x,
            "Cell.a.A.backward.input.0_float32_5.npy": 4 * x,
            "Cell.a.A.backward.output.0_in_float32_6.npy": 5 * x,
            "step_is_over_int32_7.npy": np.array([0]),
        }
    )
    assert list(data) == ["Cell.a.b.B.forward.0", "Cell.a.A.forward.0", "Cell.a.A.backward.0"]
    forward = data["Cell.a.A.forward.0"]
    assert [None if value is None else value["Max"] for value in forward["input_args"]] == [1.0, None, 5]
    assert forward["output"][0]["Min"] == -6.0
    inner = data["Cell.a.b.B.forward.0"]["input_args"][0]
    assert (inner["dtype"], inner["data_name"]) == ("BFloat16", "Cell.a.b.B.forward.0.input.0.npy")
    assert {part: value[0]["Max"] for part, value in data["Cell.a.A.backward.0"].items()} == {
        "input": 4.0,
        "output": 5.0,
    }
    assert construct["Cell.a.b.B.forward.0"] == "Cell.a.A.forward.0"
    assert construct["Cell.a.A.backward.0"] is None
    saved = np.load(tmp_path / "step0" / "rank0" / "dump_tensor_data" / "Cell.a.A.backward.0.output.0.npy")
    assert saved.tolist() == (5 * x).tolist()


@pytest.mark.needs("mindspore")
def test_files_of_a_step_that_is_not_collected_are_deleted(records_of):
    assert records_of({"Cell.a.A.forward.input.0_float32_0.npy": np.ones(2, np.float32)}, opens=False) is None


@pytest.mark.needs("mindspore")
def test_a_file_that_cannot_be_read_is_noted_and_harms_nothing(records_of, tmp_path):
    data, _ = records_of({"Cell.a.A.forward.input.0_float32_0.npy": np.array([None], object)})
    assert data == {}
    assert "reading what TensorDump wrote" in (tmp_path / "step0" / "rank0" / "dump_error_info.log").read_text()


@pytest.mark.graph_compiler
@pytest.mark.needs("mindspore")
def test_a_file_that_cannot_be_deleted_is_noted_and_no_file_of_the_next_step(staged, tmp_path, monkeypatch):
    records, recorder = staged
    first, second = (f"Cell.a.A.forward.input.0_float32_{number}.npy" for number in range(2))
    unlink, stays = Path.unlink, tmp_path / "staged" / first

    def refusing(path, *args, **kwargs):
        if path == stays:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", refusing)
    found = []
    for step, names in enumerate([(first, "step_is_over_int32_7.npy"), (second,)]):
        recorder.open_step(tmp_path / f"step{step}" / "rank0")
        for name in names:
            np.save(tmp_path / "staged" / name, np.full(2, step, np.float32))
        assert records.close_step()
        recorder.close_step()
        assert [path.name for path in (tmp_path / "staged").iterdir()] == [first]
        found.append(json.loads((tmp_path / f"step{step}" / "rank0" / "dump.json").read_text())["data"])
    assert [list(data) for data in found] == [["Cell.a.A.forward.0"]] * 2
    assert found[1]["Cell.a.A.forward.0"]["input_args"][0]["Max"] == 1.0
    assert "deleting what TensorDump wrote" in (tmp_path / "step0" / "rank0" / "dump_error_info.log").read_text()


@pytest.mark.needs("mindspore")
def test_the_graph_code_for_ascend_compiles_up_to_the_choice_of_kernels(tmp_path):
    import mindspore as ms
    from mindspore import Tensor, nn

    from msprobe_collector.mindspore.static_graph.graph_code.ascend import tapped_construct

    network = nn.SequentialCell(nn.Dense(3, 2), nn.ReLU())
    for label, cell in (("Cell.0.Dense", network[0]), ("Cell.1.ReLU", network[1])):
        cell.__dict__["construct"] = tapped_construct(cell, label, folder=tmp_path, gradients=True)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(RuntimeError, match=r"Unsupported op \[TensorDump\] on CPU"):
            ms.value_and_grad(network, None, network.trainable_params())(Tensor(np.ones((1, 3), np.float32)))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
