"""Kernels that are right by another way than the benchmark's pass, and the least faults in them are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from test_terms_of_elements import pair_of

from pytest_msprobe.numerics import BackwardError

Array = np.ndarray[Any, Any]


def judged(folder: Path, name: str, arguments: list[Any], tested: Array, incoming: Array | None = None) -> bool:
    folder.mkdir(exist_ok=True)
    return BackwardError().judge_pair(pair_of(folder, name, arguments, incoming=incoming, tested=tested)).is_pass


def normed(seed: int) -> tuple[list[Any], Array]:
    """Arguments of a weight norm over 512 elements of each column, and an incoming gradient."""
    rng = np.random.default_rng(seed)
    v = (0.02 * rng.standard_normal((32, 16, 8))).astype(np.float32)
    return [v, np.ones((1, 1, 8), np.float32), 2], rng.standard_normal(v.shape).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_a_norm_over_several_axes_adds_up_more_terms_than_a_dimension_is_long(tmp_path: Path, seed: int) -> None:
    (v, g, axis), incoming = normed(seed)
    tensor = torch.tensor(v, requires_grad=True)
    torch._weight_norm(tensor, torch.tensor(g), axis).backward(torch.tensor(incoming))
    right = tensor.grad.numpy()
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
