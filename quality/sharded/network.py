"""The network of the hand-made runs: a small GPT of parallel layers, whole or one stage of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quality.sharded.attention import Attention
from quality.sharded.experts import Moe
from quality.sharded.layers import ColumnLinear, Criterion, Norm, RowLinear, VocabEmbedding
from quality.sharded.layout import Layout

VOCABULARY, WIDTH, HEADS = 32, 16, 4


@dataclass(frozen=True)
class Settings:
    """What a hand-made training is, on however many ranks.

    Attributes:
        dtype: of parameters and activations.
        loss: "ce", "mse" or "policy".
        smoothing: of labels.
        tied: whether head and embedding are one parameter.
        blocks, kv_heads, qk_norm, dropout, checkpointed: of the transformer.
        experts: how many; 0 for a dense feed-forward network.
        experts_over: what ranks have other parts of: "experts" or "features".
        closed_experts: how many of the last experts get no token.
        single_experts: whether each expert is a Module.
        batch, sequence: lengths.
        ignored: labels that do not count; they are not spread evenly over the batch.
        microbatches: passes that are accumulated, or go through the pipeline, in one step.
        optimizer: "adamw", "sgd", or "muon" with adamw for what is no matrix.
        max_norm: gradients are clipped to this norm; 0 for not at all.
        local_names: whether a pipeline stage counts its blocks from 0.
        zero2: whether each gradient and optimizer state is on one data parallel rank.
    """

    dtype: torch.dtype = torch.float32
    loss: str = "ce"
    smoothing: float = 0.0
    tied: bool = False
    blocks: int = 2
    kv_heads: int = HEADS
    qk_norm: bool = False
    dropout: float = 0.0
    checkpointed: bool = False
    experts: int = 0
    experts_over: str = "experts"
    closed_experts: int = 0
    single_experts: bool = False
    batch: int = 4
    sequence: int = 8
    ignored: int = 0
    microbatches: int = 1
    optimizer: str = "adamw"
    max_norm: float = 1.0
    local_names: bool = False
    zero2: bool = False


class FeedForward(nn.Module):
    """Gated, with gate and value in one projection."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.gate_up = ColumnLinear(WIDTH, 4 * WIDTH, layout, parts=2)
        self.down = RowLinear(2 * WIDTH, WIDTH, layout)

    def forward(self, x: Tensor) -> Tensor:
        """silu(gate) * value, back to the width of the network."""
        gate, value = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    """Attention and feed-forward network, each after a norm and added to what came in."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        super().__init__()
        summed = layout.sequence_parallel
        self.norm1, self.norm2 = Norm(WIDTH, summed=summed), Norm(WIDTH, summed=summed)
        self.attn = Attention(WIDTH, HEADS, settings.kv_heads, layout, qk_norm=settings.qk_norm)
        self.drop = nn.Dropout(settings.dropout) if settings.dropout else None
        self.mlp = Moe(WIDTH, layout, settings) if settings.experts else FeedForward(layout)

    def forward(self, x: Tensor) -> Tensor:
        """Activations of the same shape."""
        attended = self.attn(self.norm1(x))
        x = x + (self.drop(attended) if self.drop is not None else attended)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Embedding, blocks, norm, head and loss, or those of them that a stage has."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        super().__init__()
        pp, self.layout, self.settings = layout.pp, layout, settings
        self.is_first, self.is_last = pp.index == 0, pp.index == pp.size - 1
        own = settings.blocks // pp.size
        self.first_block = pp.index * own
        begin = 0 if settings.local_names else self.first_block
        if self.is_first:
            self.emb = VocabEmbedding(VOCABULARY, WIDTH, layout)
        self.blocks = nn.ModuleDict({str(begin + at): Block(layout, settings) for at in range(own)})
        if self.is_last:
            self.norm = Norm(WIDTH, summed=layout.sequence_parallel)
            self.head = ColumnLinear(WIDTH, VOCABULARY, layout, bias=False)
            if settings.tied and self.is_first:
                self.head.weight = self.emb.weight
            self.criterion = Criterion(settings.loss, layout, settings.smoothing)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss; activations where the stage is not the last."""
        x = self.emb(x) if self.is_first else x
        for block in self.blocks.values():
            x = recomputed(block, x) if self.settings.checkpointed else block(x)
        return self.criterion(self.head(self.norm(x)), labels) if self.is_last else x


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    """A block whose activations are computed again in the backward, with the random numbers of the first time."""
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)


def initialise(model: Gpt, seed: int = 0) -> None:
    """Put into each parameter its part of the values that a network on one rank has."""
    single = Gpt(Layout(), whole_settings(model.settings))
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for name, one in single.named_parameters():
        centre = 1.0 if "norm" in name else 0.0
        values[name] = centre + 0.25 * torch.randn(one.shape, generator=generator)
    if model.settings.tied:
        values["head.weight"] = values["emb.weight"]
    with torch.no_grad():
        for name, one in model.named_parameters():
            whole = values[loaded_name(name, one, model)]
            one.copy_(one.shard.of(whole) if one.shard is not None else whole)
    model.to(model.settings.dtype)


def whole_settings(settings: Settings) -> Settings:
    """The same training with names as on one rank."""
    return replace(settings, local_names=False, zero2=False)


def loaded_name(name: str, one: nn.Parameter, model: Gpt) -> str:
    """Name of a parameter of this rank in the network on one rank."""
    number = getattr(one, "whole_number", None)
    if number is not None:
        before, _, after = name.partition("local_experts.")
        name = f"{before}local_experts.{number}.{after.partition('.')[2]}"
    if not name.startswith("blocks.") or not model.settings.local_names:
        return name
    _, block, rest = name.split(".", 2)
    return f"blocks.{int(block) + model.first_block}.{rest}"
