"""Activations, normalisation, sequences and matrices of MindSpore. Reached through `adapters`.

Convolutions of MindSpore in PyTorch. Reached through `adapters`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import sizes


def fast_gelu(x: Tensor) -> Tensor:
    """The formula x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), which is x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def bias_add(x: Tensor, bias: Tensor) -> Tensor:
    """Bias along axis 1 (data_format NCHW)."""
    return x + bias.reshape(-1, *[1] * (x.dim() - 2))


def lrn(x: Tensor, depth_radius: int, bias: float, alpha: float, beta: float) -> Tensor:
    """Divided by (bias + alpha * sum of squares over 2r+1 channels) ** beta; PyTorch takes the mean."""
    size = 2 * depth_radius + 1
    return functional.local_response_norm(x, size, alpha * size, beta, bias)


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(mean, 1 / standard deviation) per channel."""
    axis = [dim for dim in range(x.dim()) if dim != 1]
    return x.mean(axis), torch.rsqrt(x.var(axis, correction=0) + eps)


def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, invstd: Tensor | None
) -> Tensor:
    """(x - mean) * invstd * weight + bias per channel."""
    shape = (-1, *[1] * (x.dim() - 2))
    result = x if mean is None else x - mean.reshape(shape)
    for factor in (invstd, weight):
        result = result if factor is None else result * factor.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def batch_norm_gather_stats(mean: Tensor, invstd: Tensor, eps: float, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of all devices from those of each (rows), weighted by their counts."""
    weight = torch.ones_like(mean[:, :1]) if counts is None else counts.reshape(-1, 1).to(mean.dtype)
    weight = weight / weight.sum()
    total = (mean * weight).sum(0)
    variance = ((1 / invstd.square() - eps + (mean - total).square()) * weight).sum(0)
    return total, torch.rsqrt(variance + eps)


