"""A dump with fingerprints, written by the collector from a real training step and read by every suite of dumps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

#: One step on plain rows, one on the rows in another order, one with two elements swapped; by framework.
SCRIPTS = {
    "mindspore": """
import mindspore as ms
from mindspore import Tensor, mint
from msprobe_collector.mindspore import PrecisionDebugger

def step(rows):
    weight = Tensor(np.ones((8, 3)), ms.float32)
    ms.grad(lambda x: mint.sum(mint.matmul(x.astype(ms.bfloat16).astype(ms.float32), weight)))(Tensor(rows))
""",
    "torch": """
import torch
from msprobe_collector.pytorch import PrecisionDebugger

def step(rows):
    x = torch.tensor(rows, requires_grad=True)
    torch.sum(torch.matmul(x.to(torch.bfloat16).to(torch.float32), torch.ones(8, 3))).backward()
""",
}
COLLECT = """
import json
import numpy as np
rows = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
swapped = rows.copy()
swapped[0, :2] = rows[0, 1::-1]
for name, values in (("plain", rows), ("permuted", rows[::-1].copy()), ("swapped", swapped)):
    config = {"task": "statistics", "dump_path": name, "statistics": {"summary_mode": "fingerprint"}}
    open("config.json", "w").write(json.dumps(config))
    PrecisionDebugger._instance = None
    with PrecisionDebugger("config.json").collect():
        step(values)
    PrecisionDebugger._instance._at_exit()
"""


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.needs(name)) for name in SCRIPTS])
def dumps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fingerprints")
    script = SCRIPTS[request.param] + COLLECT
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, capture_output=True)
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


@pytest.mark.parametrize("suite", ["precheck", "overflow", "repeat"])
def test_suites_of_one_dump_take_it_as_statistics(pytester: pytest.Pytester, dumps: Path, suite: str) -> None:
    options = [f"--msprobe-suite={suite}", "--msprobe-allow-empty"]
    (path,) = dumps.glob("plain/step0/*/dump.json")
    if suite == "precheck" and json.loads(path.read_text())["framework"] == "pytorch":
        options.append("--msprobe-device=torch:cpu")  # by itself PyTorch on CPU beside PyTorch on CPU tests no device
    result = pytester.runpytest(f"--msprobe-dump={dumps / 'plain'}", *options)
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] >= 4
    assert "failed" not in result.parseoutcomes()


@pytest.mark.parametrize("kind", ["permuted", "swapped"])
def test_other_bits_differ_where_statistics_are_equal(pytester: pytest.Pytester, dumps: Path, kind: str) -> None:
    same = pytester.runpytest(f"--msprobe-dump={dumps / 'plain'}", f"--msprobe-golden={dumps / 'plain'}")
    assert same.ret == pytest.ExitCode.OK
    options = (f"--msprobe-dump={dumps / kind}", f"--msprobe-golden={dumps / 'plain'}", "-v")
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["Wrong: differs first in *Tensor.to.0*"])
    accepted = pytester.runpytest(*options, "--msprobe-accept=bits")
    assert accepted.ret == pytest.ExitCode.OK
    accepted.stdout.fnmatch_lines(["Right: *"])


def test_the_gradient_suite_refuses_it_as_any_dump(pytester: pytest.Pytester, dumps: Path) -> None:
    result = pytester.runpytest(f"--msprobe-gradients={dumps / 'plain'}", f"--msprobe-golden={dumps / 'plain'}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
