"""Output pairs for the tests of standards."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from sensitivities import Answers

from pytest_msprobe.numerics.judgement import Judgement, OutputPair, Standard, judge_pair
from pytest_msprobe.numerics.measurement import measure

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def pair(tested: Any, reference: Any, dtype: Any, second: Any = None) -> OutputPair:
    """`tested` (and `second`) in `dtype` against a float64 reference."""
    actual = np.asarray(tested).astype(dtype)
    expected = np.asarray(reference)
    expected = expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64)
    opinion = None if second is None else np.asarray(second).astype(dtype)
    known = Answers(second_opinion=lambda: opinion)
    return OutputPair(actual, expected, measure(actual, expected, off_bound=1e-4), known)


def verdict(standard: Standard, tested: Any, reference: Any, dtype: Any = np.float32, second: Any = None) -> Judgement:
    return judge_pair(standard, pair(tested, reference, dtype, second))
