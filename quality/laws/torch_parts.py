"""Networks and data that the PyTorch scripts of the catalogue share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 10


class Mlp(nn.Module):
    """Three linear layers; with `dropout`, one between each two."""

    def __init__(self, width: int = 8, hidden: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, hidden)
        self.hidden = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, 1)
        self.drop1 = nn.Dropout(dropout)
        self.drop2 = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        x = self.drop1(torch.tanh(self.encoder(x)))
        x = self.drop2(torch.tanh(self.hidden(x)))
        return self.head(x)


class Block(nn.Module):
    """Attention and a feed-forward layer, each with norm, dropout and residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop1 = nn.Dropout(dropout)
        self.drop2 = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention of (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """A causal language model."""

    def __init__(
        self, words: int = 32, width: int = 16, blocks: int = 2, dropout: float = 0.0, is_tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, 2, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def rows(steps: int = STEPS, batch: int = 8, width: int = 8, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of (x, y) of a regression."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(width, 1, generator=generator)
    for _ in range(steps):
        x = torch.randn(batch, width, generator=generator)
        yield x, torch.sin(x @ truth)


def sentences(steps: int = STEPS, batch: int = 4, length: int = 13, words: int = 32, seed: int = 1) -> Iterator[Tensor]:
    """Batches of token ids, with a rule that a model can learn in part."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        start = torch.randint(words, (batch, 1), generator=generator)
        pace = torch.randint(1, 4, (batch, 1), generator=generator)
        noise = torch.randint(3, (batch, length), generator=generator)
        yield (start + pace * torch.arange(length) + noise) % words


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean cross entropy of tokens 1, 2, ... from the logits of places 0, 1, ..."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
