"""When two runs diverge: the rule on how the similarity of a parameter's signs goes from step to step.

The existing tool publishes it as found by experience: a problem is a first similarity below 0.97, or one more than 0.03
below that of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pytest_msprobe.suites.gradients.options import GradientSettings

#: 0.98 - 0.95 is more than 0.03 in floating point.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class EarlierStep:
    """A parameter's similarity at a step before."""

    step: int
    similarity: float


def judge_similarity(
    similarity: float, earlier: Callable[[], Iterable[EarlierStep]], settings: GradientSettings
) -> tuple[str, str]:
    """(what is wrong, "" when nothing is; how it compares with before) for one parameter at one step.

    `earlier` gives the steps before that could be compared, the latest first, and is read only as far as needed.
    """
    steps = iter(earlier())
    before = next(steps, None)
    if before is None:
        low = similarity < settings.first - _ROUNDING
        return (
            f"similarity {similarity:.4f} at the first step is below {settings.first:g}" if low else "",
            "first step",
        )
    change = f"{similarity - before.similarity:+.4f} since step {before.step}"
    if before.similarity - similarity > settings.drop + _ROUNDING:
        fall = f"similarity {similarity:.4f} is {before.similarity - similarity:.4f} below that of step {before.step}"
        return f"{fall}; it may fall by {settings.drop:g}", change
    if settings.drift is not None:
        best = max((before, *steps), key=lambda entry: entry.similarity)
        if best.similarity - similarity > settings.drift + _ROUNDING:
            fall = (
                f"similarity {similarity:.4f} is {best.similarity - similarity:.4f} below the best, of step {best.step}"
            )
            return f"{fall}; it may drift by {settings.drift:g}", change
    return "", change
