"""The rules on similarities over steps, and on norms of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from gradient_runs import write_step

from pytest_msprobe.suites.gradients import GradientSettings
from pytest_msprobe.suites.gradients.check import EarlierStep, NormHistory, RunningMean, judge_norm, judge_similarity
from pytest_msprobe.suites.gradients.run import StepSummary, read_summary

DEFAULT = GradientSettings()


def judge(similarities: Sequence[float], settings: GradientSettings = DEFAULT) -> str:
    """What the rule says of the last of `similarities`, of steps 0, 1, ..."""
    *before, last = similarities
    earlier = [EarlierStep(step, similarity) for step, similarity in enumerate(before)]
    return judge_similarity(last, lambda: reversed(earlier), settings)[0]


@pytest.mark.parametrize(
    ("similarities", "is_problem"),
    [
        ([0.97], False),
        ([0.9699], True),
        ([0.98945, 0.956872], True),  # the two examples of the published rule
        ([0.993652, 0.980125], False),
        ([0.98, 0.95], False),  # 0.03 exactly, which in floating point is more
        ([0.98, 0.9499], True),
        ([0.5, 0.48], False),
        ([0.5, 1.0], False),
        ([1.0, 0.98, 0.96, 0.94], False),  # a drift, which the rule between steps cannot see
    ],
)
def test_the_published_rule(similarities: list[float], is_problem: bool) -> None:
    assert bool(judge(similarities)) == is_problem


def test_drift_is_judged_on_demand() -> None:
    settings = GradientSettings(drift=0.03)
    assert judge([0.99, 1.0, 0.98, 0.96], settings) == (
        "similarity 0.9600 is 0.0400 below the best, of step 1; it may drift by 0.03"
    )
    assert judge([0.99, 1.0, 0.98, 0.97], settings) == ""


def test_limits_are_settings() -> None:
    assert judge([0.9], GradientSettings(first=0.9)) == ""
    assert judge([0.9, 0.8], GradientSettings(drop=0.1)) == ""
    assert "below that of step 0; it may fall by 0.01" in judge([0.9, 0.88], GradientSettings(drop=0.01))


def test_without_drift_only_the_step_before_is_read() -> None:
    def earlier() -> Iterator[EarlierStep]:
        yield EarlierStep(4, 1.0)
        raise AssertionError("files of another step would be read")

    assert judge_similarity(0.99, earlier, DEFAULT) == ("", "-0.0100 since step 4")


def test_the_running_mean_is_plain_first_and_exponential_later() -> None:
    mean = RunningMean()
    for norm in (1.0, 2.0, 6.0):
        mean = mean.with_norm(norm)
    assert (mean.mean, mean.count) == (3.0, 3)
    assert RunningMean(1.0, 500).with_norm(2.0).mean == pytest.approx(0.99 * 1.0 + 0.01 * 2.0)


@pytest.mark.parametrize("norm", [math.nan, math.inf, 0.0])
def test_what_is_no_scale_stays_out_of_the_mean(norm: float) -> None:
    assert RunningMean(2.0, 3).with_norm(norm) == RunningMean(2.0, 3)


@pytest.mark.parametrize(
    ("norm", "kind"),
    [(10.0, ""), (10.1, "turbulence"), (0.1, ""), (0.099, "collapse"), (0.0, "collapse")],
)
def test_a_norm_leaves_its_mean(norm: float, kind: str) -> None:
    found = judge_norm(norm, RunningMean(1.0, 3), GradientSettings(collapse=0.1))
    assert found[0] == kind
    assert bool(found[1]) == bool(kind)
    assert judge_norm(norm, RunningMean(1.0, 2), GradientSettings(collapse=0.1)) == ("", "")


def test_a_collapse_is_judged_on_demand() -> None:
    assert judge_norm(0.0, RunningMean(1.0, 3), DEFAULT) == ("", "")


def test_history_reads_each_summary_once_and_in_order(tmp_path: Path) -> None:
    paths = {step: write_step(tmp_path, step, {"w": [float(step + 1)]}) for step in (0, 1, 5, 9)}
    read: list[int] = []

    def summary(step: int) -> StepSummary | None:
        read.append(step)
        return None if step == 1 else read_summary(paths[step])

    history = NormHistory([0, 1, 5, 9], summary)
    assert history.before(5, "w") == RunningMean(1.0, 1)
    assert history.before(9, "w") == RunningMean(3.5, 2)
    assert history.before(0, "w") == RunningMean()
    assert history.before(9, "absent") == RunningMean()
    assert read == [0, 1, 5, 9]
