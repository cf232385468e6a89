"""Attention of training: mindspore.ops.flash_attention_score and speed_fusion_attention.

Both compute ``Dropout(Softmax(Mask(scores)), keep_prob) V``. Rows whose scores are all removed give 0, where the
formula is undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention_core import Attended, Scoring, attend
from pytest_msprobe.engines.references.attention_layouts import from_bnsd, head_size, to_bnsd
from pytest_msprobe.engines.references.attention_masks import IntList, Masking, bounds, integers
from pytest_msprobe.engines.references.fused_precision import fused

#: The statistics of a row stand eight times in the last axis.
STATISTIC_COPIES = 8


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
        given=attn_mask,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        prefix=integers(prefix),
    )
    parts = Parts(scale=scalar_value, masking=masking, shift=real_shift, drop_mask=drop_mask, keep_prob=keep_prob)
    if input_layout == "TND":
        return parts.of_ragged(query, key, value, actual_seq_qlen, actual_seq_kvlen).output
    size = head_size(query, head_num, input_layout)
    q, k, v = (to_bnsd(x, input_layout, head_size=size) for x in (query, key, value))
    return from_bnsd(parts.of_batch(q, k, v).output, input_layout)


@fused(float32_outputs=(1, 2))
def speed_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    inner_precise: int = 0,
    prefix: IntList = None,
    actual_seq_qlen: IntList = None,
    actual_seq_kvlen: IntList = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: IntList = None,
    kv_start_idx: IntList = None,
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
        given=atten_mask,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        prefix=integers(prefix),
    )
    parts = Parts(scale=scale, masking=masking, shift=pse, is_shift_scaled=pse_type == 1)
    if input_layout == "TND":
        found = parts.of_ragged(query, key, value, actual_seq_qlen, actual_seq_kvlen)
        output = found.output
    else:
        size = head_size(query, head_num, input_layout)
        q, k, v = (to_bnsd(x, input_layout, head_size=size) for x in (query, key, value))
        found = parts.of_batch(q, k, v)
        output = from_bnsd(found.output, input_layout)
    return output, copied(found.maximum), copied(found.total), None, None, None, None


def copied(statistic: Tensor) -> Tensor:
    """A statistic per row, eight times in a new last axis."""
    return statistic[..., None].expand(*statistic.shape, STATISTIC_COPIES)


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

    def of_batch(self, query: Tensor, key: Tensor, value: Tensor) -> Attended:
        """Attention of (B, N, S, D) tensors: output (B, N1, S1, Dv), statistics (B, N1, S1)."""
        count, heads, rows = query.shape[:3]
        bits = _unpacked(self.drop_mask, count * heads * rows * key.shape[2])
        found = [
            self.of_element(query[b], key[b], value[b], batch=b, kept=None if bits is None else bits.chunk(count)[b])
            for b in range(count)
        ]
        return _joined(found, torch.stack)

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
        found = [
            self.of_element(
                query[first:end].transpose(0, 1),
                key[start:last].transpose(0, 1),
                value[start:last].transpose(0, 1),
                batch=b,
                kept=kept[b],
            )
            for b, ((first, end), (start, last)) in enumerate(zip(queries, keys))
        ]
        rows_first = [_rows_first(item) for item in found]
        return _joined(rows_first, lambda parts: _filled_to(query.shape[0], torch.cat(parts)))

    def of_element(self, query: Tensor, key: Tensor, value: Tensor, *, batch: int, kept: Tensor | None) -> Attended:
        """Attention of one batch element: (N, S, D) tensors and flat bits of kept weights.

        Raises:
            Unsupported: the position code does not have the shape of the scores.
        """
        shape = (query.shape[0], query.shape[1], key.shape[1])
        shift = None if self.shift is None else self.shift[batch if self.shift.shape[0] > 1 else 0]
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


def _rows_first(found: Attended) -> Attended:
    return Attended(found.output.transpose(0, 1), found.maximum.transpose(0, 1), found.total.transpose(0, 1))


def _joined(found: list[Attended], join: Callable[[list[Tensor]], Tensor]) -> Attended:
    return Attended(
        join([item.output for item in found]),
        join([item.maximum for item in found]),
        join([item.total for item in found]),
    )


def _filled_to(rows: int, x: Tensor) -> Tensor:
    """`x` with rows of 0 at its end: those past the last length, which belong to no batch element."""
    return torch.cat([x, x.new_zeros((rows - x.shape[0], *x.shape[1:]))])
