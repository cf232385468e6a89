"""Activations, normalisation, convolution, losses and matrices of MindSpore. Reached through `adapters`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import long, sizes


def fast_gelu(x: Tensor) -> Tensor:
    """The formula x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), which is x * sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def swiglu(x: Tensor, dim: int) -> Tensor:
    """SiLU of the first half times the second half."""
    first, second = torch.chunk(x, 2, dim)
    return functional.silu(first) * second


def bias_add(x: Tensor, bias: Tensor) -> Tensor:
    """Bias along axis 1 (data_format NCHW)."""
    return x + bias.reshape(-1, *[1] * (x.dim() - 2))


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(y, rstd) over the trailing axes of gamma; rstd keeps them as 1."""
    axis = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(x.square().mean(axis, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, x1 + x2)."""
    return (*rms_norm(x1 + x2, gamma, epsilon), x1 + x2)


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


def _per_axis(value: object, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else [int(item) for item in value]  # type: ignore[attr-defined]


def fold(
    x: Tensor, output_size: object, kernel_size: object, dilation: object, padding: object, stride: object
) -> Tensor:
    """Columns to image; MindSpore also takes the columns as (N, C, kernel, L)."""
    columns = x.flatten(1, 2) if x.dim() == 4 else x
    return functional.fold(columns, sizes(output_size), kernel_size, dilation, padding, stride)  # type: ignore[arg-type]


def interpolate(
    x: Tensor, size: object, scale_factor: object, mode: str, align_corners: bool | None, recompute: bool | None
) -> Tensor:
    """As in PyTorch, but for bicubic, whose kernel has another coefficient (seen on CPU)."""
    if mode == "bicubic":
        raise NotImplementedError("the bicubic kernel of mindspore.ops.interpolate")
    return functional.interpolate(x, size, scale_factor, mode, align_corners, recompute)  # type: ignore[arg-type]


def kl_div(x: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    """PyTorch warns about the reduction `mean`, which is the mean over all elements in both."""
    if reduction == "mean":
        return functional.kl_div(x, target, reduction="none", log_target=log_target).mean()
    return functional.kl_div(x, target, reduction=reduction, log_target=log_target)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """Label smoothing exists in PyTorch's cross_entropy only."""
    if label_smoothing:
        raise NotImplementedError("nll_loss with label_smoothing")
    return functional.nll_loss(x, long(target), weight, ignore_index=ignore_index, reduction=reduction)


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(loss per row, its gradient with respect to the logits)."""
    return -(labels * functional.log_softmax(logits, -1)).sum(-1), functional.softmax(logits, -1) - labels


def l2_loss(x: Tensor) -> Tensor:
    """Half the sum of squares."""
    return x.square().sum() / 2


# Matrices


def dot(x: Tensor, other: Tensor) -> Tensor:
    """As numpy.dot: the last axis of `x` against the last but one of `other`."""
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
