"""Layers and matrices of MindSpore, convolutions and pools among them, in PyTorch. Reached through `adapters`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.adapters.arguments import default, scalar, sizes
from pytest_msprobe.engines.adapters.arrays import constant_pad


def bias_add(x: Tensor, bias: Tensor, data_format: str = "NCHW") -> Tensor:
    """Bias along axis 1, with data_format NHWC along the last."""
    return x + (bias if data_format == "NHWC" else bias.reshape(-1, *[1] * (x.dim() - 2)))


def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    is_training: bool,
    epsilon: float,
    data_format: str,
) -> tuple[Tensor | None, ...]:
    """(y, None, ...): what the other four outputs hold differs between devices.

    Raises:
        NotImplementedError: `data_format` is NHWC.
    """
    if data_format == "NHWC":
        raise NotImplementedError("BatchNorm with data_format NHWC")
    means, variances = (None, None) if is_training else (mean.detach(), variance.detach())
    y = functional.batch_norm(x, means, variances, scale, bias, is_training, 0.0, epsilon)
    return y, None, None, None, None


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, begin_norm_axis: int, begin_params_axis: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(y, mean, None): the third is a variance on CPU and 1 / standard deviation in newer kernels."""
    axes = list(range(begin_norm_axis % x.dim(), x.dim()))
    mean = x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=0, keepdim=True)
    shape = x.shape[begin_params_axis % x.dim() :]
    y = (x - mean) * torch.rsqrt(variance + epsilon) * gamma.reshape(shape) + beta.reshape(shape)
    return y, mean, None


def sparse_cross_entropy(x: Tensor, labels: Tensor, is_grad: bool) -> Tensor:
    """The mean loss over all rows, or its gradient, which has none."""
    if not is_grad:
        return functional.cross_entropy(x, labels.long())
    one_hot = functional.one_hot(labels.long(), x.shape[-1])
    return (torch.softmax(x.detach(), -1) - one_hot) / x.shape[0]


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
    return functional.fractional_max_pool2d(*arguments)  # type: ignore[call-overload]


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
    steps, symbols = [*map(int, input_lengths)], [*map(int, target_lengths)]  # type: ignore[call-overload]
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
    wanted = default(return_complex, is_complex)
    if window is None:
        window = torch.ones(win_length or n_fft, dtype=x.dtype)
    sides, mode = default(onesided, not is_complex), pad_mode.lower()
    spectrum = torch.stft(
        x, n_fft, hop_length, win_length, window, center, mode, normalized, sides, return_complex=True
    )
    return spectrum if wanted else torch.view_as_real(spectrum)


# Matrices


def batch_dot(x: Tensor, other: Tensor, axes: int | Sequence[int] | None) -> Tensor:
    """One axis of each contracted, the first axis shared; by default the last of `x`, the last but one of the other."""
    if axes is None:
        first, second = x.dim() - 1, max(other.dim() - 2, 1)
    else:
        first, second = (axes, axes) if isinstance(axes, int) else (axes[0], axes[1])
    rows, columns = x.movedim(first, -1), other.movedim(second, 1)
    product = torch.bmm(
        rows.flatten(1, -2) if rows.dim() > 2 else rows.unsqueeze(1), columns.reshape(*columns.shape[:2], -1)
    )
    result = product.reshape(*rows.shape[:-1], *columns.shape[2:])
    return result.unsqueeze(1) if result.dim() == 1 else result


