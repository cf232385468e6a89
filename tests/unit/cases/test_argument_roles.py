"""Drawn arguments are what their API can use."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import ForwardRecord, TensorValue, find_dtype
from pytest_msprobe.cases.inputs import fitted
from pytest_msprobe.suites.precheck.check import worst_of_draws
from pytest_msprobe.verdicts import Verdict


def tensor(dtype: str, *shape: int) -> TensorValue:
    return TensorValue(find_dtype(dtype), shape, None, None, None, None, None)


def fit(api: str, place: int | str, array: Any, *, output: TensorValue | None = None) -> Any:
    record = ForwardRecord((), {}, (output,) if output else None)
    return fitted(api, place, array, record, lambda: np.random.default_rng(1))


RNG = np.random.default_rng(2)


def test_a_matrix_for_cholesky_is_positive_definite() -> None:
    matrix = RNG.standard_normal((3, 8, 8)).astype(np.float32)
    assert np.isfinite(np.linalg.cholesky(fit("cholesky", 0, matrix))).all()


@pytest.mark.parametrize(("api", "place"), [("cholesky_solve", 1), ("cholesky_inverse", 0), ("triangular_solve", "A")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_either_triangle_of_a_factor_can_be_inverted(api: str, place: int | str, dtype: type) -> None:
    drawn = RNG.uniform(-1e-3, 1, (3, 8, 8)).astype(dtype)
    factor = fit(api, place, drawn)
    assert factor.dtype == dtype
    for triangle in (np.tril(factor.astype(np.float64)), np.triu(factor.astype(np.float64))):
        assert np.linalg.cond(triangle).max() < 10


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_matrix_to_invert_is_not_singular(dtype: type) -> None:
    drawn = np.array([[[1, 1], [1, 1]], [[0, 0], [0, 1]], [[1, 0], [1, 1]]], dtype)
    found = fit("inv", 0, drawn)
    assert found.dtype == dtype
    assert np.linalg.cond(found.astype(np.float64)).max() < 10
    assert np.array_equal(found[2], drawn[2])  # as drawn where it can be
    assert fit("inv", 0, np.zeros((0, 0), dtype)).shape == (0, 0)


def test_boundaries_are_sorted() -> None:
    values = RNG.standard_normal((4, 9)).astype(np.float32)
    assert (np.diff(fit("searchsorted", 0, values)) >= 0).all()
    assert np.array_equal(fit("searchsorted", 1, values), values)


def test_probabilities_are_strictly_inside() -> None:
    found = fit("binary_cross_entropy", 0, np.array([0.0, 0.5, 1.0], np.float32))
    assert 0 < found.min() < found.max() < 1


def test_targets_are_classes_or_ignored() -> None:
    found = fit("cross_entropy", 1, np.array([-100, -57, 3, 9, -1]))
    assert ((found == -100) | ((found >= 0) & (found < 10))).all()
    assert found[0] == -100


def test_a_mask_selects_as_many_as_were_recorded() -> None:
    mask = RNG.random((10, 10)) < 0.5
    assert fit("masked_select", 1, mask, output=tensor("Float32", 17)).sum() == 17


def test_indices_that_are_written_to_are_unique() -> None:
    index = RNG.integers(0, 50, (20, 3))
    found = fit("scatter", 2, index)
    assert all(np.unique(column).size == 20 for column in found.T)
    assert np.array_equal(fit("gather", 2, index), index)


def test_lengths_and_group_ends() -> None:
    lengths = np.array([3, 0, 7])
    assert fit("ctc_loss", 2, lengths).tolist() == [7, 3, 1]
    assert fit("grouped_matmul", "group_list", lengths).tolist() == [0, 3, 7]


def test_the_worst_draw_stands_for_all() -> None:
    found = worst_of_draws(
        lambda seed, _: Verdict("error" if seed in (5, 7) else "pass", f"of {seed}"), "forward", first=4, count=6
    )
    assert found.status == "error"
    assert found.message == "of 5; 2 of 6 draws of random inputs fail, the worst with --msprobe-seed=5"
    passed = worst_of_draws(lambda seed, _: Verdict("pass"), "forward", first=0, count=3)
    assert passed == Verdict("pass")
