"""mindspore.ops.moe_token_permute and moe_token_unpermute. Source: their pages in mindspore.ops 2.10."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused

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
