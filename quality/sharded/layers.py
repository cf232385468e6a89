"""Layers whose parameters are shards, and the loss of sharded logits; on one rank they are the plain ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from quality.sharded.layout import Group, Layout, Shard
from quality.sharded.mappings import copied, reduced, shards_of_sum, whole


def parameter(*shape: int, shard: Shard | None = None, summed: bool = False) -> nn.Parameter:
    """A parameter of this local shape.

    Args:
        shape: local lengths.
        shard: which part of the whole it is; None for a copy.
        summed: whether its gradient on each tensor parallel rank is only a part of the sum.
    """
    made = nn.Parameter(torch.empty(shape))
    made.shard, made.is_summed, made.expert_of = shard, summed, None
    return made


class Norm(nn.Module):
    """RMS norm, of which every rank has a copy."""

    def __init__(self, width: int, *, summed: bool) -> None:
        super().__init__()
        self.weight = parameter(width, summed=summed)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised over the last dimension."""
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class ColumnLinear(nn.Module):
    """A linear layer whose output features are divided over the tensor parallel ranks."""

    def __init__(self, width: int, out: int, layout: Layout, *, parts: Any = 1, bias: bool = True) -> None:
        super().__init__()
        self.layout, shard = layout, Shard(layout.tp, 0, parts)
        self.weight = parameter(out // layout.tp.size, width, shard=shard)
        self.bias = parameter(out // layout.tp.size, shard=shard) if bias else None

    def entered(self, x: Tensor) -> Tensor:
        """The input as every rank needs it."""
        return whole(x, self.layout.tp, 1) if self.layout.sequence_parallel else copied(x, self.layout.tp)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's features."""
        return F.linear(self.entered(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose input features are divided over the tensor parallel ranks."""

    def __init__(self, width: int, out: int, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.weight = parameter(out, width // layout.tp.size, shard=Shard(layout.tp, 1))
        self.bias = parameter(out, summed=layout.sequence_parallel)

    def left(self, partial: Tensor) -> Tensor:
        """The sum over ranks, as the next layer wants it."""
        if self.layout.sequence_parallel:
            return shards_of_sum(partial, self.layout.tp, 1)
        return reduced(partial, self.layout.tp)

    def forward(self, x: Tensor) -> Tensor:
        """All features; the bias is added once, to the sum."""
        return self.left(F.linear(x, self.weight)) + self.bias


class VocabEmbedding(nn.Module):
    """An embedding whose rows are divided over the tensor parallel ranks."""

    def __init__(self, vocabulary: int, width: int, layout: Layout) -> None:
        super().__init__()
        self.layout, self.rows = layout, vocabulary // layout.tp.size
        self.weight = parameter(self.rows, width, shard=Shard(layout.tp, 0))

    def masked(self, rows: Tensor, is_other: Tensor) -> Tensor:
        """Zeros for the tokens that other ranks have."""
        return rows.masked_fill(is_other[..., None], 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Rows of the tokens."""
        tp = self.layout.tp
        if tp.size == 1:
            return F.embedding(tokens, self.weight)
        local = tokens - tp.index * self.rows
        is_other = (local < 0) | (local >= self.rows)
        rows = self.masked(F.embedding(local.clamp(0, self.rows - 1), self.weight), is_other)
        return shards_of_sum(rows, tp, 1) if self.layout.sequence_parallel else reduced(rows, tp)


class VocabCrossEntropy(Function):
    """Cross entropy of each token from logits that are divided along the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Group, smoothing: float) -> Tensor:
        """Losses by token, in float32."""
        logits = logits.float()
        largest = group.sum(logits.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        shifted = logits - largest
        local = labels - group.index * logits.shape[-1]
        is_own = (local >= 0) & (local < logits.shape[-1])
        local = local.clamp(0, logits.shape[-1] - 1)
        target = group.sum(shifted.gather(-1, local[..., None])[..., 0] * is_own)
        exponentials = shifted.exp()
        total = group.sum(exponentials.sum(-1))
        loss = total.log() - target
        vocabulary = smoothed_over(logits.shape[-1], group)
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing * (total.log() - smoothed_mean(shifted, vocabulary, group))
        ctx.save_for_backward(exponentials / total[..., None], local, is_own)
        ctx.smoothing, ctx.vocabulary = smoothing, vocabulary
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Probabilities less what the labels want."""
        softmax, local, is_own = ctx.saved_tensors
        wanted = torch.zeros_like(softmax).scatter_(-1, local[..., None], is_own[..., None].to(softmax.dtype))
        wanted = (1 - ctx.smoothing) * wanted + ctx.smoothing / ctx.vocabulary
        return (softmax - wanted) * grad[..., None], None, None, None


def smoothed_over(local: int, group: Group) -> int:
    """Over how many words labels are smoothed: all of the vocabulary."""
    return local * group.size


def smoothed_mean(shifted: Tensor, vocabulary: int, group: Group) -> Tensor:
    """The mean of the logits over all words."""
    return group.sum(shifted.sum(-1)) / vocabulary


class Criterion(nn.Module):
    """The loss of a batch: cross entropy of sharded logits, a log probability for policies, or squared errors."""

    def __init__(self, kind: str, layout: Layout, smoothing: float) -> None:
        super().__init__()
        self.kind, self.layout, self.smoothing = kind, layout, smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """A number: the mean over this rank's tokens, weighted so that the mean over ranks is that of all tokens."""
        tp = self.layout.tp
        if self.kind == "mse":
            wanted = F.one_hot(labels, logits.shape[-1] * tp.size).to(logits.dtype)
            return F.mse_loss(gathered_logits(logits, tp), wanted)
        if self.kind == "policy":
            return -log_probability(logits, labels, tp).mean()
        counted = labels >= 0
        losses = VocabCrossEntropy.apply(sharded_logits(logits, tp), labels.clamp(min=0), tp, self.smoothing)
        return (losses * counted).sum() / tokens_per_rank(counted, self.layout)


def gathered_logits(logits: Tensor, group: Group) -> Tensor:
    """The logits of all words, on all ranks."""
    from quality.sharded.mappings import GatherCopies

    return GatherCopies.apply(logits, group, logits.dim() - 1) if group.size > 1 else logits


def sharded_logits(logits: Tensor, group: Group) -> Tensor:
    """Logits as the head leaves them: of this rank's words."""
    return logits


def log_probability(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """Log probability of each label, from logits that are divided along the vocabulary."""
    return -VocabCrossEntropy.apply(logits, labels, group, 0.0)


def tokens_per_rank(counted: Tensor, layout: Layout) -> Tensor:
    """How many tokens a rank has in the mean over the ranks with other tokens."""
    count = counted.sum().float()
    return layout.cp.sum(layout.dp.sum(count)) / layout.averaged
