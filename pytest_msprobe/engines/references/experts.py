"""Mixture of experts: who computes which token. Index outputs are int32.

- Every sort is stable and every top-k takes the lower index among equals, which the documents leave open.
- PyTorch's own products of groups take no float64.
- mindspore.ops.moe_token_permute and moe_token_unpermute. Source: their pages in mindspore.ops 2.10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def moe_gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """(k largest softmax values of each row, their experts, k-major number of each entry: k * rows + row).

    A finished row gets the number of experts as its expert. Source: the example of MoeGatingTopKSoftmax in MindSpore
    2.10 and CANN's aclnnMoeGatingTopKSoftmax.
    """
    values, experts = _largest(torch.softmax(x, -1), k)
    if finished is not None:
        experts = experts.masked_fill(finished[..., None], x.shape[-1])
    rows = x.shape[:-1].numel()
    row_idx = torch.arange(rows * k, dtype=torch.int32, device=x.device).reshape(k, rows).T
    return values, experts.int(), row_idx.reshape(values.shape)


@fused()
def moe_init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows of x by expert, place of entry `row_idx`, sorted experts).

    Entry number row_idx = k * rows + row of the gating belongs to token row. At most `active_num` tokens' rows come
    out. Source: formulas of CANN's aclnnMoeInitRouting.
    """
    order = torch.argsort(expert_idx.reshape(-1), stable=True)
    entries = row_idx.reshape(-1)[order].long()
    places = torch.empty_like(entries).scatter_(0, entries, torch.arange(entries.numel(), device=x.device))
    kept = entries[: min(x.shape[0], active_num) * expert_idx.shape[-1]]
    return x[kept % x.shape[0]], places.int(), expert_idx.reshape(-1)[order].int()


