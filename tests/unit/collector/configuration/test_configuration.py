"""config.json and constructor arguments: what becomes of right ones, and one line for each wrong one."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.configuration import (
    LEVELS,
    ApiPlace,
    Configuration,
    ConfigurationError,
    NumberRanges,
    RowSlice,
)
from msprobe_collector.configuration.reader import SECTION_KEYS, TOP_KEYS, read_configuration


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Read a configuration of these keys, under these constructor arguments."""
    monkeypatch.chdir(tmp_path)

    def read_keys(content: Any, **overrides: Any) -> Configuration:
        file = tmp_path / "config.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return read_configuration(file, **overrides)

    return read_keys


def test_without_a_file_the_packaged_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configuration = read_configuration()
    assert (configuration.task, configuration.level) == ("statistics", "L1")
    assert configuration.dump_path == tmp_path / "dump_path"
    assert read_configuration("") == configuration


def test_a_file_with_a_dump_path_alone_has_the_documented_defaults(read: Any, tmp_path: Path) -> None:
    found = read({"dump_path": "out"})
    assert found.dump_path == tmp_path / "out"
    assert (found.task, found.level, found.precision, found.summary) == ("statistics", "L1", "low", "statistics")
    assert found.ranks == found.steps == NumberRanges()
    assert (found.extra_info, found.async_dump, found.dump_enable, found.overflow_limit) == (True, False, None, 1)
    assert found.selection.scope is None
    assert found.selection.names == found.selection.tensor_names == ()
    assert found.selection.directions == {"forward", "backward"}
    assert found.selection.parts == {"input", "output"}
    assert (found.kernel.device, found.kernel.precision, found.kernel.check_mode) == ("host", "high", "all")
    assert (found.gradients.level, found.gradients.parameters, found.gradients.bounds) == ("L1", (), (-1, 0, 1))


def test_every_key_reaches_its_place(read: Any) -> None:
    found = read(
        {
            "task": "statistics",
            "dump_path": "/d",
            "rank": [1],
            "step": ["2-4", 0],
            "level": "mix",
            "extra_info": False,
            "async_dump": True,
            "precision": "high",
            "dump_enable": False,
            "statistics": {
                "scope": ["Mint.add.0.forward", "Cell.net.Dense.backward.0"],
                "list": ["matmul"],
                "tensor_list": ["softmax"],
                "data_mode": ["backward", "input"],
                "summary_mode": "md5",
            },
        }
    )
    assert (found.ranks.ranges, found.steps.ranges) == (((1, 1),), ((0, 0), (2, 4)))
    assert (found.level, found.extra_info, found.async_dump, found.precision) == ("mix", False, True, "high")
    assert (found.dump_enable, found.summary) == (False, "md5")
    assert found.selection.scope == ("Mint.add.0.forward", "Cell.net.Dense.backward.0")
    assert (found.selection.names, found.selection.tensor_names) == (("matmul",), ("softmax",))
    assert (found.selection.directions, found.selection.parts) == ({"backward"}, {"input"})
    assert found.collects_apis
    assert found.collects_cells


@pytest.mark.parametrize(
    ("level", "apis", "cells"), [("L0", False, True), ("L1", True, False), ("mix", True, True), ("debug", False, False)]
)
def test_a_level_says_what_is_collected(read: Any, level: str, apis: bool, cells: bool) -> None:
    found = read({"dump_path": "out", "level": level})
    assert (found.collects_apis, found.collects_cells) == (apis, cells)


def test_all_constructor_arguments_win_over_the_file(read: Any, tmp_path: Path) -> None:
    content = {
        "task": "statistics",
        "dump_path": "file",
        "level": "L1",
        "step": [1],
        "statistics": {"list": ["of statistics"]},
        "tensor": {"list": ["of tensor"]},
    }
    found = read(content, task="tensor", dump_path=Path("argument"), level="L0", step=[2, "4-5"])
    assert (found.task, found.level, found.dump_path) == ("tensor", "L0", tmp_path / "argument")
    assert found.steps.ranges == ((2, 2), (4, 5))
    assert found.selection.names == ("of tensor",), "the section of the task that runs"


@pytest.mark.parametrize(("task", "level"), [(task, level) for task, levels in LEVELS.items() for level in levels])
def test_every_task_and_level_that_go_together_are_taken(read: Any, task: str, level: str) -> None:
    found = read({"dump_path": "out", "task": task, "level": level})
    assert (found.task, found.level) == (task, level)


