"""Moved inputs: how far, and which way."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis.fact_table import facts
from pytest_msprobe.cases.perturbation import RoundingPerturbation, accumulated_terms, float_elements
from pytest_msprobe.engines.protocol import Call

ONES = np.ones(1000, np.float32)
CALL = Call(parse_api_name("Mint.mul.0"), "mindspore", (ONES, ONES), {})


@pytest.mark.parametrize("number", [3, 18])
def test_a_probe_moves_every_element_by_exactly_one_rounding(number: int) -> None:
    left, right = RoundingPerturbation(number).call(CALL).arguments
    assert isinstance(left, np.ndarray)
    assert isinstance(right, np.ndarray)
    assert set(np.abs(np.concatenate([left, right]) - 1)) == {2.0**-24}
    # Independent signs: about half of the elements of both tensors move together.
    assert 400 < np.count_nonzero((left > 1) == (right > 1)) < 600


def test_probes_differ() -> None:
    third, fourth = (RoundingPerturbation(number).call(CALL).arguments[0] for number in (3, 4))
    assert not np.array_equal(np.asarray(third), np.asarray(fourth))


def test_arithmetic_inside_moves_with_and_without_what_is_saved() -> None:
    assert RoundingPerturbation(1).inside(CALL).saved_roundoff == 2.0**-24
    exact = RoundingPerturbation(1).inside(CALL, saves_exactly=True)
    assert (exact.saved_roundoff, exact.arithmetic_roundoff) == (0.0, 2.0**-24)


def test_totals_of_narrow_dtypes_move_as_these_round() -> None:
    assert RoundingPerturbation(1).inside(CALL).total_roundoff == 0
    narrow = replace(CALL, arguments=tuple(np.ones(4, ml_dtypes.bfloat16) for _ in range(2)))
    assert RoundingPerturbation(1).inside(narrow, saves_exactly=True).total_roundoff == 2.0**-8


def test_results_inside_a_composite_call_move_as_its_own_dtype_rounds() -> None:
    narrow = replace(CALL, arguments=tuple(np.ones(4, ml_dtypes.bfloat16) for _ in range(2)))
    assert RoundingPerturbation(1).inside(narrow).arithmetic_roundoff == 2.0**-24
    moved = RoundingPerturbation(1).inside(narrow, is_composite=True)
    assert (moved.arithmetic_roundoff, moved.total_roundoff) == (2.0**-8, 0)
    assert facts("composite").find("VF", "gru_cell") is not None


def test_elements_of_all_tensors_of_floats_count() -> None:
    assert float_elements(CALL) == 2000


@pytest.mark.parametrize(
    ("shapes", "output", "terms"),
    [
        ([(4, 9), (9, 4)], 16, 9),  # a product, of as many terms as the longest dimension
        ([(8, 4, 3), (8, 3, 4)], 8 * 16, 8),  # a batch counts as a dimension, and not again in the contraction
        ([(2, 64), (64, 2)], 4, 64),
        ([(30, 40)], 1, 1200),  # a sum
        ([(3, 5)], 15, 5),  # a normalisation of rows
    ],
)
def test_terms_that_an_element_sums_up(shapes: list[tuple[int, ...]], output: int, terms: int) -> None:
    call = Call(parse_api_name("Mint.any.0"), "mindspore", tuple(np.ones(shape, np.float32) for shape in shapes), {})
    assert accumulated_terms(call, (), [output]) == terms


def test_what_is_elementwise_sums_up_nothing_but_what_was_broadcast() -> None:
    assert accumulated_terms(CALL, (ONES,), [1000]) == 1000
    assert accumulated_terms(CALL, (ONES,), [1000], is_elementwise=True) == 1
    assert accumulated_terms(CALL, (ONES,), [1], is_elementwise=True) == 1000
