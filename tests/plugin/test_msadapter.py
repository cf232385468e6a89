"""Dumps of MSAdapter, and runs in which PyTorch on CPU would be compared with itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines import selection
from pytest_msprobe.engines.protocol import DeviceSpecification, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines

pytestmark = pytest.mark.machine_kernels

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def dump(folder: Path, *, framework: str = "mindtorch", real: bool = False) -> DumpBuilder:
    builder = DumpBuilder(folder, real=real, framework=framework)
    builder.call("Torch.add.0", [X, X], [X + X], incoming=[X], gradients=[X, X])
    builder.call("Functional.relu.0", [X], [np.maximum(X, 0)])
    builder.call("Tensor.reshape.0", [X, [4, 2]], [X.reshape(4, 2)])
    builder.call("Torch.sum.0", [X], [X.sum(1)], keywords={"dim": 1})
    return builder


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "no:cacheprovider", "--msprobe-dump=dump.json", "-rs", *options)


@pytest.mark.parametrize("framework", ["mindtorch", "pytorch"])
def test_a_run_that_tests_no_device_says_so_and_is_not_green(pytester: pytest.Pytester, framework: str) -> None:
    dump(pytester.path, framework=framework).write()
    result = run(pytester)
    result.assert_outcomes(skipped=5)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["msprobe: no device was tested in 1 of 1 dumps: *they hold statistics only*"])
    assert run(pytester, "--msprobe-allow-empty").ret == pytest.ExitCode.OK
    assert run(pytester, "--msprobe-device=torch:cpu").ret == pytest.ExitCode.OK


def test_a_cpu_that_is_asked_for_is_a_device(pytester: pytest.Pytester) -> None:
    builder = dump(pytester.path)
    builder.call("Torch.exp.0", [X], [np.exp(X).astype(np.float16)]).write()
    result = run(pytester, "--msprobe-device=torch:cpu")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_recorded_values_are_a_device(pytester: pytest.Pytester) -> None:
    dump(pytester.path, real=True).write()
    result = run(pytester)
    result.assert_outcomes(passed=5)
    assert result.ret == pytest.ExitCode.OK
    assert "no device was tested" not in result.stdout.str()


def test_msadapter_runs_through_mindspore(pytester: pytest.Pytester) -> None:
    builder = dump(pytester.path)
    builder.call("Torch.sum.1", [X], [np.asarray(X.sum())], keywords={"no_such_argument": 1})
    builder.call("VF.lstm.0", [X], [X])
    builder.write()
    result = run(pytester, "--msprobe-device=mindspore:cpu")
    result.assert_outcomes(passed=5, skipped=2)
    result.stdout.fnmatch_lines_random(["*VF calls cannot be run*", "*the arguments do not fit mindspore.mint: *"])


@pytest.mark.parametrize("framework", ["mindtorch", "mindspore", "pytorch"])
def test_what_ran_on_ascend_is_tested_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"task": "statistics", "framework": framework, "data": {}}))
    monkeypatch.setattr(selection, "has_ascend", lambda: True)
    engines = Engines(EngineChoice(parse_device("auto"), "auto", None))
    on_ascend = DeviceSpecification("mindspore", "ascend")
    expected = DeviceSpecification("torch", "cpu") if framework == "pytorch" else on_ascend
    assert engines.device_for(Dump(path)) == expected
    assert engines.tests_no_device(Dump(path)) == (framework == "pytorch")
