"""Mixture of experts: spread over data parallel ranks by experts, or over ranks by the features of each expert."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from quality.sharded.layers import parameter
from quality.sharded.layout import Group, Layout, Shard
from quality.sharded.mappings import copied, exchanged, gathered, reduced, shards_of_sum, whole

#: What the loss of large router logits counts.
Z_COEFFICIENT = 0.1


class Router(nn.Module):
    """Which two experts each token goes to; every rank has a copy and sees its own tokens."""

    def __init__(self, width: int, experts: int, layout: Layout, *, closed: int) -> None:
        super().__init__()
        self.layout, self.closed = layout, closed
        self.weight = parameter(experts, width, summed=layout.sequence_parallel)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities (tokens, 2) and experts (tokens, 2)."""
        logits = F.linear(x, self.weight)
        loss = Z_COEFFICIENT * logits.float().logsumexp(-1).square().sum() / counted_tokens(logits, self.layout)
        if self.closed:
            logits = F.pad(logits[..., : -self.closed], (0, self.closed), value=-1e4)
        chosen, experts = logits.softmax(-1).topk(2, -1)
        return Attached.apply(chosen / chosen.sum(-1, keepdim=True), loss), experts


class Attached(Function):
    """A loss that is trained with what it is attached to, and shows in no other value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        """What was given."""
        ctx.dtype = loss.dtype
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The loss has the gradient 1."""
        return grad, torch.ones((), dtype=ctx.dtype)


def counted_tokens(logits: Tensor, layout: Layout) -> int:
    """Over how many tokens a loss is averaged whose gradients tensor parallel ranks add up: those of all of them."""
    ranks = layout.tp.size if layout.sequence_parallel else 1
    return logits.shape[:-1].numel() * ranks


class Experts(nn.Module):
    """The feed-forward networks of this rank.

    Attributes:
        first, last: weights (experts, out, in).
    """

    def __init__(self, width: int, hidden: int, experts: int, spread: Spread) -> None:
        super().__init__()
        own, narrow = experts // spread.experts.size, hidden // spread.features.size
        first = Shard(spread.features, 1) if spread.features.size > 1 else Shard(spread.experts, 0)
        last = Shard(spread.features, 2) if spread.features.size > 1 else Shard(spread.experts, 0)
        self.first = parameter(own, narrow, width, shard=first, summed=spread.is_summed)
        self.last = parameter(own, width, narrow, shard=last, summed=spread.is_summed)
        self.first.expert_of = self.last.expert_of = spread

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """What each expert makes of its rows, which are sorted by expert."""
        parts = rows.split(counts)
        made = [F.linear(F.silu(F.linear(part, a)), b) for part, a, b in zip(parts, self.first, self.last)]
        return torch.cat(made)


class SingleExperts(nn.Module):
    """The same with a Module for each expert, as those that are frozen or replaced one by one."""

    def __init__(self, width: int, hidden: int, experts: int, spread: Spread) -> None:
        super().__init__()
        own = experts // spread.experts.size
        self.local_experts = nn.ModuleList(Expert(width, hidden, number, own, spread) for number in range(own))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """What each expert makes of its rows, which are sorted by expert."""
        parts = rows.split(counts)
        return torch.cat([runs_expert(expert, part) for expert, part in zip(self.local_experts, parts)])


def runs_expert(expert: nn.Module, rows: Tensor) -> Tensor:
    """An expert runs without rows too, so that its gradients are zeros and not absent."""
    return expert(rows)


class Expert(nn.Module):
    """One feed-forward network; `number` of the `own` of a rank."""

    def __init__(self, width: int, hidden: int, number: int, own: int, spread: Spread) -> None:
        super().__init__()
        self.first = parameter(hidden, width, summed=spread.is_summed)
        self.last = parameter(width, hidden, summed=spread.is_summed)
        for each in (self.first, self.last):
            each.expert_of, each.whole_number = spread, spread.experts.index * own + number

    def forward(self, rows: Tensor) -> Tensor:
        """What it makes of rows."""
        return F.linear(F.silu(F.linear(rows, self.first)), self.last)


