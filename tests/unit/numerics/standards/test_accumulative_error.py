from __future__ import annotations

import numpy as np
import pytest
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.standards.elementwise import AccumulativeBounds, AccumulativeError

STANDARD = AccumulativeError()
BOUNDS = {"float16": 2.0**-8, "bfloat16": 2.0**-7, "float32": 2.0**-11}


@pytest.mark.parametrize("dtype", BOUNDS)
def test_absolute_up_to_one_and_relative_above(dtype: str) -> None:
    bound = BOUNDS[dtype]
    # Pairs of opposite signs keep the balance.
    for scale, within in ((0.5, bound), (1.0, bound), (64.0, 64 * bound)):
        for factor, is_within in ((1, True), (2, False)):
            tested = np.array([scale + within * factor, -scale - within * factor])
            assert verdict(STANDARD, tested, [scale, -scale], DTYPES[dtype]).is_pass == is_within


def test_errors_that_all_point_one_way_fail() -> None:
    reference = np.linspace(1, 2, 1000)
    step = np.where(np.arange(1000) % 2, 2.0**-20, -(2.0**-20))
    assert verdict(STANDARD, reference + step, reference).is_pass
    found = verdict(STANDARD, reference + abs(step), reference)
    assert found.reasons == (
        "1000 elements are too large and 0 too small, of 1000: the errors are unbalanced by 1, above 6.10352e-05 and "
        "beyond chance; 1 would pass.",
    )


@pytest.mark.parametrize("dtype", BOUNDS)
def test_random_signs_are_balanced_though_never_even(dtype: str) -> None:
    """The limit of msProbe, 2**-20 in float16, needs a billion elements before fair signs meet it."""
    random = np.random.default_rng(11)
    reference = np.round(random.uniform(1, 2, 10_000) * 64) / 64
    tested = reference + random.choice([-1, 1], 10_000) * BOUNDS[dtype]
    assert verdict(STANDARD, tested, reference, DTYPES[dtype]).is_pass


def test_bounds_of_the_user() -> None:
    loose = AccumulativeError(AccumulativeBounds(bound=1.0, balance=1.0))
    assert verdict(loose, np.full(100, 1.5), np.ones(100), np.float64).is_pass
    assert not verdict(loose, np.full(100, 3.5), np.ones(100), np.float64).is_pass
