"""Attention to chosen keys: lightning_indexer, sparse_flash_attention, nsa_compress, nsa_select_attention.

A chosen key that the mask removes, or whose index is negative, takes no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention import copied
from pytest_msprobe.engines.references.attention_core import IntList, Scoring, attend, bounds, integers
from pytest_msprobe.engines.references.fused_precision import fused

_ALL = 9223372036854775807


@fused()
def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: IntList = None,
    actual_seq_lengths_key: IntList = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    return_value: bool = False,
) -> tuple[Tensor | None, Tensor]:
    """(None, the `sparse_count` largest scores of each query, largest first; -inf where there are fewer keys).

    The score of key j is the sum over heads of weight * relu(q . k_j). Source: mindspore.ops.lightning_indexer 2.10.

    Raises:
        Unsupported: `return_value` is not set: indices alone cannot be compared, as several answers are right under
            ties.
    """
    if not return_value:
        raise Unsupported("without return_value its only output are indices, of which several are right under ties")
    places = _BatchPlaces(layout_query, layout_key, block_table, actual_seq_lengths_query, actual_seq_lengths_key)
    flat_query, flat_key, flat_weights = query.flatten(0, -3), key.flatten(0, -3), weights.flatten(0, -2)
    chosen = flat_query.new_full((flat_query.shape[0], 1, sparse_count), -torch.inf)
    for rows, keys, _ in places.of(query, key):
        scores = (flat_query[rows] @ flat_key[keys, 0].mT).relu()
        scores = (scores * flat_weights[rows, :, None]).sum(1)
        if sparse_mode == 3:
            scores = scores.masked_fill(_after(*scores.shape, device=scores.device), -torch.inf)
        best = scores.sort(-1, descending=True).values[:, :sparse_count]
        chosen[rows, 0, : best.shape[1]] = best
    return None, chosen.reshape(*query.shape[:-2], 1, sparse_count)


@fused(float32_outputs=(1, 2))
def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: IntList = None,
    actual_seq_lengths_kv: IntList = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(output, maxima, sums): attention of each query to the blocks of keys that `sparse_indices` names.

    Rotary parts of query and key are appended to them. The statistics, (B, N2, S1, N1 / N2) or (N2, T1, N1 / N2), mean
    nothing without `return_softmax_lse`. Source: mindspore.ops.sparse_flash_attention 2.10.
    """
    if query_rope is not None and key_rope is not None:
        query, key = torch.cat([query, query_rope], -1), torch.cat([key, key_rope], -1)
    places = _BatchPlaces(layout_query, layout_kv, block_table, actual_seq_lengths_query, actual_seq_lengths_kv)
    flat = [x.flatten(0, -3) for x in (query, key, value, sparse_indices)]
    elements = []
    for rows, keys, count in places.of(query, key):
        is_chosen = _chosen(flat[3][rows], sparse_block_size, keys.stop - keys.start)
        if sparse_mode == 3:
            is_chosen = is_chosen & ~_after(*is_chosen.shape[-2:], device=query.device)
        parts = _attended(flat[0][rows], flat[1][keys], flat[2][keys], is_chosen, scale_value)
        elements.append([torch.cat([part, part.new_zeros(count - part.shape[0], *part.shape[1:])]) for part in parts])
    output, maximum, total = (torch.cat(parts) for parts in zip(*elements))
    if not return_softmax_lse:
        return output.reshape(*query.shape[:-1], -1), None, None
    axis = 1 if query.dim() == 4 else 0
    maximum, total = (x.reshape(*query.shape[:-2], key.shape[-2], -1).movedim(-2, axis) for x in (maximum, total))
    return output.reshape(*query.shape[:-1], -1), maximum, total


@fused()
def nsa_compress(
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    actual_seq_len: IntList = None,
) -> Tensor:
    """Sum of weight[row, n] * input[row, n] over the rows of each window, in each segment of (T, N, D).

    Source: mindspore.ops.nsa_compress 2.10; the formula is that of CANN's aclnnNsaCompress.
    """
    windows = [
        segment.unfold(0, compress_block_size, compress_stride)
        for first, end in bounds(actual_seq_len, input.shape[0], name="actual_seq_len")
        if (segment := input[first:end]).shape[0] >= compress_block_size
    ]
    if not windows:
        return input.new_zeros(0, *input.shape[1:])
    return (torch.cat(windows) * weight.T[:, None]).sum(-1)


