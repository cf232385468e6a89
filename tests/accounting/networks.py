"""A small GPT and a small CNN, in PyTorch, the same at every start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, BATCH, WORDS = 32, 2, 16, 2, 64


@dataclass
class Plan:
    """What a planted cause changes of a network or its step; the defaults change nothing."""

    gelu: str = "none"
    eps: float = 1e-5
    is_scaled: bool = True
    is_unbiased: bool = False
    is_causal: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


class Norm(nn.Module):
    """Layer norm of single operations, in block 1 with the plan's eps and variance."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        centred = x - torch.mean(x, -1, True)
        variance = torch.var(x, -1, unbiased=self.plan.is_unbiased, keepdim=True)
        return centred * torch.rsqrt(variance + self.plan.eps) * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.plan = plan

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, t, _ = x.shape
        heads = b, t, HEADS, WIDTH // HEADS
        q, k, v = (torch.transpose(torch.reshape(part(x), heads), 1, 2) for part in (self.q, self.k, self.v))
        scores = torch.matmul(q, torch.transpose(k, -1, -2))
        if self.plan.is_scaled:
            scores = scores / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(mask, -1e4)
        weights = F.softmax(scores, dim=-1)
        return self.o(torch.reshape(torch.transpose(torch.matmul(weights, v), 1, 2), (b, t, WIDTH)))


class Block(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.n1, self.n2, self.a = Norm(plan), Norm(plan), Attention(plan)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.plan = plan

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.a(self.n1(x), mask)
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate=self.plan.gelu))


class Gpt(nn.Module):
    """Four blocks; `plans` changes single ones."""

    def __init__(self, plans: dict[int, Plan] | None = None, blocks: int = 4) -> None:
        super().__init__()
        plans = plans or {}
        torch.manual_seed(7)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(plans.get(i, Plan())) for i in range(blocks)])
        self.norm, self.head = Norm(plans.get(blocks, Plan())), nn.Linear(WIDTH, WORDS, bias=False)
        torch.manual_seed(8)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.normal_(0, 0.25)
                if name.endswith("weight") and parameter.ndim == 1:
                    parameter.add_(1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def gpt_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Words, labels and mask (True where a word may not look)."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    labels = torch.randint(0, WORDS, (BATCH * LENGTH,), generator=generator)
    return ids, labels, torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)


def gpt_loss(net: nn.Module, ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of the next words."""
    logits = torch.reshape(net(ids, mask), (-1, WORDS))
    return F.cross_entropy(logits.float(), labels)
