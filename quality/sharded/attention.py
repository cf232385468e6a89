"""Attention with rotary positions; over context parallel ranks as a ring that hands keys and values on."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from quality.sharded.layers import ColumnLinear, Norm, RowLinear, parameter
from quality.sharded.layout import Group, Layout
from quality.sharded.mappings import copied


def positions_of(length: int, layout: Layout) -> Tensor:
    """Positions in the whole sequence of the `length` tokens that this rank has."""
    return layout.own_positions(torch.arange(length * layout.cp.size)[None])[0]


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Queries or keys (batch, heads, sequence, features), turned by their positions."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 100.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def scale_of(features: int) -> float:
    """What scores are multiplied with: a head's width counts, which no rank divides."""
    return 1 / math.sqrt(features)


class Core(nn.Module):
    """Causal attention of heads."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, sequence, features) of the queries."""
        positions = positions_of(q.shape[2], self.layout)
        if self.layout.cp.size > 1:
            return Ring.apply(q, k, v, positions, self.layout)
        scores = (q @ k.transpose(-1, -2)) * scale_of(q.shape[-1])
        scores = scores.masked_fill(positions[:, None] < positions[None], -1e4)
        return scores.softmax(-1) @ v


class Attention(nn.Module):
    """Self attention with a fused projection of queries, keys and values.

    Where there are fewer heads of keys and values than ranks, every rank computes all of them.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, layout: Layout, *, qk_norm: bool = False) -> None:
        super().__init__()
        tp, self.layout, self.features = layout.tp, layout, width // heads
        self.is_copied = kv_heads < heads and kv_heads == 1
        own = 0 if self.is_copied else kv_heads
        lengths = [heads * self.features, *([own * self.features] * 2 if own else [])]
        self.qkv = ColumnLinear(width, sum(lengths), layout, parts=lengths)
        self.lengths = [length // tp.size for length in lengths]
        self.kv = CopiedLinear(width, 2 * self.features, layout) if self.is_copied else None
        self.q_norm = Norm(self.features, summed=True) if qk_norm else None
        self.core = Core(layout)
        self.o = RowLinear(width, width, layout)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of what the heads give."""
        q, *kv = self.qkv(x).split(self.lengths, -1)
        if self.kv is not None:
            kv = self.kv(x).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (-1, self.features)).transpose(1, 2) for part in (q, *kv))
        if self.q_norm is not None:
            q = self.q_norm(q)
        positions = positions_of(q.shape[2], self.layout)
        q, k = rotated(q, positions), rotated(k, positions)
        shared = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(shared, 1) if shared > 1 else part for part in (k, v))
        return self.o(self.core(q, k, v).transpose(1, 2).flatten(2))


class CopiedLinear(nn.Module):
    """A linear layer that every rank has whole, and whose output feeds what is divided."""

    def __init__(self, width: int, out: int, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.weight = parameter(out, width)

    def forward(self, x: Tensor) -> Tensor:
        """All features, on every rank."""
        return copied(F.linear(x, self.weight), self.layout.tp)


class Ring(Function):
    """Attention of this rank's queries to the keys and values of all ranks, which travel around."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Softmax over all keys, put together from that over each rank's."""
        sum_, log_total = torch.zeros_like(q, dtype=torch.float32), torch.full(q.shape[:-1], -math.inf)
        visitor = torch.stack([k, v])
        for step in range(layout.cp.size):
            scores = _scores(q, visitor[0], positions, _owner(step, layout), layout)
            block = scores.logsumexp(-1)
            log_total, before = torch.logaddexp(log_total, block), log_total
            sum_ = sum_ * merged_weight(before, log_total) + (scores - log_total[..., None]).exp() @ visitor[1].float()
            visitor = _passed_on(visitor, layout.cp)
        ctx.save_for_backward(q, k, v, sum_, log_total, positions)
        ctx.layout = layout
        return sum_.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Gradients; those of keys and values travel with them, and arrive where they began."""
        q, k, v, out, log_total, positions = ctx.saved_tensors
        layout, grad = ctx.layout, grad.float()
        delta = (out * grad).sum(-1, keepdim=True)
        grad_q, visitor = torch.zeros_like(out), torch.stack([k, v, torch.zeros_like(k), torch.zeros_like(v)]).float()
        for step in range(layout.cp.size):
            scores = _scores(q, visitor[0], positions, _owner(step, layout), layout)
            weights = (scores - log_total[..., None]).exp()
            inner = weights * (grad @ visitor[1].transpose(-1, -2) - delta) * scale_of(q.shape[-1])
            grad_q = grad_q + inner @ visitor[0]
            visitor[2] += inner.transpose(-1, -2) @ q.float()
            visitor[3] += weights.transpose(-1, -2) @ grad
            visitor = _passed_on(visitor, layout.cp)
        return grad_q.to(q.dtype), visitor[2].to(q.dtype), visitor[3].to(q.dtype), None, None


def merged_weight(before: Tensor, after: Tensor) -> Tensor:
    """What the sum so far counts when more keys are there."""
    return (before - after).exp()[..., None]


def _owner(step: int, layout: Layout) -> int:
    return (layout.cp.index - step) % layout.cp.size


def _scores(q: Tensor, k: Tensor, positions: Tensor, owner: int, layout: Layout) -> Tensor:
    there = Layout(cp=Group(layout.cp.size, owner), zigzag=layout.zigzag)
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale_of(q.shape[-1])
    return scores.masked_fill(positions[:, None] < positions_of(k.shape[2], there)[None], -1e4)


def _passed_on(visitor: Tensor, group: Group) -> Tensor:
    """What the rank before this one had."""
    arrived = torch.empty_like(visitor)
    after, before = (group.ranks[(group.index + step) % group.size] for step in (1, -1))
    sent = dist.P2POp(dist.isend, visitor.contiguous(), after, group.process_group)
    received = dist.P2POp(dist.irecv, arrived, before, group.process_group)
    for work in dist.batch_isend_irecv([sent, received]):
        work.wait()
    return arrived
