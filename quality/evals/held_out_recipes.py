"""Recipes with PyTorch, written after the first answers to the others were known and before these were asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger
from quality.evals.collecting import configuration
from quality.evals.planting import WrongKernel
from quality.evals.sharded_recipes import RANKS, on_ranks
from quality.evals.torch_networks import GPT, CharLSTM, ResidualMLP, text_batches, text_loss
from quality.evals.torch_recipes import aten, train, train_text


class AdamW(torch.optim.AdamW):
    """Adds the decay to the gradient, as Adam does, and not to the parameter."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        decays = [group["weight_decay"] for group in self.param_groups]
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad += group["weight_decay"] * parameter
                group["weight_decay"] = 0.0
        super().step(closure)
        for group, decay in zip(self.param_groups, decays):
            group["weight_decay"] = decay


def decay_is_coupled(folder: Path, is_wrong: bool) -> None:
    """An optimizer of the class AdamW with weight_decay=0.1 couples the decay to the gradient."""
    torch.manual_seed(31)
    model = ResidualMLP(layers=2)
    optimizer = AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    inputs, targets = torch.randn(3, 16, 10), torch.randn(3, 16, 1)
    losses = [lambda n=n: functional.mse_loss(model(inputs[n]), targets[n]) for n in range(3)]
    train(folder, model, losses, optimizer, has_optimizer=True)


def replicated_run(folder: Path, is_wrong: bool) -> None:
    torch.manual_seed(32)
    model = ResidualMLP(width=24, layers=3)
    inputs, targets = torch.randn(8, 10), torch.randn(8, 1)
    if dist.is_initialized():
        inputs, targets = (part.chunk(RANKS)[dist.get_rank()] for part in (inputs, targets))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    debugger = PrecisionDebugger(configuration(folder))
    debugger.start(model)
    functional.mse_loss(model(inputs), targets).backward()
    if dist.is_initialized():
        for name, parameter in model.named_parameters():
            if not (is_wrong and name == "layers.1.weight"):
                dist.all_reduce(parameter.grad)
                parameter.grad /= RANKS
    optimizer.step()
    debugger.stop()
    debugger.step()


def gradient_is_not_averaged(folder: Path, is_wrong: bool) -> None:
    """Data parallel: the gradient of one weight stays that of each rank's own part of the batch."""
    on_ranks(replicated_run, folder, is_wrong)


def loss_scale_overflows(folder: Path, is_wrong: bool) -> None:
    """A loss scale of 2^26 makes the gradient of float16 logits Inf."""
    torch.manual_seed(33)
    model = CharLSTM()
    model.head.half()
    batch = text_batches(1, length=7)[0]

    def logits() -> Tensor:
        embedded = model.embed(batch[:, :-1])
        hidden = memory = embedded.new_zeros(batch.shape[0], embedded.shape[-1])
        outputs = []
        for place in range(embedded.shape[1]):
            hidden, memory = model.cell(embedded[:, place], (hidden, memory))
            outputs.append(hidden)
        return model.head(torch.stack(outputs, 1).to(torch.float16))

    def loss_of() -> Tensor:
        values = torch.Tensor.to(logits(), torch.float32)
        return functional.cross_entropy(values.flatten(0, 1), batch[:, 1:].flatten()) * 2.0**26

    train(folder, model, [loss_of], torch.optim.SGD(model.parameters(), lr=1e-3))


def attention_scale_in_statistics(folder: Path, is_wrong: bool) -> None:
    """One attention divides its scores by the width of a head and not by its root; statistics only."""
    torch.manual_seed(34)
    model = GPT(width=32, heads=2)
    if is_wrong:
        model.blocks[2].attention.scale **= 2
    train_text(folder, model, task="statistics")


def only_bfloat16_rounds_otherwise(folder: Path, is_wrong: bool) -> None:
    """A bfloat16 GPT: one run adds its products in two halves, in float32, and rounds once."""

    def in_halves(func: Any, bias: Tensor, x: Tensor, weight: Tensor, **rest: Any) -> Tensor:
        half = x.shape[1] // 2
        x, weight = x.float(), weight.float()
        return (x[:, half:] @ weight[half:] + x[:, :half] @ weight[:half] + bias.float()).bfloat16()

    torch.manual_seed(35)
    model = GPT(width=64, heads=2, layers=2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = text_batches(1)[0]
    kernel = WrongKernel(aten.addmm, in_halves, None) if is_wrong else None
    train(folder, model, [lambda: text_loss(model, batch)], optimizer, kernel)