def matmul(x: Tensor, other: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    """MatMul and BatchMatMul."""
    if transpose_b:
        other = other.mT
    return torch.matmul(x.mT if transpose_a else x, other)


def matmul_by_shape(x: Tensor, other: Tensor) -> Tensor:
    """Primitive MatMul or BatchMatMul: the dump lacks its transposes; the shapes tell them when only one way fits.

    Raises:
        NotImplementedError: the shapes fit none or several of the four ways to transpose.
    """
    ways = [(a, b) for a in (x, x.mT) for b in (other, other.mT) if a.shape[-1] == b.shape[-2]]
    if len(ways) != 1:
        raise NotImplementedError("transpose_a and transpose_b are not in the dump, and the shapes fit several of them")
    return torch.matmul(*ways[0])


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


def cumulated(x: Tensor, axis: int | Tensor, exclusive: bool, reverse: bool, function: str) -> Tensor:
    """`cumsum` or `cumprod` from either end; `exclusive` leaves out the element itself."""
    dim = int(scalar(axis))
    turned = x.flip(dim) if reverse else x
    if exclusive:
        first = torch.full_like(turned.narrow(dim, 0, 1), 0.0 if function == "cumsum" else 1.0)
        turned = torch.cat([first, turned.narrow(dim, 0, x.shape[dim] - 1)], dim)
    result: Tensor = getattr(torch, function)(turned, dim)
    return result.flip(dim) if reverse else result


# Convolutions and pools


def channels_first(x: Tensor, data_format: str) -> Tensor:
    """`x` itself, which has its channels in axis 1.

    Raises:
        NotImplementedError: `data_format` says that they stand elsewhere.
    """
    if data_format not in ("NCHW", "NCDHW"):
        raise NotImplementedError(f"data_format {data_format}")
    return x


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
    """Convolution of rank 1 to 3; `padding` counts with pad_mode `pad` alone, as one number, one per axis or per side.

    With pad_mode same it is padded as in TensorFlow, with any stride.
    """
    rank = weight.dim() - 2
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    reach = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilations)]
    pads = _pads(x.shape[2:], reach, strides, pad_mode, padding)
    function = getattr(functional, f"conv{rank}d")
    return cast(Tensor, function(constant_pad(x, pads), weight, bias, strides, 0, dilations, groups))


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    size: Sequence[int] | Tensor | None,
    stride: object,
    pad_mode: str,
    pad: object,
    dilation: object,
    group: int,
    output_padding: object,
) -> Tensor:
    """Conv2DTranspose and Conv3DTranspose: the gradient of a convolution whose input has the `size`.

    Without `size` it is that of Conv3DTranspose, which `output_padding` lengthens.

    Raises:
        NotImplementedError: `pad_mode` is same and there is no `size`.
    """
    rank = x.dim() - 2
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    reach = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilations)]
    whole = [(length - 1) * step + span for length, step, span in zip(x.shape[2:], strides, reach)]
    if size is None:
        if pad_mode.lower() == "same":
            raise NotImplementedError("the size of a transposed convolution with pad_mode same and no input size")
        pads, extra = _pads([], [], strides, pad_mode, pad), _per_axis(output_padding, rank)
        wanted = [length - sum(sides) + more for length, sides, more in zip(whole, pads, extra)]
    else:
        wanted = [*map(int, size.tolist() if isinstance(size, Tensor) else size)][-rank:]
        pads = _pads(wanted, reach, strides, pad_mode, pad)
    full = getattr(functional, f"conv_transpose{rank}d")(x, weight, None, strides, 0, 0, group, dilations)
    # A negative pad cuts; what the stride left over at the end is zero.
    sides = [(-begin, begin + length - have) for (begin, _), length, have in zip(pads, wanted, whole)]
    return constant_pad(full, sides)


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
        function = getattr(functional, f"conv{rank}d")
        return cast(Tensor, function(x, weight, bias, strides, padding, dilations, groups))
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
    sides = _per_axis(padding, 6) if pad_mode == "pad" else [0] * 3
    pads = sides[::2] if len(sides) == 6 else sides
    if pad_mode == "same" or (len(sides) == 6 and pads != sides[1::2]):
        raise NotImplementedError(f"ops.conv3d_transpose with pad_mode {pad_mode} and padding {padding}")
    extra = _per_axis(output_padding, 3)
    return functional.conv_transpose3d(
        x, weight, None, _per_axis(stride, 3), pads, extra, groups, _per_axis(dilation, 3)
    )


def fold(
    x: Tensor, output_size: object, kernel_size: object, dilation: object, padding: object, stride: object
) -> Tensor:
    """Columns to image; MindSpore also takes the columns as (N, C, kernel, L)."""
    columns = x.flatten(1, 2) if x.dim() == 4 else x
    return functional.fold(columns, sizes(output_size), kernel_size, dilation, padding, stride)  # type: ignore[arg-type]


def max_pool(x: Tensor, kernel_size: object, strides: object, pad_mode: str) -> Tensor:
    """MaxPool and MaxPool3D with pad_mode valid or same (padded with minus infinity)."""
    rank = x.dim() - 2
    kernel, steps = _per_axis(kernel_size, rank), _per_axis(strides, rank)
    pads = _pads(x.shape[2:], kernel, steps, pad_mode, None)
    padded = constant_pad(x, pads, -math.inf) if any(map(any, pads)) else x
    return cast(Tensor, getattr(functional, f"max_pool{rank}d")(padded, kernel, steps))


def avg_pool(x: Tensor, kernel_size: object, strides: object, pad_mode: str) -> Tensor:
    """AvgPool with pad_mode valid or same (what is padded does not count)."""
    kernel, steps = _per_axis(kernel_size, 2), _per_axis(strides, 2)
    pads = _pads(x.shape[2:], kernel, steps, pad_mode, None)
    if not any(map(any, pads)):
        return functional.avg_pool2d(x, kernel, steps)
    sums = functional.avg_pool2d(constant_pad(x, pads), kernel, steps, divisor_override=1)
    ones = constant_pad(torch.ones_like(x[:1, :1]), pads)
    return sums / functional.avg_pool2d(ones, kernel, steps, divisor_override=1)


def _per_axis(value: object, rank: int) -> list[int]:
    """One number for every axis; of a tuple that counts batch and channels too, the last."""
    if isinstance(value, int):
        return [value] * rank
    return [*map(int, value)][-rank:]  # type: ignore[call-overload]


def _pads(
    sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], pad_mode: str, pad: object
) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis; `reach` is the length that a kernel covers."""
    rank = len(strides)
    mode = pad_mode.lower()
    if mode == "same":
        totals = [
            max((math.ceil(size / step) - 1) * step + span - size, 0) for size, span, step in zip(sizes, reach, strides)
        ]
        return [(total // 2, total - total // 2) for total in totals]
    if mode != "pad":
        return [(0, 0)] * rank
    sides = [pad] * rank if isinstance(pad, int) else [*map(int, pad)]  # type: ignore[call-overload]
    if len(sides) == 2 * rank:
        return list(zip(sides[::2], sides[1::2]))
    return list(zip(sides, sides))
