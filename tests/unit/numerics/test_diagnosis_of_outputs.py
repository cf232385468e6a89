"""What is said of a failing output beyond its verdict."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.diagnosis import diagnose
from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError


@pytest.mark.parametrize("reference", [np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16)])
def test_the_reference_of_a_cast_is_as_narrow_as_its_output(reference: np.dtype[np.generic]) -> None:
    exact = np.linspace(1, 2, 64).astype(ml_dtypes.bfloat16)
    tested = exact.copy()
    tested[3] *= tested.dtype.type(2)
    pair = OutputPair(tested, exact.astype(reference), measure(tested, exact, off_bound=1.0))
    found = diagnose(BackwardError(), BackwardError().judge_pair(pair), lambda: pair)
    assert str(found.pattern) == "2 x too large, one element at [3]"
    assert found.median == 0
