"""Kernels that are right by another way than the benchmark's pass, and the least faults in them are seen.

The kernels stand here, in NumPy: what a machine's own would give depends on its instructions.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from sensitivities import Without
from test_terms_of_elements import pair_of

from pytest_msprobe.numerics.judgement import OutputPair
from pytest_msprobe.numerics.standards.backward_error import BackwardError

Array = np.ndarray[Any, Any]


def judged(folder: Path, name: str, arguments: list[Any], tested: Array, incoming: Array | None = None) -> bool:
    folder.mkdir(exist_ok=True)
    return BackwardError().judge_pair(pair_of(folder, name, arguments, incoming=incoming, tested=tested)).is_pass


def summed(terms: Array) -> Array:
    """Return sums over all but the last axis, one term after the other in the dtype of the terms."""
    total: Array = terms.reshape(-1, terms.shape[-1]).cumsum(axis=0)[-1]
    return total


def normed(seed: int) -> tuple[list[Any], Array]:
    """Arguments of a weight norm over 512 elements of each column, and an incoming gradient."""
    rng = np.random.default_rng(seed)
    v = (0.02 * rng.standard_normal((32, 16, 8))).astype(np.float32)
    return [v, np.ones((1, 1, 8), np.float32), 2], rng.standard_normal(v.shape).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_norm_over_several_axes_adds_up_more_terms_than_a_dimension_is_long(tmp_path: Path, seed: int) -> None:
    (v, g, axis), incoming = normed(seed)
    square, product = (summed(v * factor) for factor in (v, incoming))
    right = g * (incoming - v * (product / square)) / np.sqrt(square)
    assert judged(tmp_path / "right", "Torch._weight_norm.0", [v, g, axis], right, incoming)
    lost = right.copy()  # one of the 512 terms of the sum of a column
    square = np.square(v[..., 3].astype(float)).sum()
    lost[..., 3] += incoming[4, 4, 3] * v[4, 4, 3] * v[..., 3] / square**1.5
    assert not judged(tmp_path / "lost", "Torch._weight_norm.0", [v, g, axis], lost, incoming)


def transformed(x: Array, w: Array) -> Array:
    """Winograd's F(2, 3) in float32, padding 1: Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*."""
    of_input = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
    of_kernel = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
    of_output = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)
    padded, size = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), x.shape[2]
    tiles = np.lib.stride_tricks.sliding_window_view(padded, (4, 4), axis=(2, 3))[:, :, ::2, ::2]
    inner, kernel = of_input @ tiles @ of_input.T, of_kernel @ w @ of_kernel.T
    total = np.zeros((len(x), len(w), size // 2, size // 2, 4, 4), np.float32)
    for channel in range(x.shape[1]):
        total += inner[:, None, channel] * kernel[None, :, channel, None, None]
    found: Array = (of_output @ total @ of_output.T).transpose(0, 1, 2, 4, 3, 5)
    return found.reshape(len(x), len(w), size, size)


def one_after_the_other(x: Array, w: Array) -> Array:
    """A direct convolution with padding 1 in float32 that adds up one product after the other."""
    padded, size = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), x.shape[2]
    total = np.zeros((len(x), len(w), size, size), np.float32)
    for row, column in np.ndindex(3, 3):
        part = padded[:, :, row : row + size, column : column + size]
        for channel in range(x.shape[1]):
            total += part[:, None, channel] * w[None, :, channel, row, column, None, None]
    return total


@pytest.mark.parametrize("kernel", [transformed, one_after_the_other])
@pytest.mark.parametrize("channels", [16, 64])
def test_convolutions_of_3_by_3_by_other_algorithms(tmp_path: Path, kernel: Any, channels: int) -> None:
    rng = np.random.default_rng(channels)
    x = np.maximum(0, rng.standard_normal((2, channels, 16, 16))).astype(np.float32)
    w = (rng.standard_normal((channels, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
    right = kernel(x, w)
    arguments = [x, w, None, 1, 1]
    assert judged(tmp_path / "right", "Functional.conv2d.0", arguments, right)
    place = next(at for at in np.ndindex(x.shape[2:]) if x[1, 5][at] > 0.1 and min(at) > 0)
    right[1, 7, place[0], place[1]] -= x[1, 5][place] * w[7, 5, 1, 1]  # one tap of a kernel in one element
    assert not judged(tmp_path / "lost", "Functional.conv2d.0", arguments, right)


def waves() -> tuple[list[Any], Array]:
    """A convolution of images that rise and fall together, under a loss that all positions share."""
    rng = np.random.default_rng(3)
    wave = 3 * np.sin(np.arange(32) / 5)[:, None]
    x = (0.1 * rng.standard_normal((2, 16, 32, 32)) + wave).astype(np.float32)
    w = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
    return [w, None, 1, 1], np.stack([x, (1 + 0.1 * rng.standard_normal(x.shape)).astype(np.float32)])


def of_weight(x: Array, incoming: Array, dtype: Any) -> Array:
    """Return the gradient of the weight: one position after the other, in `dtype`."""
    padded = np.pad(x.astype(dtype), ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = np.zeros((16, 16, 3, 3), dtype)
    for image, row, column in np.ndindex(len(x), *x.shape[2:]):
        window = padded[image, :, row : row + 3, column : column + 3]
        total += incoming[image, :, row, column, None, None, None] * window
    return total


def pair_of_weight(folder: Path, tested: Array) -> OutputPair:
    rest, (x, incoming) = waves()
    return pair_of(folder, "Functional.conv2d.0", [x, *rest], incoming=incoming, position=1, tested=tested)


def test_partial_sums_of_all_elements_of_a_gradient(tmp_path: Path) -> None:
    _, (x, incoming) = waves()
    sums = pair_of_weight(tmp_path, of_weight(x, incoming, np.float64).astype(np.float32)).sensitivity.partial_sums()
    assert sums is not None
    padded = np.pad(x[:, 4].astype(float), ((0, 0), (1, 1), (1, 1)))
    terms = padded[:, 2:, 1:-1] * incoming[:, 7]  # tap [2, 1] of kernel [7, 4]
    assert sums[7, 4, 2, 1] == pytest.approx(np.linalg.norm(terms.cumsum()), rel=0.05)


def test_sums_that_leave_and_return_in_many_elements_are_right(tmp_path: Path) -> None:
    _, (x, incoming) = waves()
    pair = pair_of_weight(tmp_path, of_weight(x, incoming, np.float32))
    assert BackwardError().judge_pair(pair).is_pass
    assert not BackwardError().judge_pair(replace(pair, sensitivity=Without(pair.sensitivity, "partial_sums"))).is_pass


@pytest.mark.parametrize("fault", ["a term", "a row of positions", "a scale", "a part that is less accurate"])
def test_and_least_faults_in_them_are_seen(tmp_path: Path, fault: str) -> None:
    _, (x, incoming) = waves()
    tested = of_weight(x, incoming, np.float32)
    if fault == "a term":
        tested[7, 4, 1, 1] -= x[1, 4, 9, 9] * incoming[1, 7, 9, 9]  # of 2,048
    if fault == "a row of positions":
        cut = incoming.copy()
        cut[1, 7, 31] = 0
        tested[7] = of_weight(x, cut, np.float32)[7]
    if fault == "a scale":
        tested *= np.float32(1 + 1e-3)
    if fault == "a part that is less accurate":
        coarse = (tested[:4].view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)  # 11 bits
        tested[:4] = coarse
    assert not BackwardError().judge_pair(pair_of_weight(tmp_path, tested)).is_pass


@pytest.mark.parametrize(
    ("name", "arguments", "position"),
    [("Functional.conv2d.0", [waves()[1][0], *waves()[0]], 0), ("Functional.softmax.0", [waves()[1][0], 1], 0)],
)
def test_what_adds_up_no_positions_has_no_such_sums(
    tmp_path: Path, name: str, arguments: list[Any], position: int
) -> None:
    pair = pair_of(tmp_path, name, arguments, incoming=waves()[1][1], position=position)
    assert pair.sensitivity.partial_sums() is None


@pytest.mark.parametrize(("place", "sides"), [(-3, (0.0, -0.5)), (3, (1.0, 1.5))])
def test_a_derivative_at_a_kink_has_two_values(tmp_path: Path, place: float, sides: tuple[float, float]) -> None:
    """Which of them moved inputs meet is chance: in some places both runs meet the same, which is then a jump."""

    def judgements(gradient: float, **how: Any) -> list[bool]:
        found = []
        for at in range(0, 640, 64):
            x = np.random.default_rng(5).uniform(-2.5, 2.5, 1024).astype(np.float16)
            x[at] = place
            incoming = np.ones_like(x)
            right = pair_of(tmp_path / "x", "Functional.hardswish.0", [x], incoming=incoming).reference
            tested = right.astype(np.float16)
            tested[at] = gradient
            pair = pair_of(tmp_path / "x", "Functional.hardswish.0", [x], incoming=incoming, tested=tested)
            found.append(BackwardError().judge_pair(replace(pair, **how)).is_pass)
        return found

    (tmp_path / "x").mkdir()
    assert all(all(judgements(side)) for side in sides)
    assert not all(judgements(sides[1], has_kinks=False))
    assert not all(judgements(sum(sides) / 2))


@pytest.mark.parametrize(("at", "gradient"), [(2.75, 1.0), (2.75, 1.5), (-3.25, -0.5), (0, 1.0)])
def test_beside_it_has_one(tmp_path: Path, at: float, gradient: float) -> None:
    x, incoming = np.linspace(-4, 4, 33).astype(np.float16), np.ones(33, np.float16)
    right = pair_of(tmp_path, "Functional.hardswish.0", [x], incoming=incoming).reference
    tested = np.where(x == np.float16(at), gradient, right).astype(np.float16)
    assert not judged(tmp_path, "Functional.hardswish.0", [x], tested, incoming)


def test_a_value_at_a_jump_has_one(tmp_path: Path) -> None:
    x = np.linspace(-4, 4, 33).astype(np.float16)
    tested = np.floor(x)
    tested[x == 2] = 1
    assert not judged(tmp_path, "Torch.floor.0", [x], tested)


def test_a_gradient_that_is_off_by_few_roundings_is_not_the_other_side_of_a_kink(tmp_path: Path) -> None:
    x = np.random.default_rng(3).uniform(0.5, 2.5, 256).astype(np.float16)
    incoming = np.random.default_rng(4).uniform(1.0, 1.9, 256).astype(np.float16)
    tested = incoming.copy()
    tested[7] += np.float16(3 * 2.0**-10)  # of values from 1 on: six roundings
    assert not judged(tmp_path, "Functional.relu.0", [x], tested, incoming)


@pytest.mark.parametrize(
    ("off", "count", "is_pass"), [(40 * 2.0**-24, 12, True), (40 * 2.0**-24, 1, False), (3e-5, 12, False)]
)
def test_few_elements_may_be_in_the_worst_piece_of_a_polynomial(
    tmp_path: Path, off: float, count: int, is_pass: bool
) -> None:
    """MindSpore 2.10's tanh on a CPU is off by 45 roundings near 3.3, where hardly any activation is."""
    rng = np.random.default_rng(6)
    x = (0.3 * rng.standard_normal(8192)).astype(np.float32)
    x[:count] = np.linspace(3.31, 3.33, count)
    incoming = rng.standard_normal(8192).astype(np.float32)
    kept = np.tanh(x.astype(np.float64)).astype(np.float32).astype(np.float64)
    kept[:count] *= 1 + off
    tested = (incoming * (1 - np.square(kept))).astype(np.float32)
    assert judged(tmp_path, "Torch.tanh.0", [x], tested, incoming) is is_pass


@pytest.mark.parametrize("wrong", [0.0, 3e-6])
def test_elements_that_cancel_stand_out_together(tmp_path: Path, wrong: float) -> None:
    """Below -3 the 1 + erf of gelu cancels: some hundred of a million elements are far less accurate than others."""
    x = (1.3 * np.random.default_rng(0).standard_normal(3 << 19) - 0.7).astype(np.float32)
    erf = torch.erf(torch.from_numpy(x).double() * 2**-0.5).numpy().astype(np.float32)
    tested = np.float32(0.5) * x * (1 + erf)
    tested[np.flatnonzero(np.abs(x + 3.3) < 0.01)[5]] += np.float32(wrong)
    assert judged(tmp_path, "Functional.gelu.0", [x], tested) is not bool(wrong)


@pytest.mark.parametrize(("dtype", "large"), [(np.float16, 3e4), (np.float32, 3e38)])
@pytest.mark.parametrize("end", [np.nan, np.inf, -np.inf])
def test_a_sum_that_leaves_the_range_of_its_dtype_is_no_fault(
    tmp_path: Path, dtype: type[np.floating[Any]], large: float, end: float
) -> None:
    x = np.array([[large, large, -large, 1], [large, large, large, 1], [1, 2, 3, 4]], dtype)
    right = x.astype(float).sum(axis=1)  # the second is beyond the range, the partial sums of the first are
    with np.errstate(over="ignore"):
        tested = right.astype(dtype)
    for place in (0, 1):
        overflown = tested.copy()
        overflown[place] = end
        assert judged(tmp_path / f"forced{place}", "Torch.sum.0", [x, 1], overflown)
    # Nothing overflows in the third, and what overflows elsewhere excuses no other error.
    overflown = tested.copy()
    overflown[2] = end
    assert not judged(tmp_path / "fits", "Torch.sum.0", [x, 1], overflown)
    tested[:] = end, tested[1], 11
    assert not judged(tmp_path / "off", "Torch.sum.0", [x, 1], tested)


@pytest.mark.parametrize(("dtype", "large"), [(np.float16, 200), (np.float32, 1.5e19)])
def test_products_and_gradients_that_leave_the_range_are_no_fault(
    tmp_path: Path, dtype: type[np.floating[Any]], large: float
) -> None:
    left = np.array([[large, large, 1], [1, 1, 1]], dtype)
    right = np.array([[large, 1], [-large, 2], [1, 3]], dtype)
    exact = left.astype(float) @ right.astype(float)
    tested = exact.astype(dtype)
    tested[0, 0] = np.nan
    assert judged(tmp_path / "forward", "Torch.matmul.0", [left, right], tested)
    tested[1, 1] = np.nan
    assert not judged(tmp_path / "fits", "Torch.matmul.0", [left, right], tested)
    tested = exact.astype(dtype)
    tested[0, 0] = np.nan
    assert judged(tmp_path / "gradient", "Torch.matmul.1", [np.ones((2, 2), dtype), right.T.copy()], tested, left)


def test_an_infinite_input_is_no_reason_for_nan(tmp_path: Path) -> None:
    x = np.array([[np.inf, 1, 2], [1, 2, 3]], np.float32)
    assert judged(tmp_path / "right", "Torch.sum.0", [x, 1], np.array([np.inf, 6], np.float32))
    assert not judged(tmp_path / "wrong", "Torch.sum.0", [x, 1], np.array([np.nan, 6], np.float32))
