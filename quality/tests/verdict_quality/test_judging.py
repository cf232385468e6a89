"""The benchmark that is remembered: as good as one that runs each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quality.verdict_quality.judging import RememberedExecution


class OneBackward:
    """An execution whose graph can be used once."""

    outputs = ()

    def __init__(self) -> None:
        self.is_used = False

    def gradients(self, incoming: tuple[Any, ...]) -> tuple[Any, ...]:
        assert not self.is_used
        self.is_used = True
        return tuple(2 * array for array in incoming)


def test_other_incoming_gradients_get_a_run_of_their_own() -> None:
    runs: list[OneBackward] = []

    def run() -> OneBackward:
        runs.append(OneBackward())
        return runs[-1]

    remembered = RememberedExecution(run)
    for value in (1.0, 3.0, 1.0):
        (gradient,) = remembered.gradients((np.array([value]),))
        assert gradient == pytest.approx([2 * value])
    assert len(runs) == 2
