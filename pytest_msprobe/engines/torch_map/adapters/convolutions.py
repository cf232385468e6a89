"""Convolutions and pools of MindSpore in PyTorch. Reached through `adapters`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.adapters.arrays import constant_pad
from pytest_msprobe.engines.torch_map.arguments import sizes


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
