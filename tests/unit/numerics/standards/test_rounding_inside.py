"""Rounding inside an operation, exact inputs, and what strictness takes back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sensitivities import Answers

from pytest_msprobe.numerics.diagnosis import diagnose
from pytest_msprobe.numerics.judgement import Judgement, OutputPair, Perturbed
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused

FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
Values = np.ndarray[Any, Any]


def pair(tested: Values, reference: Values, *, inputs: float = 0.0, inside: float = 0.0) -> OutputPair:
    """Inputs and rounding inside move each element by so much (one standard deviation), at random."""

    def runs(spread: float, first_seed: int) -> tuple[Perturbed, ...]:
        moves = (np.random.default_rng(first_seed + k).standard_normal(reference.shape) for k in range(2))
        return tuple(Perturbed(reference + spread * size * move, size) for move, size in zip(moves, (1.0, 2.0**-12)))

    return OutputPair(
        tested,
        reference,
        measure(tested, reference, off_bound=1.0),
        Answers(perturbed=lambda: runs(inputs, 10), rounded_inside=lambda: runs(inside, 20) if inside else ()),
    )


def normal(seed: int, size: int = 2000) -> Values:
    return np.random.default_rng(seed).standard_normal(size)


def test_an_error_that_rounding_inside_explains_passes() -> None:
    exact = normal(1)
    tested = (exact + 1e-4 * normal(2)).astype(np.float32)
    assert not BackwardError().judge_pair(pair(tested, exact, inputs=1e-7)).is_pass
    found = BackwardError().judge_pair(pair(tested, exact, inputs=1e-7, inside=1e-4))
    assert found.is_pass
    assert found.ratio is not None
    assert 0 < found.ratio <= 1


def test_an_error_beyond_rounding_inside_does_not() -> None:
    exact = normal(1)
    tested = (exact + 1e-2 * normal(2)).astype(np.float32)
    found = BackwardError().judge_pair(pair(tested, exact, inputs=1e-7, inside=1e-4))
    assert not found.is_pass
    assert found.ratio is not None
    assert found.ratio > 10


def test_nothing_is_asked_for_inside_where_the_inputs_explain_it() -> None:
    exact = normal(1)
    asked = pair((exact + 1e-4 * normal(2)).astype(np.float32), exact, inputs=1e-4)

    def never() -> tuple[Perturbed, ...]:
        raise AssertionError("asked for rounding inside")

    known = Answers(perturbed=lambda: asked.sensitivity.runs("inputs"), rounded_inside=never)
    given = OutputPair(asked.tested, exact, asked.metrics, known)
    assert BackwardError().judge_pair(given).is_pass


@pytest.mark.parametrize(("standard", "is_pass"), [(BackwardError(), True), (Fused(), False)])
def test_fused_forgives_nothing_for_the_inputs(standard: BackwardError, is_pass: bool) -> None:
    exact = normal(1)
    tested = (exact + 2.0**-6 * normal(2)).astype(BFLOAT16)
    assert standard.judge_pair(pair(tested, exact, inputs=2.0**-6, inside=2.0**-22)).is_pass == is_pass


def test_fused_passes_what_is_rounded_once() -> None:
    exact = normal(1)
    tested = (exact * (1 + 2.0**-23 * normal(2))).astype(np.float32)
    assert Fused().judge_pair(pair(tested, exact, inside=2.0**-23)).is_pass


@pytest.mark.parametrize(("strict", "is_pass"), [(frozenset(), True), (frozenset({"saturation"}), False)])
def test_saturation(strict: frozenset[str], is_pass: bool) -> None:
    exact = np.array([1.0, 1e6, -1e6])
    tested = np.array([1.0, 65504, -65504], np.float16)
    assert BackwardError(strict=strict).judge_pair(pair(tested, exact)).is_pass == is_pass


@pytest.mark.parametrize(("strict", "is_pass"), [(frozenset(), True), (frozenset({"subnormals"}), False)])
def test_subnormals(strict: frozenset[str], is_pass: bool) -> None:
    exact = np.array([1.0, 1e-40, 2e-40])
    assert BackwardError(strict=strict).judge_pair(pair(np.array([1.0, 0, 0], np.float32), exact)).is_pass == is_pass


def test_a_diagnosis_costs_nothing_for_a_pass() -> None:
    def never() -> OutputPair:
        raise AssertionError("made a pair")

    assert diagnose(BackwardError(), Judgement("pass"), never).rounding == ""
    assert str(diagnose(BackwardError(), Judgement("skip", ("why",)), never).pattern) == ""


def test_a_truncated_output_fails_and_says_so() -> None:
    exact = normal(3)
    nearest = exact.astype(BFLOAT16)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(exact)
    truncated = np.where(beyond, np.nextafter(nearest, BFLOAT16.type(0)), nearest).astype(BFLOAT16)
    found = BackwardError().judge_pair(pair(truncated, exact))
    assert found.status == "error"
    assert "one-sided" in found.reasons[0]
    assert "towards zero" in found.reasons[0]
