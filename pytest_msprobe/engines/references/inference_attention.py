"""Attention of inference: mindspore.ops.prompt_flash_attention, incre_flash_attention, fused_infer_attention_score.

All compute ``Softmax(Mask(scale * Q K^T + pse_shift)) V`` and have no gradient. Queries past a batch element's actual
length give 0. What works on int8 or on a paged cache is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention_core import Attended
from pytest_msprobe.engines.references.attention_layouts import from_bnsd, to_bnsd
from pytest_msprobe.engines.references.attention_masks import IntList, Masking, integers
from pytest_msprobe.engines.references.flash_attention import Parts
from pytest_msprobe.engines.references.fused_precision import fused

TensorOrList = Tensor | Sequence[Tensor]


@fused()
def prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    actual_seq_lengths: IntList = None,
    actual_seq_lengths_kv: IntList = None,
    pse_shift: Tensor | None = None,
    deq_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 1,
) -> Tensor:
    """Attention output in the layout of `query`."""
    _refuse(
        query,
        deq_scale1=deq_scale1,
        quant_scale1=quant_scale1,
        deq_scale2=deq_scale2,
        quant_scale2=quant_scale2,
        quant_offset2=quant_offset2,
    )
    masking = Masking(sparse_mode=sparse_mode, given=attn_mask, pre_tokens=pre_tokens, next_tokens=next_tokens)
    parts = Parts(scale=scale_value, masking=masking, shift=pse_shift)
    q, k, v = _heads(query, key, value, input_layout, num_heads)
    return from_bnsd(_cut(parts, q, k, v, actual_seq_lengths, actual_seq_lengths_kv).output, input_layout)


@fused()
def incre_flash_attention(
    query: Tensor,
    key: TensorOrList,
    value: TensorOrList,
    attn_mask: Tensor | None = None,
    actual_seq_lengths: IntList = None,
    pse_shift: Tensor | None = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    input_layout: str = "BSH",
    scale_value: float = 1.0,
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
    kv_padding_size: Tensor | None = None,
) -> Tensor:
    """Attention output of one query per batch element; `actual_seq_lengths` are the lengths of key and value."""
    _refuse(
        query,
        dequant_scale1=dequant_scale1,
        quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2,
        quant_scale2=quant_scale2,
        quant_offset2=quant_offset2,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        block_table=block_table,
        kv_padding_size=kv_padding_size,
    )
    parts = Parts(scale=scale_value, masking=Masking(given=_of_one_query(attn_mask)), shift=pse_shift)
    q, k, v = _heads(query, _single(key), _single(value), input_layout, num_heads)
    return from_bnsd(_cut(parts, q, k, v, None, actual_seq_lengths).output, input_layout)


@fused(float32_outputs=(1,))
def fused_infer_attention_score(
    query: Tensor,
    key: TensorOrList,
    value: TensorOrList,
    *,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: IntList = None,
    actual_seq_lengths_kv: IntList = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    key_antiquant_scale: Tensor | None = None,
    key_antiquant_offset: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    value_antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    query_padding_size: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    key_shared_prefix: Tensor | None = None,
    value_shared_prefix: Tensor | None = None,
    actual_shared_prefix_len: IntList = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 1,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """(output, log of the sum of exponentials (B, N, S1, 1), or one 0 when it was not asked for).

    Layout BNSD_BSND takes BNSD and returns BSND. With one query, sparse mode and query lengths mean nothing.
    """
    _refuse(
        query,
        dequant_scale1=dequant_scale1,
        quant_scale1=quant_scale1,
        dequant_scale2=dequant_scale2,
        quant_scale2=quant_scale2,
        quant_offset2=quant_offset2,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        key_antiquant_scale=key_antiquant_scale,
        key_antiquant_offset=key_antiquant_offset,
        value_antiquant_scale=value_antiquant_scale,
        value_antiquant_offset=value_antiquant_offset,
        block_table=block_table,
        query_padding_size=query_padding_size,
        kv_padding_size=kv_padding_size,
        key_shared_prefix=key_shared_prefix,
        value_shared_prefix=value_shared_prefix,
    )
    taken, _, given_back = input_layout.partition("_")
    q, k, v = _heads(query, _single(key), _single(value), taken, num_heads)
    if q.shape[2] == 1:
        masking, actual_seq_lengths = Masking(given=_of_one_query(atten_mask)), None
    else:
        masking = Masking(sparse_mode=sparse_mode, given=atten_mask, pre_tokens=pre_tokens, next_tokens=next_tokens)
    parts = Parts(scale=scale, masking=masking, shift=pse_shift)
    found = _cut(parts, q, k, v, actual_seq_lengths, actual_seq_lengths_kv)
    statistic = (found.maximum + found.total.log())[..., None] if softmax_lse_flag else query.new_zeros(1)
    return from_bnsd(found.output, given_back or taken), statistic


def _heads(query: Tensor, key: Tensor, value: Tensor, layout: str, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    size = query.shape[-1] // heads if layout.endswith("H") else query.shape[-1]
    return tuple(to_bnsd(x, layout, head_size=size) for x in (query, key, value))  # type: ignore[return-value]  # three


def _cut(parts: Parts, q: Tensor, k: Tensor, v: Tensor, rows: IntList, keys: IntList) -> Attended:
    """Attention of each batch element within its actual lengths; one length is for all of them."""
    count = q.shape[0]
    row_counts, key_counts = (
        _lengths(lengths, count, whole) for lengths, whole in ((rows, q.shape[2]), (keys, k.shape[2]))
    )
    output = q.new_zeros((*q.shape[:3], v.shape[-1]))
    maximum, total = q.new_full(q.shape[:3], -torch.inf), q.new_zeros(q.shape[:3])
    for b in range(count):
        row, last = row_counts[b], key_counts[b]
        found = parts.of_element(q[b, :, :row], k[b, :, :last], v[b, :, :last], batch=b, kept=None)
        output[b, :, :row], maximum[b, :, :row], total[b, :, :row] = found.output, found.maximum, found.total
    return Attended(output, maximum, total)


def _lengths(given: IntList, count: int, whole: int) -> tuple[int, ...]:
    found = integers(given)
    if not found:
        return (whole,) * count
    if len(found) not in (1, count) or not all(0 <= length <= whole for length in found):
        raise Unsupported(f"actual sequence lengths {found} for {count} batch elements of {whole} rows")
    return found if len(found) == count else found * count


def _of_one_query(mask: Tensor | None) -> Tensor | None:
    """A mask of incremental inference, (B, S2), (B, 1, S2) or (B, 1, 1, S2), with all four axes."""
    return None if mask is None else mask.reshape(mask.shape[0], 1, 1, mask.shape[-1])


def _single(x: TensorOrList) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if len(x) > 1:
        raise Unsupported(f"a list of {len(x)} tensors for key or value")
    return x[0]


def _refuse(query: Tensor, **arguments: Tensor | None) -> None:
    present = [name for name, value in arguments.items() if value is not None]
    if present:
        raise Unsupported(f"{', '.join(present)}: quantised values and paged or padded caches have no reference")
    if not query.is_floating_point():
        raise Unsupported(f"a query of {query.dtype}: quantised attention has no reference")
