"""Matrix products by group of rows or columns: gmm, grouped_matmul (v2, v4), grouped_matmul_add_, matmul_add_.

Rows of x past the last group belong to none: the kernels leave them undefined, here they give 0.

Quantising, and products of quantised matrices. Integer products are summed exactly before anything is scaled.

Values are rounded half to even and cut to -128..127. A float that lies within the device's own rounding error of a half
may come out one apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention_core import IntList, bounds, integers
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
    bias: Tensors,
    antiquant_scale: Tensors,
    antiquant_offset: Tensors,
    group_list: IntList,
    group_type: int,
    transpose_a: bool,
    transpose_b: bool,
) -> tuple[Tensor, ...]:
    """Products of each x with its weight (group_type -1), or of row groups of one x with the slices of one weight (0).

    An int8 weight W means (W + antiquant_offset) * antiquant_scale. `group_list` holds the ends of the groups.
    Source: mindspore.ops.auto_generate.grouped_matmul 2.10.
    """
    if transpose_a:
        x = [item.mT for item in x]
    if transpose_b:
        weight = [item.mT for item in weight]
    dequantised = _dequantised(weight, antiquant_scale, antiquant_offset)
    return _products(x, dequantised, bias, _row_groups(x, group_list, group_type, are_sizes=False))


@fused()
def grouped_matmul_v4(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Tensors,
    scale: Tensors,
    antiquant_scale: Tensors,
    antiquant_offset: Tensors,
    pre_token_scale: Tensors,
    group_list: Tensor | None,
    group_type: int,
    group_list_type: int,
    act_type: int,
) -> tuple[Tensor, ...]:
    """Variant of `grouped_matmul`; products of int8 x and weight are multiplied by `scale` and `pre_token_scale`.

    `group_list` holds sizes with group_list_type 1. Source: mindspore.ops.auto_generate.grouped_matmul_v4 2.10.

    Raises:
        Unsupported: `act_type` is set.
    """
    if act_type:
        raise Unsupported(f"act_type {act_type}: MindSpore 2.10 does not document it")
    groups = _row_groups(x, group_list, group_type, are_sizes=group_list_type == 1)
    if scale is None:
        return _products(x, _dequantised(weight, antiquant_scale, antiquant_offset), bias, groups)
    # int8 times int8 summed in float64 is the exact integer.
    products = _products([*map(_exact, x)], [*map(_exact, weight)], bias, groups, scale=scale)
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
            _scaled(first @ second, _at(bias, i), _at(scale, i)) for i, (first, second) in enumerate(zip(x, weight))
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


def dynamic_quant_ext(x: Tensor, smooth_scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(int8 values, scale of each row): scale = max |x * smooth| / 127, values x * smooth / scale, 0 in a row of 0.

    Source: DynamicQuantExt of MindSpore 2.10.
    """
    wide = _wide(x) if smooth_scales is None else _wide(x) * _wide(smooth_scales)
    scale = wide.abs().amax(-1) / 127
    return _int8(wide / scale.masked_fill(scale == 0, 1)[..., None]), scale


def quant_v2(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    sqrt_mode: bool = False,
    rounding_mode: str = "ROUND",
    dst_type: torch.dtype = torch.int8,
) -> Tensor:
    """Int8 of scale * x + offset, or of scale^2 * x + offset in `sqrt_mode`. Source: QuantV2 of MindSpore 2.10.

    Raises:
        Unsupported: another `rounding_mode` than ROUND, or another `dst_type` than int8.
    """
    if rounding_mode.upper() != "ROUND" or dst_type != torch.int8:
        raise Unsupported(f"rounding_mode {rounding_mode} to {dst_type}: only ROUND to int8 is documented")
    factor = _wide(scale).square() if sqrt_mode else _wide(scale)
    return _int8(_wide(x) * factor + _wide(offset))


def quant_batch_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None = None,
    bias: Tensor | None = None,
    pertokenScaleOptional: Tensor | None = None,  # noqa: N803  # MindSpore's own name
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """The product x1 x2 (+ an integer bias) * scale (* scale of each row) (+ offset or float bias); int8 if `dtype` is.

    A scale of 64-bit integers holds float32 in its lower half, as Ascend packs it. Source: CANN's aclnnQuantMatmulV4.
    """
    first = _exact(x1.mT if transpose_x1 else x1)
    product = first @ _exact(x2.mT if transpose_x2 else x2)
    is_integer_bias = bias is not None and not bias.is_floating_point()
    if bias is not None and is_integer_bias:
        product = product + _exact(bias)
    product = product * _unpacked_scale(scale)
    if pertokenScaleOptional is not None:
        product = product * pertokenScaleOptional[..., None]
    if bias is not None and not is_integer_bias:
        product = product + bias
    if offset is not None:
        product = product + offset
    if dtype == torch.int8:
        return _int8(product)
    return product if scale.dtype == torch.float64 else product.to(dtype)  # the benchmark's float scale is float64


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: torch.dtype | None,
) -> Tensor:
    """Variant of `quant_batch_matmul` without transposing, for float8 as well.

    Source: mindspore.ops.auto_generate.quant_matmul 2.10.
    """
    dtype = torch.bfloat16 if output_dtype is None else output_dtype
    return quant_batch_matmul(x1, x2, scale, offset, bias, pertoken_scale, dtype=dtype)


