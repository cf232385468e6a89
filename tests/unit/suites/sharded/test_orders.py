"""One order for what belongs together: a value that fits only in another one is found, with the parts that moved."""

from __future__ import annotations

import numpy as np

from pytest_msprobe.suites.sharded.orders import Along, Kind, Order, disordered
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
    assert list(disordered(values, {})) == [("input.1", "microbatches 0 and 3 are exchanged")]


def test_another_order_of_the_whole_batch_is_right() -> None:
    assert not list(disordered([*along("input.0", X, [2, 0, 3, 1]), *along("input.1", LABELS, [2, 0, 3, 1])], {}))


def test_the_backward_is_in_the_order_of_the_forward() -> None:
    known: dict[Kind, Order] = {}
    assert not list(disordered(along("output.0", X, [2, 0, 3, 1]), known))
    assert not list(disordered(along("input.0", RNG.standard_normal((8, 5)), [2, 0, 3, 1]), known))
    found = list(disordered(along("input.0", RNG.standard_normal((8, 5)), [0, 1, 2, 3]), known))
    assert found == [("input.0", "microbatches 0, 1, 2 and 3 are in another order")]


def test_equal_rows_fit_in_every_order() -> None:
    assert not list(disordered([*along("input.0", X, [1, 0, 2, 3]), *along("input.1", np.ones(8), [0, 1, 2, 3])], {}))
