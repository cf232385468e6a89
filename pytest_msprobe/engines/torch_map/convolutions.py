"""Convolutions of MindSpore in PyTorch. Reached through `adapters`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import sizes


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
