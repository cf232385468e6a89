"""Whether an incoming gradient is the sum of the gradients of its uses: nothing records that addition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.suites.comparison.accounting.account import ValueKey
from pytest_msprobe.suites.comparison.accounting.content import load
from pytest_msprobe.suites.comparison.accounting.flow import Step
from pytest_msprobe.suites.comparison.side import Side

#: A sum of a few gradients in bfloat16 is off by less.
_ROUNDING = 0.02


def is_wrong_sum(sides: tuple[Side, Side], step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]) -> bool:
    """Whether `sources` add up to the incoming gradient on exactly one of the two sides."""
    return _adds_up(sides[0], step, key, sources, is_golden=False) != _adds_up(
        sides[1], step, key, sources, is_golden=True
    )


def _adds_up(side: Side, step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]], *, is_golden: bool) -> bool:
    whole = _values(side, step, key, is_golden=is_golden)
    if whole is None:
        return False
    left = whole.astype(np.float64)
    for source, value in sources:
        part = _values(side, source, value, is_golden=is_golden)
        if part is None or part.shape != left.shape:
            return False
        left -= part
    return bool(np.linalg.norm(left) <= _ROUNDING * np.linalg.norm(whole.astype(np.float64)))


def _values(side: Side, step: Step, key: ValueKey, *, is_golden: bool) -> npt.NDArray[Any] | None:
    record = step.account.partner if is_golden else step.record
    if record not in side:
        return None
    leaf = next((leaf for leaf in side.leaves(record) if leaf.path == key.path), None)
    return load(leaf, side.tensors)
