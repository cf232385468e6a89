"""Attention of training: mindspore.ops.flash_attention_score and speed_fusion_attention.

Both compute ``Dropout(Softmax(Mask(scores)), keep_prob) V``. Rows whose scores are all removed give 0, where the
formula is undefined.

Attention of inference: mindspore.ops.prompt_flash_attention, incre_flash_attention, fused_infer_attention_score.

All compute ``Softmax(Mask(scale * Q K^T + pse_shift)) V`` and have no gradient. Queries past a batch element's actual
length give 0. What works on int8 or on a paged cache is refused.

mindspore.ops.ring_attention_update: two attentions over different keys become one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention_core import (
    Attended,
    IntList,
    Masking,
    Scoring,
    attend,
    bounds,
    by_head,
    from_bnsd,
    integers,
)
from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def flash_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    real_shift: Tensor | None = None,
    drop_mask: Tensor | None = None,
    padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    prefix: IntList = None,
    actual_seq_qlen: IntList = None,
    actual_seq_kvlen: IntList = None,
    keep_prob: float = 1.0,
    scalar_value: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
) -> Tensor:
    """Attention output in the layout of `query`: BSH, SBH, BSND, BNSD, or TND with cumulative lengths.

    `real_shift` is added after the scale, as mindspore.ops 2.10 documents it; CANN's page for the same kernel adds it
    before. Bit b of byte c of `drop_mask` keeps key 8 c + b, as the masks of Ascend's dropout generator are unpacked.

    Raises:
        Unsupported: `keep_prob` is below 1 and no `drop_mask` was recorded.
    """
    if keep_prob < 1 and drop_mask is None:
        raise Unsupported(f"keep_prob {keep_prob} without drop_mask: dropout is random")
    masking = Masking(
        sparse_mode=sparse_mode,
        mask=attn_mask,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        prefix=integers(prefix),
    )
    parts = Parts(scale=scalar_value, masking=masking, shift=real_shift, drop_mask=drop_mask, keep_prob=keep_prob)
    return parts.of_layout(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen).output


@fused(float32_outputs=(1, 2))
def speed_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None,
    atten_mask: Tensor | None,
    scale: float,
    keep_prob: float,
    pre_tokens: int,
    next_tokens: int,
    prefix: IntList,
    actual_seq_qlen: IntList,
    actual_seq_kvlen: IntList,
    sparse_mode: int,
    pse_type: int,
) -> tuple[Tensor | None, ...]:
    """(output, maxima, sums, None, None, None, None): the last four (softmax_out, seed, offset, numels) are unused.

    Maxima and sums are (B, N, S, 8), in layout TND (T, N, 8), with eight equal values in the last axis.

    Raises:
        Unsupported: `keep_prob` is below 1, or `pse_type` is neither 0 nor 1.
    """
    if keep_prob < 1:
        raise Unsupported(f"keep_prob {keep_prob}: dropout is random")
    if pse_type not in (0, 1):
        raise Unsupported(f"pse_type {pse_type}: the kernel generates the position code itself")
    masking = Masking(
        sparse_mode=sparse_mode,
        mask=atten_mask,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        prefix=integers(prefix),
    )
    parts = Parts(scale=scale, masking=masking, shift=pse, is_shift_scaled=pse_type == 1)
    attended = parts.of_layout(query, key, value, head_num, input_layout, actual_seq_qlen, actual_seq_kvlen)
    return attended.output, copied(attended.maximum), copied(attended.total), None, None, None, None


def copied(statistic: Tensor) -> Tensor:
    """A statistic per row, eight times in a new last axis."""
    return statistic[..., None].expand(*statistic.shape, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The arguments of an attention besides query, key and value.

    Attributes:
        scale: factor of the scores.
        masking: what is removed.
        shift: position code, (B or 1, N1 or 1, S1, S2).
        is_shift_scaled: whether it is added before the scale.
        drop_mask: packed bits of kept weights, in the order of (B, N1, S1, S2).
        keep_prob: the kept weights are divided by it.
    """

    scale: float
    masking: Masking
    shift: Tensor | None = None
    is_shift_scaled: bool = False
    drop_mask: Tensor | None = None
    keep_prob: float = 1.0

    def of_layout(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, ends: IntList, key_ends: IntList
    ) -> Attended:
        """Attention of tensors in `layout`, in which the output comes back; `ends` count in layout TND."""
        if layout == "TND":
            return self.of_ragged(query, key, value, ends, key_ends)
        attended = self.of_batch(*by_head(query, key, value, layout, heads))
        return replace(attended, output=from_bnsd(attended.output, layout))

    def of_batch(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """Attention of (B, N, S, D) tensors: output (B, N1, S1, Dv), statistics (B, N1, S1)."""
        count, heads, rows = query.shape[:3]
        bits = _unpacked(self.drop_mask, count * heads * rows * key.shape[2])
        kept = [None] * count if bits is None else bits.chunk(count)
        elements = [self.of_element(query[b], key[b], value[b], batch=b, kept=kept[b]) for b in range(count)]
        return _joined(elements, torch.stack)

    def of_ragged(self, query: Tensor, key: Tensor, value: Tensor, ends: IntList, key_ends: IntList) -> Attended:
        """Attention of (T, N, D) tensors cut by cumulative lengths: output (T1, N1, Dv), statistics (T1, N1).

        Raises:
            Unsupported: there is a position code, or queries and keys are cut into different numbers of elements.
        """
        if self.shift is not None:
            raise Unsupported("a position code in layout TND is compressed to 1024 rows in a way no document defines")
        queries = bounds(ends, query.shape[0], name="actual_seq_qlen")
        keys = bounds(key_ends, key.shape[0], name="actual_seq_kvlen")
        if len(queries) != len(keys):
            raise Unsupported(f"actual_seq_qlen has {len(queries)} lengths, actual_seq_kvlen {len(keys)}")
        sizes = [(end - first) * (last - start) * query.shape[1] for (first, end), (start, last) in zip(queries, keys)]
        bits = _unpacked(self.drop_mask, sum(sizes))
        kept = [None] * len(sizes) if bits is None else torch.split(bits, sizes)
        elements = []
        for b, ((first, end), (start, last)) in enumerate(zip(queries, keys)):
            parts = query[first:end], key[start:last], value[start:last]
            elements.append(self.of_element(*(part.transpose(0, 1) for part in parts), batch=b, kept=kept[b]))
        # Rows past the last length belong to no element and give 0.
        return _joined(elements, lambda parts: _rows_first(parts, count=query.shape[0]))

    def of_element(self, query: Tensor, key: Tensor, value: Tensor, *, batch: int, kept: Tensor | None) -> Attended:
        """Attention of one batch element: (N, S, D) tensors and flat bits of kept weights.

        Raises:
            Unsupported: the position code does not have the shape of the scores.
        """
        shape = (query.shape[0], query.shape[1], key.shape[1])
        shift = self.shift
        if shift is not None:
            shift = shift[batch if shift.shape[0] > 1 else 0]
        if shift is not None and shift.shape[-2:] != shape[-2:]:
            raise Unsupported(f"a position code of {tuple(shift.shape)} for scores of {shape} (compressed ALiBi)")
        scoring = Scoring(
            scale=self.scale,
            removed=self.masking.removed(batch, *shape[1:], device=query.device),
            is_shift_scaled=self.is_shift_scaled,
            kept=None if kept is None else kept.reshape(shape),
            keep_prob=self.keep_prob,
        )
        return attend(query, key, value, shift=shift, scoring=scoring)


def _unpacked(packed: Tensor | None, count: int) -> Tensor | None:
    """`count` bits, the lowest of each byte first."""
    if packed is None:
        return None
    if packed.numel() * 8 < count:
        raise Unsupported(f"drop_mask of {tuple(packed.shape)} holds fewer than the {count} bits of the scores")
    bits = (packed.reshape(-1, 1) >> torch.arange(8, dtype=packed.dtype, device=packed.device)) & 1
    return bits.reshape(-1)[:count].bool()


def _joined(elements: list[Attended], join: Callable[[list[Tensor]], Tensor]) -> Attended:
    def joined(name: str) -> Tensor:
        return join([getattr(element, name) for element in elements])

    return Attended(joined("output"), joined("maximum"), joined("total"))


def _rows_first(parts: list[Tensor], *, count: int) -> Tensor:
    """(N, S, ...) of each element as (T, N, ...), with rows of 0 at its end up to `count`."""
    joined = torch.cat([part.transpose(0, 1) for part in parts])
    return torch.cat([joined, joined.new_zeros((count - joined.shape[0], *joined.shape[1:]))])


TensorOrList = Tensor | Sequence[Tensor]


@fused()
def prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    actual_seq_lengths: IntList,
    actual_seq_lengths_kv: IntList,
    pse_shift: Tensor | None,
    num_heads: int,
    scale_value: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    sparse_mode: int,
) -> Tensor:
    """Attention output in the layout of `query`."""
    _refuse_integers(query)
    masking = Masking(sparse_mode=sparse_mode, mask=attn_mask, pre_tokens=pre_tokens, next_tokens=next_tokens)
    parts = Parts(scale=scale_value, masking=masking, shift=pse_shift)
    q, k, v = by_head(query, key, value, input_layout, num_heads)
    return from_bnsd(_cut(parts, q, k, v, actual_seq_lengths, actual_seq_lengths_kv).output, input_layout)