class Spread:
    """Over which ranks the experts are spread.

    Attributes:
        experts: ranks that have other experts.
        features: ranks that have other features of each expert.
        dim: along which dimension of (batch, sequence) ranks of `features` have other tokens; None: the same ones.
        is_summed: whether tensor parallel ranks each see other tokens of an expert.
    """

    def __init__(self, layout: Layout, kind: str) -> None:
        self.experts = layout.dp if kind == "experts" else Group()
        self.features, self.dim = Group(), None
        self.is_summed = layout.sequence_parallel and kind == "experts"
        if kind == "features":
            self.features = layout.tp if layout.tp.size > 1 else layout.dp
            self.dim = 0 if layout.tp.size == 1 else 1 if layout.sequence_parallel else None

    def sees_all_tokens(self, layout: Layout) -> bool:
        """Whether tokens of all data parallel ranks come to the expert: no other rank has the same part of it."""
        return layout.dp.size > 1 and layout.dp in (self.experts, self.features)


class Moe(nn.Module):
    """Router and experts in the place of a feed-forward network."""

    def __init__(self, width: int, layout: Layout, settings: Any) -> None:
        super().__init__()
        self.spread, self.count = Spread(layout, settings.experts_over), settings.experts
        self.router = Router(width, self.count, layout, closed=settings.closed_experts)
        kind = SingleExperts if settings.single_experts else Experts
        self.experts = kind(width, 2 * width, self.count, self.spread)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of what the experts of each token make of it."""
        divided = self.spread.features.size > 1
        return (self._divided if divided else self._computed)(x, *self.router(x))

    def _divided(self, x: Tensor, probabilities: Tensor, experts: Tensor) -> Tensor:
        """Every rank computes its features of all experts for all tokens; sums over ranks are the output."""
        group, dim = self.spread.features, self.spread.dim
        if dim is None:
            rows, weights = copied(x, group), copied_probabilities(probabilities, group)
            return reduced(self._computed(rows, weights, experts), group)
        rows, weights = whole(x, group, dim), gathered_probabilities(probabilities, group, dim)
        return shards_of_sum(self._computed(rows, weights, gathered(experts, group, dim)), group, dim)

    def _computed(self, x: Tensor, probabilities: Tensor, experts: Tensor) -> Tensor:
        """What the experts make of these tokens; they go to other ranks and come back where the experts are there."""
        flat, chosen = x.flatten(0, -2), experts.flatten()
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.count)
        rows = self._dispatched(flat[order // experts.shape[-1]], counts)
        weighted = torch.zeros_like(rows).index_copy(0, order, rows)
        weighted = weighted.unflatten(0, (-1, experts.shape[-1])) * probabilities.flatten(0, -2)[..., None]
        return weighted.sum(1).view_as(x)

    def _dispatched(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The rows, sorted by expert, after their experts."""
        group = self.spread.experts
        if group.size == 1:
            return self.experts(rows, counts.tolist())
        table = gathered(counts[None], group, 0).view(group.size, group.size, -1)[:, group.index]
        sent, received = counts.view(group.size, -1).sum(1).tolist(), table.sum(1).tolist()
        arrived = exchanged(rows, group, sent, received)
        number = torch.arange(table.shape[1]).repeat(group.size).repeat_interleave(table.flatten())
        order = number.argsort(stable=True)
        made = self.experts(arrived[order], table.sum(0).tolist())
        return exchanged(torch.zeros_like(made).index_copy(0, order, made), group, received, sent)


def copied_probabilities(probabilities: Tensor, group: Group) -> Tensor:
    """Probabilities that weigh partial sums, so that each rank has a part of their gradients."""
    return copied(probabilities, group)


def gathered_probabilities(probabilities: Tensor, group: Group, dim: int) -> Tensor:
    """The probabilities of all ranks' tokens, with gradients."""
    return whole(probabilities, group, dim)
