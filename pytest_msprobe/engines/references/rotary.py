"""mindspore.ops.rotary_position_embedding and apply_rotary_pos_emb_, torch_npu.npu_rotary_mul."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """``x * cos + R(x) * sin``; cos and sin are broadcast to x.

    R turns (a, b) into (-b, a), where a and b are: the halves of the last axis (mode 0), its even and odd elements
    (mode 1), the halves of each half (mode 2). Mode 3 first moves the even elements to the front and the odd ones to
    the back, also in x itself, and goes on as mode 0. Source: mindspore.ops 2.10 for modes 0 and 1, CANN's
    RotaryPositionEmbedding for 2 and 3.

    Raises:
        Unsupported: `mode` is not one of 0 to 3.
    """
    if mode == 0:
        return x * cos + _half_turned(x) * sin
    if mode == 1:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + turned * sin
    if mode == 2:
        turned = torch.cat([_half_turned(half) for half in x.chunk(2, -1)], -1)
        return x * cos + turned * sin
    if mode == 3:
        moved = torch.cat([x[..., ::2], x[..., 1::2]], -1)
        return moved * cos + _half_turned(moved) * sin
    raise Unsupported(f"mode {mode}: only 0 to 3 are documented")


@fused()
def npu_rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """`rotary_position_embedding` with cos `r1` and sin `r2`; mode `half` or `interleave`. Source: torch_npu."""
    return rotary_position_embedding(x, r1, r2, {"half": 0, "interleave": 1}[rotary_mode])


@fused()
def apply_rotary_pos_emb_(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, cos_format: int = 0
) -> tuple[Tensor, Tensor]:
    """(query, key) with every head turned, computed out of place.

    Query and key are (T, N * D), (B, S, N * D) or (B, S, N, D); D is the last axis of cos. Formats 0 and 1 pick rows of
    cos and sin by `position_ids`, one for each token or one for each of S; formats 2 and 3 have a row for each token.
    Formats 0 and 2 turn halves, 1 and 3 pairs of elements. Source: MindSpore's own test of ApplyRotaryPosEmb.

    Raises:
        Unsupported: `cos_format` is not one of 0 to 3.
    """
    if cos_format not in range(4):
        raise Unsupported(f"cos_format {cos_format}: only 0 to 3 are documented")
    if cos_format in (0, 1):
        rows = position_ids.reshape(-1).long()
        cos, sin = cos[rows], sin[rows]
    turned = [_turned_heads(x, cos, sin, mode=cos_format % 2) for x in (query, key)]
    return turned[0], turned[1]


def _turned_heads(x: Tensor, cos: Tensor, sin: Tensor, *, mode: int) -> Tensor:
    tokens, size = x.shape[: max(1, min(2, x.dim() - 1))].numel(), cos.shape[-1]
    rows = cos.numel() // size
    if tokens % rows:
        raise Unsupported(f"{rows} rows of cos for {tokens} tokens")
    heads = x.reshape(tokens // rows, rows, -1, size)
    turned = rotary_position_embedding(heads, cos.reshape(rows, 1, size), sin.reshape(rows, 1, size), mode)
    return turned.reshape(x.shape)


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
