"""What run.json says that a dump does not hold: what followed an exception, compiled code, a run that took nothing."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format.manifest import EMPTY_RUN_FILE
from pytest_msprobe.__main__ import main

A = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
ERROR = {"type": "ZeroDivisionError", "message": "division by zero", "file": "/home/me/train.py", "line": 14}
SAID = "the step ended in ZeroDivisionError, train.py:14"


def dump(folder: Path, *calls: str, ended_in: object = None, compiled: object = None) -> Path:
    """A step of some calls of one line, and what its run.json says."""
    builder = DumpBuilder(folder / "step0" / "rank0", framework="pytorch")
    for call in calls:
        output = np.tanh(A) if "tanh" in call else -A
        builder.call(call, [A], [output])
    builder.write()
    run = {"framework": "pytorch", "ended_in": ended_in, "compiled": compiled}
    (builder.folder / "run.json").write_text(json.dumps({key: value for key, value in run.items() if value}))
    return builder.path


@pytest.mark.parametrize("options", [(), ("--msprobe-suite=overflow",), ("--msprobe-golden=golden",)])
def test_a_step_that_ended_in_an_exception_is_no_success(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    dump(pytester.path / "dump", "Torch.neg.0", ended_in=ERROR)
    dump(pytester.path / "golden", "Torch.neg.0")
    result = pytester.runpytest("--msprobe-dump=dump", *options)
    result.stdout.fnmatch_lines([f"msprobe: not whole: *dump.json: {SAID}: *"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes().get("failed", 0) == 0


def test_the_answer_about_one_dump_names_the_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path / "dump", "Torch.neg.0", ended_in=ERROR)
    assert main(["diagnose", str(path)]) == 1
    assert f": {SAID}\n" in capsys.readouterr().out


def test_a_call_that_did_not_return_was_ended_by_the_exception(pytester: pytest.Pytester) -> None:
    path = dump(pytester.path / "dump", "Torch.neg.0", "Torch.tanh.0", ended_in=ERROR)
    content = json.loads(path.read_text())
    del content["data"]["Torch.tanh.0.forward"]["output"]
    path.write_text(json.dumps(content))
    result = pytester.runpytest("--msprobe-dump=dump", "-rs")
    result.stdout.fnmatch_lines([f"*holds no outputs of this call ({SAID})*"])
    assert "data_mode" not in result.stdout.str()


@pytest.mark.parametrize(
    ("header", "named", "is_whole"),
    [
        ({"world_size": 3}, "dump", False),
        ({"world_size": 3}, "dump/step0/rank0", True),  # one rank is what was asked about
        ({"world_size": 3, "collected": [[0, 0]]}, "dump", True),
        ({"world_size": 1}, "dump", True),
        ({"world_size": 3, "collected": "0"}, "dump", True),
    ],
)
def test_a_step_without_the_dumps_of_some_ranks_is_no_success(
    pytester: pytest.Pytester, header: dict[str, Any], named: str, is_whole: bool
) -> None:
    path = dump(pytester.path / "dump", "Torch.neg.0")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "ranks": {"rank": 0, "groups": {}, **header}}))
    result = pytester.runpytest(f"--msprobe-dump={named}")
    said = "2 ranks are missing of 3 (1, 2) in "
    assert (result.ret, said in result.stdout.str()) == ((0, False) if is_whole else (1, True))


@pytest.mark.parametrize("compiled_side", ["dump", "golden"])
def test_what_one_run_calls_and_the_other_compiles_is_no_difference(
    pytester: pytest.Pytester, compiled_side: str
) -> None:
    calls = ("Torch.neg.0", "Torch.tanh.0", "Torch.neg.1")
    code: list[dict[str, Any]] = [{"name": "construct", "file": "/elsewhere/net.py", "line": 6}]
    for side in ("dump", "golden"):
        is_compiled = side == compiled_side
        dump(pytester.path / side, *(calls[::2] if is_compiled else calls), compiled=code if is_compiled else None)
    result = pytester.runpytest("--msprobe-dump=dump", "--msprobe-golden=golden", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED * one run computes it in compiled code: construct, net.py:6"])
    assert "has no such operation" not in result.stdout.str()
    assert "only the golden dump" not in result.stdout.str()
    assert result.ret == pytest.ExitCode.OK


def test_compiled_code_is_named_under_what_was_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path / "dump", "Torch.neg.0", compiled=[{"name": "Block", "path": "blocks.1"}])
    assert main(["diagnose", str(path)]) == 0
    assert "blocks.1 (Block): calls inside of compiled code" in capsys.readouterr().out


def test_an_older_dump_is_judged_where_it_is_named_alone(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dump(pytester.path / "dump", "Torch.neg.0")
    began = datetime.now(timezone.utc)
    run = {"time": began.isoformat(), "script": {"command": ["train.py", "--new"]}, "ended_in": ERROR}
    (pytester.path / "dump" / EMPTY_RUN_FILE).write_text(json.dumps(run))
    os.utime(path, (began.timestamp() - 60,) * 2)
    said = "the last run ended at train.py:14 in ZeroDivisionError and collected nothing (train.py --new, "
    assert main(["diagnose", "dump"]) == 5
    out = " ".join(capsys.readouterr().out.split())
    assert said in out
    assert "name it: dump/step0/rank0" in out
    assert main(["diagnose", "dump/step0"]) == 0
    result = pytester.runpytest("--msprobe-dump=dump")
    assert said in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    os.utime(path, (began.timestamp() + 60,) * 2)
    assert main(["diagnose", "dump"]) == 0, "a run after it has collected the step"
