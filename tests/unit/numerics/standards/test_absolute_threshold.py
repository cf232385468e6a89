from __future__ import annotations

import numpy as np
import pytest
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.standards.elementwise import AbsoluteBounds, AbsoluteThreshold

STANDARD = AbsoluteThreshold()
# b, t, whether t is within the bound: at the bound and one step of the dtype beyond it.
CASES = [
    ("float16", 1.0, 1 + 2**-10, True),
    ("float16", 1.0, 1 + 2**-9, False),
    ("float16", 2**-10, 2**-10 + 2**-16, True),
    ("float16", 2**-10, 2**-10 + 2**-15, False),
    ("float16", 2**-10 + 2**-20, 2**-10 + 2**-16, False),  # above the small value the relative bound holds
    ("float16", 0.0, 2**-16, True),
    ("float16", 0.0, 2**-15, False),
    ("bfloat16", 256.0, 255.0, True),
    ("bfloat16", 1.0, 1 + 2**-7, False),
    ("bfloat16", 0.0, 2**-16, True),
    ("bfloat16", 0.0, 2**-15, False),
    ("float32", 1.0, 1 + 2**-20, True),
    ("float32", 1.0, 1 + 2**-20 + 2**-23, False),
    ("float32", 2**-20, 2**-20 + 2**-30, True),
    ("float32", 2**-20, 2**-20 + 2**-29, False),
]


@pytest.mark.parametrize(("dtype", "reference", "tested", "is_within"), CASES)
def test_bounds_by_dtype(dtype: str, reference: float, tested: float, is_within: bool) -> None:
    for sign in (1, -1):
        assert verdict(STANDARD, [sign * tested], [sign * reference], DTYPES[dtype]).is_pass == is_within


def test_one_element_is_enough_to_fail_and_the_reason_says_what_would_pass() -> None:
    tested, reference = np.ones((2, 500)), np.ones((2, 500))
    tested[1, 2] = 1.5
    assert verdict(STANDARD, tested, reference).reasons == (
        "1 of 1000 elements (0.1 %) is above 9.53674e-07 (relative error, for |b| > 9.53674e-07), "
        "worst at [1, 2] (tested 1.5, benchmark 1.0): 0.5; a limit of 0.5 would pass.",
    )


def test_both_rules_are_reported() -> None:
    reasons = verdict(STANDARD, [0.5, 2.0], [0.0, 1.0]).reasons
    assert [reason.split("(")[2].split(",")[0] for reason in reasons] == ["relative error", "absolute error"]


def test_infinity_meets_the_end_of_the_range_only() -> None:
    assert verdict(STANDARD, [np.inf, 65504], [65504, 70000], np.float16).is_pass
    assert verdict(STANDARD, [-np.inf], [-65504.0], np.float16).is_pass
    assert verdict(STANDARD, [np.inf], [60000.0], np.float16).reasons == (
        "1 of 1 element has a NaN or Inf that the other side lacks, first at [0] (tested inf, benchmark 60000.0).",
    )


def test_bounds_of_the_user_count_for_every_dtype() -> None:
    standard = AbsoluteThreshold(AbsoluteBounds(small_value=0.1, relative=0.25, absolute=0.01))
    assert verdict(standard, [1.25, 0.01], [1.0, 0.0], np.float64).is_pass
    assert not verdict(standard, [1.25001, 0.01], [1.0, 0.0], np.float64).is_pass
