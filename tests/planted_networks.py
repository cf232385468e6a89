"""A small GPT and a small CNN, in PyTorch, the same at every start."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    dropout: float = 0.0
    half: bool = False
    doubles: bool = False


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


class Doubled(torch.autograd.Function):
    """Identity whose gradient counts twice; no function of PyTorch, so that nothing records it."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Block(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.n1, self.n2, self.a = Norm(plan), Norm(plan), Attention(plan)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.plan = plan

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.plan.doubles:
            x = Doubled.apply(x)
        x = x + self.a(self.n1(x), mask)
        hidden = self.n2(x)
        if self.plan.half:
            hidden = hidden.half().float()
        hidden = F.gelu(self.up(hidden), approximate=self.plan.gelu)
        hidden = F.dropout(hidden, 0.1, self.plan.dropout > 0)
        return x + self.down(hidden)


class Gpt(nn.Module):
    """Four blocks; `plans` changes single ones."""

    def __init__(self, plans: dict[int, Plan] | None = None, blocks: int = 4, seed: int = 0) -> None:
        super().__init__()
        plans = plans or {}
        torch.manual_seed(7 + seed)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(plans.get(i, Plan())) for i in range(blocks)])
        self.norm, self.head = Norm(plans.get(blocks, Plan())), nn.Linear(WIDTH, WORDS, bias=False)
        torch.manual_seed(8 + seed)
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


class SmallCnn(nn.Module):
    """Two convolutions, batch norm, pools and a linear layer."""

    def __init__(self, pool: int = 2, eps: float = 1e-5, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(5 + seed)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(8, eps=eps), nn.Linear(16 * 4 * 4, 10)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(x, self.pool, 2, (self.pool - 1) // 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.head(torch.flatten(x, 1))


@dataclass
class Settings:
    """A training step; the defaults are right."""

    mask_shift: int = 0
    smoothing: float = 0.0
    wrong_value: bool = False
    is_clipped: bool = True
    loss_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32
    steps: int = 0
    seed: int = 0
    loss_scale: float = 1.0


class Training:
    """A network with its batch; `step` is what is dumped."""

    def __init__(self, net: nn.Module, settings: Settings) -> None:
        self.net = net.to(settings.dtype)
        self.settings = settings

    @classmethod
    def of(cls, network: str, plans: dict[int, Plan] | None = None, **options: Any) -> Training:
        """The training of `gpt` or `cnn`; `pool` and `eps` are those of the CNN."""
        shape = {name: options.pop(name) for name in ("pool", "eps") if name in options}
        kind = GptTraining if network == "gpt" else CnnTraining
        settings = Settings(**options)
        net = Gpt(plans, seed=settings.seed) if network == "gpt" else SmallCnn(**shape, seed=settings.seed)
        return kind(net, settings)

    def warm_up(self) -> None:
        """What comes before the step."""

    def step(self) -> None:
        """Forward and backward."""
        raise NotImplementedError


class GptTraining(Training):
    """Next words of a random text; the loss is scaled, and its gradient is clipped."""

    def step(self) -> None:
        generator = torch.Generator().manual_seed(3 + self.settings.seed)
        ids = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
        labels = torch.randint(0, WORDS, (BATCH * LENGTH,), generator=generator)
        if self.settings.wrong_value:
            ids[1, 4] = (int(ids[1, 4]) + 1) % WORDS
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1 + self.settings.mask_shift)
        logits = torch.reshape(self.net(ids, mask), (-1, WORDS))
        if self.settings.loss_dtype == torch.bfloat16:
            logits = logits.bfloat16()
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=self.settings.smoothing)
        (loss * self.settings.loss_scale).backward()
        gradient = self.net.head.weight.grad
        if self.settings.is_clipped:
            gradient = gradient / 2.0
        torch.sub(self.net.head.weight.detach(), gradient * 0.1)


class CnnTraining(Training):
    """Random pictures; `steps` optimizer steps come before the one that is dumped."""

    def step(self) -> None:
        generator = torch.Generator().manual_seed(4 + self.settings.seed)
        x = torch.randn(4, 3, 16, 16, generator=generator)
        labels = torch.randint(0, 10, (4,), generator=generator)
        if self.settings.wrong_value:
            x[2, 1, 7, 7] = 3.0
        x = x.to(self.settings.dtype)
        (F.cross_entropy(self.net(x).float(), labels) * self.settings.loss_scale).backward()

    def warm_up(self) -> None:
        """The steps before."""
        optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(self.settings.steps):
            self.step()
            optimizer.step()
            optimizer.zero_grad()
