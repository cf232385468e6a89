"""Placements are found by trying; wrong ones are far away."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_msprobe.suites.sharded.placements import ANY_ORDER, Grid, matching_indices, tried, wholes

RNG = np.random.default_rng(0)
WHOLE = RNG.standard_normal((6, 8, 12))
FOUR = Grid(("dp", "tp"), (2, 2), ((0, 0), (0, 1), (1, 0), (1, 1)))
TIGHT = 1e-9


def terms(value: np.ndarray, count: int) -> list[np.ndarray]:
    """Values that add up to `value`."""
    first = [RNG.standard_normal(value.shape) for _ in range(count - 1)]
    return [*first, value - sum(first)]


def best(whole: np.ndarray, parts: list[np.ndarray], grid: Grid | None = None, tolerance: float = TIGHT) -> str:
    """The nearest placement; "" where none fits."""
    found = tried(whole, parts, grid or Grid.line(len(parts), "tp"), tolerance)
    return str(found[0]) if found and found[0].distance <= tolerance else ""


@pytest.mark.parametrize(
    ("parts", "placement"),
    [
        ([WHOLE, WHOLE], "R over tp"),
        (np.split(WHOLE, 2, 0), "S(0) over tp"),
        (np.split(WHOLE, 4, 1), "S(1) over tp"),
        (np.split(WHOLE, [5, 9], 2), "S(2) over tp"),
        (terms(WHOLE, 2), "P(sum) over tp"),
        (
            [np.concatenate([WHOLE[..., i : i + 3], WHOLE[..., 6 + i : 9 + i]], 2) for i in (0, 3)],
            "S(2) in 2 chunks over tp",
        ),
        ([WHOLE[:, [0, 1, 6, 7]], WHOLE[:, [2, 3, 4, 5]]], "S(1) in zigzag over tp"),
        ([*np.split(WHOLE[::-1], 2, 0)], f"S(0) {ANY_ORDER} over tp"),
        ([WHOLE * 2, WHOLE * 2], ""),
        ([WHOLE, WHOLE + 1], ""),
    ],
)
def test_values_over_one_group(parts: list[np.ndarray], placement: str) -> None:
    assert best(WHOLE, parts) == placement


@pytest.mark.parametrize(
    ("parts", "placement"),
    [
        ([WHOLE[:3, :4], WHOLE[:3, 4:], WHOLE[3:, :4], WHOLE[3:, 4:]], "S(0) over dp, S(1) over tp"),
        ([WHOLE[:3], WHOLE[:3], WHOLE[3:], WHOLE[3:]], "S(0) over dp, R over tp"),
        ([*terms(WHOLE[:3], 2), *terms(WHOLE[3:], 2)], "S(0) over dp, P(sum) over tp"),
        ([*np.split(WHOLE, 4, 1)], "S(1) over dp, S(1) over tp"),
        ([*np.split(WHOLE, 4, 1)[::2], *np.split(WHOLE, 4, 1)[1::2]], "S(1) over dp, S(1) over tp"),
        ([WHOLE] * 4, "R over dp, R over tp"),
    ],
)
def test_values_over_two_groups(parts: list[np.ndarray], placement: str) -> None:
    assert best(WHOLE, parts, FOUR) == placement


def test_microbatches_are_joined_along_the_batch() -> None:
    grid = Grid.line(2, "tp").with_calls(2)
    parts = [part for half in np.split(WHOLE, 2, 2) for part in np.split(half, 2, 0)]
    assert best(WHOLE, parts, grid) == "S(2) over tp, S(0) over 2 microbatches"


def test_flat_shards_are_padded_or_empty() -> None:
    flat = np.concatenate([WHOLE.ravel(), np.zeros(4)])
    assert best(WHOLE, [flat[:400], flat[400:], flat[:0]]) == "S(flat) over tp"
    flat[-1] = 1
    assert best(WHOLE, [flat[:400], flat[400:], flat[:0]]) == ""


def test_zigzag_and_another_dimension_at_once() -> None:
    rows = [WHOLE[:, [0, 1, 6, 7]], WHOLE[:, [2, 3, 4, 5]]]
    parts = [half for part in rows for half in np.split(part, 2, 2)]
    assert best(WHOLE, parts, FOUR) == "S(1) in zigzag over dp, S(2) over tp"


def test_the_nearest_order_is_chosen_where_the_tolerance_is_coarse() -> None:
    whole = 3 + WHOLE  # so that no order is far from another one
    parts = [whole[:, [0, 1, 6, 7]] * 1.001, whole[:, [2, 3, 4, 5]] * 1.001]
    assert best(whole, parts, tolerance=0.6) == "S(1) in zigzag over tp"
    assert best(whole, np.split(whole * 1.001, 2, 1), tolerance=0.6) == "S(1) over tp"


def test_replicas_that_differ_do_not_fit() -> None:
    assert best(WHOLE, [WHOLE, WHOLE * 1.01], tolerance=1e-4) == ""


def test_factor_of_what_does_not_fit() -> None:
    (found,) = (one for one in tried(WHOLE, [WHOLE * 3, WHOLE * 3], Grid.line(2), TIGHT) if str(one).startswith("R"))
    assert (found.distance, found.factor) == (pytest.approx(2), pytest.approx(3))


def test_a_value_of_zeros_fits_everything_and_nothing_else_does() -> None:
    zeros = np.zeros((2, 2))
    assert {one.distance for one in tried(zeros, [zeros, zeros], Grid.line(2), 0.0)} == {0.0}
    assert {one.distance for one in tried(zeros, [zeros, zeros + 1], Grid.line(2), 0.0)} <= {math.inf}


def test_what_cancels_is_measured_by_its_terms() -> None:
    noise = [np.full(3, 1e-9), np.full(3, -2e-9)]
    assert tried(np.full(3, 3e-9), noise, Grid.line(2), 1e-6)[0].distance > 1
    assert tried(np.full(3, 3e-9), noise, Grid.line(2), 1e-6, floor=1.0)[0].distance < 1e-6


def test_numbers_without_dimensions_and_infinities() -> None:
    assert best(np.array(3.0), [np.array(3.0)] * 2) == "R over tp"
    assert best(np.array(3.0), [np.array(1.0), np.array(2.0)]) == "P(sum) over tp"
    mask = np.array([[0.0, -np.inf], [0.0, 0.0]])
    assert best(mask, [mask, mask]) == "R over tp"
    assert best(mask, [mask[:, :1], mask[:, 1:]]) == "S(1) over tp"
    assert best(mask, [mask, np.ones((2, 2))]) == ""


def test_equal_indices_are_each_taken_once() -> None:
    whole = np.array([[1.0], [1.0], [2.0]])
    assert matching_indices(whole[[2, 0, 1]], whole, 0, 1e-9) == [2, 0, 1]
    assert matching_indices(whole[[2, 2, 1]], whole, 0, 1e-9) is None


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_unknown_groups_are_guessed_as_rows_and_columns(count: int) -> None:
    for grid in Grid.guesses(count):
        assert len(grid.coordinates) == len(set(grid.coordinates)) == math.prod(grid.sizes) == count


def test_one_rank_is_the_whole() -> None:
    assert str(tried(WHOLE, [WHOLE], Grid((), (), ((),)), TIGHT)[0]) == "R"


def held(parts: list[np.ndarray], grid: Grid | None = None, *, may_be_partial: bool = True) -> dict[str, np.ndarray]:
    """What ranks of a logical run may hold together, by how they hold it."""
    found = wholes(parts, grid or Grid.line(len(parts), "tp"), TIGHT, may_be_partial=may_be_partial)
    return {", ".join(map(str, axes)): whole for axes, whole in found}


def test_what_ranks_of_a_logical_run_may_hold() -> None:
    found = held(np.split(WHOLE, 2, 1))
    assert list(found) == ["S(0) over tp", "P(sum) over tp", "S(1) over tp", "S(2) over tp"]
    np.testing.assert_array_equal(found["S(1) over tp"], WHOLE)
    assert "P(sum) over tp" not in held(np.split(WHOLE, 2, 1), may_be_partial=False)
    assert list(held(np.split(WHOLE, [5], 1))) == ["S(1) over tp"]
    assert list(held([np.float64(1), np.float64(2)])) == ["P(sum) over tp"]


def test_copies_are_no_terms_of_a_sum() -> None:
    assert "P(sum) over tp" not in held([WHOLE, WHOLE * (1 + 1e-6)])
    found = held([*terms(WHOLE, 2)] * 2, FOUR)
    assert [name for name in found if "P(sum)" in name and "S(" not in name] == ["R over dp, P(sum) over tp"]
    np.testing.assert_allclose(found["R over dp, P(sum) over tp"], WHOLE)


HALO = np.concatenate([np.zeros((6, 2, 12)), WHOLE, np.zeros((6, 2, 12))], 1)


@pytest.mark.parametrize(
    ("parts", "placement"),
    [
        ([WHOLE[:, :5], WHOLE[:, 3:]], "S(1) with overlap over tp"),
        ([WHOLE[:, :4], WHOLE[:, 2:]], "S(1) with overlap over tp"),
        ([HALO[:, 1:7], HALO[:, 5:11]], "S(1) with overlap over tp"),
        ([WHOLE[:, :4], WHOLE[:, 2:6], WHOLE[:, 4:]], "S(1) with overlap over tp"),
        ([WHOLE[:, :5], WHOLE[:, 3:] * 2], ""),
        (
            [WHOLE[:, :4], np.concatenate([WHOLE[:, 2:4] + 1, WHOLE[:, 4:]], 1)],
            "S(1) with overlap, of which the rows beyond are others over tp",
        ),
        ([np.ones_like(HALO[:, 1:7]), HALO[:, 5:11]], ""),
    ],
)
def test_parts_may_overlap(parts: list[np.ndarray], placement: str) -> None:
    assert best(WHOLE, parts) == placement


def test_gradients_of_parts_that_overlap_are_added() -> None:
    one, other = terms(WHOLE[:, 3:5], 2)
    parts = [np.concatenate([WHOLE[:, :3], one], 1), np.concatenate([other, WHOLE[:, 5:]], 1)]
    assert best(WHOLE, parts) == "S(1) of which overlaps are added over tp"


def test_elements_with_room_are_left_out() -> None:
    off = WHOLE.copy()
    off[0, 0, 0] += 1
    room = np.zeros(WHOLE.shape)
    assert tried(WHOLE, [off, off], Grid.line(2), TIGHT, room=room)[0].distance > 1e-2
    room[0, 0, 0] = np.inf
    found = tried(WHOLE, [off, off], Grid.line(2), TIGHT, room=room)[0]
    assert found.distance == 0
    assert found.apart > 1e-2  # what is handed on is all that it is apart
