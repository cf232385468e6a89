"""Large outputs judged by small calls: a sample of the output, and the elements in question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sensitivities import Answers, Without

from pytest_msprobe.numerics.judgement import OutputPair, Perturbed
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError

Array = np.ndarray[Any, Any]
U = 2.0**-24
SIZE, SAMPLE = 1 << 16, 2048
RNG = np.random.default_rng(11)


class Large:
    """An output whose elements each add up two inputs, `spread` roundings large; asked for parts and whole runs."""

    def __init__(self, tested_error: Array, *, spread: float = 4.0, silent: Sequence[int] = ()) -> None:
        """`tested_error` in roundings of each element; those at `silent` answer to no input."""
        self.exact = RNG.uniform(1, 2, SIZE)
        self.spreads = np.full(SIZE, spread)
        self.spreads[list(silent)] = 0
        self.tested = (self.exact * (1 + U * tested_error)).astype(np.float32)
        self.asked: list[int] = []
        self.whole_runs = 0

    def pair(self) -> OutputPair:
        return self._pair(np.arange(SIZE), Answers(perturbed=self._run_whole, restricted=self._part))

    def _pair(self, places: Array, sensitivity: Answers) -> OutputPair:
        tested, exact = self.tested[places], self.exact[places]
        return OutputPair(tested, exact, measure(tested, exact, off_bound=1.0), sensitivity)

    def _runs(self, places: Array) -> tuple[Perturbed, ...]:
        rng, shape = np.random.default_rng(len(places)), (2, len(places))
        moves = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape) * self.spreads[places]
        exact = self.exact[places]
        return tuple(Perturbed(exact * (1 + U * size * move), size) for move, size in zip(moves, (1.0, 2.0**-12)))

    def _run_whole(self) -> tuple[Perturbed, ...]:
        self.whole_runs += 1
        return self._runs(np.arange(SIZE))

    def _part(self, tested: Array, wanted: Any) -> OutputPair | None:
        self.asked.append(len(wanted))
        others = np.setdiff1d(np.arange(0, SIZE, SIZE // SAMPLE), wanted)
        places = np.concatenate([np.asarray(wanted, int), others])
        if len(wanted) > SIZE // 4:
            return None
        part = self._pair(places, Answers(perturbed=lambda: self._runs(places)))
        return replace(part, chosen=len(wanted), drawn_from=SIZE)


def errors(**single: float) -> Array:
    """Rounding of all elements, and of single ones (`at_77=30.0`) so many times as much."""
    found = RNG.uniform(-1, 1, SIZE)
    for name, value in single.items():
        found[int(name.removeprefix("at_"))] = value
    return found


def test_a_sample_settles_an_output_all_of_whose_elements_answer_enough() -> None:
    large = Large(4 * errors())
    assert BackwardError().judge_pair(large.pair()).is_pass
    assert large.asked == [0]
    assert not large.whole_runs


def test_elements_in_question_are_judged_in_a_part_of_their_own() -> None:
    large = Large(10 * errors(at_777=6.0))
    large.spreads[777] = 40.0
    assert BackwardError().judge_pair(without_parts(large.pair())).is_pass
    large.whole_runs = 0
    assert BackwardError().judge_pair(large.pair()).is_pass
    assert large.asked == [0, 1]
    assert not large.whole_runs


def without_parts(pair: OutputPair) -> OutputPair:
    return replace(pair, sensitivity=Without(pair.sensitivity, "restricted"))


@pytest.mark.parametrize("at", [77, 40_000])
@pytest.mark.parametrize("times", [300.0, 1e6])
def test_a_wrong_element_stays_one(at: int, times: float) -> None:
    large = Large(errors(**{f"at_{at}": times}))
    found = BackwardError().judge_pair(large.pair())
    assert found == BackwardError().judge_pair(without_parts(large.pair()))
    assert not found.is_pass
    assert large.asked == [0, 1]


def test_elements_that_answer_to_nothing_have_no_floor() -> None:
    """Where half of the sample answers to nothing, rounding alone says what is in question."""
    silent = [at for at in range(SIZE) if at // (SIZE // SAMPLE) % 2]
    wrong = {f"at_{at}": 20.0 for at in silent[:2000]}
    large = Large(errors(**wrong), silent=silent)
    assert not BackwardError().judge_pair(large.pair()).is_pass
    assert large.asked[1] >= 2000


def test_many_that_stand_out_alike_are_compared_with_the_sample_alone() -> None:
    """Each is within its own tolerance, and among themselves none stands out."""
    large = Large(errors(**{f"at_{at}": 150.0 * (-1) ** at for at in range(1, 300)}), spread=4.0)
    large.spreads[1:300] = 100.0
    found = large.pair()
    assert not BackwardError().judge_pair(found).is_pass
    part = found.sensitivity.restricted(found.tested, range(1, 300))
    assert part is not None
    assert BackwardError().judge_pair(replace(part, chosen=0)).is_pass
    assert not BackwardError().judge_pair(part).is_pass


def test_an_output_scaled_as_a_whole_is_not_settled_by_parts() -> None:
    large = Large(3 * np.ones(SIZE), spread=4.0)
    judgement = BackwardError().judge_pair(large.pair())
    assert judgement == BackwardError().judge_pair(without_parts(large.pair()))
    assert large.whole_runs


def test_where_most_of_the_sample_is_in_question_there_is_no_other_part() -> None:
    large = Large(50 * errors(), spread=2.0)
    assert not BackwardError().judge_pair(large.pair()).is_pass
    assert set(large.asked) == {0}
    assert large.whole_runs
