"""Configuration files as the existing tool's manuals have had them: none of them ends a training."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector import ConfigurationError
from msprobe_collector.configuration import Configuration
from msprobe_collector.configuration.reader import read_configuration

_COMMON: dict[str, Any] = {"dump_path": "./dump_path", "rank": [], "step": [], "level": "L1"}
_SELECTION: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}

FILES: dict[str, dict[str, Any]] = {
    "as packaged": {
        "task": "statistics",
        **_COMMON,
        "extra_info": True,
        "async_dump": False,
        "statistics": {**_SELECTION, "summary_mode": "statistics"},
        "tensor": _SELECTION,
        "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
    },
    "tensors with a type of file": {"task": "tensor", **_COMMON, "tensor": {**_SELECTION, "file_format": "npy"}},
    "tensors of the kernels": {
        "task": "tensor",
        **_COMMON,
        "level": "L2",
        "tensor": {**_SELECTION, "backward_input": [], "file_format": "bin"},
    },
    "settings of acl": {"task": "tensor", **_COMMON, "level": "L2", "acl_config": "", "tensor": {**_SELECTION}},
    "online run_ut": {
        "task": "tensor",
        **_COMMON,
        "tensor": {**_SELECTION, "online_run_ut": False, "nfs_path": "", "host": "", "port": -1, "tls_path": "./"},
    },
    "free benchmark": {
        "task": "free_benchmark",
        **_COMMON,
        "free_benchmark": {"scope": [], "list": [], "fuzz_device": "npu", "pert_mode": "improve_precision"},
    },
    "run_ut": {"task": "run_ut", **_COMMON, "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"}},
    "acc_check": {"task": "acc_check", **_COMMON, "acc_check": {"white_list": ["conv2d"], "error_data_path": "./"}},
    "differences": {"task": "diff_check", **_COMMON, "diff_check": {"diff_nums": 1}},
    "NaN": {"task": "nan_check", **_COMMON, "nan_check": {"tensor_list": []}},
    "overflow": {"task": "overflow_check", **_COMMON, "overflow_check": {"overflow_nums": 1, "check_mode": "all"}},
    "gradients": {
        "task": "grad_probe",
        **_COMMON,
        "grad_probe": {"grad_level": "L1", "param_list": [], "bounds": [-1, 0, 1]},
    },
    "structure": {"task": "structure", **_COMMON, "level": "mix", "structure": _SELECTION},
    "exceptions": {"task": "exception_dump", **_COMMON, "level": "L2", "exception_dump": {"file_format": "npy"}},
    "checksums": {"task": "statistics", **_COMMON, "statistics": {**_SELECTION, "summary_mode": "md5"}},
    "xor": {"task": "statistics", **_COMMON, "statistics": {**_SELECTION, "summary_mode": "xor"}},
    "list of statistics": {"task": "statistics", **_COMMON, "statistics": {"summary_mode": ["max", "min", "l2norm"]}},
    "statistics on the device": {
        "task": "statistics",
        **_COMMON,
        "statistics": {**_SELECTION, "device": "device", "precision": "low", "tensor_list": ["relu"]},
    },
    "nothing chosen": {"task": "", "dump_path": "./dump_path", "rank": [], "step": [], "level": "", "seed": 1234},
    "risk level": {"task": "statistics", **_COMMON, "risk_level": "FOCUS", "custom_op_namespaces": ["mine"]},
    "seed and loader": {
        "task": "statistics",
        **_COMMON,
        "step": 1,
        "seed": 1234,
        "is_deterministic": False,
        "enable_dataloader": False,
    },
    "ranges": {"task": "statistics", **_COMMON, "rank": ["0-3", 5], "step": [1, "3-5"], "dump_enable": False},
    "part of a batch": {
        "task": "tensor",
        **_COMMON,
        "tensor": {"slice": [{"dim": 0, "size": 8, "begin": 0, "end": 4}], "request_id": "chat-1"},
    },
    "against an earlier dump": {"task": "tensor", **_COMMON, "tensor": {"bench_path": "./bench", "diff_nums": -1}},
    "a monitor and a folder": {"dump_path": "./dump_path", "targets": {}, "format": "csv", "ops": ["norm"], "eps": 0.1},
    "a newer monitor and a folder": {
        "dump_path": "./dump_path",
        "framework": "pytorch",
        "output_dir": "./monitor",
        "monitors": {"module": {"enabled": True}},
        "patch_optimizer_step": False,
    },
    "one operation": {"task": "tensor", **_COMMON, "tensor": {"scope": ["Tensor.__matmul__.0.backward"]}},
}


def read(content: object, folder: Path, **arguments: object) -> Configuration:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return read_configuration(path, **arguments)


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_is_read(name: str, tmp_path: Path) -> None:
    assert read(FILES[name], tmp_path).dump_path.name == "dump_path"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("run_ut", "task run_ut is without effect here, so nothing is collected: tensors are checked after"),
        ("NaN", "task nan_check is called overflow_check here, which is taken"),
        ("xor", "statistics.summary_mode: 'fingerprint', another checksum, stands for 'xor'"),
        ("tensors of the kernels", "tensor.backward_input (it belongs to Ascend's own dump)"),
        ("a newer monitor and a folder", "framework, monitors, output_dir, patch_optimizer_step: this is the file"),
        ("a monitor and a folder", "eps, format, ops, targets: this is the file of a monitor of a whole training"),
    ],
)
def test_what_is_without_effect_is_said_with_the_reason(
    name: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "msprobe_collector"):
        read(FILES[name], tmp_path)
    assert said in caplog.text


def test_a_task_that_is_not_here_collects_nothing_by_itself(tmp_path: Path) -> None:
    for configuration in (
        read(FILES["free benchmark"], tmp_path),
        read(FILES["as packaged"], tmp_path, task="run_ut", level="mix"),
    ):
        assert (configuration.task, configuration.level) == ("statistics", "debug")


def test_a_scope_of_one_name_is_this_record(tmp_path: Path) -> None:
    name = "Tensor.__matmul__.0.backward"
    assert read(FILES["one operation"], tmp_path).selection.scope == (name, name)


def test_a_list_at_the_top_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"list: the key is unknown; it belongs into the section of the task"):
        read({"task": "tensor", "dump_path": "out", "list": ["relu"]}, tmp_path)
