"""Primitives of MindSpore whose attributes PyTorch takes otherwise. Reached through `adapters.primitives`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import all_axes, scalar

_CHANNELS_FIRST = ("NCHW", "NCDHW")


def conv(
    x: Tensor,
    weight: Tensor,
    stride: object,
    pad_mode: str,
    pad: object,
    dilation: object,
    group: int,
    data_format: str,
) -> Tensor:
    """Conv2D and Conv3D: `pad` counts with pad_mode `pad` alone, as one number, one per axis or one per side."""
    rank = _rank(x, data_format)
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    reach = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilations)]
    pads = _pads(x.shape[2:], reach, strides, pad_mode, pad)
    function = functional.conv2d if rank == 2 else functional.conv3d
    return function(functional.pad(x, _last_axis_first(pads)), weight, None, strides, 0, dilations, group)


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
    data_format: str,
) -> Tensor:
    """Conv2DTranspose and Conv3DTranspose: the gradient of a convolution whose input has the `size`.

    Without `size` it is that of Conv3DTranspose, which `output_padding` lengthens.

    Raises:
        NotImplementedError: `pad_mode` is same and there is no `size`.
    """
    rank = _rank(x, data_format)
    strides, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    reach = [(kernel - 1) * step + 1 for kernel, step in zip(weight.shape[2:], dilations)]
    whole = [(length - 1) * step + span for length, step, span in zip(x.shape[2:], strides, reach)]
    if size is None:
        pads = _pads([], [], strides, pad_mode, pad) if pad_mode.lower() == "pad" else [(0, 0)] * rank
        extra = _per_axis(output_padding, rank)
        wanted = [length - sum(sides) + more for length, sides, more in zip(whole, pads, extra)]
        if pad_mode.lower() == "same":
            raise NotImplementedError("the size of a transposed convolution with pad_mode same and no input size")
    else:
        wanted = [int(length) for length in (size.tolist() if isinstance(size, Tensor) else size)][-rank:]
        pads = _pads(wanted, reach, strides, pad_mode, pad)
    function = functional.conv_transpose2d if rank == 2 else functional.conv_transpose3d
    full = function(x, weight, None, strides, 0, 0, group, dilations)
    # A negative pad cuts; what the stride left over at the end is zero.
    sides = [(-begin, begin + length - have) for (begin, _), length, have in zip(pads, wanted, whole)]
    return functional.pad(full, _last_axis_first(sides))


def max_pool(x: Tensor, kernel_size: object, strides: object, pad_mode: str, data_format: str) -> Tensor:
    """MaxPool and MaxPool3D with pad_mode valid or same (padded with minus infinity)."""
    rank = _rank(x, data_format)
    kernel, steps = _per_axis(kernel_size, rank), _per_axis(strides, rank)
    pads = _pads(x.shape[2:], kernel, steps, pad_mode, None)
    padded = functional.pad(x, _last_axis_first(pads), value=-math.inf) if any(map(any, pads)) else x
    return (functional.max_pool2d if rank == 2 else functional.max_pool3d)(padded, kernel, steps)


def avg_pool(x: Tensor, kernel_size: object, strides: object, pad_mode: str, data_format: str) -> Tensor:
    """AvgPool with pad_mode valid or same (what is padded does not count)."""
    kernel, steps = _per_axis(kernel_size, _rank(x, data_format)), _per_axis(strides, 2)
    pads = _pads(x.shape[2:], kernel, steps, pad_mode, None)
    if not any(map(any, pads)):
        return functional.avg_pool2d(x, kernel, steps)
    sums = functional.avg_pool2d(functional.pad(x, _last_axis_first(pads)), kernel, steps, divisor_override=1)
    ones = functional.pad(torch.ones_like(x[:1, :1]), _last_axis_first(pads))
    return sums / functional.avg_pool2d(ones, kernel, steps, divisor_override=1)


def bias_add(x: Tensor, bias: Tensor, data_format: str) -> Tensor:
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


def matmul(x: Tensor, other: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    """MatMul and BatchMatMul."""
    product: Tensor = torch.matmul(x.mT if transpose_a else x, other.mT if transpose_b else other)
    return product


def cumulated(x: Tensor, axis: int | Tensor, exclusive: bool, reverse: bool, function: str) -> Tensor:
    """`cumsum` or `cumprod` from either end; `exclusive` leaves out the element itself."""
    dim = int(scalar(axis))
    turned = x.flip(dim) if reverse else x
    if exclusive:
        first = torch.full_like(turned.narrow(dim, 0, 1), 0.0 if function == "cumsum" else 1.0)
        turned = torch.cat([first, turned.narrow(dim, 0, x.shape[dim] - 1)], dim)
    result = torch.cumsum(turned, dim) if function == "cumsum" else torch.cumprod(turned, dim)
    return result.flip(dim) if reverse else result


def l2_normalize(x: Tensor, axis: int | Sequence[int], epsilon: float) -> Tensor:
    """X / sqrt(max(sum(x ** 2), epsilon))."""
    return x * torch.rsqrt(torch.sum(x * x, all_axes(axis, x), keepdim=True).clamp(min=epsilon))


def sparse_cross_entropy(x: Tensor, labels: Tensor, is_grad: bool) -> Tensor:
    """The mean loss over all rows, or its gradient, which has none."""
    if not is_grad:
        return functional.cross_entropy(x, labels.long())
    one_hot = functional.one_hot(labels.long(), x.shape[-1])
    return (torch.softmax(x.detach(), -1) - one_hot) / x.shape[0]


def sort_along(x: Tensor, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """(values, indices)."""
    values, indices = torch.sort(x, dim=axis, descending=descending)
    return values, indices


def index_with_value(x: Tensor, axis: int, keep_dims: bool, function: str) -> tuple[Tensor, Tensor]:
    """(indices, values) of `max` or `min`."""
    values, indices = (torch.max if function == "max" else torch.min)(x, axis, keep_dims)
    return indices, values


def one_axis(axis: int | Sequence[int]) -> int:
    """The axis, taken out of a sequence of one.

    Raises:
        NotImplementedError: the sequence does not hold exactly one axis.
    """
    if not isinstance(axis, int) and len(axis) != 1:
        raise NotImplementedError(f"axis {axis}")
    return axis if isinstance(axis, int) else int(axis[0])


def constant_pad(x: Tensor, paddings: Sequence[Sequence[int]]) -> Tensor:
    """Zeros before and after each axis."""
    return functional.pad(x, _last_axis_first([(int(before), int(after)) for before, after in paddings]))


def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    """Blocks of the spatial axes to channels, the place in a block first."""
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // block_size, block_size, width // block_size, block_size)
    return split.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // block_size, width // block_size)


def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    """The inverse of `space_to_depth`."""
    batch, _, height, width = x.shape
    split = x.reshape(batch, block_size, block_size, -1, height, width)
    return split.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * block_size, width * block_size)


def _rank(x: Tensor, data_format: str) -> int:
    if data_format not in _CHANNELS_FIRST:
        raise NotImplementedError(f"data_format {data_format}")
    return x.dim() - 2


def _per_axis(value: object, rank: int) -> list[int]:
    """One number for every axis; of a tuple that counts batch and channels too, the last."""
    if isinstance(value, int):
        return [value] * rank
    return [int(item) for item in value][-rank:]  # type: ignore[attr-defined]


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
    given = [pad] * rank if isinstance(pad, int) else [int(item) for item in pad]  # type: ignore[attr-defined]
    if len(given) == 2 * rank:
        return list(zip(given[::2], given[1::2]))
    return [(item, item) for item in given]


def _last_axis_first(pads: Sequence[tuple[int, int]]) -> list[int]:
    return [side for pair in reversed(list(pads)) for side in pair]
