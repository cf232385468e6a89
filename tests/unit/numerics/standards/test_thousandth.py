from __future__ import annotations

import numpy as np
import pytest
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.standards.elementwise import Thousandth

STANDARD = Thousandth()


def test_a_thousandth_of_the_elements_may_be_off() -> None:
    reference = np.full(2000, 1000.0)
    tested = reference.copy()
    tested[:2] = 0  # a share of 0.999 is right
    assert verdict(STANDARD, tested, reference).is_pass
    tested[2] = 1001.0  # a relative error of 0.001 is not below 0.001
    assert not verdict(STANDARD, tested, reference).is_pass
    tested[2] = 1000.9375
    assert verdict(STANDARD, tested, reference).is_pass


def test_only_zero_is_right_where_the_benchmark_is_zero() -> None:
    assert not verdict(STANDARD, [1e-30], [0.0]).is_pass


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rounding_is_no_error(dtype: type) -> None:
    # The rounding error of bfloat16 is up to 0.0039: msProbe, which does not round its benchmark, fails every one.
    reference = np.random.default_rng(3).standard_normal(1000)
    assert verdict(STANDARD, reference, reference, dtype).is_pass


def test_the_reason_says_what_would_pass() -> None:
    assert verdict(STANDARD, [1, 1, 1, 2], [1, 1, 1, 1]).reasons == (
        "1 of 4 elements (25 %) not below a relative error of 0.001, worst at [3] (tested 2.0, benchmark 1.0): 1; "
        "a share of 0.75 is, which is not 0.999 or more; 0.75 would pass.",
    )
    assert verdict(Thousandth(share=0.75), [1, 1, 1, 2], [1, 1, 1, 1]).is_pass
    assert verdict(Thousandth(relative=1.5), [1, 1, 1, 2], [1, 1, 1, 1]).is_pass
