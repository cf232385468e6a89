"""A dump with fingerprints, written by the collector from a real training step and read by every suite of dumps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mindspore")

SCRIPT = """
import json, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, mint
from msprobe_collector import PrecisionDebugger

folder, is_permuted = sys.argv[1], sys.argv[2] == "permuted"
config = {"task": "statistics", "dump_path": folder, "statistics": {"summary_mode": "fingerprint"}}
open("config.json", "w").write(json.dumps(config))
debugger = PrecisionDebugger("config.json")
rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
x = Tensor(rows[::-1].copy() if is_permuted else rows)
weight = Tensor(np.ones((8, 3)), ms.float32)
with debugger.collect():
    def loss(x):
        return mint.sum(mint.matmul(x.astype(ms.bfloat16).astype(ms.float32), weight))
    ms.grad(loss)(x)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fingerprints")
    for name in ("plain", "permuted"):
        subprocess.run([sys.executable, "-c", SCRIPT, name, name], cwd=folder, check=True, capture_output=True)
    return folder


def test_every_tensor_has_statistics_and_a_fingerprint(dumps: Path) -> None:
    (path,) = dumps.glob("plain/step0/*/dump.json")
    records = json.loads(path.read_text())["data"]
    tensors = [
        value
        for record in records.values()
        for part in ("input_args", "input", "output")
        for value in record.get(part, ())
        if value and "shape" in value
    ]
    assert len(tensors) >= 6
    assert all(len(value["fingerprint"]) == 16 and value["Norm"] is not None for value in tensors)
    assert "md5" not in path.read_text()


@pytest.mark.parametrize("suite", ["precheck", "overflow"])
def test_suites_of_one_dump_take_it_as_statistics(pytester: pytest.Pytester, dumps: Path, suite: str) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dumps / 'plain'}", f"--msprobe-suite={suite}")
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] >= 4


def test_permuted_rows_differ_where_statistics_are_equal(pytester: pytest.Pytester, dumps: Path) -> None:
    same = pytester.runpytest(f"--msprobe-dump={dumps / 'plain'}", f"--msprobe-golden={dumps / 'plain'}")
    assert same.ret == pytest.ExitCode.OK
    options = (f"--msprobe-dump={dumps / 'permuted'}", f"--msprobe-golden={dumps / 'plain'}")
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    first = "first divergence: Tensor.*.0.forward.input.0: The bits differ: fingerprint *, with equal statistics."
    result.stdout.fnmatch_lines([first])
    accepted = pytester.runpytest(*options, "--msprobe-accept=bits")
    assert accepted.ret == pytest.ExitCode.OK
    accepted.stdout.fnmatch_lines(["no divergence: every value that was compared agrees"])


def test_the_gradient_suite_refuses_it_as_any_dump(pytester: pytest.Pytester, dumps: Path) -> None:
    result = pytester.runpytest(f"--msprobe-gradients={dumps / 'plain'}", f"--msprobe-golden={dumps / 'plain'}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
