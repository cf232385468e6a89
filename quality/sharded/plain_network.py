"""A small GPT of PyTorch's own layers, which knows nothing of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS = 32, 16, 4


@dataclass(frozen=True)
class PlainSettings:
    """What a training of the plain network is.

    Attributes:
        dtype: of parameters and activations.
        width: of the network; one that ranks do not divide evenly makes uneven shards.
        loss: "ce" or "mse".
        batch, sequence: lengths.
        ignored: labels that do not count; the first rows have them.
        microbatches: passes that are accumulated, or go through a pipeline, in one step.
        optimizer: "adamw" or "sgd".
        max_norm: gradients are clipped to this norm; 0 for not at all.
    """

    dtype: torch.dtype = torch.float32
    width: int = WIDTH
    loss: str = "ce"
    batch: int = 4
    sequence: int = 8
    ignored: int = 0
    microbatches: int = 1
    optimizer: str = "adamw"
    max_norm: float = 1.0


class Attention(nn.Module):
    """Causal self attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = width // HEADS
        self.wq, self.wk, self.wv = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.wo = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """As many heads as the projections have on this rank."""
        parts = (layer(x).unflatten(-1, (-1, self.features)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same width."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attn, self.mlp = Attention(width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainGpt(nn.Module):
    """Embedding, two blocks, norm and head; a pipeline stage lacks some of them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleDict({str(at): Block(width) for at in range(2)})
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, or activations."""
        x = self.emb(x) if self.emb is not None else x
        for block in self.blocks.values():
            x = block(x)
        x = self.norm(x) if self.norm is not None else x
        return self.head(x) if self.head is not None else x


def new_network(settings: PlainSettings) -> PlainGpt:
    """The network with its first values, the same on every rank."""
    model = PlainGpt(settings.width)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(("norm" in name) + 0.25 * torch.randn(one.shape, generator=generator))
    return model.to(settings.dtype)


def batch_of(settings: PlainSettings) -> tuple[Tensor, Tensor]:
    """Tokens and labels (batch, sequence) of all ranks."""
    generator = torch.Generator().manual_seed(1)
    shape = (settings.batch, settings.sequence)
    tokens, labels = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    labels.view(-1)[: settings.ignored] = -100
    return tokens, labels


def loss_of(logits: Tensor, labels: Tensor, kind: str) -> Tensor:
    """Sum over the tokens whose labels count."""
    flat = labels.flatten()
    if kind == "mse":
        return (logits.flatten(0, 1) - F.one_hot(flat, VOCABULARY)).square().mean(-1).sum()
    return F.cross_entropy(logits.flatten(0, 1).float(), flat, ignore_index=-100, reduction="sum")
