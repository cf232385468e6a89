"""Which runs of a call gave the same result."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_msprobe.suites.repeat.results import Runs


@pytest.mark.parametrize("shape", [(3, 5), (300, 500)], ids=["small", "hashed"])
def test_results_that_only_stand_in_another_order_are_the_same(shape: tuple[int, int]) -> None:
    first = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    other = first + 1
    runs = Runs()
    for run, value in enumerate((first, np.asfortranarray(first), np.asfortranarray(other), other), start=1):
        runs.add(run, (value,))
    assert [result.runs for result in runs.results] == [[1, 2], [3, 4]]


def test_a_transposed_result_is_another_one_unless_it_is_symmetric() -> None:
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    runs = Runs()
    for run, value in enumerate((square, square.T, square + square.T, (square + square.T).T), start=1):
        runs.add(run, (value,))
    assert [result.runs for result in runs.results] == [[1], [2], [3, 4]]


def test_a_number_without_dimensions_is_no_vector() -> None:
    runs = Runs()
    runs.add(1, (np.float32(2).reshape(()),))
    runs.add(2, (np.full(1, 2, np.float32),))
    assert len(runs.results) == 2