@fused()
def incre_flash_attention(
    query: Tensor,
    key: TensorOrList,
    value: TensorOrList,
    attn_mask: Tensor | None,
    actual_seq_lengths: IntList,
    pse_shift: Tensor | None,
    num_heads: int,
    input_layout: str,
    scale_value: float,
) -> Tensor:
    """Attention output of one query per batch element; `actual_seq_lengths` are the lengths of key and value."""
    _refuse_integers(query)
    parts = Parts(scale=scale_value, masking=Masking(mask=_of_one_query(attn_mask)), shift=pse_shift)
    q, k, v = by_head(query, _single(key), _single(value), input_layout, num_heads)
    return from_bnsd(_cut(parts, q, k, v, None, actual_seq_lengths).output, input_layout)


@fused(float32_outputs=(1,))
def fused_infer_attention_score(
    query: Tensor,
    key: TensorOrList,
    value: TensorOrList,
    *,
    pse_shift: Tensor | None,
    atten_mask: Tensor | None,
    actual_seq_lengths: IntList,
    actual_seq_lengths_kv: IntList,
    num_heads: int,
    scale: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    sparse_mode: int,
    softmax_lse_flag: bool,
) -> tuple[Tensor, Tensor]:
    """(output, log of the sum of exponentials (B, N, S1, 1), or one 0 when it was not asked for).

    Layout BNSD_BSND takes BNSD and returns BSND. With one query, sparse mode and query lengths mean nothing.
    """
    _refuse_integers(query)
    taken, _, given_back = input_layout.partition("_")
    q, k, v = by_head(query, _single(key), _single(value), taken, num_heads)
    if q.shape[2] == 1:
        masking, actual_seq_lengths = Masking(mask=_of_one_query(atten_mask)), None
    else:
        masking = Masking(sparse_mode=sparse_mode, mask=atten_mask, pre_tokens=pre_tokens, next_tokens=next_tokens)
    parts = Parts(scale=scale, masking=masking, shift=pse_shift)
    attended = _cut(parts, q, k, v, actual_seq_lengths, actual_seq_lengths_kv)
    statistic = (attended.maximum + attended.total.log())[..., None] if softmax_lse_flag else query.new_zeros(1)
    return from_bnsd(attended.output, given_back or taken), statistic


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
        attended = parts.of_element(q[b, :, :row], k[b, :, :last], v[b, :, :last], batch=b, kept=None)
        output[b, :, :row], maximum[b, :, :row], total[b, :, :row] = attended.output, attended.maximum, attended.total
    return Attended(output, maximum, total)