def interpolate(
    x: Tensor, size: object, scale_factor: object, mode: str, align_corners: bool | None, recompute: bool | None
) -> Tensor:
    """torch.nn.functional.interpolate in all modes but bicubic, whose kernel has another coefficient (seen on CPU).

    Raises:
        NotImplementedError: `mode` is bicubic.
    """
    if mode == "bicubic":
        raise NotImplementedError("the bicubic kernel of mindspore.ops.interpolate")
    return functional.interpolate(x, size, scale_factor, mode, align_corners, recompute)  # type: ignore[arg-type]


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, mean, 1 / standard deviation) of each sample and group. MindSpore passes no gradient through the last two."""
    batch, channels = x.shape[:2]
    y, mean, rstd = torch.native_group_norm(x, weight, bias, batch, channels, x[0, 0].numel(), groups, eps)
    return y, mean.detach(), rstd.detach()


def fractional_max_pool2d(
    x: Tensor,
    kernel_size: object,
    output_size: object,
    output_ratio: object,
    with_indices: bool,
    samples: Tensor | None,
) -> object:
    """Pooling of the regions that `samples` choose.

    Raises:
        NotImplementedError: `samples` is None: the regions are random.
    """
    if samples is None:
        raise NotImplementedError("ops.fractional_max_pool2d without _random_samples is random")
    arguments = (x, kernel_size, output_size, output_ratio, with_indices, samples.detach())
    result: object = functional.fractional_max_pool2d(*arguments)  # type: ignore[call-overload]
    return result


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: object,
    target_lengths: object,
    blank: int,
    reduction: str,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """(loss, log alpha), the second -inf beyond the lengths. PyTorch returns it only from its private function."""
    steps, symbols = ([int(item) for item in length] for length in (input_lengths, target_lengths))  # type: ignore[attr-defined]
    loss, log_alpha = torch._ctc_loss(log_probs, targets.long(), steps, symbols, blank, zero_infinity)
    log_alpha = log_alpha.detach().clone()
    for item, (step, symbol) in enumerate(zip(steps, symbols)):
        log_alpha[item, step:] = -torch.inf
        log_alpha[item, :, 2 * symbol + 1 :] = -torch.inf
    if reduction == "none":
        return loss, log_alpha
    shares = loss / loss.new_tensor(symbols).clamp(min=1)
    return (shares.mean() if reduction == "mean" else loss.sum()), log_alpha


def stft(
    x: Tensor,
    n_fft: int,
    hop_length: int | None,
    win_length: int | None,
    window: Tensor | None,
    center: bool,
    pad_mode: str,
    normalized: bool,
    onesided: bool | None,
    return_complex: bool | None,
) -> Tensor:
    """torch.stft; a real signal gives pairs of real numbers unless `return_complex`, a complex one complex ones."""
    is_complex = x.is_complex() or (window is not None and window.is_complex())
    wanted = is_complex if return_complex is None else return_complex
    shape = win_length or n_fft
    spectrum = torch.stft(
        x,
        n_fft,
        hop_length,
        win_length,
        torch.ones(shape, dtype=x.dtype) if window is None else window,
        center,
        pad_mode.lower(),
        normalized,
        (not is_complex) if onesided is None else onesided,
        return_complex=True,
    )
    return spectrum if wanted else torch.view_as_real(spectrum)


# Matrices


def batch_dot(x: Tensor, other: Tensor, axes: int | Sequence[int] | None) -> Tensor:
    """One axis of each contracted, the first axis shared; by default the last of `x`, the last but one of the other."""
    if axes is None:
        first, second = x.dim() - 1, max(other.dim() - 2, 1)
    else:
        first, second = (axes, axes) if isinstance(axes, int) else (axes[0], axes[1])
    left, right = x.movedim(first, -1), other.movedim(second, 1)
    product = torch.bmm(
        left.flatten(1, -2) if left.dim() > 2 else left.unsqueeze(1), right.reshape(*right.shape[:2], -1)
    )
    result = product.reshape(*left.shape[:-1], *right.shape[2:])
    return result.unsqueeze(1) if result.dim() == 1 else result


def matmul_by_shape(x: Tensor, other: Tensor) -> Tensor:
    """Primitive MatMul or BatchMatMul: the dump lacks its transposes; the shapes tell them when only one way fits.

    Raises:
        NotImplementedError: the shapes fit none or several of the four ways to transpose.
    """
    ways = [(a, b) for a in (x, x.mT) for b in (other, other.mT) if a.shape[-1] == b.shape[-2]]
    if len(ways) != 1:
        raise NotImplementedError("transpose_a and transpose_b are not in the dump, and the shapes fit several of them")
    product: Tensor = torch.matmul(*ways[0])
    return product


def singular_values(x: Tensor, with_vectors: bool) -> Tensor:
    """ops.svd without vectors.

    Raises:
        NotImplementedError: `with_vectors` is set: singular vectors are unique only up to a factor.
    """
    if with_vectors:
        raise NotImplementedError("singular vectors are unique only up to a factor")
    values: Tensor = torch.linalg.svdvals(x)
    return values


def solve_triangular(a: Tensor, b: Tensor, trans: int, lower: bool, unit_diagonal: bool) -> Tensor:
    """Solution as of scipy.linalg.solve_triangular: trans 0 solves a x = b, 1 the transposed, 2 the adjoint system."""
    matrix = (a, a.mT, a.mH)[trans]
    columns = b.unsqueeze(-1) if b.dim() == a.dim() - 1 else b
    upper = lower == bool(trans)
    solution: Tensor = torch.linalg.solve_triangular(matrix, columns, upper=upper, unitriangular=unit_diagonal)
    return solution.squeeze(-1) if b.dim() == a.dim() - 1 else solution


def dot(x: Tensor, other: Tensor) -> Tensor:
    """Product as of numpy.dot: the last axis of `x` against the last but one of `other`."""
    result: Tensor = torch.tensordot(x, other, dims=([-1], [max(other.dim() - 2, 0)]))
    return result


def matrix_band_part(x: Tensor, lower: int | Tensor, upper: int | Tensor) -> Tensor:
    """Keeps `lower` diagonals below and `upper` above the main one; a negative number keeps all."""
    result = x if int(lower) < 0 else torch.triu(x, -int(lower))
    return result if int(upper) < 0 else torch.tril(result, int(upper))


def matrix_solve(matrix: Tensor, rhs: Tensor, adjoint: bool) -> Tensor:
    """Solution of `matrix @ x = rhs`, of the adjoint matrix when asked."""
    solution: Tensor = torch.linalg.solve(matrix.mH if adjoint else matrix, rhs)
    return solution


def qr(x: Tensor, some: bool) -> tuple[Tensor, Tensor]:
    """Reduced or complete."""
    q, r = torch.linalg.qr(x, "reduced" if some else "complete")
    return q, r


def diag(x: Tensor) -> Tensor:
    """All elements on the diagonal of a tensor of twice the rank."""
    return torch.diag(x.reshape(-1)).reshape(*x.shape, *x.shape)


def triangular_solve(
    b: Tensor, matrix: Tensor, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[Tensor, Tensor]:
    """(solution of `matrix @ x = b`, the matrix)."""
    used = matrix.mT if transpose else matrix
    return torch.linalg.solve_triangular(used, b, upper=upper != transpose, unitriangular=unitriangular), matrix.clone()


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: object,
    pad_mode: str,
    padding: object,
    dilation: object,
    groups: int,
) -> Tensor:
    """ops.conv1d/2d/3d: pad_mode valid, same (as TensorFlow, any stride) or pad (one number per axis or both sides)."""
    rank = weight.dim() - 2
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    pads = [0] * (2 * rank)
    if pad_mode == "same":
        for i, (size, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
            reach = (kernel - 1) * dilations[i] + 1
            total = max((math.ceil(size / strides[i]) - 1) * strides[i] + reach - size, 0)
            pads[2 * i : 2 * i + 2] = [total // 2, total - total // 2]
    elif pad_mode == "pad":
        given = _per_axis(padding, rank)
        pads = given if len(given) == 2 * rank else [item for item in given for _ in range(2)]
    last_axis_first = [pads[2 * i + side] for i in reversed(range(rank)) for side in range(2)]
    function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
    return function(functional.pad(x, last_axis_first), weight, bias, strides, 0, dilations, groups)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
) -> Tensor:
    """The Primitive Convolution: one number applies to every axis; padding may be `same` or `valid`."""
    rank = weight.dim() - 2
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    if isinstance(padding, str):
        function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
        return function(x, weight, bias, strides, padding, dilations, groups)
    pads, extra = _per_axis(padding, rank), _per_axis(output_padding, rank)
    return torch.convolution(x, weight, bias, strides, pads, dilations, transposed, extra, groups)


def conv3d_transpose(
    x: Tensor,
    weight: Tensor,
    pad_mode: str,
    padding: object,
    stride: object,
    dilation: object,
    groups: int,
    output_padding: object,
) -> Tensor:
    """ops.conv3d_transpose with pad_mode valid, or pad with the same padding on both sides of an axis.

    Raises:
        NotImplementedError: `pad_mode` is same, or the two sides of an axis are padded differently.
    """
    given = _per_axis(padding, 3) if pad_mode == "pad" else [0] * 3
    pads = given[::2] if len(given) == 6 else given
    if pad_mode == "same" or (len(given) == 6 and pads != given[1::2]):
        raise NotImplementedError(f"ops.conv3d_transpose with pad_mode {pad_mode} and padding {padding}")
    extra = _per_axis(output_padding, 3)
    return functional.conv_transpose3d(
        x, weight, None, _per_axis(stride, 3), pads, extra, groups, _per_axis(dilation, 3)
    )


def _per_axis(value: object, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else [int(item) for item in value]  # type: ignore[attr-defined]


def fold(
    x: Tensor, output_size: object, kernel_size: object, dilation: object, padding: object, stride: object
) -> Tensor:
    """Columns to image; MindSpore also takes the columns as (N, C, kernel, L)."""
    columns = x.flatten(1, 2) if x.dim() == 4 else x
    return functional.fold(columns, sizes(output_size), kernel_size, dilation, padding, stride)  # type: ignore[arg-type]
