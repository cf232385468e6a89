from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from output_pairs import DTYPES, pair, verdict

from pytest_msprobe.numerics.standards.cann import MereMare, MixedBounds, MixedTolerance, RelativeErrorBounds

ALL = {**DTYPES, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}
#: As the documents of CANN have them: T; rtol, which atol equals; the fixed part of the largest error.
THRESHOLDS = {"float16": 10, "bfloat16": 7, "float32": 13, "float8_e4m3fn": 3, "float8_e5m2": 2}
LARGEST = {"float16": 0.1, "bfloat16": 0.1, "float32": 0.01, "float8_e4m3fn": 1.0, "float8_e5m2": 1.0}


def ratio(found: Any) -> float:
    assert found.ratio is not None
    return float(found.ratio)


@pytest.mark.parametrize("dtype", ALL)
def test_mere_and_mare_are_relative_to_their_thresholds(dtype: str) -> None:
    threshold = 2.0 ** -THRESHOLDS[dtype]
    spacing = 2.0 ** -int(ml_dtypes.finfo(ALL[dtype]).nmant)
    reference = np.ones(1000)
    tested = reference.copy()
    tested[0] += spacing * np.ceil(10 * threshold / spacing)
    found = verdict(MereMare(), tested, reference, ALL[dtype])
    assert ratio(found) == pytest.approx((tested[0] - 1) / (10 * threshold), rel=1e-5)
    assert found.is_pass == (tested[0] - 1 < 10 * threshold * (1 + 1e-7))
    tested = reference + spacing * np.ceil(threshold * 1.01 / spacing)
    (reason,) = verdict(MereMare(), tested, reference, ALL[dtype]).reasons
    assert reason.startswith("Mean relative error ")
    assert "is not below" in reason


def test_small_values_are_relative_to_epsilon() -> None:
    # 1e-9 off where the benchmark is 0 is a relative error of 0.01: beyond 10 * 2^-13, of float32.
    assert verdict(MereMare(), [1e-9] + [0.0] * 99, [0.0] * 100).reasons == (
        "1 of 100 elements (1 %) not below a relative error of 0.0012207, worst at [0] (tested 9.999999717180685e-10, "
        "benchmark 0.0): 0.01; a limit of 0.0100 would pass.",
    )
    assert verdict(MereMare(), [1e-10] + [0.0] * 99, [0.0] * 100).is_pass
    assert verdict(MereMare(RelativeErrorBounds(1.0, 1.0)), [1e-9], [0.0]).is_pass


def test_both_reasons_say_what_would_pass() -> None:
    found = verdict(MereMare(), [1.5, 1.0], [1.0, 1.0])
    assert len(found.reasons) == 2
    assert found.reasons[0] == "Mean relative error 0.25 is not below 0.00012207; a limit of 0.250 would pass."
    assert ratio(found) == pytest.approx(0.25 * 2**13, rel=1e-6)


@pytest.mark.parametrize("dtype", ALL)
def test_one_element_of_a_hundred_may_be_beyond_the_mixed_tolerance(dtype: str) -> None:
    threshold = 2.0 ** -THRESHOLDS[dtype]
    reference = np.ones(200)
    tested = reference.copy()
    tested[:2] += 3 * threshold
    assert verdict(MixedTolerance(), tested, reference, ALL[dtype]).is_pass
    tested[2:4] += 3 * threshold
    (reason,) = verdict(MixedTolerance(), tested, reference, ALL[dtype]).reasons
    assert reason.startswith("4 of 200 elements (2 %) off by more than ")
    assert reason.endswith(
        ": 1.5 times that; a share of 0.98 is within it, which is not 0.99 or more; 0.9799 would pass."
    )
    tested = reference + 2 * threshold
    assert verdict(MixedTolerance(), tested, reference, ALL[dtype]).is_pass


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_element_may_be_further_off_than_the_largest_error(dtype: str) -> None:
    bits = int(ml_dtypes.finfo(ALL[dtype]).nmant)
    for magnitude in (0.125, 1.0, 4096.0):
        allowed = max(LARGEST[dtype], 32 * magnitude * 2.0**-bits)
        for factor, is_pass in ((0.9, True), (1.2, False)):
            reference = np.full(200, magnitude)
            tested = reference.copy()
            tested[7] += factor * allowed
            found = verdict(MixedTolerance(), tested, reference, ALL[dtype])
            assert found.is_pass == is_pass
            assert is_pass or found.reasons[0].startswith("Largest absolute error at [7] (tested ")


def test_the_spacing_is_that_of_the_element_with_the_largest_error() -> None:
    reference = np.array([2.0**20] + [1.0] * 199)
    tested = reference.copy()
    tested[1] += 0.125
    assert not verdict(MixedTolerance(), tested, reference).is_pass
    tested[0] += 1.0  # within 32 spacings of 2^20, which are 4: what the document looks at
    assert verdict(MixedTolerance(), tested, reference).is_pass


def test_bounds_can_be_given() -> None:
    bounds = MixedBounds(relative=0.0, absolute=0.5, share=1.0, largest=1.0)
    assert verdict(MixedTolerance(bounds), [1.5, 2.0], [1.0, 2.0], np.float64).is_pass
    assert ratio(verdict(MixedTolerance(bounds), [1.75, 2.0], [1.0, 2.0])) == np.inf
    exact = MixedBounds(relative=0.0, absolute=0.0, share=0.5, largest=0.0)
    assert verdict(MixedTolerance(exact), [1.0, 1.0 + 2**-23], [1.0, 1.0]).is_pass


@pytest.mark.parametrize(("standard", "off"), [(MereMare(), 3 * 2.0**-13), (MixedTolerance(), 3 * 2.0**-13)])
def test_products_of_rounded_operands_have_the_thresholds_of_hifloat32(standard: Any, off: float) -> None:
    reference = np.linspace(1, 2, 100)
    exact = pair(reference * (1 + off), reference, np.float32)
    assert not standard.judge_pair(exact).is_pass
    assert standard.judge_pair(replace(exact, operand_roundoff=2.0**-12)).is_pass
    half = pair(reference * (1 + 2.0**-8), reference, np.float16)
    assert not standard.judge_pair(replace(half, operand_roundoff=2.0**-12)).is_pass
