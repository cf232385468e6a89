"""--msprobe-bench=torch:cuda with a stand-in for the device, and files that are read while it computes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.reports.jsonl import read_json_lines
from pytest_msprobe.suites import api_calls
from pytest_msprobe.suites.precheck.suite import PrecheckSuite

pytestmark = pytest.mark.needs("torch")
A, B = (np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32) for seed in (0, 1))


@pytest.mark.parametrize("options", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("is_off", "bench"), [("", "torch CUDA float64"), ("1", "torch CPU float64")])
def test_the_cpu_takes_over_where_it_does_not_agree(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, is_off: str, bench: str, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("CUDA_IS_OFF", is_off)
    builder = DumpBuilder(pytester.path, framework="pytorch")
    for number in range(4):
        incoming = np.ones((4, 4), np.float32)
        gradients = [incoming @ B.T, A.T @ incoming]
        builder.call(f"Torch.matmul.{number}", [A, B], [A @ B], incoming=[incoming], gradients=gradients)
    builder.call("Torch.neg.0", [A], [A]).write()  # recorded wrong
    command = ("-p", "fakes.cuda", "--msprobe-dump=dump.json", "--msprobe-bench=torch:cuda", "--msprobe-jsonl=r.jsonl")
    result = pytester.runpytest_subprocess(*command, *options)
    result.assert_outcomes(passed=8, failed=1)
    assert {row.bench for _, row in read_json_lines(pytester.path / "r.jsonl")} == {bench}
    said = [line for line in result.stdout.lines if "is computed on the CPU: torch CUDA float64" in line]
    assert len(said) == (2 if is_off else 0)
    result.stdout.fnmatch_lines(["msprobe: dump.json: 5 API calls, recorded values against PyTorch * CUDA float64*"])


@pytest.mark.slow
def test_verdicts_are_those_of_the_cpu(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, dumps: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    command = ("-p", "fakes.cuda", f"--msprobe-dump={dumps / 'gpt_tiny_tensor'}", "--msprobe-standard=backward-error")
    pytester.runpytest_subprocess(*command, "--msprobe-bench=torch:cuda").assert_outcomes(passed=180)


def test_files_of_the_next_call_are_read_while_one_is_judged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "READ_AHEAD_FROM", 1)
    events: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *rest: events.append("read ahead"))
    judge = PrecheckSuite.judge
    monkeypatch.setattr(
        PrecheckSuite, "judge", lambda suite, record: events.append(record.call) or judge(suite, record)
    )
    builder = DumpBuilder(pytester.path, framework="pytorch")
    for number in range(2):
        builder.call(f"Torch.neg.{number}", [A], [-A])
    builder.write()
    pytester.runpytest_inprocess("--msprobe-dump=dump.json").assert_outcomes(passed=2)
    assert events == ["read ahead", "read ahead", "Torch.neg.0", "Torch.neg.1"]  # input and output of the second one
