"""Which output of a record, and which record of a run, is the worst."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_msprobe.verdicts import Figure, OutputRow


def output(status: Any = "pass", **figures: float | None) -> OutputRow:
    return OutputRow("output.0", "Float64", "Float32", (2,), status, figures=figures)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (output(max_abs=9.0), output("error", max_abs=1.0)),  # a failure is above every pass
        (output(max_abs=1.0), output(max_abs=2.0)),
        (output(ratio=0.5, max_abs=9.0), output(ratio=0.9, max_abs=1.0)),  # error over tolerance first
        (output(distance=0.1, max_abs=9.0), output(distance=0.2, max_abs=1.0)),
        (output(similarity=0.9), output(similarity=0.8)),  # of a similarity the lowest is the worst
        (output(max_abs=1e300), output(max_abs=math.nan)),
        (output(max_abs=1e300), output()),  # an error that no figure measures, such as another shape
        (output(ratio=None, max_abs=1.0), output(ratio=None, max_abs=2.0)),
    ],
)
def test_the_worse_of_two(better: OutputRow, worse: OutputRow) -> None:
    assert better.badness < worse.badness


@pytest.mark.parametrize(
    ("is_low_bad", "value", "other", "worse"),
    [
        (False, 1.0, None, 1.0),
        (False, 1.0, 2.0, 2.0),
        (True, 1.0, 2.0, 1.0),
        (False, math.nan, 2.0, math.inf),
        (True, math.nan, 2.0, -math.inf),
    ],
)
def test_nan_is_the_worst_of_every_figure(is_low_bad: bool, value: float, other: float | None, worse: float) -> None:
    assert Figure("x", "X", ".3g", is_low_bad).worse_of(value, other) == worse
