"""What a comparison says of where differences begin when the dumps hold no tensors, and with a noise run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_dumps import make_fingerprints, make_md5, make_sketches, make_statistics
from dump_builder import DumpBuilder

X = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(8, 5)).astype(np.float32) * np.float32(0.3)
MODES = {
    "statistics": make_statistics,
    "fingerprints": make_fingerprints,
    "checksums": make_md5,
    "sketches": make_sketches,
}
INEXACT = ("statistics", "sketches")
EACH_MODE = pytest.mark.parametrize("mode", MODES)
ANSWER = "--msprobe-diagnosis=diagnosis.json"


def step(
    folder: Path, mode: str = "real", *, fault: float = 1.0, weight: float = 1.0, moved: float = 0.0, scale: float = 2.0
) -> None:
    """x @ w, exp, a product and square; `fault` times exp's output, `weight` times one weight, x `moved` by a share."""
    x, w = X * np.float32(1 + moved), W.copy()
    w[1, 2] *= np.float32(weight)
    product = x @ w
    grown = np.exp(product) * np.float32(fault)
    scaled = grown * np.float32(scale)
    builder = DumpBuilder(folder / "step0" / "rank0")
    builder.call("Mint.matmul.0", [x, w], [product])
    builder.call("Mint.exp.0", [product], [grown], incoming=[grown], gradients=[grown * grown])
    builder.call("Mint.mul.0", [grown, scale], [scaled])
    path = builder.call("Mint.square.0", [scaled], [np.square(scaled)]).write()
    if mode != "real":
        MODES[mode](path)


