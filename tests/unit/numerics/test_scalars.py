from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.judgement import CosineMaxAbs, compare_scalars
from pytest_msprobe.numerics.measurement import Element

STANDARD = CosineMaxAbs()


@pytest.mark.parametrize(
    "value",
    [
        True,
        0,
        2**80,
        "Float32",
        "",
        None,
        1.5,
        0.0,
        math.nan,
        math.inf,
        1 + 2j,
        (),
        (2, 3),
        [1.0, [2.0, math.nan], []],
        [None, "a", True, 1, 1.0],
    ],
    ids=repr,
)
def test_equal_values_pass(value: object) -> None:
    metrics, judgement = compare_scalars(value, value, STANDARD)
    assert judgement.status == "pass", judgement.reasons
    assert metrics.off_count == 0
    assert metrics.off_bound == STANDARD.off_bound


@pytest.mark.parametrize(
    ("tested", "reference", "reason"),
    [
        (True, False, "1 of 1 element differs, first (tested True, benchmark False)."),
        (3, 4, "1 of 1 element differs, first (tested 3, benchmark 4)."),
        (2**80, 2**80 + 1, "1 of 1 element differs"),
        ("Float32", "Float16", "tested 'Float32', benchmark 'Float16'"),
        ((2, 3), (2, 4), "1 of 2 elements differs, first at [1] (tested 3, benchmark 4)."),
        ([[1, 2], [3, 4]], [[1, 2], [0, 0]], "2 of 4 elements differ, first at [1, 0] (tested 3, benchmark 0)."),
        (1.5, 1.6, "Max absolute error 0.1 is not below 0.0001"),
        (-1e-9, 1e-9, "Cosine -1 is not above 0.99"),
        (
            math.nan,
            1.0,
            "1 of 1 element has a NaN or Inf that the other side lacks, first (tested nan, benchmark 1.0).",
        ),
        (1, 1.0, "Types differ: tested int 1, benchmark float 1.0."),
        (True, 1, "Types differ: tested bool True, benchmark int 1."),
        (None, 0, "Types differ: tested NoneType, benchmark int 0."),
        ("1", 1, "Types differ: tested str, benchmark int 1."),
        (1, (1,), "Types differ: tested int 1, benchmark tuple."),
        ((1, 2), (1, 2, 3), "Lengths differ: tested 2, benchmark 3."),
        (([1], 2), ([1, 1], 2), "Lengths differ at [0]: tested 1, benchmark 2."),
        (([1], 2), ([1], 2.0), "Types differ at [1]: tested int 2, benchmark float 2.0."),
        ({}, {}, "Values of type dict cannot be compared."),
        (({1},), ({1},), "Values of type set at [0] cannot be compared."),
    ],
)
def test_what_differs_is_an_error_that_says_so(tested: object, reference: object, reason: str) -> None:
    _, judgement = compare_scalars(tested, reference, STANDARD)
    assert judgement.status == "error"
    assert reason in " ".join(judgement.reasons)


def test_every_structural_problem_is_told() -> None:
    metrics, _ = compare_scalars((1, 2, 3), (1.0, 2, "3"), STANDARD)
    assert metrics.structural == (
        "Types differ at [0]: tested int 1, benchmark float 1.0. Types differ at [2]: tested int 3, benchmark str."
    )


def test_several_floats_are_one_vector_and_keep_their_paths() -> None:
    metrics, judgement = compare_scalars([1.0, ["x", [100.0, -0.001]]], [1.0, ["x", [100.0, 0.001]]], STANDARD)
    assert metrics.worst == metrics.worst_relative == Element((1, 1, 1), -0.001, 0.001)
    assert (metrics.kind, metrics.size, metrics.off_count) == ("float", 4, 1)
    assert metrics.cosine == pytest.approx(1.0)
    assert len(judgement.reasons) == 1


def test_exact_and_inexact_faults_add_up() -> None:
    metrics, judgement = compare_scalars([1, 2.0, "a"], [1, 3.0, "b"], STANDARD)
    assert (metrics.unequal_count, metrics.off_count, metrics.first_unequal) == (1, 2, Element((2,), "a", "b"))
    assert len(judgement.reasons) == 2


def test_unmatched_nan_in_a_sequence_is_located_by_path() -> None:
    metrics, _ = compare_scalars([[0.0], [math.inf]], [[0.0], [1.0]], STANDARD)
    assert metrics.first_nonfinite == Element((1, 0), math.inf, 1.0)


def test_a_list_may_stand_for_a_tuple() -> None:
    assert compare_scalars([1, 2], (1, 2), STANDARD)[1].is_pass


@pytest.mark.parametrize(
    ("tested", "reference"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.5]).astype(ml_dtypes.bfloat16)[0], 1.5),
        (np.float64(1.5), 1.5),
    ],
)
def test_numpy_scalars_stand_for_python_values(tested: object, reference: object) -> None:
    assert compare_scalars(tested, reference, STANDARD)[1].is_pass


def test_floats_that_were_read_from_a_narrow_tensor() -> None:
    exact = 1234567.89
    tested = float(np.float32(exact))
    assert not compare_scalars(tested, exact, STANDARD)[1].is_pass
    assert compare_scalars(tested, exact, STANDARD, dtype=np.dtype(np.float32))[1].is_pass


def test_complex_values_go_to_the_standard() -> None:
    metrics, judgement = compare_scalars([1 + 1j, 2.0], [1 + 1j, 2.5], STANDARD)
    assert (metrics.kind, metrics.max_abs, judgement.status) == ("complex", 0.5, "error")


@pytest.mark.parametrize(
    ("value", "kind"), [(True, "bool"), ((1, 2), "int"), ((1, True), "other"), ("a", "other"), (1.0, "float")]
)
def test_kind(value: object, kind: str) -> None:
    assert compare_scalars(value, value, STANDARD)[0].kind == kind


def test_a_long_string_is_cut_and_stays_on_one_line() -> None:
    _, judgement = compare_scalars("a\n" * 500, "b", STANDARD)
    assert len(judgement.reasons[0]) < 150
    assert "\n" not in judgement.reasons[0]
