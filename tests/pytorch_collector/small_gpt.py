"""A two-layer GPT (RMS norm, attention, gated MLP) in PyTorch, as a model to collect from."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, SEQUENCE, BATCH, VOCABULARY = 32, 2, 16, 2, 64


class RMS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(torch.square(x).mean(-1, keepdim=True) + 1e-6) * self.w


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, t = x.shape[:2]
        heads = (b, t, HEADS, WIDTH // HEADS)
        q, k, v = (part.reshape(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        a = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        a = F.softmax(a.masked_fill(~mask, -1e4), dim=-1)
        return self.o(torch.matmul(a, v).transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.a, self.n2 = RMS(), Attn(), RMS()
        self.g, self.u = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.d = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.a(self.n1(x), mask)
        h = self.n2(x)
        return torch.add(x, self.d(F.silu(self.g(h)) * self.u(h)))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, WIDTH)
        self.bs = nn.ModuleList([Block() for _ in range(2)])
        self.n = RMS()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.e(ids)
        for b in self.bs:
            x = b(x, mask)
        return self.head(self.n(x))


class Training:
    """A model with its batch. The same at every start."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.net = Gpt()
        self.ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
        self.labels = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE))
        self.mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril()

    def step(self) -> list[np.ndarray]:
        """Forward and backward; the loss and every gradient."""
        loss = F.cross_entropy(self.net(self.ids, self.mask).flatten(0, 1), self.labels.flatten())
        loss.backward()
        parameters = list(self.net.parameters())
        nn.utils.clip_grad_norm_(parameters, 1.0)
        found = [loss.detach().numpy().copy(), *(p.grad.numpy().copy() for p in parameters)]
        self.net.zero_grad()
        return found
