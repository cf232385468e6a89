"""How outputs answer to rounding errors, as a test says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_msprobe.numerics.judgement import Moved, Perturbed, Sensitivity

_RUNS = {"inputs": "perturbed", "inside": "rounded_inside"}
_PROBES = {"inputs": "probes", "arithmetic": "arithmetic_probes", "inside": "inside_probes"}


class Answers(Sensitivity):
    """A sensitivity that says nothing but what a test gives it.

    That is by the names of methods, and of `_RUNS` and `_PROBES`.
    """

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = answers
        vars(self).update({name: answer for name, answer in answers.items() if hasattr(Sensitivity, name)})
        vars(self).pop("probes", None)

    def runs(self, moved: Moved) -> tuple[Perturbed, ...]:
        return tuple(self.answers.get(_RUNS.get(moved, ""), tuple)())

    def probes(self, moved: Moved, count: int) -> tuple[np.ndarray[Any, Any], ...]:
        probes = self.answers.get(_PROBES[moved])
        return () if probes is None else probes(count)


class Without(Sensitivity):
    """Another sensitivity, which says nothing of some of what it is asked."""

    def __init__(self, sensitivity: Sensitivity, *names: str) -> None:
        for name in ("runs", "probes", "terms", "deviations", "restricted", "partial_sums"):
            if name not in names:
                setattr(self, name, getattr(sensitivity, name))