@pytest.mark.parametrize(("task", "level"), [("structure", "mix"), ("exception_dump", "L2"), ("overflow_check", "L1")])
def test_a_task_without_a_level_takes_its_own(read: Any, task: str, level: str) -> None:
    assert read({"dump_path": "out", "task": task}).level == level


def test_structure_takes_mix_for_another_level_and_says_so(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert read({"dump_path": "out", "task": "structure", "level": "L1"}).level == "mix"
    assert "task structure has no level L1; mix is taken" in caplog.text


def test_tasks_of_their_own_have_keys_of_their_own(read: Any) -> None:
    overflow = read({"dump_path": "o", "task": "overflow_check", "overflow_check": {"overflow_nums": -1}})
    assert overflow.overflow_limit is None
    probe = {"grad_level": "L2", "param_list": ["fc.weight"], "bounds": [-0.5, 0, 2]}
    gradients = read({"dump_path": "o", "task": "grad_probe", "grad_probe": probe}).gradients
    assert (gradients.level, gradients.parameters, gradients.bounds) == ("L2", ("fc.weight",), (-0.5, 0, 2))
    kernel = read({"dump_path": "o", "level": "L2", "statistics": {"summary_mode": ["max", "nan count"]}}).kernel
    assert kernel.categories == ("max", "nan count")


def test_keys_for_other_programs_are_named_and_passed_over(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    content = {"dump_path": "out", "risk_level": "ALL", "run_ut": {"white_list": []}, "tensor": {"file_format": "npy"}}
    with caplog.at_level(logging.WARNING, logger="msprobe_collector"):
        read(content)
    assert "without effect here: risk_level (all calls are collected; key list names some); run_ut (" in caplog.text
    assert "tensor.file_format (tensors are .npy)" in caplog.text


#: What is wrong, and what the sentence must name beside the file.
MISTAKES: list[tuple[Any, tuple[str, ...]]] = [
    ("{", ("not valid JSON", "line 1, column 2")),
    ("[]", ("list", "object")),
    ({"dump_pth": "out"}, ("dump_pth", "did you mean 'dump_path'?")),
    ({"statistics": {"scopes": []}}, ("statistics.scopes", "did you mean 'scope'?")),
    ({"wxyz": 1}, ("wxyz", "known are task, level")),
    ({"statistics": []}, ("statistics", "[]", "object")),
    ({"task": "statistic"}, ("task", "'statistic'", "statistics, tensor")),
    ({"task": 3}, ("task", "3", "statistics")),
    ({"task": "nan"}, ("task", "'nan'")),
    ({"level": "L3"}, ("level", "'L3'", "L0, L1, mix, debug, L2")),
    ({"level": "L1", "task": "exception_dump"}, ("level", "'L1'", "it has L2")),
    ({"level": "debug", "task": "overflow_check"}, ("level", "'debug'", "L1, L0, mix, L2")),
    ({"dump_path": ""}, ("dump_path", "''")),
    ({"dump_path": 3}, ("dump_path", "3")),
    ({"dump_path": None}, ("dump_path", "no folder")),
    ({"rank": 1}, ("rank", "1", "list")),
    ({"rank": [True]}, ("rank", "True", "whole number")),
    ({"rank": [1.0]}, ("rank", "1.0", "whole number")),
    ({"step": [-1]}, ("step", "-1", "from 0")),
    ({"step": ["3-1"]}, ("step", "'3-1'", '"1-3"')),
    ({"step": ["1-2-3"]}, ("step", "'1-2-3'")),
    ({"step": ["a"]}, ("step", "'a'")),
    ({"step": [1000001]}, ("step", "1000001", "above 1000000")),
    ({"step": [10000000]}, ("step", "10000000", "above 1000000")),
    ({"rank": ["0-99999999999999999999"]}, ("rank", "99999999999999999999", "above 1000000")),
    ('{"step": [' + "1" * 5000 + "]}", ("cannot be read", "4300 digits")),
    ("[" * 100_000, ("cannot be read", "recursion")),
    ({"extra_info": 1}, ("extra_info", "1", "true nor false")),
    ({"async_dump": "yes"}, ("async_dump", "'yes'")),
    ({"dump_enable": 0}, ("dump_enable", "0")),
    ({"precision": "medium"}, ("precision", "'medium'", "low, high")),
    ({"statistics": {"list": "add"}}, ("statistics.list", "'add'")),
    ({"statistics": {"list": [""]}}, ("statistics.list", "['']")),
    ({"statistics": {"tensor_list": [1]}}, ("statistics.tensor_list", "[1]")),
    ({"task": "tensor", "tensor": {"tensor_list": []}}, ("tensor.tensor_list", "unknown")),
    ({"tensor": []}, ("tensor", "[]", "object")),
    ({"statistics": {"scope": ["Mint.add.0.forward"] * 3}}, ("statistics.scope", "two record names")),
    ({"statistics": {"scope": ["Mint.add.0", "Mint.add.1.forward"]}}, ("statistics.scope", "'Mint.add.0'", "L1")),
    (
        {"level": "L0", "statistics": {"scope": ["Mint.add.0.forward", "Mint.add.1.forward"]}},
        ("statistics.scope", "'Mint.add.0.forward'", "not a Cell record", "L0"),
    ),
    (
        {"statistics": {"scope": ["Cell.net.Dense.forward.0", "Cell.net.Dense.forward.1"]}},
        ("statistics.scope", "not an API record", "L1"),
    ),
    ({"level": "mix", "statistics": {"scope": ["add", "sub"]}}, ("statistics.scope", "'add'", "not a record name")),
    ({"statistics": {"data_mode": "all"}}, ("statistics.data_mode", "'all'")),
    ({"statistics": {"data_mode": ["sideways"]}}, ("statistics.data_mode", "sideways", "forward, backward")),
    ({"statistics": {"data_mode": ["all", "input"]}}, ("statistics.data_mode", "beside others")),
    ({"statistics": {"summary_mode": "crc"}}, ("statistics.summary_mode", "'crc'", "md5")),
    ({"statistics": {"summary_mode": "fingerprint"}, "level": "L2"}, ("statistics.summary_mode", "'md5'", "L2")),
    ({"statistics": {"summary_mode": ["maximum"]}, "level": "L2"}, ("statistics.summary_mode", "'maximum'", "max,")),
    ({"tensor": {"summary_mode": ["max"]}, "task": "tensor", "level": "L2"}, ("tensor.summary_mode", "'tensor'")),
    ({"statistics": {"device": "npu"}}, ("statistics.device", "'npu'", "host, device")),
    ({"statistics": {"precision": "mid"}}, ("statistics.precision", "'mid'")),
    ({"level": "L2", "statistics": {"list": ["name-regex(()"]}}, ("statistics.list", "name-regex", "expression")),
    ({"overflow_check": {"overflow_nums": 0}}, ("overflow_check.overflow_nums", "0", "-1")),
    ({"overflow_check": {"overflow_nums": True}}, ("overflow_check.overflow_nums", "True")),
    ({"overflow_check": {"check_mode": "some"}}, ("overflow_check.check_mode", "'some'", "aicore")),
    ({"grad_probe": {"grad_level": "L3"}}, ("grad_probe.grad_level", "'L3'", "L0, L1, L2")),
    ({"grad_probe": {"param_list": ["a/b"]}}, ("grad_probe.param_list", "'a/b'")),
    ({"grad_probe": {"bounds": []}}, ("grad_probe.bounds", "[]")),
    ({"grad_probe": {"bounds": [0, 0]}}, ("grad_probe.bounds", "ascend")),
    ({"grad_probe": {"bounds": [True]}}, ("grad_probe.bounds", "True")),
    ({"grad_probe": {"bounds": [0, 1e300]}}, ("grad_probe.bounds", "int64")),
    ('{"grad_probe": {"bounds": [0, NaN]}}', ("grad_probe.bounds", "int64")),
    ({"api_list": "absent.yaml"}, ("api_list", "absent.yaml", "No such file")),
]


@pytest.mark.parametrize(("content", "named"), MISTAKES, ids=lambda value: json.dumps(value)[:60])
def test_a_mistake_is_one_sentence_with_file_field_and_value(
    read: Any, tmp_path: Path, content: Any, named: tuple[str, ...]
) -> None:
    if isinstance(content, dict):
        content = {"dump_path": "out"} | content
    with pytest.raises(ConfigurationError) as caught:
        read(content)
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path / 'config.json'}: ")
    assert "\n" not in sentence
    for part in named:
        assert part in sentence


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"task": "x"}, ("task", "'x'", "statistics")),
        ({"level": 1}, ("level", "1")),
        ({"step": 5.5}, ("step", "5.5")),
        ({"dump_path": 5}, ("dump_path", "5")),
    ],
)
def test_a_wrong_argument_is_blamed_on_the_constructor(read: Any, overrides: dict[str, Any], named: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read({"dump_path": "out"}, **overrides)
    assert str(caught.value).startswith(f"PrecisionDebugger: {named[0]}: ")
    assert all(part in str(caught.value) for part in named)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.json: cannot be read: No such file"):
        read_configuration(tmp_path / "absent.json")
    with pytest.raises(ConfigurationError, match="PrecisionDebugger: config_path: 3 is not a path"):
        read_configuration(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["con\0fig.json", "\ud800.json"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError):
        read_configuration(path)


def test_unknown_keys_of_a_section_for_another_task_only_warn(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    content = {
        "dump_path": "out",
        "task": "statistics",
        "statistics": {},
        "tensor": {"lits": []},
        "grad_probe": {"x": 1},
    }
    with caplog.at_level(logging.WARNING, "msprobe_collector"):
        assert read(content).task == "statistics"
    assert "tensor.lits: the key is unknown, and its section is not used by task 'statistics'" in caplog.text
    assert "grad_probe.x" in caplog.text
    with pytest.raises(ConfigurationError, match=r"tensor\.lits: the key is unknown; did you mean 'list'"):
        read(content, task="tensor")


def test_parts_of_a_batch(read: Any) -> None:
    part = {"dim": 0, "size": 8, "begin": 0, "end": 4}
    configuration = read({"dump_path": "out", "statistics": {"slice": [part], "request_id": "a"}})
    assert (configuration.slices, configuration.request_id) == ((RowSlice(0, 8, 0, 4),), "a")
    for wrong in ({"dim": 0}, {**part, "end": 9}, {**part, "begin": 4}, {**part, "dim": -1}):
        with pytest.raises(ConfigurationError, match=r"statistics\.slice: .* is not"):
            read({"dump_path": "out", "statistics": {"slice": [wrong]}})


def test_an_api_list_is_found_beside_the_file(read: Any, tmp_path: Path) -> None:
    (tmp_path / "apis.yaml").write_text("add:\n  my_ops: [fused]\nremove:\n  mindspore.mint: [add, sub]\n")
    found = read({"dump_path": "out", "api_list": "apis.yaml"}).api_list
    assert found.add == (ApiPlace("my_ops", "fused"),)
    assert found.remove == (ApiPlace("mindspore.mint", "add"), ApiPlace("mindspore.mint", "sub"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("add: [", "not valid YAML"),
        ("remov: {}", "keys add and remove"),
        ("add: [x]", "modules with lists"),
        ("add: {mindspore.mint: add}", "'add' under 'mindspore.mint'"),
        ("add: {mindspore.mint: [1]}", "[1] under 'mindspore.mint'"),
        ("a: &a [" + "x, " * 1000 + "]\nb: &b [" + "*a, " * 1000 + "]\nc: [*b, *b]", "more than 1000000 values"),
    ],
)
def test_a_wrong_api_list_is_one_line(read: Any, tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "apis.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read({"dump_path": "out", "api_list": "apis.yaml"})
    assert "api_list" in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_loads_neither_numpy_nor_a_framework() -> None:
    check = (
        "import sys; from msprobe_collector.configuration.reader import *; read_configuration();"
        "print([m for m in ('numpy', 'mindspore', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PAGE = (Path(__file__).resolve().parents[4] / "docs" / "collecting.md").read_text(encoding="utf-8")
DOCUMENTED = set(re.findall(r"`([a-z_{}.]+)`", PAGE))


@pytest.mark.parametrize(
    "key",
    [*TOP_KEYS, *(f"{section}.{name}" for section in SECTION_KEYS for name in SECTION_KEYS[section])],
)
def test_the_page_has_every_key(key: str) -> None:
    section, _, name = key.rpartition(".")
    assert {key, f"{{task}}.{name}", f".{name}" if section == "statistics" else key} & DOCUMENTED


def test_keys_of_other_versions_are_honoured_or_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "config.json"
    content = {"dump_path": "out", "seed": 7, "is_deterministic": True, "step": 3, "enable_dataloader": False}
    file.write_text(json.dumps(content))
    configuration = read_configuration(str(file))
    assert (configuration.seed, configuration.is_deterministic) == (7, True)
    assert configuration.steps.ranges == ((3, 3),)
    assert "without effect here: enable_dataloader" in caplog.text
    file.write_text(json.dumps({**content, "seed": -1}))
    with pytest.raises(ConfigurationError, match="seed: -1 is not a whole number from 0"):
        read_configuration(str(file))
