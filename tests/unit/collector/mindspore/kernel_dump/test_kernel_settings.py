"""The JSON file of MindSpore's kernel dump, held to its documentation; its dump of a graph on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from msprobe_collector.configuration import ConfigurationError
from msprobe_collector.configuration.reader import read_configuration
from msprobe_collector.mindspore.kernel_dump import FILE_NAMES, MindSporeKernelDump, kernel_settings


@pytest.fixture
def configured(tmp_path):
    """configured(task, section, **common) -> Configuration of level L2."""

    def make(task, section=None, **common):
        content = {"task": task, "level": "L2", "dump_path": str(tmp_path / "dump"), **common, task: section or {}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        return read_configuration(tmp_path / "config.json")

    return make


def settings_of(configuration, version="2.10.0"):
    content = kernel_settings(configuration, mindspore_version=version)
    return content["common_dump_settings"], content["e2e_dump_settings"]


def test_tensors_of_all_kernels(configured, tmp_path):
    assert kernel_settings(configured("tensor"), mindspore_version="2.10.0") == {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(tmp_path / "dump"),
            "net_name": "Net",
            "iteration": "all",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "statistic_category": [],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }


def test_what_is_selected(configured):
    section = {"list": ["Add", "name-regex(.*Mul.*)"], "data_mode": ["input"]}
    common, _ = settings_of(configured("tensor", section, step=[0, 2, "5-8"], rank=[1, "4-5"]))
    assert (common["dump_mode"], common["kernels"]) == (1, ["Add", "name-regex(.*Mul.*)"])
    assert common["iteration"] == "0|2|5-8"
    assert common["input_output"] == 1
    assert common["support_device"] == [1, 4, 5]
    assert settings_of(configured("tensor", {"data_mode": ["output"]}))[0]["input_output"] == 2


@pytest.mark.parametrize(
    ("mode", "version", "categories"),
    [
        ("statistics", "2.10.0", ["max", "min", "avg", "l2norm"]),
        ("md5", "2.7.0", ["md5"]),
        ("md5", "2.7.1", ["hash:md5"]),
        (["mean", "nan count", "md5"], "2.10.0", ["avg", "nan count", "hash:md5"]),
    ],
)
def test_statistics(configured, mode, version, categories):
    section = {"summary_mode": mode, "device": "device", "precision": "low"}
    common, whole = settings_of(configured("statistics", section, async_dump=True), version)
    assert (common["saved_data"], common["statistic_category"]) == ("statistic", categories)
    assert whole == {
        "enable": False,
        "trans_flag": True,
        "stat_calc_mode": "device",
        "device_stat_precision_mode": "low",
    }


@pytest.mark.parametrize(("mode", "number"), [("aicore", 1), ("atomic", 2), ("all", 3)])
def test_overflow_check(configured, mode, number):
    common, _ = settings_of(configured("overflow_check", {"check_mode": mode}))
    assert (common["op_debug_mode"], common["saved_data"], common["file_format"]) == (number, "tensor", "npy")


def test_exception_dump_watches_every_step(configured):
    common, _ = settings_of(configured("exception_dump", step=[3], rank=[2]))
    assert (common["op_debug_mode"], common["iteration"], common["support_device"]) == (4, "all", [2])
    assert (common["saved_data"], common["file_format"]) == ("tensor", "npy")


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize("task", FILE_NAMES)
def test_the_environment_points_to_the_file(configured, task, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "before")
    monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", "acl.json")
    monkeypatch.setattr(MindSporeKernelDump, "_tell", lambda *arguments: None)  # this process has other tests to run
    (tmp_path / "dump").mkdir()
    dump = MindSporeKernelDump(configured(task, step=[1]))
    assert dump.file == tmp_path / "dump" / FILE_NAMES[task]
    assert os.environ["MINDSPORE_DUMP_CONFIG"] == str(dump.file)
    assert "MS_ACL_DUMP_CFG_PATH" not in os.environ
    assert set(json.loads(dump.file.read_text())) == {"common_dump_settings", "e2e_dump_settings"}
    assert ("step has no effect" in caplog.text) == (task == "exception_dump")


@pytest.mark.needs("mindspore")
def test_a_file_that_cannot_be_written_is_one_line(configured, tmp_path, monkeypatch):
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "before")
    (tmp_path / "dump" / FILE_NAMES["tensor"]).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"kernel_kbyk_dump\.json' cannot be written: Is a directory"):
        MindSporeKernelDump(configured("tensor"))


SCRIPT = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from msprobe_collector import PrecisionDebugger

ms.set_context(mode=ms.GRAPH_MODE)
debugger = PrecisionDebugger(sys.argv[1])
network = nn.Dense(3, 2)
for _ in range(3):
    debugger.start()
    network(Tensor(np.ones((2, 3), np.float32))).asnumpy()
    debugger.stop()
    debugger.step()
"""


@pytest.mark.graph_compiler
@pytest.mark.needs("mindspore")
def test_a_graph_on_cpu_is_dumped(configured, tmp_path):
    configured("tensor", step=[1])
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py", "config.json"], cwd=tmp_path, check=True, capture_output=True)
    steps = tmp_path / "dump" / "rank_0" / "Net" / "0"
    assert [step.name for step in steps.iterdir()] == ["1"]
    assert any(file.name.startswith("MatMul") for file in (steps / "1").iterdir())
