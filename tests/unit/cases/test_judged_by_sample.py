"""Large products are judged by a sample of their elements and those that may be wrong: the verdict is that of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_terms_of_elements import pair_of

from pytest_msprobe.cases.products import Product
from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.standards.backward_error import BackwardError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
#: Rows of very different sizes, as those of activations are; sums that add up and sums that cancel.
LEFT = (RNG.standard_normal((512, 192)) * RNG.lognormal(0, 2, (512, 1)) + 0.3).astype(np.float32)
RIGHT = (RNG.standard_normal((384, 192)) + np.linspace(-1, 1, 384)[:, None]).astype(np.float32)
BIAS = RNG.standard_normal(384).astype(np.float32)
EXACT = LEFT.astype(np.float64) @ RIGHT.T.astype(np.float64) + BIAS
RIGHT_ANSWER = LEFT @ RIGHT.T + BIAS


def pair(folder: Path, tested: Array) -> OutputPair:
    return pair_of(folder, "Functional.linear.0", [LEFT, RIGHT, BIAS], tested=tested)


def full_verdict(of: OutputPair) -> str:
    """The verdict by all elements."""
    return BackwardError()._weighed(of, of.sensitivity.deviations()).closer().judgement.status


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(number of elements, each such term) of every product of squares."""
    found: list[tuple[int, int]] = []
    norms = Product.norms

    def counted(product: Product, every: int = 1) -> Any:
        result = norms(product, every)
        found.append((result.size, every))
        return result

    monkeypatch.setattr(Product, "norms", counted)
    return found


def test_a_right_product_is_judged_by_a_part_of_its_terms(tmp_path: Path, shares: list[tuple[int, int]]) -> None:
    of = pair(tmp_path, RIGHT_ANSWER)
    assert of.metrics.max_ulp is not None
    assert of.metrics.max_ulp > 1
    assert BackwardError().judge_pair(of).is_pass
    assert (EXACT.size, 1) not in shares
    assert [every for size, every in shares if size == EXACT.size] == [3]


def test_what_is_known_of_some_elements_is_what_is_known_of_all(tmp_path: Path) -> None:
    known = pair(tmp_path, RIGHT_ANSWER).sensitivity.deviations()
    assert known is not None
    values, least = known.values(), known.least()
    places, sampled = known.sample()
    assert values is not None
    assert least is not None
    assert np.all(least <= 1.00001 * values)
    np.testing.assert_allclose(sampled, values[places], rtol=1e-5)
    np.testing.assert_allclose(known.of(places[::97]), values[places[::97]], rtol=1e-5)


def one_element(tested: Array, size: float) -> None:
    tested[100, 200] += size * np.abs(LEFT[100] * RIGHT[200]).sum()


def one_lost_term(tested: Array, size: float) -> None:
    tested[17] -= np.float32(size) * LEFT[17, 5] * RIGHT[:, 5]


def scaled(tested: Array, size: float) -> None:
    tested *= np.float32(1 + size)


def tile(tested: Array, size: float) -> None:
    tested[-8:, -8:] *= np.float32(1 + size)


def not_a_number(tested: Array, size: float) -> None:
    tested[3, 3] = np.inf


FAULTS = {
    f"{fault.__name__} {size:g}": (fault, size)
    for fault, sizes in {
        one_element: (1e-7, 1e-6, 1e-5, 1e-3),
        one_lost_term: (1e-5, 1.0),
        scaled: (1e-7, 1e-6, 1e-5),
        tile: (1e-6, 1e-5, 1e-3),
        not_a_number: (1.0,),
    }.items()
    for size in sizes
}


@pytest.mark.parametrize(("fault", "size"), FAULTS.values(), ids=FAULTS)
def test_the_verdict_is_that_of_all_elements(tmp_path: Path, fault: Any, size: float) -> None:
    tested = RIGHT_ANSWER.copy()
    fault(tested, size)
    of = pair(tmp_path, tested)
    found = BackwardError().judge_pair(of)
    assert found.status == full_verdict(of)
    if size >= 1e-3 or (fault is scaled and size >= 1e-5):
        assert found.status == "error"


def test_an_infinite_benchmark_of_both_sides_is_no_element_in_question(
    tmp_path: Path, shares: list[tuple[int, int]]
) -> None:
    left = LEFT.copy()
    left[:64] = np.inf
    with np.errstate(invalid="ignore"):
        tested = left @ np.abs(RIGHT).T
    of = pair_of(tmp_path, "Functional.linear.0", [left, np.abs(RIGHT)], tested=tested)
    assert BackwardError().judge_pair(of).status == full_verdict(of) == "pass"
