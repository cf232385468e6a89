"""Activations, normalisation, sequences and matrices of MindSpore. Reached through `adapters`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import default, scalar


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
