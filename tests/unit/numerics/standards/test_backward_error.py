"""The standard backward-error on outputs whose true error is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sensitivities import Answers

from pytest_msprobe.cases.perturbation import RoundingPerturbation
from pytest_msprobe.numerics.judgement import Judgement, OutputPair, Perturbed, compare_scalars
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.numerics.standards.sensitivity import without_jumps

Function = Callable[..., np.ndarray[Any, Any]]
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def judge(
    function: Function, inputs: Sequence[np.ndarray[Any, Any]], tested: np.ndarray[Any, Any], **facts: Any
) -> Judgement:
    """`tested` against the float64 `function` of `inputs`, perturbed as the pre-check does it."""
    wide = np.complex128 if inputs[0].dtype.kind == "c" else np.float64
    reference = function(*(array.astype(wide) for array in inputs))

    def perturbed() -> tuple[Perturbed, ...]:
        runs = []
        for number in (1, 2):
            perturbation = RoundingPerturbation(number)
            moved = [perturbation._moved(array, place, inputs[0].shape) for place, array in enumerate(inputs)]
            runs.append(Perturbed(function(*moved), perturbation.relative_size))
        return tuple(runs)

    metrics = measure(tested, reference, off_bound=1.0)
    return BackwardError().judge_pair(OutputPair(tested, reference, metrics, Answers(perturbed=perturbed), **facts))


def normal(seed: int, *shape: int, dtype: np.dtype[Any] = FLOAT32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def no_perturbation() -> tuple[Perturbed, ...]:
    raise AssertionError("asked for perturbed results")


@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(np.float16), BFLOAT16])
def test_a_result_that_is_rounded_once_passes_without_further_benchmarks(dtype: np.dtype[Any]) -> None:
    reference = np.exp(normal(1, 64).astype(np.float64))
    tested = reference.astype(dtype)
    pair = OutputPair(tested, reference, measure(tested, reference, off_bound=1.0), Answers(perturbed=no_perturbation))
    assert BackwardError().judge_pair(pair).is_pass


def test_an_error_that_cancellation_explains_passes() -> None:
    a, b = normal(2, 4096), normal(3, 4096)
    c = -(a + b).astype(np.float32)
    # What is left is the rounding error of a + b; a device that sums in another order has another one.
    tested = ((b + c) + a).astype(np.float32)
    assert judge(lambda x, y, z: (x + y) + z, [a, b, c], tested).is_pass


@pytest.mark.parametrize("length", [64, 4096])
def test_summing_one_by_one_in_float32_passes(length: int) -> None:
    rows = normal(4, 256, length)
    tested = np.cumsum(rows, axis=1, dtype=np.float32)[:, -1]
    assert judge(lambda x: x.sum(axis=1), [rows], tested, accumulated=length).is_pass


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_noise_that_adding_a_few_terms_does_not_leave_fails(mean: float) -> None:
    """Sixteen terms, added one by one, are off by one or two roundings, and not by up to 16 of them."""
    rows = (mean + normal(3, 64, 16)).astype(FLOAT32)
    total = rows.astype(np.float64).sum(axis=1)
    honest = np.cumsum(rows, axis=1, dtype=FLOAT32)[:, -1]
    assert judge(lambda x: x.sum(axis=1), [rows], honest, accumulated=16).is_pass
    noise = 16 * 2.0**-24 * np.random.default_rng(4).uniform(-1, 1, total.shape)
    tested = (total * (1 + noise)).astype(FLOAT32)
    assert not judge(lambda x: x.sum(axis=1), [rows], tested, accumulated=16).is_pass


def test_a_product_accumulated_in_bfloat16_fails() -> None:
    a, b = normal(5, 64, 256, dtype=BFLOAT16), normal(6, 256, 64, dtype=BFLOAT16)
    tested = np.zeros((64, 64), BFLOAT16)
    for k in range(256):
        tested = (tested.astype(np.float32) + np.outer(a[:, k].astype(np.float32), b[k].astype(np.float32))).astype(
            BFLOAT16
        )
    assert not judge(np.matmul, [a, b], tested, accumulated=256).is_pass


@pytest.mark.parametrize("at", [0, 17, 4095])
@pytest.mark.parametrize("factor", [1.001, 0.0, -1.0])
def test_one_wrong_element_of_a_product_fails(at: int, factor: float) -> None:
    a, b = normal(7, 64, 32), normal(8, 32, 64)
    tested = (a.astype(np.float64) @ b).astype(np.float32)
    tested.flat[at] *= factor
    judgement = judge(np.matmul, [a, b], tested, accumulated=32)
    assert not judgement.is_pass
    assert str([at // 64, at % 64]) in judgement.reasons[0]


def test_a_scaling_too_small_for_any_single_element_fails() -> None:
    a, b = normal(9, 64, 64, dtype=BFLOAT16), normal(10, 64, 64, dtype=BFLOAT16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert judge(np.matmul, [a, b], exact.astype(BFLOAT16), accumulated=64).is_pass
    judgement = judge(np.matmul, [a, b], (exact * 1.012).astype(BFLOAT16), accumulated=64)
    assert "as a whole" in judgement.reasons[0]


def test_noise_that_uses_up_every_tolerance_fails() -> None:
    x = normal(11, 4096)
    tested = (x * (1 + 0.65 * 2.0**-22 * (-1.0) ** np.arange(x.size))).astype(np.float32)
    assert "of their tolerances" in judge(lambda value: value * 1.0, [x], tested).reasons[0]


def test_a_step_must_be_exact_at_a_whole_number_and_nowhere_else() -> None:
    x = np.linspace(-3, 3, 97).astype(np.float32)
    right = np.floor(x)
    assert judge(np.floor, [x], right).is_pass
    for at in (16, 48, 50):
        wrong = right.copy()
        wrong[at] -= 1
        assert not judge(np.floor, [x], wrong).is_pass


def test_an_ill_conditioned_element_is_forgiven_and_its_neighbours_are_not() -> None:
    x = np.linspace(0.1, 1.5, 64).astype(np.float32)
    x[40] = np.float32(np.pi / 2)
    near_pole = np.tan(x.astype(np.float64) * (1 + 2.0**-25)).astype(np.float32)
    tested = np.tan(x.astype(np.float64)).astype(np.float32)
    tested[40] = near_pole[40]
    assert judge(np.tan, [x], tested).is_pass
    tested[39] *= 1.001
    assert not judge(np.tan, [x], tested).is_pass


def test_a_polynomial_of_exp_is_allowed_what_kernels_lose_and_no_more() -> None:
    x = normal(12, 1024)
    for error, is_pass in ((2.0**-19, True), (2.0**-15, False)):
        tested = (np.exp(x.astype(np.float64)) * (1 + error * np.sign(x[::-1]))).astype(np.float32)
        assert judge(np.exp, [x], tested, kernel_error=2.0**-18).is_pass is is_pass


@pytest.mark.parametrize(
    ("reference", "tested", "is_pass"),
    [
        (np.nan, np.nan, True),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.inf, np.inf, True),
        (np.inf, 65504.0, True),
        (65519.0, np.inf, True),
        (60000.0, np.inf, False),
        (np.inf, -np.inf, False),
        (np.inf, 1000.0, False),
    ],
)
def test_nonfinite_values_must_stand_where_the_benchmark_is_out_of_range(
    reference: float, tested: float, is_pass: bool
) -> None:
    outputs = np.array([tested, 1.0], np.float16), np.array([reference, 1.0])
    pair = OutputPair(*outputs, measure(*outputs, off_bound=1.0))
    assert BackwardError().judge_pair(pair).is_pass is is_pass


def test_subnormals_may_be_flushed_where_the_range_is_wide() -> None:
    for dtype, value, is_pass in ((FLOAT32, 1e-39, True), (FLOAT32, 1e-36, False), (np.dtype(np.float16), 3e-5, False)):
        outputs = np.zeros(2, dtype), np.array([value, 0.0])
        assert BackwardError().judge_pair(OutputPair(*outputs, measure(*outputs, off_bound=1.0))).is_pass is is_pass


def test_without_perturbed_results_only_rounding_is_allowed_and_the_reason_says_so() -> None:
    outputs = np.full(8, 1 + 2.0**-20, np.float32), np.ones(8)
    judgement = BackwardError().judge_pair(OutputPair(*outputs, measure(*outputs, off_bound=1.0)))
    assert "did not run on perturbed inputs" in judgement.reasons[0]


def test_complex_results_are_measured_by_their_modulus() -> None:
    x = (normal(13, 64) + 1j * normal(14, 64)).astype(np.complex64)
    tested = np.square(x.astype(np.complex128)).astype(np.complex64)
    assert judge(np.square, [x], tested).is_pass
    tested[5] *= 1j
    assert not judge(np.square, [x], tested).is_pass


def test_integers_shapes_and_empty_outputs_know_no_tolerance() -> None:
    equal = np.arange(4)
    for tested, reference, is_pass in (
        (equal, equal, True),
        (equal, equal + 1, False),
        (np.zeros(3, np.float32), np.zeros(4), False),
        (np.zeros(0, np.float32), np.zeros(0), True),
    ):
        pair = OutputPair(
            tested, reference, measure(tested, reference, off_bound=1.0), Answers(perturbed=no_perturbation)
        )
        assert BackwardError().judge_pair(pair).is_pass is is_pass


def test_a_jump_is_what_answers_to_a_tiny_move_as_to_a_large_one() -> None:
    size = 2.0**-12
    large, small = np.array([1.0, 0.01, 1.0]), np.array([1.0 / size, 0.01, 0.9])
    moves = [large.copy(), small.copy()]
    without_jumps(np.array([2.0, 2.0, 2.0]), moves, size)
    np.testing.assert_array_equal(moves, [[np.nan, 0.01, 1.0], [np.nan, 0.01, 0.9]])


def test_a_large_move_that_is_small_by_chance_makes_no_jump() -> None:
    size, reference = 2.0**-12, np.zeros(4)
    continuous, both, only_small, opposite = (1.3e-9, 2.8e-10), (1.0, 1.0), (1e-4, 1.0), (1.0, -1.0)
    large, small = np.array([continuous, both, only_small, opposite]).T
    moves = [large.copy(), small / size]
    without_jumps(reference, moves, size, is_drawn=True)
    np.testing.assert_array_equal(np.isnan(moves), [[False, True, True, True]] * 2)
    moves = [large.copy(), small / size]
    without_jumps(reference, moves, size)
    assert np.isnan(moves).all()


def test_plain_values_must_be_equal_to_one_ulp() -> None:
    standard = BackwardError()
    assert compare_scalars(1.0, 1.0 + 2.0**-52, standard, dtype=None)[1].is_pass
    assert not compare_scalars(1.0, 1.0 + 2.0**-50, standard, dtype=None)[1].is_pass
    assert not compare_scalars(1 + 1j, 5 + 1j, standard, dtype=None)[1].is_pass


@pytest.mark.parametrize(("at", "is_pass"), [(500, False), (0, True)])
def test_an_error_may_stand_out_beside_a_larger_one_that_says_nothing_of_others(at: int, is_pass: bool) -> None:
    """The first element answers to no input, so that its own error says nothing of how accurate the others are."""
    reference = np.ones(4096)
    errors = np.random.default_rng(8).uniform(-0.1, 0.1, 4096)
    errors[0], errors[at] = 70.0, 60.0
    tested = (1 + 2.0**-24 * errors * np.where(errors > 1, 1, 0)).astype(np.float32)
    moves = np.where(np.arange(4096) == 0, 0.0, 2.0**-24 * np.random.default_rng(9).choice([-1.0, 1.0], 4096))
    runs = tuple(Perturbed(1 + moves * sign * size, size) for sign, size in ((1, 1.0), (-0.5, 2.0**-12)))
    metrics = measure(tested, reference, off_bound=1.0)
    pair = OutputPair(tested, reference, metrics, Answers(perturbed=lambda: runs), accumulated=10_000)
    assert BackwardError().judge_pair(pair).is_pass is is_pass


WRONG: dict[str, Function] = {
    "zeros": np.zeros_like,
    "x 1.2": lambda right: (1.2 * right).astype(np.float32),
    "moved": lambda right: np.roll(right, 1),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_jumps_by_as_much_as_it_is_large_is_not_judged(fault: str) -> None:
    """Any rounding inside makes another result, as where it moves the floor of a coordinate."""
    reference = normal(40, 256).astype(np.float64)

    def elsewhere() -> tuple[Perturbed, ...]:
        return tuple(Perturbed(np.roll(reference, places), size) for places, size in ((3, 1.0), (5, 2.0**-12)))

    def judged(tested: np.ndarray[Any, Any]) -> Judgement:
        metrics = measure(tested, reference, off_bound=1.0)
        moved = tuple(Perturbed(reference * (1 + 2.0**-24 * size), size) for size in (1.0, 2.0**-12))
        pair = OutputPair(tested, reference, metrics, Answers(perturbed=lambda: moved, rounded_inside=elsewhere))
        return BackwardError().judge_pair(pair)

    right = reference.astype(np.float32)
    assert judged(right).is_pass
    assert judged(WRONG[fault](right)).status == "skip"


@pytest.mark.parametrize("fault", WRONG)
def test_a_sum_that_cancels_to_less_than_is_forgiven_is_not_judged(fault: str) -> None:
    """Its terms are 16 roundings of float16 larger than it is, so that zeros are as far off as chance allows."""
    left = normal(41, 64, dtype=np.dtype(np.float16))
    right = (-left.astype(np.float64) * (1 + 2.0**-9)).astype(np.float16)
    reference = left.astype(np.float64) + right.astype(np.float64)
    tested = WRONG[fault](reference.astype(np.float32)).astype(np.float16)
    assert not judge(np.add, [left, right], tested).is_pass
