"""Matrix products by group of rows or columns: gmm, grouped_matmul (v2, v4), grouped_matmul_add_, matmul_add_.

Rows of x past the last group belong to none: the kernels leave them undefined, here they give 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention_masks import IntList, bounds, integers
from pytest_msprobe.engines.references.fused_precision import fused

Tensors = Sequence[Tensor] | None
Groups = list[tuple[int, int]]


@fused()
def gmm(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Tensors = None,
    group_list: IntList = None,
    group_type: int = 0,
    group_list_type: int = 0,
) -> tuple[Tensor, ...]:
    """One tensor in a tuple: (m, n) of row groups of x (group_type 0), (G, m, n) of its column groups (2).

    `group_list` holds the ends of the groups, or with group_list_type 1, as a Tensor, their sizes. Source:
    mindspore.ops.auto_generate.gmm 2.10.
    """
    are_sizes = group_list_type == 1 and isinstance(group_list, Tensor)
    if group_type == 2:
        columns = _groups(group_list, x[0].shape[1], are_sizes=are_sizes)
        return (torch.stack([x[0][:, first:end] @ weight[0][first:end] for first, end in columns]),)
    return _products(x, weight, bias, _row_groups(x, group_list, group_type, are_sizes=are_sizes))


@fused()
def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Tensors = None,
    scale: Tensors = None,
    offset: Tensors = None,
    antiquant_scale: Tensors = None,
    antiquant_offset: Tensors = None,
    group_list: IntList = None,
    split_item: int = 0,
    group_type: int = -1,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> tuple[Tensor, ...]:
    """Products of each x with its weight (group_type -1), or of row groups of one x with the slices of one weight (0).

    An int8 weight W means (W + antiquant_offset) * antiquant_scale. `group_list` holds the ends of the groups.
    Source: mindspore.ops.auto_generate.grouped_matmul 2.10.
    """
    _refuse(scale=scale, offset=offset)
    left = [item.mT if transpose_a else item for item in x]
    right = _dequantised([item.mT if transpose_b else item for item in weight], antiquant_scale, antiquant_offset)
    return _products(left, right, bias, _row_groups(left, group_list, group_type, are_sizes=False))


@fused()
def grouped_matmul_v2(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Tensors = None,
    scale: Tensors = None,
    offset: Tensors = None,
    antiquant_scale: Tensors = None,
    antiquant_offset: Tensors = None,
    group_list: IntList = None,
    split_item: int = 0,
    group_type: int = -1,
) -> tuple[Tensor, ...]:
    """Variant of `grouped_matmul` without transposing."""
    _refuse(scale=scale, offset=offset)
    right = _dequantised(weight, antiquant_scale, antiquant_offset)
    return _products(x, right, bias, _row_groups(x, group_list, group_type, are_sizes=False))


@fused()
def grouped_matmul_v4(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Tensors = None,
    scale: Tensors = None,
    offset: Tensors = None,
    antiquant_scale: Tensors = None,
    antiquant_offset: Tensors = None,
    pre_token_scale: Tensors = None,
    group_list: Tensor | None = None,
    activation_input: Tensors = None,
    activation_quant_scale: Tensors = None,
    activation_quant_offset: Tensors = None,
    split_item: int = 0,
    group_type: int = -1,
    group_list_type: int = 0,
    act_type: int = 0,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, ...]:
    """Variant of `grouped_matmul`; products of int8 x and weight are multiplied by `scale` and `pre_token_scale`.

    `group_list` holds sizes with group_list_type 1. Source: mindspore.ops.auto_generate.grouped_matmul_v4 2.10.

    Raises:
        Unsupported: `act_type`, `offset`, or an argument that begins with `activation` is set.
    """
    _refuse(
        offset=offset,
        activation_input=activation_input,
        activation_quant_scale=activation_quant_scale,
        activation_quant_offset=activation_quant_offset,
    )
    if act_type:
        raise Unsupported(f"act_type {act_type}: MindSpore 2.10 does not document it")
    groups = _row_groups(x, group_list, group_type, are_sizes=group_list_type == 1)
    if scale is None:
        return _products(x, _dequantised(weight, antiquant_scale, antiquant_offset), bias, groups)
    # int8 times int8 summed in float64 is the exact integer.
    left, right = [item.double() for item in x], [item.double() for item in weight]
    products = _products(left, right, bias, groups, scale=scale)
    if pre_token_scale is None:
        return products
    return tuple(product * rows[:, None] for product, rows in zip(products, pre_token_scale))


@fused(float32_outputs=(0,))
def grouped_matmul_add_(x: Tensor, weight: Tensor, group_list: Tensor, out: Tensor) -> Tensor:
    """Slice g of `out` plus x_g^T weight_g of row group g, out of place; `group_list` holds the ends of the groups.

    Source: mindspore.ops.auto_generate.grouped_matmul_add_ 2.10.
    """
    groups = bounds(group_list, x.shape[0], name="group_list")
    products = torch.stack([x[first:end].mT @ weight[first:end] for first, end in groups])
    return out + products.reshape(out.shape)


@fused(float32_outputs=(0,))
def matmul_add_(x: Tensor, weight: Tensor, C: Tensor) -> Tensor:  # noqa: N803  # MindSpore's own name
    """The sum C + x^T weight, computed out of place. Source: mindspore.ops.auto_generate.matmul_add_ 2.10."""
    return C + x.mT @ weight


def _row_groups(x: Sequence[Tensor], group_list: IntList, group_type: int, *, are_sizes: bool) -> Groups | None:
    """Bounds of the groups of rows; None when each x has a weight of its own."""
    if group_type == -1:
        return None
    if group_type != 0:
        raise Unsupported(f"group_type {group_type}: this API documents -1 and 0")
    return _groups(group_list, x[0].shape[0], are_sizes=are_sizes)


def _groups(group_list: IntList, total: int, *, are_sizes: bool) -> Groups:
    ends = integers(group_list)
    return bounds(tuple(accumulate(ends)) if are_sizes and ends else ends, total, name="group_list")


def _products(
    x: Sequence[Tensor], weight: Sequence[Tensor], bias: Tensors, groups: Groups | None, *, scale: Tensors = None
) -> tuple[Tensor, ...]:
    """(x @ weight + bias) * scale for each pair, or for each group of rows of the only x."""
    if groups is None:
        return tuple(
            _scaled(left @ right, _at(bias, i), _at(scale, i)) for i, (left, right) in enumerate(zip(x, weight))
        )
    parts = [
        _scaled(x[0][first:end] @ weight[0][g], _slice(_at(bias, 0), g), _slice(_at(scale, 0), g))
        for g, (first, end) in enumerate(groups)
    ]
    rest = x[0].new_zeros(x[0].shape[0] - groups[-1][1], weight[0].shape[-1])
    return (torch.cat([*parts, rest]),)


def _scaled(product: Tensor, bias: Tensor | None, scale: Tensor | None) -> Tensor:
    product = product if bias is None else product + bias
    return product if scale is None else product * scale


def _at(tensors: Tensors, index: int) -> Tensor | None:
    return None if tensors is None else tensors[index]


def _slice(x: Tensor | None, group: int) -> Tensor | None:
    """What belongs to a group: its row of (G, n); (n) is for all of them."""
    return x[group] if x is not None and x.dim() > 1 else x


def _dequantised(weight: Sequence[Tensor], scale: Tensors, offset: Tensors) -> Sequence[Tensor]:
    """(weight + offset) * scale; both may lack the rows axis of the weight."""
    if scale is None:
        return weight
    shifted = [item.to(factor.dtype) for item, factor in zip(weight, scale)]
    if offset is not None:
        shifted = [item + part.unsqueeze(-2) for item, part in zip(shifted, offset)]
    return [item * factor.unsqueeze(-2) for item, factor in zip(shifted, scale)]


def _refuse(**arguments: Tensors) -> None:
    present = [name for name, value in arguments.items() if value is not None]
    if present:
        raise Unsupported(f"{', '.join(present)}: MindSpore 2.10 does not support it here")