def diagnose(pytester: pytest.Pytester, *options: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    """The run, and its diagnosis."""
    result = pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden", ANSWER, "-v", *options)
    found: dict[str, Any] = json.loads((pytester.path / "diagnosis.json").read_text(encoding="utf-8"))
    assert bool(found["findings"]) == (found["outcome"] == "wrong")
    if found["basis"] != "tensors":
        assert {finding["confidence"] for finding in found["findings"]} <= {"first difference only"}
    return result, found


@EACH_MODE
def test_the_first_that_differs_is_named_and_not_called_wrong(pytester: pytest.Pytester, mode: str) -> None:
    step(pytester.path / "target", mode, fault=1.02)
    step(pytester.path / "golden", mode)
    result, found = diagnose(pytester)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (found["outcome"], found["basis"]) == ("wrong", mode)
    assert found["headline"].startswith("Wrong: differs first in Mint.exp.0, ")
    (origin,) = found["findings"]
    assert (origin["place"]["record"], origin["kind"], origin["place"]["value"]) == (
        "Mint.exp.0.forward",
        "first",
        "output.0",
    )
    assert origin["figures"]["inheriting"] == 3
    assert origin["place"]["source"] == "/home/train/net.py:7"
    assert found["next"][0]["arguments"][:4] == ["python", "-m", "pytest_msprobe", "next"]
    assert any('"task": "tensor"' in step["tells"] for step in found["next"])
    state = f"equal {mode}" if mode in INEXACT else "are equal"
    assert state in origin["detail"]
    assert [gap["kind"] for gap in found["open"]] == ["not computed again"]


@EACH_MODE
def test_a_value_that_no_record_made_is_where_the_difference_came_in(pytester: pytest.Pytester, mode: str) -> None:
    step(pytester.path / "target", mode, weight=1.5)
    step(pytester.path / "golden", mode)
    _, found = diagnose(pytester)
    (origin,) = found["findings"]
    assert (origin["place"]["record"], origin["place"]["value"], origin["kind"]) == (
        "Mint.matmul.0.forward",
        "input.1",
        "unknown",
    )
    assert "before any operation, and nothing says what it is" in origin["detail"]
    assert found["outcome"] == "wrong"


@EACH_MODE
def test_equal_dumps_are_equal_as_far_as_they_tell(pytester: pytest.Pytester, mode: str) -> None:
    for side in ("target", "golden"):
        step(pytester.path / side, mode)
    result, found = diagnose(pytester)
    assert (result.ret, found["outcome"], found["measure"]["kind"]) == (pytest.ExitCode.OK, "right", "equal")
    assert ("bit by bit" in found["headline"]) == (mode not in INEXACT)
    assert found["measure"]["names"] == [mode]


def test_other_arguments_are_named(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target", "statistics", scale=2.5)
    step(pytester.path / "golden", "statistics")
    _, found = diagnose(pytester)
    (origin,) = found["findings"]
    assert (origin["place"]["record"], origin["kind"]) == ("Mint.mul.0.forward", "arguments")
    assert "called otherwise: input.1 2.5 against 2; its inputs have equal statistics" in origin["detail"]


def test_small_differences_without_a_noise_run_stay_open(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target", "statistics", moved=1e-6)
    step(pytester.path / "golden", "statistics")
    result, found = diagnose(pytester)
    assert (result.ret, found["outcome"], found["findings"]) == (pytest.ExitCode.OK, "right", [])
    assert found["measure"]["kind"] == "tolerance"
    assert any("--msprobe-noise" in step["tells"] for step in found["next"])


@pytest.mark.parametrize("mode", ["statistics", "fingerprints", "sketches"])
def test_what_the_noise_run_allows_is_rounding_and_more_is_not(pytester: pytest.Pytester, mode: str) -> None:
    step(pytester.path / "target", mode, moved=1e-6)
    step(pytester.path / "golden", mode)
    step(pytester.path / "noise", mode, moved=5e-7)
    result, found = diagnose(pytester, "--msprobe-noise=noise")
    assert (result.ret, found["outcome"], found["measure"]["kind"]) == (pytest.ExitCode.OK, "right", "noise")
    step(pytester.path / "target", mode, fault=1.0001)
    result, found = diagnose(pytester, "--msprobe-noise=noise")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [origin["place"]["record"] for origin in found["findings"]] == ["Mint.exp.0.forward"]
    assert "noise run" in found["findings"][0]["detail"]
    assert not any("perturb" in step["tells"] for step in found["next"])


@pytest.mark.needs("torch")
def test_tensors_and_a_noise_run_are_accounted_for_together(pytester: pytest.Pytester) -> None:
    """The difference is below the limit of float32, above the tolerance from the noise run."""
    step(pytester.path / "target", fault=1 + 3e-5)
    step(pytester.path / "golden")
    step(pytester.path / "noise", moved=2e-7)
    result, found = diagnose(pytester, "--msprobe-noise=noise")
    assert [fault["place"]["record"] for fault in found["findings"]] == ["Mint.exp.0.forward"]
    assert (found["basis"], found["outcome"]) == ("tensors", "wrong")
    result.assert_outcomes(passed=1, failed=1, xfailed=3)
    step(pytester.path / "target", moved=3e-7)
    result, found = diagnose(pytester, "--msprobe-noise=noise")
    result.assert_outcomes(passed=5)
    assert (found["outcome"], found["measure"]["kind"]) == ("right", "rounding")


def test_without_the_accounting_tensor_dumps_are_diagnosed_by_distances(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target", fault=1.02)
    step(pytester.path / "golden")
    result, found = diagnose(pytester, "--msprobe-accounting=off")
    result.assert_outcomes(passed=1, failed=1, xfailed=3)
    assert [origin["place"]["record"] for origin in found["findings"]] == ["Mint.exp.0.forward"]
    assert found["basis"] == "values"
    assert [gap["kind"] for gap in found["open"]] == ["no benchmark"]
    assert "--msprobe-accounting=auto" in result.stdout.str()


def test_equal_tensors_are_said_to_be_equal_where_nothing_is_computed_again(pytester: pytest.Pytester) -> None:
    for side in ("target", "golden"):
        step(pytester.path / side)
    result, found = diagnose(pytester, "--msprobe-accounting=off")
    assert result.ret == 0
    assert found["headline"] == "Right: all compared values of 5 operations are equal, element by element"


@pytest.mark.slow
def test_workers_come_to_the_same_answer(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target", "fingerprints", fault=1.02)
    step(pytester.path / "golden", "fingerprints")
    _, alone = diagnose(pytester)
    result, found = diagnose(pytester, "-n2", "-p", "xdist", "--msprobe-out=two")
    result.assert_outcomes(passed=1, failed=1, xfailed=3)
    assert found == alone
