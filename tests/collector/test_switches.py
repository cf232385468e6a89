"""What config.json and the calls of PrecisionDebugger switch."""

from __future__ import annotations

import json
import re
import sys
import types
import zlib

import mindspore as ms
import numpy as np
import pytest
from collector.small_gpt import Training
from mindspore import Tensor, mint, nn

from msprobe_collector import ConfigurationError, DebuggerError, PrecisionDebugger
from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import flatten
from msprobe_collector.dump_format.writing.encoding import fingerprint_of


def tensor(*values, dtype=ms.float32):
    return Tensor(np.array(values), dtype)


def calls():
    x = mint.square(tensor(1.0, 2.0))
    x = mint.add(x, 1.0)
    x = mint.mul(x, tensor(2.0))
    return mint.sqrt(x)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"list": ["square", "mul"]}, ["Mint.square.0.forward", "Mint.mul.0.forward"]),
        ({"scope": ["Mint.add.0.forward", "Mint.mul.0.forward"]}, ["Mint.add.0.forward", "Mint.mul.0.forward"]),
        ({"scope": ["Mint.add.0.forward", "Mint.mul.0.forward"], "list": ["mul"]}, ["Mint.mul.0.forward"]),
        ({"data_mode": ["backward"]}, []),
    ],
)
def test_scope_and_list_keep_whole_records(make_debugger, records, section, expected):
    with make_debugger(**section).collect():
        calls()
    assert list(records()) == expected
    assert all({"input_args", "output"} <= record.keys() for record in records().values())


@pytest.mark.parametrize(("mode", "missing"), [("input", "output"), ("output", "input_args")])
def test_data_mode_keeps_one_half(make_debugger, records, mode, missing):
    with make_debugger(data_mode=[mode]).collect():
        calls()
    assert len(records()) == 4
    assert not any(missing in record for record in records().values())


def test_a_listed_cell_keeps_what_runs_inside_it(make_debugger, records):
    training = Training()
    with make_debugger(level="mix", list=["Cell.bs.1.n1.RMS.forward"]).collect(training.net):
        training.step()
    assert list(records()) == [
        *(f"Mint.{name}.forward" for name in ("square.2", "mean.2", "add.3", "rsqrt.2", "mul.5", "mul.6")),
        "Cell.bs.1.n1.RMS.forward.0",
    ]


def test_a_scope_that_never_appears_is_named_at_the_end(make_debugger, caplog):
    debugger = make_debugger(scope=["Mint.nowhere.0.forward", "Mint.mul.0.forward"])
    with debugger.collect():
        calls()
    debugger._at_exit()
    assert "'Mint.nowhere.0.forward'" in caplog.text


def test_tensor_list_saves_what_it_names(make_debugger, records, step_folder):
    with make_debugger(tensor_list=["square"]).collect():
        calls()
    assert records()["Mint.square.0.forward"]["output"][0]["data_name"] == "Mint.square.0.forward.output.0.npy"
    assert "data_name" not in records()["Mint.add.0.forward"]["output"][0]
    assert len(list((step_folder() / "dump_tensor_data").iterdir())) == 2


def test_md5_is_the_crc_of_the_stored_bytes(make_debugger, records):
    with make_debugger(summary_mode="md5").collect():
        mint.square(tensor(1.0, 2.0))

    (value,) = records()["Mint.square.0.forward"]["input_args"]
    assert value["md5"] == f"{zlib.crc32(np.array([1, 2], np.float32).tobytes()):08x}"


def test_a_fingerprint_is_that_of_the_saved_values(make_debugger, records, step_folder):
    with make_debugger(task="tensor", summary_mode="fingerprint").collect():
        mint.square(tensor(1.0, 2.0))
        mint.square(tensor(1.0, -2.0)).astype(ms.bfloat16)

    dump = Dump(step_folder() / "dump.json")
    leaves = [leaf for name in records() for leaf in flatten(dump.record(name)) if leaf.is_tensor]
    assert len(leaves) == 6
    for leaf in leaves:
        assert fingerprint_of(dump.tensors.load(leaf.tensor, leaf.place)) == leaf.fingerprint
    assert not any("md5" in str(record) for record in records().values())


