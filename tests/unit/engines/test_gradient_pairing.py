"""Recorded gradients and the arguments that they belong to, by the rules of collector.md 5.2."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from msprobe_collector.dump_format import ApiName, BackwardRecord, ForwardRecord, PlainValue, TensorValue, find_dtype
from pytest_msprobe.cases.inputs import best_order, pair_gradients

MINT = ApiName("Mint", "add", 0)
PRIMITIVE = ApiName("Primitive", "conv.Conv2D", 0)
THREE = PlainValue("int", 3)


def tensor(*shape: int, dtype: str = "Float32", is_numpy: bool = False) -> TensorValue:
    return TensorValue(find_dtype(dtype), shape, 1.0, 0.0, 0.5, 1.0, None, is_numpy)


def pair(api: ApiName, arguments: Any, outgoing: Any) -> tuple[dict[Any, int], Any, Any]:
    found = pair_gradients(api, ForwardRecord(tuple(arguments), {}, None), BackwardRecord(None, tuple(outgoing)))
    return {path[1]: entry for path, entry in found.entries.items()}, found.interchangeable, found.unmatched


X, W, B = tensor(2, 3), tensor(3, 3), tensor(3)


@pytest.mark.parametrize(
    ("arguments", "outgoing", "entries", "unmatched"),
    [
        ([X, W], [X, W], {0: 0, 1: 1}, ()),
        ([X, W], [None, W], {1: 1}, ()),
        ([X, W], [W, X], {0: 0, 1: 1}, ()),  # position decides, not shape
        # f(x, 3, int_t, y, bool_t, nodiff) gave [T, null, T, null, null]
        (
            [X, THREE, tensor(2, dtype="Int64"), W, tensor(2, dtype="Bool"), B],
            [X, None, W, None, None],
            {0: 0, 3: 2},
            (),
        ),
        ([[X, W], X], [X], {1: 0}, ()),  # tensors in lists are not counted
        ([(X, W), {"k": X}, THREE, None], [], {}, ()),
        ([tensor(2, is_numpy=True), X], [X], {1: 0}, ()),  # nor NumPy arrays
        ([X], [X, W], {0: 0}, (1,)),
        ([X], [X, None], {0: 0}, ()),
        ([], [None, W], {}, (1,)),
        ([X, W], [X], {0: 0}, ()),
        ([X], [], {}, ()),
        # an argument of integers has no gradient: an embedding's, and others without their nulls
        ([tensor(5, dtype="Int64"), W], [W], {1: 0}, ()),
        ([X, tensor(5, dtype="Int64"), W], [X, W], {0: 0, 2: 1}, ()),
        ([tensor(5, dtype="Int64"), X, W], [W], {2: 0}, ()),
        ([tensor(5, dtype="Int64"), X, W], [W, X], {2: 0, 1: 1}, ()),
        ([tensor(5, dtype="Int64"), W], [tensor(5, dtype="Int64"), W], {1: 1}, ()),
        ([tensor(5, dtype="Bool")], [tensor(5)], {}, (0,)),
    ],
)
def test_gradients_of_apis_pair_by_position_with_nulls_counted(
    arguments: Any, outgoing: Any, entries: dict[int, int], unmatched: tuple[int, ...]
) -> None:
    arguments = [tuple(item) if isinstance(item, list) else item for item in arguments]
    assert pair(MINT, arguments, outgoing) == (entries, (), unmatched)


def test_a_record_without_arguments_pairs_nothing() -> None:
    found = pair_gradients(MINT, ForwardRecord(None, {}, None), BackwardRecord(None, (X,)))
    assert (found.entries, found.unmatched) == ({}, (0,))


def test_gradients_in_lists_and_keywords_pair_by_path() -> None:
    forward = ForwardRecord((X, (W, tensor(2, is_numpy=True), (B,))), {"weight": W, "axis": THREE}, None)
    others = {"input.1.0": W, "kwargs.weight": W, "input.1.1": B, "input.1.2.0": B, "kwargs.axis": B}
    found = pair_gradients(MINT, forward, BackwardRecord(None, (X,), others))
    assert found.entries == {
        ("input", 0): 0,
        ("input", 1, 0): "input.1.0",
        ("kwargs", "weight"): "kwargs.weight",
        ("input", 1, 2, 0): "input.1.2.0",
    }
    assert found.unmatched == ("input.1.1", "kwargs.axis")


def test_gradients_of_primitives_keep_their_positions_where_attributes_are_recorded() -> None:
    forward = ForwardRecord((X, X), {}, None, attributes={})
    found = pair_gradients(PRIMITIVE, forward, BackwardRecord(None, (None, X)))
    assert found.entries == {("input", 1): 1}
    assert found.interchangeable == ()


def paths(*positions: int) -> tuple[tuple[str, int], ...]:
    return tuple(("input", position) for position in positions)


@pytest.mark.parametrize(
    ("arguments", "outgoing", "entries", "interchangeable", "unmatched"),
    [
        ([X, B], [B, X], {0: 1, 1: 0}, (), ()),  # BiasAdd(x, b) gave [bias grad, x grad]
        ([X, W, B], [B, W, X], {0: 2, 1: 1, 2: 0}, (), ()),
        ([X, W, B], [W], {1: 0}, (), ()),
        ([tensor(3), tensor(3, dtype="Float16")], [tensor(3, dtype="Float16"), tensor(3)], {0: 1, 1: 0}, (), ()),
        ([X, X], [X, X], {0: 0, 1: 1}, (paths(0, 1),), ()),
        ([X, B, X], [B, X, X], {0: 1, 1: 0, 2: 2}, (paths(0, 2),), ()),
        ([X, X, B, B], [B, X, B, X], {0: 1, 1: 3, 2: 0, 3: 2}, (paths(0, 1), paths(2, 3)), ()),
        ([X, X, B], [X], {0: 0}, (paths(0, 1),), ()),
        ([X, X, B], [B], {2: 0}, (), ()),  # alike, but neither has a gradient
        ([X], [X, X], {0: 0}, (), (1,)),
        ([X], [W], {}, (), (0,)),
        ([X, THREE, B], [B, None, X], {0: 2, 2: 0}, (), ()),
    ],
)
def test_gradients_of_primitives_pair_by_look_since_they_come_in_firing_order(
    arguments: Any, outgoing: Any, entries: Any, interchangeable: Any, unmatched: Any
) -> None:
    assert pair(PRIMITIVE, arguments, outgoing) == (entries, interchangeable, unmatched)


def test_nothing_but_its_values_tells_gradients_of_one_group_apart() -> None:
    references = [np.full((2, 2), float(i)) for i in range(4)]
    for order in itertools.permutations(range(4)):
        recorded = [references[i].astype(np.float32) + np.float32(0.01) for i in order]
        assert [order[i] for i in best_order(recorded, references)] == [0, 1, 2, 3]


def with_special(fill: float, special: float) -> np.ndarray:
    array = np.full(4, fill)
    array[1] = special
    return array


@pytest.mark.parametrize(
    "references",
    [
        [with_special(1.0, np.nan), with_special(5.0, np.nan)],
        [with_special(1.0, np.inf), with_special(5.0, np.inf)],
        [with_special(1.0, np.nan), with_special(1.0, np.inf)],
        [with_special(1.0, np.inf), with_special(1.0, -np.inf)],
        [np.array(1.0), np.array(2.0)],
        [np.array([1 + 1j]), np.array([1 - 1j])],
    ],
    ids=["NaN", "Inf", "NaN or Inf", "sign of Inf", "0-d", "complex"],
)
def test_special_values_do_not_hide_the_order(references: list[np.ndarray]) -> None:
    assert best_order([references[1], references[0]], references) == (1, 0)
    assert best_order(references, references) == (0, 1)


def test_small_floats_are_compared_as_well() -> None:
    recorded = [np.array([2.0], ml_dtypes.bfloat16), np.array([1.0], ml_dtypes.bfloat16)]
    assert best_order(recorded, [array.astype(np.float64) for array in reversed(recorded)]) == (1, 0)
    assert best_order(recorded, list(reversed(recorded))) == (1, 0)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=2), min_size=1, max_size=8), st.randoms())
def test_no_other_order_is_nearer(values: list[list[float]], random: Any) -> None:
    references = [np.array(item) for item in values]
    recorded = [np.array([random.uniform(-9, 9), random.uniform(-9, 9)]) for _ in values]

    def distance(order: Any) -> float:
        return sum(float(abs(recorded[i] - reference).max()) for i, reference in zip(order, references))

    found = best_order(recorded, references)
    assert sorted(found) == list(range(len(values)))
    if len(values) > 5:
        assert found == tuple(range(len(values)))  # too many to try
    else:
        assert distance(found) <= min(map(distance, itertools.permutations(range(len(values))))) + 1e-9


def test_empty_gradients_keep_their_order() -> None:
    assert best_order([np.zeros((0, 2))] * 2, [np.zeros((0, 2))] * 2) == (0, 1)
    assert best_order([], []) == ()


def test_what_requires_no_gradient_is_passed_over_where_the_dump_leaves_out_nulls() -> None:
    parameter, running = tensor(4), replace(tensor(4), requires_grad="False")
    arguments = [X, running, running, parameter, parameter]
    assert pair(MINT, arguments, [X, parameter, parameter]) == ({0: 0, 3: 1, 4: 2}, (), ())
    assert pair(MINT, arguments, [X, None, None, parameter, parameter]) == ({0: 0, 3: 3, 4: 4}, (), ())