@fused(float32_outputs=(1, 2))
def nsa_select_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    select_block_size: int,
    select_block_count: int,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: IntList = None,
    actual_seq_kvlen: IntList = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, maxima, sums): attention of (T, N, D) queries to the blocks of keys that `topk_indices` names.

    Indices are (T1, N2, blocks), counted within the batch element; a block named twice counts once, which the document
    leaves open. Statistics are (T1, N1, 8). Source: mindspore.ops.nsa_select_attention 2.10.

    Raises:
        Unsupported: `atten_mask` is given.
    """
    if atten_mask is not None:
        raise Unsupported("atten_mask: MindSpore 2.10 does not support it")
    places = _BatchPlaces("TND", "TND", None, actual_seq_qlen, actual_seq_kvlen)
    elements = []
    for rows, keys, _ in places.of(query, key):
        is_chosen = _chosen(topk_indices[rows], select_block_size, keys.stop - keys.start)
        elements.append(_attended(query[rows], key[keys], value[keys], is_chosen, scale_value))
    output, maximum, total = (torch.cat(parts) for parts in zip(*elements))
    return output, copied(maximum), copied(total)


@dataclass(frozen=True, slots=True)
class _BatchPlaces:
    """Where the queries and keys of each batch element stand, in layouts BSND and TND."""

    layout_query: str
    layout_key: str
    block_table: Tensor | None
    lengths: IntList
    key_lengths: IntList

    def of(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, int]]:
        """(rows of queries, rows of keys, queries with padding) of each batch element, in the flattened tensors.

        Raises:
            Unsupported: the keys are paged or in another layout than the queries, or the layout is neither BSND nor
                TND.
        """
        if self.block_table is not None or self.layout_query != self.layout_key:
            raise Unsupported(f"layout_key {self.layout_key} for {self.layout_query}: paged caches have no reference")
        if self.layout_query == "TND":
            rows = bounds(self.lengths, query.shape[0], name="actual query lengths")
            keys = bounds(self.key_lengths, key.shape[0], name="actual key lengths")
            for (first, end), (start, last) in zip(rows, keys):
                yield slice(first, end), slice(start, last), end - first
        elif self.layout_query == "BSND":
            padded, key_padded = query.shape[1], key.shape[1]
            counts, key_counts = integers(self.lengths), integers(self.key_lengths)
            for b in range(query.shape[0]):
                first, start = b * padded, b * key_padded
                end = first + (counts[b] if counts else padded)
                yield slice(first, end), slice(start, start + (key_counts[b] if key_counts else key_padded)), padded
        else:
            raise Unsupported(f"layout {self.layout_query}: only BSND and TND are documented")


def _after(rows: int, keys: int, *, device: torch.device) -> Tensor:
    """True where key j lies after query i, the last of both side by side."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).triu(1 + keys - rows)


def _chosen(indices: Tensor, block_size: int, keys: int) -> Tensor:
    """(N2, rows, keys), True where a block of `indices` (rows, N2, blocks) covers the key."""
    blocks = -(-keys // block_size)
    wanted = torch.where((indices >= 0) & (indices < blocks), indices, blocks).long()
    is_chosen = torch.zeros(*indices.shape[:2], blocks + 1, dtype=torch.bool, device=indices.device)
    is_chosen.scatter_(-1, wanted, True)
    return is_chosen[..., :blocks].repeat_interleave(block_size, -1)[..., :keys].transpose(0, 1)


def _attended(
    query: Tensor, key: Tensor, value: Tensor, is_chosen: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of (rows, N, D) tensors: output (rows, N1, Dv), maximum and sum (rows, N1)."""
    removed = ~is_chosen.repeat_interleave(query.shape[1] // key.shape[1], 0)
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    scoring = Scoring(scale=scale, removed=lambda first, end: removed[:, first:end])
    attended = attend(q, k, v, shift=None, scoring=scoring)
    return attended.output.transpose(0, 1), attended.maximum.transpose(0, 1), attended.total.transpose(0, 1)