@fused()
def weight_quant_batch_matmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    transpose_x: bool = False,
    transpose_weight: bool = False,
    antiquant_group_size: int = 0,
) -> Tensor:
    """The product x ((weight + antiquant_offset) * antiquant_scale) + bias, quantised to int8 with a `quant_scale`.

    With a group size, each row of scale and offset is for so many rows of the weight. Source: CANN's
    aclnnWeightQuantBatchMatmulV2.
    """
    matrix, scale, offset = weight, antiquant_scale, antiquant_offset
    if transpose_weight:
        matrix, scale = _turned(matrix), _turned(scale)
        offset = None if offset is None else _turned(offset)
    if antiquant_group_size:
        scale = scale.repeat_interleave(antiquant_group_size, -2)[..., : matrix.shape[-2], :]
        if offset is not None:
            offset = offset.repeat_interleave(antiquant_group_size, -2)[..., : matrix.shape[-2], :]
    matrix = matrix.to(scale.dtype)
    if offset is not None:
        matrix = matrix + offset
    product = (x.mT if transpose_x else x) @ (matrix * scale)
    product = _scaled(product, bias, quant_scale)
    if quant_scale is None:
        return product
    return _int8(product if quant_offset is None else product + quant_offset)


def dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Tensor,
    activation_scale: Tensor,
    bias: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: str = "static",
) -> tuple[Tensor, Tensor]:
    """(int8 values, scale of each row, 0 in mode static).

    x * weight_scale * activation_scale is cut in halves; SiLU of the right one, or of the left one, times the other
    is multiplied by `quant_scale` and quantised, in mode dynamic by the row's maximum / 127. `group_index` holds how
    many rows use each row of weight_scale and quant_scale; rows past them give 0. Source: MindSpore's own test of
    DequantSwigluQuant.

    Raises:
        Unsupported: `bias`, `quant_offset`, or `quant_scale` in mode static is given, which that test leaves out.
    """
    if bias is not None or quant_offset is not None or (quant_mode == "static" and quant_scale is not None):
        raise Unsupported("bias, quant_offset, or quant_scale in mode static: documents disagree on what they do")
    rows = x.shape[:-1].numel()
    wide = _wide(x).reshape(rows, -1)
    past = rows
    of_rows: Callable[[Tensor], Tensor] = _wide
    if group_index is not None:
        sizes = integers(group_index) or ()
        past = bounds(torch.tensor(sizes).cumsum(0), rows, name="group_index")[-1][1]
        of_rows = partial(_of_groups, sizes=sizes, rows=rows)
    row_weights = of_rows(weight_scale)
    row_scales = wide.new_ones(1) if quant_scale is None else of_rows(quant_scale)
    first, second = (wide * row_weights * _wide(activation_scale).reshape(rows, 1)).chunk(2, -1)
    gate, other = (first, second) if activate_left else (second, first)
    product = gate * gate.sigmoid() * other * row_scales
    product = torch.where(torch.arange(rows, device=x.device)[:, None] < past, product, 0)
    if quant_mode == "dynamic":
        values, scale = dynamic_quant_ext(product)
    else:
        values, scale = _int8(product), product.new_zeros(rows)
    return values.reshape(*x.shape[:-1], -1), scale.reshape(x.shape[:-1])


def npu_dequant_swiglu_quant(
    x: Tensor,
    weight_scale: Tensor | None,
    activation_scale: Tensor | None,
    bias: Tensor | None,
    quant_scale: Tensor | None,
    quant_offset: Tensor | None,
    group_index: Tensor | None,
    activate_left: bool,
    quant_mode: int,
) -> tuple[Tensor, Tensor]:
    """Variant of `dequant_swiglu_quant` with mode 0 static and 1 dynamic; a scale that is missing is 1.

    Source: op-plugin's documentation of npu_dequant_swiglu_quant.

    Raises:
        Unsupported: rows stand past the groups: the kernel leaves their memory as it is.
    """
    if group_index is not None and sum(sizes := integers(group_index) or ()) < x.shape[0]:
        raise Unsupported(f"group_index {list(sizes)}: the rows past the groups are not written")
    groups = () if group_index is None else (group_index.numel(),)
    if weight_scale is None:
        weight_scale = torch.ones((*groups, x.shape[-1]), device=x.device)
    if activation_scale is None:
        activation_scale = torch.ones(x.shape[:-1], device=x.device)
    return dequant_swiglu_quant(
        x,
        weight_scale,
        activation_scale,
        bias,
        quant_scale,
        quant_offset,
        group_index,
        activate_left,
        "dynamic" if quant_mode else "static",
    )


def _turned(part: Tensor) -> Tensor:
    """The transposed matrices; a vector as it is."""
    return part.mT if part.dim() > 1 else part


def _of_groups(x: Tensor, sizes: Sequence[int], rows: int) -> Tensor:
    """Row g of `x` for each of the sizes[g] rows of group g, the last one for the rows past them."""
    spread = _wide(x).repeat_interleave(torch.tensor(sizes, device=x.device), 0)
    return torch.cat([spread, spread.new_ones(rows - spread.shape[0], spread.shape[1])])


def _wide(x: Tensor) -> Tensor:
    """Float64 stays; everything else as float32, which is what the kernels compute in."""
    return x if x.dtype == torch.float64 else x.float()


def _exact(x: Tensor) -> Tensor:
    """Values as float64, in which sums of int8 and float8 products are exact."""
    return x.double()


def _int8(x: Tensor) -> Tensor:
    return x.round().clamp(-128, 127).to(torch.int8)


def _unpacked_scale(scale: Tensor) -> Tensor:
    if scale.dtype not in (torch.int64, torch.uint64):
        return scale
    packed = scale.contiguous().view(torch.int32).reshape(*scale.shape, 2)[..., 0].contiguous()
    return packed.view(torch.float32).double()
