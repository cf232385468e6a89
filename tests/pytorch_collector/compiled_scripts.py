"""Trainings with compiled parts: `compiled_scripts.py bare` or `compiled_scripts.py FOLDER`, which collects each, or
those that are named behind it.

Prints a line for each: its name, and a digest of all losses, gradients and parameters.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from debugger_fixtures import collected
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from msprobe_collector.pytorch import PrecisionDebugger

STEPS = 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Broken(Network):
    """A graph on each side of what the compiler cannot take in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(x))
        torch._dynamo.graph_break()
        return self.last(torch.relu(h))


class Checkpointed(Network):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(lambda h: torch.relu(self.norm(h)), self.first(x), use_reentrant=False))


class WithCompiledPart(Network):
    @torch.compile(backend="aot_eager")
    def activate(self, h: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.activate(self.first(x)))


def square_loss(y: torch.Tensor) -> torch.Tensor:
    return (y - 1).square().mean()


def batch(number: int, rows: int = 4) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(number))


def plain(model: nn.Module, run: Callable[..., Any], loss_of: Callable[..., Any] = square_loss, **how: Any) -> Any:
    """Yield the tensors of each step; `run` is the compiled `model`, or the model."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    context = how.get("context", nullcontext)
    for number in range(STEPS):
        debugger = how["debugger"]
        with debugger.collect(model) if debugger is not None else nullcontext():
            with context():
                loss = loss_of(run(batch(number, how.get("rows", lambda _: 4)(number))))
            loss.backward()
            yield loss, *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)
            optimizer.step()
            optimizer.zero_grad()
    yield from model.parameters()


def adversaries(debugger: Any) -> Any:
    """Two networks that are compiled, one against the other."""
    made, judged = nn.Linear(8, 8), Network()
    makes, judges = torch.compile(made, backend="aot_eager"), torch.compile(judged, backend="aot_eager")
    optimizers = torch.optim.SGD(made.parameters(), 0.01), torch.optim.SGD(judged.parameters(), 0.01)
    for number in range(STEPS):
        with debugger.collect([made, judged]) if debugger is not None else nullcontext():
            loss = square_loss(judges(makes(batch(number)).detach()))
            loss.backward()
            optimizers[1].step()
            other = -square_loss(judges(makes(batch(number))))
            other.backward()
            yield loss, other, *(parameter.grad.clone() for parameter in made.parameters())
            optimizers[0].step()
            for optimizer in optimizers:
                optimizer.zero_grad()


def over_ranks(debugger: Any) -> Any:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Network())
        yield from plain(model, torch.compile(model, backend="aot_eager"), debugger=debugger)
    finally:
        torch.distributed.destroy_process_group()


def compiled(network: type[nn.Module], how: dict[str, Any], **others: Any) -> Callable[[Any], Any]:
    def train(debugger: Any) -> Any:
        model = network()
        yield from plain(model, torch.compile(model, **how), debugger=debugger, **others)

    return train


def of_decorator(debugger: Any) -> Any:
    model = WithCompiledPart()
    yield from plain(model, model, debugger=debugger)


def of_loss(debugger: Any) -> Any:
    model = Network()
    yield from plain(model, model, torch.compile(square_loss, backend="aot_eager"), debugger=debugger)


def bfloat16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


SCRIPTS: dict[str, Callable[[Any], Any]] = {
    "decorator": of_decorator,
    "module": compiled(Network, {"backend": "eager"}),
    "graph breaks": compiled(Broken, {"backend": "aot_eager"}),
    "dynamic shapes": compiled(Network, {"backend": "aot_eager", "dynamic": True}, rows=lambda number: 3 + number),
    "checkpoint": compiled(Checkpointed, {"backend": "aot_eager"}),
    "autocast": compiled(Network, {"backend": "aot_eager"}, context=bfloat16),
    "aot_eager": compiled(Network, {"backend": "aot_eager"}),
    "inductor": compiled(Network, {"backend": "inductor"}),
    "fullgraph": compiled(Network, {"backend": "aot_eager", "fullgraph": True}),
    "DDP": over_ranks,
    "adversaries": adversaries,
    "loss only": of_loss,
}


def digest_of(values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        for tensor in value if isinstance(value, tuple) else (value,):
            found.update(tensor.detach().float().numpy().tobytes())
    return found.hexdigest()


def main(folder: str, *names: str) -> None:
    for name, train in SCRIPTS.items():
        if names and name not in names:
            continue
        torch.manual_seed(1)
        torch.compiler.reset()
        if folder == "bare":
            digest = digest_of(train(None))
        else:
            with collected(PrecisionDebugger, Path(folder) / name.replace(" ", "_"), step=[0, 1]) as debugger:
                digest = digest_of(train(debugger))
        print(f"{name}: {digest}, graphs so far: {counters['stats']['unique_graphs']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
