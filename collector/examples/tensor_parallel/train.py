"""One training step of a small network on one rank, or with its layers divided over several (PyTorch, gloo, CPU).

python train.py --dump single                                                   the run of the whole model
torchrun --standalone --nproc-per-node=2 train.py --dump parallel               the same, divided over two ranks
torchrun ... train.py --dump parallel --forget-all-reduce                       with a bug that no loss shows
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger

WIDTH, HIDDEN, BATCH = 16, 32, 8


class Copied(torch.autograd.Function):
    """All ranks have the input of a divided layer; each has a part of the sum that its gradient is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, is_summed: bool) -> Tensor:
        ctx.is_summed = is_summed
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        if ctx.is_summed:
            dist.all_reduce(gradient)
        return gradient, None


class Summed(torch.autograd.Function):
    """Each rank has a part of the sum that the output of a divided layer is; all have its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        whole = x.clone()
        if dist.is_initialized():
            dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Block(nn.Module):
    """A feed-forward network, of whose hidden features each rank has its share."""

    def __init__(self, is_summed: bool) -> None:
        super().__init__()
        self.is_summed = is_summed
        self.norm = nn.RMSNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.narrow = nn.Linear(HIDDEN, WIDTH, bias=False)

    def divide(self, rank: int, ranks: int) -> None:
        """Keep the features of this rank."""
        self.wide.weight = nn.Parameter(self.wide.weight.detach().chunk(ranks, 0)[rank].clone())
        self.narrow.weight = nn.Parameter(self.narrow.weight.detach().chunk(ranks, 1)[rank].clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.silu(self.wide(Copied.apply(self.norm(x), self.is_summed)))
        return x + Summed.apply(self.narrow(hidden))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", required=True, help="folder of the dump")
    parser.add_argument("--forget-all-reduce", action="store_true", help="leave gradients of inputs in parts")
    arguments = parser.parse_args()
    if "RANK" in os.environ:  # torchrun started this
        dist.init_process_group("gloo")
    is_divided = dist.is_initialized()

    torch.manual_seed(0)  # every rank makes the whole network and keeps its part
    model = nn.Sequential(*(Block(is_divided and not arguments.forget_all_reduce) for _ in range(2)))
    for block in model if is_divided else ():
        block.divide(dist.get_rank(), dist.get_world_size())
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(2, BATCH, WIDTH)

    debugger = PrecisionDebugger(dump_path=arguments.dump, task="tensor", level="mix")
    debugger.start(model)
    loss = functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    if not is_divided or dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}")
    if is_divided:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