def test_structure_has_stacks_and_parents_alone(make_debugger, records, step_folder):
    training = Training()
    with make_debugger(level="mix", task="structure").collect(training.net):
        training.step()
    assert records() == {}
    assert len(json.loads((step_folder() / "construct.json").read_text())) == 236
    assert len(Dump(step_folder() / "dump.json").stacks.frames("Mint.square.0.forward")) > 3


def test_overflow_check_keeps_records_with_nan_or_inf_until_there_are_enough(make_debugger, records, step_folder):
    debugger = make_debugger(task="overflow_check", overflow_nums=2)
    with debugger.collect():
        calls()
        infinite = mint.exp(tensor(1000.0))
        mint.mul(infinite, tensor(0.0))
        mint.mul(infinite, tensor(2.0))
    assert list(records()) == ["Mint.exp.0.forward", "Mint.mul.1.forward"]
    assert records()["Mint.exp.0.forward"]["output"][0]["Inf_count"] == 1
    assert len(list((step_folder() / "dump_tensor_data").iterdir())) == 5
    assert len(Dump(step_folder() / "dump.json").stacks.frames("Mint.exp.0.forward")) > 1
    with debugger.collect():
        mint.exp(tensor(1000.0))
    assert not (debugger.configuration.dump_path / "step1").exists()


def test_async_dump_writes_the_same(make_debugger, records, tmp_path):
    training = Training()
    with make_debugger(level="mix").collect(training.net):
        training.step()
    here = records()
    PrecisionDebugger._instance._at_exit()
    PrecisionDebugger._instance = None
    (tmp_path / "dump").rename(tmp_path / "synchronous")
    with make_debugger(level="mix", common={"async_dump": True}).collect(training.net):
        training.step()
    assert records() == here


def test_extra_info_false_leaves_two_files_out(make_debugger, step_folder):
    with make_debugger(common={"extra_info": False}).collect():
        calls()
    assert sorted(path.name for path in step_folder().iterdir()) == ["dump.json", "run.json"]


def test_dump_enable_is_watched_while_training_runs(make_debugger, tmp_path):
    debugger = make_debugger(common={"dump_enable": False})
    with debugger.collect():
        calls()
    assert list((tmp_path / "dump").iterdir()) == []
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"dump_enable": false', '"dump_enable": true'))
    with debugger.collect():
        calls()
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step1"]


def test_token_range_counts_forwards_of_the_model(make_debugger, records):
    class Net(nn.Cell):
        def construct(self, x):
            return mint.square(x)

    net, debugger = Net(), make_debugger()
    debugger.start(net, token_range=[1, 2])
    for number in range(5):
        net(tensor(float(number)))
    debugger.stop()
    found = records()
    assert [found[name]["input_args"][0]["Max"] for name in found] == [1.0, 2.0]


def test_segments_of_a_step_append(make_debugger, records):
    debugger = make_debugger()
    for _ in range(2):
        debugger.start()
        mint.square(tensor(1.0))
        debugger.stop()
        mint.square(tensor(2.0))
    assert list(records()) == ["Mint.square.0.forward", "Mint.square.1.forward"]
    assert {record["input_args"][0]["Max"] for record in records().values()} == {1.0}


def test_set_init_step_numbers_the_folders(make_debugger, tmp_path):
    debugger = make_debugger()
    debugger.set_init_step(7)
    with debugger.collect():
        calls()
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step7"]


def test_ranks_that_are_not_known_are_warned_about(make_debugger, caplog, tmp_path):
    debugger = make_debugger(common={"rank": [0]})
    with debugger.collect():
        calls()
    assert "this process has none yet" in caplog.text
    with debugger.collect(rank_id=0):
        calls()
    with debugger.collect(rank_id=1):
        calls()
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step1"]


