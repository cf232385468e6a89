"""The bounds themselves, against exact binomial probabilities."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pytest_msprobe.numerics.chance import (
    Count,
    Moment,
    divergence,
    judge_counts,
    judge_moments,
    judge_runs,
    lag_counts,
    longest_run,
)


def exact_tail(trials: int, hits: int, probability: Fraction) -> Fraction:
    """P(at least `hits`), in exact fractions."""
    return sum(
        (math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(hits, trials + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize("probability", [Fraction(1, 100), Fraction(3, 10), Fraction(1, 2), Fraction(99, 100)])
@pytest.mark.parametrize("trials", [1, 7, 60])
def test_the_bound_is_never_below_the_exact_probability(trials: int, probability: Fraction) -> None:
    for hits in range(trials + 1):
        if hits > trials * probability:
            bound = math.exp(-Count("", hits, trials, float(probability), float(probability)).surprise)
            assert bound * (1 + 1e-12) >= exact_tail(trials, hits, probability)
            p = float(probability)
            moment = Moment("", hits / trials, trials, p, 0.0, math.sqrt(p * (1 - p)), max(p, 1 - p))
            assert math.exp(-moment.surprise) * (1 + 1e-12) >= exact_tail(trials, hits, probability)


def test_a_mean_is_as_improbable_as_its_bound_says() -> None:
    def moment(mean: float, moved: float = 0.0) -> Moment:
        return Moment("the values", mean, 10**6, 0.0, moved, 1.0, 3.5)

    assert moment(0.005).surprise == pytest.approx(12.5, rel=0.01)  # 5 deviations: about 5^2 / 2
    assert judge_moments([moment(0.006), moment(-0.006)]).reasons == ()
    assert judge_moments([moment(0.01, 0.005)]).reasons == ()
    (reason,) = judge_moments([moment(0.0), moment(-0.008, 0.001)]).reasons
    assert reason == (
        "The mean of the values, of 1000000 elements in the law's standard units, is -0.008, where the law has 0 and "
        "rounding moves it by 0.001 at most (a correct output does so with a chance below 10^-11)."
    )
    assert Moment("", 1.0, 9, 0.0, 0.0, 0.0, 0.0).surprise == 0


def test_divergence() -> None:
    assert divergence(0.5, 0.5) == 0
    assert divergence(1.0, 0.25) == pytest.approx(math.log(4))
    assert divergence(0.5, 0.0) == math.inf
    assert divergence(0.0, 0.0) == 0


@pytest.mark.parametrize(("hits", "is_wrong"), [(500, False), (560, False), (620, True), (380, True), (0, True)])
def test_judge_counts(hits: int, is_wrong: bool) -> None:
    verdict = judge_counts([Count("are heads", hits, 1000, 0.5, 0.5)], "a coin")
    assert bool(verdict.reasons) is is_wrong
    assert verdict.notes == ()


def test_a_range_of_probabilities_excuses_what_lies_in_it() -> None:
    assert not judge_counts([Count("", 900, 1000, 0.5, 0.9)], "a coin").reasons
    assert judge_counts([Count("", 900, 1000, 0.5, 0.7)], "a coin").reasons


def test_the_sentence_says_what_was_counted_and_expected() -> None:
    (sentence,) = judge_counts([Count("values are above 0", 12, 1000, 0.5, 0.5)], "").reasons
    assert sentence.startswith("12 of 1000 values are above 0, where the law expects about 500 (")


def test_few_trials_say_so_instead_of_passing_silently() -> None:
    verdict = judge_counts([Count("are heads", 20, 20, 0.5, 0.5)], "a coin")
    assert verdict.reasons == ()
    assert verdict.notes == (
        "20 elements are too few to test a coin at a false-alarm rate of 1e-09: judged by range and form only",
    )
    assert judge_counts([Count("are heads", 60, 60, 0.5, 0.5)], "a coin").reasons


@pytest.mark.parametrize(
    ("flags", "run"),
    [([], (0, -1)), ([0, 0], (0, -1)), ([1, 1, 0, 1], (2, 1)), ([0, 1, 1, 1], (3, 3)), ([1], (1, 0))],
)
def test_longest_run(flags: list[int], run: tuple[int, int]) -> None:
    length, end = longest_run(np.array(flags, np.bool_))
    assert (length, end) == run or (length == run[0] == 0)


def test_a_long_run_is_improbable_and_a_likely_one_is_not() -> None:
    flags = np.zeros(1000, np.bool_)
    flags[100:130] = True
    assert not judge_runs(flags, 0.5, "are heads").reasons
    flags[100:160] = True
    (sentence,) = judge_runs(flags, 0.5, "are heads").reasons
    assert sentence.startswith("60 elements in a row are heads, up to element 159;")


@pytest.mark.parametrize("lag", [1, 64, 100, 4096])
def test_what_repeats_itself_is_seen_at_its_lag(lag: int) -> None:
    block = np.random.default_rng(lag).random(lag) < 0.5
    flags = np.tile(block, 16384 // lag)
    counts = list(lag_counts(flags, (len(flags) // 100, 100), (0.5, 0.5)))
    assert judge_counts(counts, "").reasons
    fresh = np.random.default_rng(lag).random(16384) < 0.5
    assert not judge_counts(list(lag_counts(fresh, (128, 128), (0.5, 0.5))), "").reasons
