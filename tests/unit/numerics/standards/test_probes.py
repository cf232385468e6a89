"""Errors near their tolerance are judged by many more runs, and those far from it by none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sensitivities import Answers

from pytest_msprobe.numerics.judgement import KnownDeviations, OutputPair, Perturbed
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
U = 2.0**-8
Values = np.ndarray[Any, Any]


def nothing(count: int) -> tuple[Values, ...]:
    return ()


class Asked:
    """An output of two factors with an error in one element: each run moves both factors, and is counted."""

    def __init__(self, error: float, *, spread: float = U) -> None:
        self.exact = np.random.default_rng(1).uniform(1, 1.9, 400)
        self.tested = np.where(np.arange(400) == 7, self.exact * (1 + error), self.exact).astype(BFLOAT16)
        self.spread = spread
        self.probes = 0
        self.arithmetic = 0

    def pair(self, **given: Any) -> OutputPair:
        metrics = measure(self.tested, self.exact, off_bound=1.0)
        return OutputPair(
            self.tested,
            self.exact,
            metrics,
            Answers(
                **{"perturbed": self.two_runs, "probes": self.many_runs, "arithmetic_probes": self.no_probes, **given}
            ),
        )

    def two_runs(self) -> tuple[Perturbed, ...]:
        """As they are made: by different distances, together and against each other, the second far smaller."""
        rng = np.random.default_rng(2)
        signs, first, second = (rng.choice([-1, 1], 400), *rng.uniform(0.5, 1.5, (2, 400)))
        moves = first + signs * second, 2.0**-12 * (first - signs * second)
        sizes = 1.0, 2.0**-12
        return tuple(Perturbed(self.exact * (1 + self.spread * move), size) for move, size in zip(moves, sizes))

    def many_runs(self, count: int) -> tuple[Values, ...]:
        """Both factors move by exactly one rounding."""
        self.probes = max(self.probes, count)
        rng = np.random.default_rng(3)
        return tuple(self.exact * (1 + self.spread * rng.choice([-1, 1], (2, 400)).sum(axis=0)) for _ in range(count))

    def no_probes(self, count: int) -> tuple[Values, ...]:
        """Nothing is rounded inside."""
        self.arithmetic = max(self.arithmetic, count)
        return (self.exact,) * count


def test_an_error_that_only_two_runs_forgive_fails() -> None:
    """Ten roundings of a product of two factors, whose rounding explains two, and twice that is forgiven."""
    asked = Asked(10 * U)
    assert BackwardError().judge_pair(asked.pair(probes=nothing)).is_pass
    found = BackwardError().judge_pair(asked.pair())
    assert not found.is_pass
    assert found.ratio is not None
    assert 1 < found.ratio < 3


def test_an_error_within_twice_what_the_probes_show_passes() -> None:
    rng = np.random.default_rng(4)
    asked = Asked(0.0)
    asked.tested = (asked.exact * (1 + 3.5 * U * rng.uniform(-1, 1, 400))).astype(BFLOAT16)
    assert BackwardError().judge_pair(asked.pair()).is_pass


def test_a_pass_after_four_probes_asks_for_no_more() -> None:
    """Two runs saw nothing of the one element that is off; four do."""
    asked = Asked(3.5 * U)
    two = asked.two_runs()
    two[0].result[7], two[1].result[7] = asked.exact[7], asked.exact[7] * (1 + 2.0**-30)
    assert BackwardError().judge_pair(asked.pair(perturbed=lambda: two)).is_pass
    assert asked.probes == 4


@pytest.mark.parametrize("error", [0.5 * U, 60 * U])
def test_no_probe_runs_for_what_is_clear(error: float) -> None:
    asked = Asked(error)
    BackwardError().judge_pair(asked.pair())
    assert asked.probes == 0


def test_what_a_forward_saves_is_not_forgiven_twice() -> None:
    """The probes have moved it, so that of the runs inside only the arithmetic counts then."""
    asked = Asked(10 * U)

    def inside() -> tuple[Perturbed, ...]:
        moves = np.random.default_rng(5).standard_normal((2, 400))
        return tuple(Perturbed(asked.exact * (1 + 2 * U * size * m), size) for m, size in zip(moves, (1.0, 2.0**-12)))

    assert BackwardError().judge_pair(asked.pair(rounded_inside=inside, probes=nothing)).is_pass
    assert not BackwardError().judge_pair(asked.pair(rounded_inside=inside)).is_pass
    assert asked.arithmetic == asked.probes == 16


@pytest.mark.parametrize(("error", "is_pass"), [(10 * U, False), (3 * U, True)])
def test_fused_asks_for_more_runs_with_moved_arithmetic(error: float, is_pass: bool) -> None:
    asked = Asked(error, spread=U / 2)
    pair = asked.pair(rounded_inside=asked.two_runs, inside_probes=asked.many_runs, perturbed=tuple)
    assert Fused().judge_pair(pair).is_pass == is_pass


def test_fused_forgives_an_element_whose_two_answers_are_small_by_chance() -> None:
    """In the last rows all effects are 100 times as large as in the others, but in one element two runs saw nothing."""
    scale = np.where(np.arange(400) < 200, 1e-2, 1.0)
    exact = np.random.default_rng(1).uniform(1, 1.9, 400)
    rng = np.random.default_rng(6)
    moves = rng.standard_normal((2, 400)) * scale
    moves[:, 300] = 1e-4
    error = np.zeros(400)
    error[300] = 1.5
    tested = (exact * (1 + 8 * U * error)).astype(BFLOAT16)
    runs = tuple(Perturbed(exact * (1 + 8 * U * s * m), s) for m, s in zip(moves, (1.0, 2.0**-12)))
    probes = tuple(exact * (1 + 8 * U * rng.standard_normal(400) * scale) for _ in range(16))
    metrics = measure(tested, exact, off_bound=1.0)
    assert not Fused().judge_pair(OutputPair(tested, exact, metrics, Answers(rounded_inside=lambda: runs))).is_pass
    known = Answers(rounded_inside=lambda: runs, inside_probes=lambda count: probes[:count])
    pair = OutputPair(tested, exact, metrics, known)
    assert Fused().judge_pair(pair).is_pass


def test_one_element_that_answers_alike_by_chance_does_not_hang_on_one_input() -> None:
    """A variance of 32,768 elements: its rounding is that of a long sum, whatever two runs have in common."""
    exact = np.array(16.19754854327349)
    tested = np.float32(16.19748878479004)
    runs = tuple(Perturbed(exact + size * 6.83e-9, size) for size in (1.0, 2.0**-12))
    metrics = measure(np.asarray(tested), exact, off_bound=1.0)
    pair = OutputPair(np.asarray(tested), exact, metrics, Answers(perturbed=lambda: runs), accumulated=32_768)
    assert BackwardError().judge_pair(pair).is_pass


def test_arithmetic_that_only_two_runs_forgive_is_probed() -> None:
    """The inputs explain nothing; arithmetic inside moves elements by a rounding, and the error is eight of them."""
    asked = Asked(8 * U, spread=U / 2)
    still = tuple(Perturbed(asked.exact, size) for size in (1.0, 2.0**-12))
    given = {"perturbed": lambda: still, "rounded_inside": asked.two_runs}
    assert BackwardError().judge_pair(asked.pair(**given, probes=nothing, arithmetic_probes=nothing)).is_pass
    assert (
        not BackwardError().judge_pair(asked.pair(**given, probes=nothing, arithmetic_probes=asked.many_runs)).is_pass
    )
    assert asked.probes == 16


def test_an_output_is_rounded_once_where_the_kernel_is_exact_inside() -> None:
    """Just below a power of two the spacing is half as much of the value as just above it: two of them are too far."""
    exact = np.full(64, 1.99)
    tested = exact.astype(BFLOAT16).astype(np.float64)
    tested[3] -= 4 * U
    tested = tested.astype(BFLOAT16)
    pair = OutputPair(tested, exact, measure(tested, exact, off_bound=1.0), Answers())
    assert BackwardError().judge_pair(pair).is_pass
    assert not Fused().judge_pair(pair).is_pass


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_sum_that_overflows_inside_is_judged_once() -> None:
    """Inf - Inf inside makes it NaN, which the benchmark's value in its place, beyond float32, does not settle."""
    exact = np.array([8e49, 1.0])
    tested = np.array([np.nan, 1.0], np.float32)
    asked = []

    def terms(at: int) -> tuple[Values, ...]:
        asked.append(at)
        return (np.array([7e48, -3e48, 7.6e49]),)

    nowhere = KnownDeviations(np.full(exact.shape, np.inf), have_terms=True)
    known = Answers(deviations=lambda: nowhere, terms=terms)
    pair = OutputPair(tested, exact, measure(tested, exact, off_bound=1.0), known)
    BackwardError().judge_pair(pair)
    assert len(asked) <= 2
