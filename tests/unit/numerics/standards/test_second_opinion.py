from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.judgement import Judgement
from pytest_msprobe.numerics.standards.elementwise import ERROR_MULTIPLES, AgainstSecondOpinion

STANDARD = AgainstSecondOpinion()
ONES = np.ones(1000)


def ones_off(by: float, count: int = 1000) -> np.ndarray:
    array = np.ones(1000)
    array[:count] += by
    return array


def test_without_a_second_opinion_it_is_a_skip() -> None:
    found = verdict(STANDARD, ones_off(0.25), ONES)
    assert found.status == "skip"
    assert "no second opinion" in found.reasons[0]


def test_twice_the_error_of_the_second_opinion_passes() -> None:
    assert verdict(STANDARD, ones_off(0.5), ONES, second=ones_off(-0.25)).is_pass
    found = verdict(STANDARD, ones_off(0.5625), ONES, second=ones_off(-0.25))
    assert found.reasons == (
        "RMSE 0.5625 is 2.25 times that of the second opinion (0.25), above 2; a limit of 2.25 would pass.",
        "Mean relative error 0.5625 is 2.25 times that of the second opinion (0.25), above 2; "
        "a limit of 2.25 would pass.",
    )


def test_the_largest_error_may_be_ten_times_as_large() -> None:
    second = ones_off(2.0**-4)
    for worst, is_within in ((0.625, True), (0.6875, False)):
        tested = ones_off(2.0**-4)
        tested[7] += worst - 2.0**-4
        reasons = verdict(STANDARD, tested, ONES, second=second).reasons
        assert any(reason.startswith("Max relative error") for reason in reasons) != is_within


@pytest.mark.parametrize(("dtype", "least"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 2.0**-14)])
def test_a_perfect_second_opinion_counts_as_one_with_the_least_error(dtype: str, least: float) -> None:
    reference = np.full(1000, 1.0)
    for factor, is_within in ((2, True), (4, False)):
        tested = np.full(1000, 1 + factor * least)
        found = verdict(STANDARD, tested, reference, DTYPES[dtype], second=reference)
        assert found.is_pass == is_within
    assert f"(0, counted as {least:g})" in found.reasons[0]


@pytest.mark.parametrize(
    ("dtype", "small", "absolute"), [("float16", 2.0**-10, 2.0**-16), ("float32", 2.0**-20, 2.0**-30)]
)
def test_small_elements_are_counted_by_their_absolute_error(dtype: str, small: float, absolute: float) -> None:
    reference = np.full(100, small)
    second = reference.copy()
    second[:10] += 2 * absolute
    for count, is_within in ((20, True), (21, False)):
        tested = reference.copy()
        tested[:count] += 2 * absolute
        found = verdict(STANDARD, tested, reference, DTYPES[dtype], second=second)
        assert found.is_pass == is_within
    assert found.reasons[0].startswith("Share of small elements that are off 0.21 is 2.1 times")
    assert verdict(STANDARD, reference + absolute, reference, DTYPES[dtype], second=reference).is_pass


def test_levels_are_stricter() -> None:
    for level, limit in ((0, 2.0), (1, 1.5), (2, 1.2)):
        assert ERROR_MULTIPLES[level].rmse == ERROR_MULTIPLES[level].mean_relative == limit
        standard = AgainstSecondOpinion(ERROR_MULTIPLES[level])
        assert verdict(standard, ones_off(0.25 * (limit - 0.01)), ONES, second=ones_off(0.25)).is_pass
        assert not verdict(standard, ones_off(0.25 * (limit + 0.01)), ONES, second=ones_off(0.25)).is_pass
    assert [level.max_relative for level in ERROR_MULTIPLES] == [10, 5, 2]


def test_a_nan_that_the_second_opinion_has_too_is_excused_and_only_there() -> None:
    reference = np.array([1, 2, 3.0])
    overflowed = [1, np.inf, 3]
    assert verdict(STANDARD, overflowed, reference, second=overflowed).is_pass
    assert verdict(STANDARD, [1, -np.inf, 3], reference, second=overflowed).reasons == (
        "1 of 3 elements has a NaN or Inf that neither benchmark nor second opinion has there, or lacks theirs.",
    )


def test_a_broken_second_opinion_excuses_nothing() -> None:
    assert not verdict(STANDARD, [1, 2.5], [1.0, 2.0], second=[1, np.nan]).is_pass
    assert not verdict(STANDARD, ones_off(1.0), ONES, second=np.full(1000, np.nan)).is_pass


def test_bounds_of_the_user() -> None:
    strict = AgainstSecondOpinion(replace(ERROR_MULTIPLES[0], rmse=0.5))
    assert verdict(strict, ones_off(0.25), ONES, second=ones_off(0.25)) == Judgement(
        "error", ("RMSE 0.25 is 1 times that of the second opinion (0.25), above 0.5; a limit of 1 would pass.",)
    )
