"""One order for what belongs together: a value that fits only in another one is found, with the parts that moved."""

from __future__ import annotations

import numpy as np

from pytest_msprobe.suites.sharded.orders import Along, disordered
from pytest_msprobe.suites.sharded.placements import Grid, tried

RNG = np.random.default_rng(0)
FOUR = Grid((), (), ((),)).with_calls(4)
TIGHT = 1e-9


def along(path: str, whole: np.ndarray, order: list[int]) -> list[Along]:
    """What is known of four microbatches of a value, of which the first is number order[0]."""
    parts = np.split(whole, 4)
    return list(Along.of(path, tried(whole, [parts[place] for place in order], FOUR, TIGHT)[0], TIGHT))


X, LABELS = RNG.standard_normal((8, 3)), np.array([0, 1, 2, 0, 3, 2, 4, 1.0])


def test_exchanged_labels_are_found() -> None:
    values = [*along("input.0", X, [0, 1, 2, 3]), *along("input.1", LABELS, [3, 1, 2, 0])]
    moved, _ = disordered(values, {})
    assert moved == {"input.1": "microbatches 0 and 3 are exchanged"}


def test_another_order_of_the_whole_batch_is_right() -> None:
    moved, _ = disordered([*along("input.0", X, [2, 0, 3, 1]), *along("input.1", LABELS, [2, 0, 3, 1])], {})
    assert not moved


def test_the_backward_is_in_the_order_of_the_forward() -> None:
    moved, orders = disordered(along("output.0", X, [2, 0, 3, 1]), {})
    assert not moved
    gradient = RNG.standard_normal((8, 5))
    assert disordered(along("input.0", gradient, [2, 0, 3, 1]), orders) == ({}, orders)
    moved, _ = disordered(along("input.0", gradient, [0, 1, 2, 3]), orders)
    assert moved == {"input.0": "microbatches 0, 1, 2 and 3 are in another order"}


def test_equal_rows_fit_in_every_order() -> None:
    moved, _ = disordered([*along("input.0", X, [1, 0, 2, 3]), *along("input.1", np.ones(8), [0, 1, 2, 3])], {})
    assert not moved
