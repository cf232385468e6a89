"""Verdicts on single gradients: a table of what can be wrong, for one run and for two."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradient_runs import FAULT_FROM, NEAREST, STEPS, write_similarities, write_step

from pytest_msprobe.suites.gradients import GradientSettings
from pytest_msprobe.suites.gradients.check import GradientCheck
from pytest_msprobe.suites.gradients.findings import GradientResult, SignAgreement
from pytest_msprobe.suites.gradients.run import RunPair


@dataclass(frozen=True)
class Case:
    """One gradient of one step, and what is to be found."""

    target: Any
    golden: Any
    status: str
    kind: str
    text: str
    levels: tuple[str, str] = ("L1", "L1")
    settings: GradientSettings = field(default_factory=GradientSettings)


ONE = np.ones(4)
OTHER = [1.0, 1.0, 1.0, -1.0]
TWO_RUNS = {
    "equal": Case(ONE, ONE, "pass", "", "similarity 1.0000, first step"),
    "levels 1 and 2": Case(ONE, ONE, "pass", "", "similarity 1.0000", ("L1", "L2")),
    "one of four": Case(OTHER, ONE, "error", "similarity", "similarity 0.7500 at the first step is below 0.97"),
    "NaN": Case([np.nan, 1.0], [1.0, 1.0], "error", "nonfinite", "1 NaN among 2 elements"),
    "NaN in both": Case([np.nan, 1.0], [np.nan, 1.0], "error", "nonfinite", "1 NaN among 2 elements"),
    "NaN in golden": Case([1.0, 1.0], [np.nan, 1.0], "error", "similarity", "similarity 0.5000"),
    "empty": Case(np.zeros(0), np.zeros(0), "skip", "unjudged", "an empty gradient has nothing to judge"),
    "shape": Case(np.ones((2, 3)), np.ones((3, 2)), "error", "unmatched", "its shape is [2, 3], that of the golden"),
    "bits equal": Case(ONE, ONE, "pass", "", "equal in every bit", ("L0", "L0")),
    "bits differ": Case(OTHER, ONE, "skip", "unjudged", "record grad_level L1 or L2, or use", ("L0", "L0")),
    "bits must be equal": Case(
        OTHER, ONE, "error", "bits", "not equal in every bit: MD5 ", ("L0", "L0"), GradientSettings(fails_md5=True)
    ),
    "one without signs": Case(ONE, ONE, "skip", "unjudged", "one run has level L0, without signs", ("L0", "L1")),
}


@pytest.mark.parametrize("name", TWO_RUNS)
def test_verdicts_of_two_runs(tmp_path: Path, name: str) -> None:
    case = TWO_RUNS[name]
    write_step(tmp_path / "a", 0, {"w": case.target}, level=case.levels[0])
    write_step(tmp_path / "b", 0, {"w": case.golden}, level=case.levels[1])
    found = GradientCheck(RunPair.of(tmp_path / "a", tmp_path / "b"), case.settings).verdict(0, 0, "w")
    assert (found.status, found.kind) == (case.status, case.kind)
    assert case.text in found.message


def test_parameters_of_one_side_are_errors_and_the_others_are_judged(tmp_path: Path) -> None:
    first = write_step(tmp_path / "a", 0, {"w": ONE, "old": ONE})
    second = write_step(tmp_path / "b", 0, {"new": ONE, "w": ONE})
    check = GradientCheck(RunPair.of(tmp_path / "a", tmp_path / "b"), GradientSettings())
    assert check.parameters(0, 0) == ["w", "old", "new"]
    found = [check.verdict(0, 0, name) for name in check.parameters(0, 0)]
    assert [(verdict.status, verdict.kind) for verdict in found] == [("pass", ""), *[("error", "unmatched")] * 2]
    assert [verdict.message for verdict in found[1:]] == [
        f"{second} has no old, which {first} has",
        f"{first} has no new, which {second} has",
    ]


def test_a_step_that_cannot_be_read_is_passed_over_for_the_next(tmp_path: Path) -> None:
    write_similarities(tmp_path / "a", tmp_path / "b", {"w": [1.0, 0.5, 0.98, 0.9]})
    (tmp_path / "b" / "rank0" / "step1" / "w.npy").unlink()
    check = GradientCheck(RunPair.of(tmp_path / "a", tmp_path / "b"), GradientSettings())
    found = [check.verdict(0, step, "w") for step in (3, 2, 1, 0)]  # in any order
    assert [verdict.kind for verdict in found] == ["similarity", "", "unreadable", ""]
    assert found[1].message == "similarity 0.9800, -0.0200 since step 0"


@pytest.mark.parametrize("steps", [[0, 1, 2], [2, 0, 1]])
def test_verdicts_do_not_depend_on_the_order(tmp_path: Path, steps: list[int]) -> None:
    write_similarities(tmp_path / "a", tmp_path / "b", {"w": [1.0, 0.96, 0.95], "v": [0.96, 1.0, 1.0]})
    check = GradientCheck(RunPair.of(tmp_path / "a", tmp_path / "b"), GradientSettings())
    kinds = {(step, name): check.verdict(0, step, name).kind for step in steps for name in ("w", "v")}
    assert [place for place, kind in sorted(kinds.items()) if kind] == [(0, "v"), (1, "w")]


ONE_RUN = {
    "finite": ([[1.0], [2.0], [1.0], [2.0]], GradientSettings(), "pass", "", "norm 2"),
    "NaN": ([[1.0], [1.0], [1.0], [np.nan]], GradientSettings(), "error", "nonfinite", "1 NaN among 1 elements"),
    "Inf": ([[1.0], [1.0], [1.0], [np.inf]], GradientSettings(), "error", "nonfinite", "1 Inf among 1 elements"),
    "zero": ([[1.0], [1.0], [1.0], [0.0]], GradientSettings(), "pass", "", "zero throughout"),
    "zero counts": (
        [[1.0], [1.0], [1.0], [0.0]],
        GradientSettings(fails_zero=True),
        "error",
        "zero",
        "all 1 elements are 0",
    ),
    "turbulence": ([[1.0], [2.0], [1.5], [16.0]], GradientSettings(), "error", "turbulence", "norm 16 is 10.7 times"),
    "too early": ([[0.0], [1.0], [2.0], [99.0]], GradientSettings(), "pass", "", "norm 99"),
    "NaN before": ([[1.0], [np.nan], [1.0], [99.0]], GradientSettings(warmup=2), "error", "turbulence", "norm 99"),
    "collapse": (
        [[1.0]] * 3 + [[0.01]],
        GradientSettings(collapse=0.1),
        "error",
        "collapse",
        "norm 0.01 is 0.01 times",
    ),
    "empty": ([[]] * 4, GradientSettings(), "skip", "unjudged", "an empty gradient has nothing to judge"),
}


@pytest.mark.parametrize("name", ONE_RUN)
def test_verdicts_of_one_run(tmp_path: Path, name: str) -> None:
    values, settings, status, kind, text = ONE_RUN[name]
    for step, value in enumerate(values):
        write_step(tmp_path, step, {"w": value})
    found = GradientCheck(RunPair.of(tmp_path, None), settings).verdict(0, 3, "w")
    assert (found.status, found.kind) == (status, kind)
    assert found.message.startswith(text)


def test_the_wire_holds_everything_in_builtin_types() -> None:
    verdict = GradientResult(
        1, 2, "w", 3, "error", "similarity", "too low", (2, 3), SignAgreement(5, 6), details=("a line",)
    )
    assert GradientResult.from_wire(json.loads(json.dumps(verdict.to_wire()))) == verdict


def test_the_real_pair_parts_where_its_fault_begins(dumps: Path) -> None:
    pair = RunPair.of(dumps / "gradients" / "target", dumps / "gradients" / "golden")
    check = GradientCheck(pair, GradientSettings())
    assert pair.steps(0) == list(range(STEPS))
    kinds = {
        step: {name: check.verdict(0, step, name).kind for name in check.parameters(0, step)} for step in pair.steps(0)
    }
    assert all(kind == "" for step in range(FAULT_FROM) for kind in kinds[step].values())
    flagged = [name for name, kind in kinds[FAULT_FROM].items() if kind == "similarity"]
    assert flagged == ["embed.weight", "hidden.weight", NEAREST]
    assert kinds[FAULT_FROM]["head.weight"] == ""
