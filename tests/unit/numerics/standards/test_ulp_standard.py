from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from output_pairs import verdict

from pytest_msprobe.numerics.standards.elementwise import Ulp, UlpBounds

STANDARD = Ulp()


def off(count: int, by: float, size: int) -> np.ndarray:
    """Ones, of which the first `count` are off `by` a value."""
    tested = np.ones(size)
    tested[:count] += by
    return tested


@pytest.mark.parametrize(
    ("dtype", "ulp"),
    [
        (np.float16, Fraction(1, 2**10)),
        (ml_dtypes.bfloat16, Fraction(1, 2**7)),
        (ml_dtypes.float8_e4m3fn, Fraction(1, 2**3)),
        (ml_dtypes.float8_e5m2, Fraction(1, 2**2)),
    ],
)
def test_narrow_dtypes_may_have_less_than_a_thousandth_beyond_one_ulp(dtype: type, ulp: Fraction) -> None:
    assert verdict(STANDARD, off(2000, float(ulp), 2000), np.ones(2000), dtype).is_pass
    assert verdict(STANDARD, off(1, float(2 * ulp), 2000), np.ones(2000), dtype).is_pass
    assert not verdict(STANDARD, off(2, float(2 * ulp), 2000), np.ones(2000), dtype).is_pass  # 0.001 is not below


def test_float32_has_a_share_and_a_mean() -> None:
    ulp = 2.0**-23
    assert verdict(STANDARD, off(100, 32 * ulp, 100), np.ones(100)).is_pass
    assert verdict(STANDARD, off(100, 63 * ulp, 100), np.ones(100)).is_pass  # mean 63
    assert not verdict(STANDARD, off(100, 64 * ulp, 100), np.ones(100)).is_pass
    assert verdict(STANDARD, off(4, 1.0, 100), np.ones(100)).is_pass  # share 0.04, whatever the mean
    assert not verdict(STANDARD, off(5, 1.0, 100), np.ones(100)).is_pass


def test_a_worse_second_opinion_excuses() -> None:
    tested, reference = off(5, 1.0, 100), np.ones(100)
    assert verdict(STANDARD, tested, reference, second=off(6, 1.0, 100)).is_pass
    found = verdict(STANDARD, tested, reference, second=off(5, 1.0, 100))
    assert found.reasons == (
        "5 of 100 elements (5 %) off by more than 32 ULP, worst at [0] (tested 2.0, benchmark 1.0): 8.38861e+06 ULP; "
        "a share below 0.05 would pass (here 0.0501 would) or a mean below 64 ULP (measured 419430) "
        "or fewer than those of the second opinion (5).",
    )


def test_an_invented_value_at_zero_is_huge() -> None:
    # Against the spacing at 1, as msProbe has it, 2**-10 would be one ULP.
    found = verdict(STANDARD, [2.0**-10], [0.0], np.float16)
    assert not found.is_pass
    assert f"{2**14} ULP" in found.reasons[0]


def test_bounds_of_the_user() -> None:
    standard = Ulp(UlpBounds(ulps=2, share=0.5, mean=0))
    assert verdict(standard, off(1, 0.5, 4), np.ones(4), np.float64).is_pass
    assert not verdict(standard, off(2, 0.5, 4), np.ones(4), np.float64).is_pass
