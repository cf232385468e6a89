"""The measuring at real sizes, on calls small enough for a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_msprobe.numerics.standards.backward_error import BackwardError
from quality.verdict_quality import at_size, at_size_tables, partial_faults, tables
from quality.verdict_quality.at_size import AtSize, Task, measured, tasks
from quality.verdict_quality.layer import CALLS, LayerCall, gradient_like
from quality.verdict_quality.partial_faults import (
    PARTIAL_FAULTS,
    dropped_tail,
    large_envelopes,
    missing_term,
    partial_size,
    tile_edge,
)
from quality.verdict_quality.recordings import Recording, record
from quality.verdict_quality.samples import DTYPES, Sample
from quality.verdict_quality.sizes import NOTHING, envelopes, size_of
from quality.verdict_quality.target import Target

DTYPE_NAMES = ("float32", "bfloat16")


def product(dtype: str, *, rows: int = 64, inner: int = 96, columns: int = 48) -> Recording:
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((rows, inner)), rng.standard_normal((columns, inner))
    sample = Sample("MintFunctional.linear.9000", (left.astype("f4"), right.astype("f4")), {}, has_gradient=True)
    found = record(sample, DTYPES[dtype], draw_incoming=at_size._incoming)
    assert found is not None
    return found


def targets(recording: Recording) -> list[Target]:
    rng = np.random.default_rng(0)
    places: list[tuple[Any, int]] = [("forward", 0), ("backward", 0), ("backward", 1)]
    return [Target(recording, direction, place, rng) for direction, place in places]


def changed(target: Target, faulty: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert faulty is not None
    return np.argwhere(faulty != target.right)


def test_calls_have_names_of_their_own_and_half_of_them_are_held_out() -> None:
    names = [f"{call.api} {call.part}" for call in CALLS]
    assert len(set(names)) == len(names)
    held_out = sum(call.is_held_out for call in CALLS)
    assert abs(2 * held_out - len(CALLS)) <= 2


def test_the_rows_of_incoming_gradients_add_up_to_zero() -> None:
    rng = np.random.default_rng(0)
    gradient = gradient_like(rng, (8, 512)).astype(np.float64)
    assert np.abs(gradient.sum(axis=1)).max() < 1e-6 * np.abs(gradient).sum(axis=1).min()
    images = gradient_like(rng, (8, 32, 8, 8))
    assert 0.3 < np.mean(images == 0) < 0.7


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_norms_of_terms_say_how_far_rounding_moves_products(dtype: str) -> None:
    for target in targets(product(dtype)):
        closed, measured_ones = large_envelopes(target), envelopes(target, runs=4)
        for kind in ("inputs", "inside"):
            sizes = [np.sqrt(np.mean(np.square(getattr(one, kind)))) for one in (closed, measured_ones)]
            # What is kept are the factors, moved once more; the norms leave that out.
            assert 0.6 < sizes[0] / sizes[1] < 1.4, (target.direction, target.place, kind)


def test_one_row_lacks_a_term() -> None:
    for target in targets(product("float32")):
        rows = changed(target, missing_term(target))[:, 0]
        assert len(rows) > 1
        assert len(set(rows)) == 1


def test_a_tile_lacks_terms_at_its_last_row_or_column() -> None:
    for target in targets(product("float32")):
        places = changed(target, tile_edge(16)(target))
        lines = [set(places[:, axis]) for axis in (0, 1)]
        assert sorted(map(len, lines)) == [1, 16]
        assert next(iter(min(lines, key=len))) % 16 == 15


def test_there_is_no_tile_edge_without_a_tile() -> None:
    recording = product("float32", rows=8)
    assert tile_edge(16)(targets(recording)[0]) is None
    assert tile_edge(32)(targets(product("float32", inner=40))[0]) is None


def test_the_last_terms_are_dropped() -> None:
    target = targets(product("float32"))[0]
    left, right = (np.asarray(array, np.float64) for array in target.recording.call.arguments)
    found = dropped_tail(target)
    assert found is not None
    np.testing.assert_allclose(found, left[:, :-16] @ right[:, :-16].T, rtol=1e-6, atol=1e-5)


def test_the_size_of_a_fault_hangs_on_what_it_changed() -> None:
    target = targets(product("bfloat16"))[0]
    moved = large_envelopes(target)
    for fault in PARTIAL_FAULTS.values():
        faulty = fault(target)
        if faulty is not None:
            assert partial_size(faulty, target.right, moved) == size_of(faulty, target.right, moved)
    assert partial_size(target.right, target.right, moved) == size_of(target.right, target.right, NOTHING)


@pytest.fixture(scope="module")
def figures() -> AtSize:
    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        left, right = rng.standard_normal((64, 256)), rng.standard_normal((256, 160))
        return left.astype(np.float32), right.astype(np.float32)

    small = (LayerCall("Mint.matmul", "small", draw, {}), LayerCall("Mint.matmul", "held", draw, {}, is_held_out=True))
    with pytest.MonkeyPatch.context() as patch:
        for module in (at_size, at_size_tables):
            patch.setattr(module, "CALLS", small)
        found = AtSize()
        for task in tasks(["Mint.mat*"], DTYPE_NAMES, halves="all", has_faults=True):
            found += measured(task)
        return found


def test_right_products_pass(figures: AtSize) -> None:
    assert [one.status for one in figures.honest] == ["pass"] * len(figures.honest)
    # Two calls, two directions, and MindSpore has no kernel for bfloat16.
    assert {(one.framework, one.dtype) for one in figures.honest} >= {
        ("PyTorch", "float32"),
        ("PyTorch", "bfloat16"),
        ("MindSpore", "float32"),
    }
    assert all(one.seconds > (0.0, 0.0) for one in figures.honest)


def test_each_fault_is_planted_and_the_visible_ones_are_caught(figures: AtSize) -> None:
    planted = [one for _, one in figures.planted]
    assert {one.fault for one in planted} >= set(PARTIAL_FAULTS) - {"edge of a 128 x 128 tile"}
    assert {one.standard for one in planted} == {BackwardError.name}
    assert {one.status for one in tables.visible(planted)} <= {"pass", "error"}
    of_float32 = [one for one in tables.visible(planted) if one.dtype == "float32"]
    assert len(of_float32) > 25
    assert tables.caught_share(of_float32) == 1


def rows_of(figures: AtSize, name: str) -> list[tuple[str, ...]]:
    (found,) = (table for table in at_size_tables.tables_of(figures) if table.name == name)
    return list(found.rows)


def test_the_tables_show_both_halves(figures: AtSize) -> None:
    verdicts = [row[:7] for row in rows_of(figures, "at_size_verdicts")]
    for half in ("first", "held out"):
        assert (half, "float32", "PyTorch", "2", "0", "0 (0.0 %)", "0") in verdicts
    assert rows_of(figures, "at_size_alarms") == []
    assert [row[0] for row in rows_of(figures, "at_size_faults_by_kind")] == list(PARTIAL_FAULTS)
    assert figures.of_half(is_held_out=False).planted


def test_an_alarm_on_a_wrong_kernel_is_apart(figures: AtSize) -> None:
    right = replace(figures.honest[0], call="Mint.norm all", status="error", reason="Off. Worst at [0].")
    wrong = replace(right, call="MintFunctional.silu gate", dtype="float16", framework="MindSpore")
    found = AtSize((right, wrong))
    assert [row[:7] for row in rows_of(found, "at_size_verdicts")] == [
        ("first", "float32", "PyTorch", "1", "0", "1 (100.0 %)", "0"),
        ("first", "float16", "MindSpore", "1", "1", "0 (0.0 %)", "0"),
    ]
    assert rows_of(found, "at_size_alarms")[0] == ("Mint.norm all forward", "float32", "PyTorch", "first", "Off.", "")


def test_a_call_in_one_dtype_is_one_task() -> None:
    assert tasks(["Mint.bmm scores"], DTYPE_NAMES, halves="all", has_faults=False) == [
        Task(number, dtype, has_faults=False)
        for number, call in enumerate(CALLS)
        for dtype in DTYPE_NAMES
        if (call.api, call.part) == ("Mint.bmm", "scores")
    ]
    assert {task.call.is_held_out for task in tasks([], ["float32"], halves="held-out", has_faults=True)} == {True}


def test_faults_have_names_that_the_small_material_uses_for_the_same() -> None:
    from quality.verdict_quality.faults import CATALOGUE

    shared = set(CATALOGUE) & set(PARTIAL_FAULTS)
    assert shared == {fault for fault in partial_faults.PARTIAL_FAULTS if fault.startswith("one element")}
