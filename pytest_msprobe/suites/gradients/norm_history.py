"""The running mean of each gradient's norm, and when a norm leaves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_msprobe.suites.gradients.options import GradientSettings
from pytest_msprobe.suites.gradients.step_summary import StepSummary

#: The weight of a new norm in the mean of many, as in the AnomalyTurbulence rule of the existing tool's monitor.
_LEAST_WEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class RunningMean:
    """The mean of the norms so far: of all up to 100, then exponential, `0.99 mean + 0.01 norm`.

    The existing tool weighs the first norm with 0.99 from the start, so that it decides over the first hundred steps.
    Only norms above 0 and finite count: one NaN would stay for good, and zeros before training begins give no scale.
    """

    mean: float = 0.0
    count: int = 0

    def with_norm(self, norm: float) -> RunningMean:
        """The mean after one more step."""
        if not (math.isfinite(norm) and norm > 0):
            return self
        weight = max(1 / (self.count + 1), _LEAST_WEIGHT)
        return RunningMean(self.mean + weight * (norm - self.mean), self.count + 1)


class NormHistory:
    """The means of one rank before each of its steps. Reads each summary once when steps are asked for in order."""

    def __init__(self, steps: Sequence[int], summary: Callable[[int], StepSummary | None]) -> None:
        """Start a history over `steps`; `summary` gives that of a step, None when it cannot be read."""
        self._steps = steps
        self._summary = summary
        self._read = 0
        self._means: dict[str, RunningMean] = {}
        self._before: dict[tuple[int, str], RunningMean] = {}

    def before(self, step: int, name: str) -> RunningMean:
        """The mean of the norms of the parameter `name` over the steps before `step`."""
        while self._read < len(self._steps) and self._steps[self._read] <= step:
            self._take(self._steps[self._read])
            self._read += 1
        return self._before.get((step, name), RunningMean())

    def _take(self, step: int) -> None:
        summary = self._summary(step)
        for name, row in summary.rows.items() if summary is not None else ():
            before = self._means.get(name, RunningMean())
            self._before[step, name] = before
            self._means[name] = before if row.fault else before.with_norm(row.norm)


def judge_norm(
    norm: float, before: RunningMean, settings: GradientSettings
) -> tuple[Literal["", "turbulence", "collapse"], str]:
    """(kind, what is wrong) for a finite norm; two empty texts when nothing is, or too few steps are known."""
    if before.count < settings.warmup:
        return "", ""
    known = f"the mean {before.mean:.4g} of {before.count} steps before"
    if norm > before.mean * (1 + settings.turbulence):
        return "turbulence", f"norm {norm:.4g} is {norm / before.mean:.3g} times {known}"
    if settings.collapse is not None and norm < before.mean * settings.collapse:
        return "collapse", f"norm {norm:.4g} is {norm / before.mean:.3g} times {known}"
    return "", ""
