"""The other half of the public bugs. Who works on the suite does not read this file before its first answer is kept."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B

from quality.sharded import attention, layers, plain_training, training
from quality.sharded.catalogue import right, unclipped
from quality.sharded.entries import Entry
from quality.sharded.layout import Group, Layout
from quality.sharded.public_bugs import put


def own_tokens(labels: Tensor, data: list[Any]) -> Tensor:
    """Each rank averages over the labels that count in its own rows."""
    return (labels >= 0).sum().float()


class CopyOfContiguous(torch.autograd.Function):
    """Sums a contiguous copy of the gradient over ranks, and hands on the gradient that it was made of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """The same values."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The sum where the gradient is contiguous."""
        dist.all_reduce(grad.contiguous(), group=ctx.group.process_group)
        return grad, None


def entered_transposed(self: layers.ColumnLinear, x: Tensor) -> Tensor:
    """The head is applied to another order of batch and sequence, and turned back."""
    if self.bias is not None:
        return _entered(self, x)
    return CopyOfContiguous.apply(x.transpose(0, 1), self.layout.tp).transpose(0, 1)


_entered = layers.ColumnLinear.entered


def keys_without_reduction(self: attention.CopiedLinear, x: Tensor) -> Tensor:
    """Keys and values of all ranks, whose gradients stay where they arise."""
    return F.linear(x, self.weight)


def scaling_schedule(stage: Any, count: int, *, loss_fn: Any, scale_grads: bool) -> Schedule1F1B:
    """Gradients are divided by the number of microbatches at the end of each run of the schedule."""
    return Schedule1F1B(stage, count, loss_fn=lambda *values: loss_fn(*values) * count, scale_grads=True)


def undivided(layout: Layout) -> int:
    """Expert gradients are averaged over the ranks that have copies, which is one."""
    return 1


def rotated_from_zero(x: Tensor, positions: Tensor) -> Tensor:
    """Positions count from 0 on every rank."""
    return _rotated(x, torch.arange(len(positions)))


_rotated = attention.rotated


def divided_bias(self: layers.RowLinear, x: Tensor) -> Tensor:
    """Each rank adds its share of the bias before the sum."""
    return self.left(F.linear(x, self.weight, self.bias / self.layout.tp.size))


def synchronised_first(model: nn.Module, number: int, count: int) -> AbstractContextManager[Any]:
    """Gradients are reduced after the first microbatch."""
    return model.no_sync() if number % count else nullcontext()


_GRADIENTS = ("Optimizer.clip_grad_norm.*", "Optimizer.* gradients.*")

_BUGS: tuple[Entry, ...] = (
    right("DDP ignored labels").bug(
        "held out 1",
        put(plain_training, "tokens_per_rank", own_tokens),
        source="transformers #34242, torchtitan #1842, prime-rl #2358",
        link="https://github.com/huggingface/transformers/issues/34242",
        wrong="Each rank averages its loss over its own tokens, of which ranks have different numbers.",
        direction="forward",
        expected=("Tensor.__truediv__.*", "Functional.cross_entropy.*.backward"),
    ),
    right("tp2").bug(
        "held out 2",
        put(layers.ColumnLinear, "entered", entered_transposed),
        source="SkyRL #1886",
        link="https://github.com/NovaSky-AI/SkyRL/pull/1886",
        wrong="The gradient of the head's input is not contiguous: its copy is summed over ranks, and dropped.",
        direction="backward",
        expected=(
            "Module.head.*.backward",
            "head > *.backward",
            "Module.norm.*.backward",
            "norm > *.backward",
            "Module.blocks.1.mlp.down.*.backward",
            "blocks.1.mlp.down > *.backward",
        ),
    ),
    right("tp2 one key head").bug(
        "held out 3",
        put(attention.CopiedLinear, "forward", keys_without_reduction),
        source="bigcode Megatron-LM #11, #37",
        link="https://github.com/bigcode-project/Megatron-LM/pull/37",
        wrong="The only head of keys and values is on every rank; its gradients are those of the rank's queries.",
        direction="backward",
        expected=(
            "Module.blocks.1.attn.kv.*.backward",
            "blocks.1.attn.kv > *.backward",
            "Module.blocks.1.attn.*.backward",
            "Module.blocks.1.norm1.*.backward",
            "blocks.1.norm1 > *.backward",
            "Optimizer.* gradients.blocks.[01].attn.kv.weight",
        ),
    ),
    right("pipelining 1F1B accumulated").bug(
        "held out 4",
        put(plain_training, "Schedule1F1B", scaling_schedule),
        source="torchtitan #1733, #1732",
        link="https://github.com/pytorch/torchtitan/issues/1733",
        wrong="Every run of the pipeline's schedule divides all gradients, also those accumulated before.",
        direction="optimizer",
        expected=_GRADIENTS,
    ),
    unclipped("ep2").bug(
        "held out 5",
        put(training, "expert_divisor", undivided),
        source="Megatron-LM #5956, #5656, PyTorch #160285",
        link="https://github.com/NVIDIA/Megatron-LM/pull/5956",
        wrong="Experts have seen the tokens of all ranks, and their gradients are not divided by the number of ranks.",
        direction="optimizer",
        expected=("Optimizer.* gradients.blocks.[01].mlp.experts.*",),
    ),
    right("cp2 zigzag").bug(
        "held out 6",
        put(attention, "rotated", rotated_from_zero),
        source="Megatron-LM #5243, #560",
        link="https://github.com/NVIDIA/Megatron-LM/pull/5243",
        wrong="Rotary positions count from the first token of each rank.",
        direction="forward",
        expected=("blocks.0.attn > *.forward", "Module.blocks.0.attn.core.*.forward", "blocks.0.attn.core > *.forward"),
    ),
    unclipped("tp2").bug(
        "held out 7",
        put(layers.RowLinear, "forward", divided_bias),
        source="torchtitan #4332, #2106",
        link="https://github.com/pytorch/torchtitan/pull/4332",
        wrong="A bias divided by the number of ranks, so that the sum has it once, gets a gradient divided as well.",
        direction="optimizer",
        expected=(
            "Module.blocks.1.mlp.down.*parameters_grad*",
            "Module.blocks.1.mlp.down.*.backward",
            "blocks.1.mlp.down > *.backward",
            "Optimizer.* gradients.blocks.[01].mlp.down.bias",
            "Optimizer.* gradients.blocks.[01].attn.o.bias",
        ),
    ),
    right("DDP no_sync").bug(
        "held out 8",
        put(plain_training, "synchronised", synchronised_first),
        source="FunASR #3472",
        link="https://github.com/modelscope/FunASR/pull/3472",
        wrong="Gradients are reduced after the first microbatch, and not after the one before the optimizer.",
        direction="optimizer",
        expected=_GRADIENTS,
    ),
)

BUGS = tuple(replace(bug, is_held_out=True) for bug in _BUGS)