@fused()
def moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    active_num: int,
    expert_capacity: int,
    expert_num: int,
    drop_pad_mode: int,
    expert_tokens_count_or_cumsum_flag: int,
    expert_tokens_before_capacity_flag: bool,
) -> tuple[Tensor, ...]:
    """(rows of x by expert, place of each (token, k), and tokens per expert when a flag asks for them).

    drop_pad_mode 1 gives (experts, capacity, H), 0 where an expert has too few tokens, and place -1 to dropped ones.
    Source: mindspore.ops.moe_init_routing_v2 2.10 with its example, CANN's aclnnMoeInitRoutingV2.
    """
    flat = expert_idx.reshape(-1).long()
    order = torch.argsort(flat, stable=True)
    places = torch.argsort(order)
    counts = torch.bincount(flat, minlength=expert_num).int()
    if drop_pad_mode == 0:
        kept = order[: active_num or None]
        outputs: tuple[Tensor, ...] = (x[kept // expert_idx.shape[1]], places.int())
        if expert_tokens_count_or_cumsum_flag:
            is_cumulative = expert_tokens_count_or_cumsum_flag == 1
            outputs = (*outputs, counts.cumsum(0).int() if is_cumulative else counts)
        return outputs
    slots = places - (counts.cumsum(0) - counts)[flat]
    has_slot = slots < expert_capacity
    places = torch.where(has_slot, flat * expert_capacity + slots, -1)
    tokens = torch.arange(flat.numel(), device=x.device) // expert_idx.shape[1]
    expanded = x.new_zeros(expert_num * expert_capacity, x.shape[1]).index_put((places[has_slot],), x[tokens[has_slot]])
    outputs = (expanded.reshape(expert_num, expert_capacity, -1), places.int())
    return (*outputs, counts) if expert_tokens_before_capacity_flag else outputs


def moe_compute_expert_tokens(sorted_experts: Tensor, num_expert: int) -> Tensor:
    """Number of entries up to and with each expert. Source: example of MindSpore 2.10."""
    experts = torch.arange(num_expert, dtype=sorted_experts.dtype, device=sorted_experts.device)
    return torch.searchsorted(sorted_experts, experts, right=True).to(sorted_experts.dtype)


@fused()
def moe_finalize_routing(
    expanded_x: Tensor,
    x1: Tensor,
    x2: Tensor | None = None,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    expanded_row_idx: Tensor | None = None,
    expanded_expert_idx: Tensor | None = None,
) -> Tensor:
    """Row i is x1[i] + x2[i] + sum over k of scales[i, k] * (expanded_x[row_idx[i + k N]] + bias[expert[i, k]]).

    Scales that are not given are 1. Source: mindspore.ops.auto_generate.moe_finalize_routing 2.10 with its example.

    Raises:
        Unsupported: `expanded_row_idx` is missing, or `expanded_expert_idx` where there is a `bias`.
    """
    if expanded_row_idx is None or (bias is not None and expanded_expert_idx is None):
        raise Unsupported("expanded_row_idx or expanded_expert_idx is missing")
    rows = expanded_row_idx.reshape(-1, x1.shape[0]).T.long()
    parts = expanded_x[rows]
    if bias is not None and expanded_expert_idx is not None:
        parts = parts + bias[expanded_expert_idx.long()]
    summed = (parts if scales is None else parts * scales[..., None]).sum(1)
    return x1 + summed if x2 is None else x1 + x2 + summed


@fused(float32_outputs=(0,))
def fused_add_topk_div(
    x: Tensor,
    add_num: Tensor,
    group_num: int,
    group_topk: int,
    n: int,
    k: int,
    activate_type: int = 0,
    is_norm: bool = True,
    scale: float = 2.5,
    mapping_num: Tensor | None = None,
    mapping_table: Tensor | None = None,
    enable_expert_mapping: bool = False,
) -> tuple[Tensor, Tensor]:
    """(weights of the k experts of each row, the experts).

    Scores are sigmoid(x) + add_num. A group of experts counts the sum of its n best scores; outside the `group_topk`
    best groups scores become 0. The k best of what is left are taken, and their sigmoids, divided by their sum and
    multiplied by `scale` when `is_norm`, are the weights. Source: description of the operator in MindSpore's custom
    operators and its test; that nothing is scaled without is_norm is our reading.

    Raises:
        Unsupported: `enable_expert_mapping` is set, which chooses at random, or `activate_type` is not 0.
    """
    if enable_expert_mapping:
        raise Unsupported("enable_expert_mapping: the kernel chooses among the mapped experts at random")
    if activate_type != 0:
        raise Unsupported(f"activate_type {activate_type}: only 0, the sigmoid, is documented")
    probabilities = x.sigmoid()
    scores = _best_groups(probabilities + add_num, group_num, group_topk, n)
    _, experts = _largest(scores, k)
    weights = probabilities.gather(-1, experts)
    if is_norm:
        weights = weights / weights.sum(-1, keepdim=True) * scale
    return weights, experts.int()


def _largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row and their indices, the lower index first among equals."""
    values, indices = torch.sort(x, stable=True, dim=-1, descending=True)
    return values[..., :k], indices[..., :k]


def _best_groups(scores: Tensor, groups: int, kept: int, best: int) -> Tensor:
    """`scores` (rows, experts), 0 outside the `kept` groups with the largest sum of their `best` largest scores."""
    grouped = scores.reshape(*scores.shape[:-1], groups, -1)
    _, chosen = _largest(_largest(grouped, best)[0].sum(-1), kept)
    is_kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool, device=scores.device).scatter_(-1, chosen, True)
    return (grouped * is_kept[..., None]).flatten(-2)


_PADDED = "padded_mode: MindSpore 2.10 refuses it as well"


@fused()
def moe_token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """(rows of tokens in the order of their expert, int32 place of each (token, k) in that order).

    Equal experts keep their order (a stable sort). With `num_out_tokens` only so many rows come out; 0 and None: all.

    Raises:
        Unsupported: `padded_mode` is set.
    """
    if padded_mode:
        raise Unsupported(_PADDED)
    choices = indices.shape[1] if indices.dim() == 2 else 1
    order = torch.argsort(indices.reshape(-1), stable=True)
    kept = order[: num_out_tokens or None]
    return tokens[kept // choices], torch.argsort(order).int()


@fused()
def moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: tuple[int, ...] | None = None,
) -> Tensor:
    """Row t is the sum over k of probs[t, k] * permuted_tokens[sorted_indices[t * K + k]].

    K is the second axis of `probs`, 1 without. A place beyond the permuted rows is a dropped token and adds 0.

    Raises:
        Unsupported: `padded_mode` is set.
    """
    if padded_mode:
        raise Unsupported(_PADDED)
    choices = 1 if probs is None else probs.shape[1]
    is_present = sorted_indices < permuted_tokens.shape[0]
    rows = permuted_tokens[torch.where(is_present, sorted_indices, 0).long()] * is_present[:, None]
    grouped = rows.reshape(-1, choices, permuted_tokens.shape[-1])
    return grouped.sum(1) if probs is None else (grouped * probs[..., None]).sum(1)


def grouped_mm(
    x: Tensor,
    weights: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: object = None,  # the device rounds to it
) -> Tensor:
    """The product of each group of rows, or columns, of what is a matrix: a group ends before its entry of `offs`.

    Two matrices are cut along the axis that is summed. Source: documentation of torch.nn.functional.grouped_mm 2.13.

    Raises:
        Unsupported: there is a bias, or the groups leave out a part, of which nothing is computed.
    """
    if bias is not None:
        raise Unsupported("grouped_mm with a bias")
    if offs is None:
        return x @ weights
    ends = [*map(int, offs)]
    if not ends or ends[-1] != (weights.shape[-1] if x.dim() == 3 else x.shape[weights.dim() - 3]):
        raise Unsupported("grouped_mm of groups that leave out a part")
    groups = list(enumerate(map(slice, [0, *ends[:-1]], ends)))
    if x.dim() == weights.dim():
        return torch.stack([x[:, group] @ weights[group] for _, group in groups])
    if x.dim() == 3:
        return torch.cat([x[number] @ weights[:, group] for number, group in groups], 1)
    return torch.cat([x[group] @ weights[number] for number, group in groups])