def _lengths(lengths: IntList, count: int, whole: int) -> tuple[int, ...]:
    numbers = integers(lengths)
    if not numbers:
        return (whole,) * count
    if len(numbers) not in (1, count) or not all(0 <= length <= whole for length in numbers):
        raise Unsupported(f"actual sequence lengths {numbers} for {count} batch elements of {whole} rows")
    return numbers if len(numbers) == count else numbers * count


def _of_one_query(mask: Tensor | None) -> Tensor | None:
    """A mask of incremental inference, (B, S2), (B, 1, S2) or (B, 1, 1, S2), with all four axes."""
    return None if mask is None else mask.reshape(mask.shape[0], 1, 1, mask.shape[-1])


def _single(x: TensorOrList) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if len(x) > 1:
        raise Unsupported(f"a list of {len(x)} tensors for key or value")
    return x[0]


def _refuse_integers(query: Tensor) -> None:
    if not query.is_floating_point():
        raise Unsupported(f"a query of {query.dtype}: quantised attention has no reference")


@fused(float32_outputs=(1, 2))
def ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    actual_seq_qlen: Tensor | None = None,
    layout: str = "SBH",
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, maxima, sums) over both sets of keys.

    With m = max(m1, m2) and l = l1 exp(m1 - m) + l2 exp(m2 - m), the output is
    (o1 l1 exp(m1 - m) + o2 l2 exp(m2 - m)) / l. Outputs are (S, B, H) with statistics (B, N, S, 8), or (T, N, D) with
    (T, N, 8). Source: definition of the softmax; the page of CANN that leaves out l1 and l2 is wrong.

    Raises:
        Unsupported: `layout` is neither SBH nor TND.
    """
    if layout not in ("SBH", "TND"):
        raise Unsupported(f"layout {layout}: only SBH and TND are documented")
    maximum = torch.maximum(prev_softmax_max, cur_softmax_max)
    first = prev_softmax_sum * (prev_softmax_max - maximum).exp()
    second = cur_softmax_sum * (cur_softmax_max - maximum).exp()
    total = first + second
    shares = [_like_output(part / total, prev_attn_out, layout) for part in (first, second)]
    return prev_attn_out * shares[0] + cur_attn_out * shares[1], maximum, total


def _like_output(statistic: Tensor, output: Tensor, layout: str) -> Tensor:
    single = statistic[..., :1]
    if layout == "TND":
        return single
    count, heads = single.shape[:2]
    spread = single.expand(-1, -1, -1, output.shape[-1] // heads)
    return spread.permute(2, 0, 1, 3).reshape(-1, count, output.shape[-1])
