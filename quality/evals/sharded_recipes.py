"""Recipes of runs on two ranks (PyTorch, gloo): the run under test is sharded, the golden one is the whole model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger
from quality.evals.collecting import configuration

RANKS = 2


class Entry(torch.autograd.Function):
    """Before a divided layer: gradients of the ranks are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        if dist.is_initialized():
            dist.all_reduce(gradient)
        return gradient


class Exit(torch.autograd.Function):
    """Behind a divided layer: outputs of the ranks are added."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        if dist.is_initialized():
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class ParallelAttention(nn.Module):
    """Attention whose heads are divided over the ranks."""

    def __init__(self, width: int, heads: int, forgets: bool) -> None:
        super().__init__()
        self.heads, self.width, self.forgets = heads, width // heads, forgets
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def divide(self, rank: int) -> None:
        for layer in (self.query, self.key, self.value):
            layer.weight = nn.Parameter(layer.weight.detach().chunk(RANKS, 0)[rank].clone())
        self.out.weight = nn.Parameter(self.out.weight.detach().chunk(RANKS, 1)[rank].clone())
        self.heads //= RANKS

    def forward(self, x: Tensor) -> Tensor:
        x = Entry.apply(x)
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, self.width)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.softmax(query @ key.transpose(-2, -1) * self.width**-0.5, dim=-1) @ value
        partial = self.out(mixed.transpose(-3, -2).flatten(-2))
        return partial if self.forgets else Exit.apply(partial)


class ParallelBlock(nn.Module):
    """A norm and attention beside a residual."""

    def __init__(self, width: int, forgets: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = ParallelAttention(width, 4, forgets)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.attention(self.norm(x)))


def attention_run(folder: Path, is_wrong: bool) -> None:
    torch.manual_seed(18)
    model = nn.Sequential(*(ParallelBlock(32, is_wrong and number == 1) for number in range(3)))
    inputs, targets = torch.randn(2, 2, 6, 32)
    if dist.is_initialized():
        for block in model:
            block.attention.divide(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = PrecisionDebugger(configuration(folder))
    debugger.start(model)
    functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    debugger.stop()
    debugger.step()


def _rank(rank: int, run: Any, folder: Path, is_wrong: bool, meeting: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    run(folder, is_wrong)
    dist.destroy_process_group()


def on_ranks(run: Any, folder: Path, is_wrong: bool) -> None:
    """The wrong run on two ranks, the right one on one rank, which has the whole model."""
    if not is_wrong:
        run(folder, False)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    meeting = folder.parent / "meeting"
    multiprocessing.spawn(_rank, (run, folder, is_wrong, str(meeting)), nprocs=RANKS)
    meeting.unlink(missing_ok=True)


def attention_lacks_an_all_reduce(folder: Path, is_wrong: bool) -> None:
    """Tensor parallel: the second attention of three does not add what its ranks have computed."""
    on_ranks(attention_run, folder, is_wrong)