def test_mistakes_are_errors_at_once(make_debugger):
    debugger = make_debugger(level="mix")
    for mistake, message in (
        (lambda: debugger.start("net"), "the model is a str"),
        (lambda: debugger.start(), "got no model, which level mix needs"),
        (lambda: debugger.step(), "before any start"),
        (lambda: debugger.start(nn.ReLU(), token_range=[2, 1]), "token_range"),
        (lambda: debugger.start(nn.ReLU(), rank_id=-1), "rank_id"),
        (lambda: debugger.set_init_step(-1), "whole number"),
        (lambda: debugger.register_custom_api(mint, "nowhere"), "no callable 'nowhere'"),
    ):
        with pytest.raises(DebuggerError, match=message):
            mistake()


@pytest.mark.parametrize(
    ("tensor", "advice"),
    [
        (type("Tensor", (), {}), "for PyTorch import PrecisionDebugger from msprobe_collector.pytorch"),
        (type("Tensor", (ms.Tensor,), {}), "its calls of MindSpore are at level L1: start() without a model"),
    ],
    ids=["PyTorch", "MindTorch"],
)
def test_a_module_of_another_framework_is_told_what_takes_it(make_debugger, monkeypatch, tensor, advice):
    module = type("Module", (), {"__module__": "torch.nn.modules.module"})
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=tensor))
    with pytest.raises(DebuggerError, match=re.escape(advice)):
        make_debugger(level="mix").start(type("Model", (module,), {})())


def test_a_second_stop_says_nothing(make_debugger, caplog):
    debugger = make_debugger(level="L1")
    debugger.start()
    debugger.forward_backward_dump_end()
    debugger.stop()
    assert caplog.text == ""
    debugger.step()
    debugger.stop()
    assert "stop() was called without start()" in caplog.text


def test_what_can_go_on_is_a_warning(make_debugger, caplog, records):
    debugger = make_debugger(level="mix")
    net = nn.SequentialCell(nn.ReLU())
    debugger.stop()
    assert "stop() was called without start()" in caplog.text
    debugger.restore_custom_api(mint, "add")
    assert "'add' of <module 'mindspore.mint'" in caplog.text
    assert PrecisionDebugger(level="L0") is debugger
    assert "these are ignored" in caplog.text
    debugger.start(net)
    debugger.start(net)
    assert "again" not in caplog.text
    debugger.start(nn.Tanh())
    assert "continues with the model that it had" in caplog.text
    net(tensor(1.0))
    debugger.stop()
    debugger.step()
    assert "Cell.0.ReLU.forward.0" in records()


def test_a_name_that_nothing_had_is_answered_by_near_ones(make_debugger, caplog, records):
    debugger = make_debugger(list=["SQUARE", "mint.sqare"])
    with debugger.collect():
        mint.square(tensor(1.0))
        mint.add(tensor(1.0), 1)
    debugger._at_exit()
    assert list(records()) == ["Mint.square.0.forward"]
    assert "no record had the name 'mint.sqare'" in caplog.text
    assert "near it are Mint.square" in caplog.text
    assert "'SQUARE'" not in caplog.text


def test_graph_mode_is_refused(make_debugger):
    debugger = make_debugger()
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(DebuggerError, match="PYNATIVE_MODE"):
        debugger.start()


def test_the_class_speaks_for_the_one_debugger(make_debugger, records):
    with pytest.raises(DebuggerError, match="make one first"):
        PrecisionDebugger.start()
    make_debugger()
    PrecisionDebugger.start()
    mint.square(tensor(1.0))
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    assert list(records()) == ["Mint.square.0.forward"]


def test_a_dump_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        PrecisionDebugger(dump_path=str(tmp_path / "file"))
