"""Sharded trainings, bare and collected: torchrun --standalone --nproc-per-node=N sharded_training.py DUMP KIND ...

A kind is a function that makes a training: what it trains, a step of it, and what must be the same in every bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm, parameters_to_vector as vector

from msprobe_collector.pytorch import PrecisionDebugger

WIDTH, LENGTH, BATCH = 8, 6, 4


class Training(NamedTuple):
    """A model, what trains it by one step, and its optimizer."""

    net: nn.Module
    step: Callable[[], Any]
    optimizer: torch.optim.Optimizer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def batch(rank: int = 0) -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(7 + rank))


def trained(net: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None) -> Training:
    """A training with the batch of `rank`, gradients clipped."""
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        loss = net(batch(rank)).square().mean()
        loss.backward()
        norm = clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([loss.detach(), whole(norm)])

    return Training(net, step, optimizer)


def whole(value: torch.Tensor) -> torch.Tensor:
    """All of the value; on a rank outside of its mesh what it has there: nothing."""
    if isinstance(value, DTensor):
        is_inside = value.device_mesh.get_coordinate() is not None
        return (value.full_tensor() if is_inside else value.to_local()).detach()
    return value.detach()


def split(net: nn.Sequential, mesh: Any) -> nn.Module:
    """Tensor parallel, with what is between the layers split along the sequence."""
    for block in net:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        parallelize_module(block, mesh, plan)
        inputs = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
        parallelize_module(block, mesh, inputs)
    return net


class Whole(nn.Module):
    """The output of a split network, gathered."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).full_tensor()


def tensor_parallel() -> Training:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return trained(Whole(split(blocks(), mesh)), 0)


def fully_sharded() -> Training:
    net = blocks()
    for block in net:
        fully_shard(block)
    return trained(fully_shard(net), dist.get_rank())


def fully_sharded_accumulated() -> Training:
    """Two microbatches, both of which are reduced; gradients stay, and are set to zero."""
    net = blocks()
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        for part in batch(dist.get_rank()).chunk(2):
            loss = net(part).square().mean() / 2
            loss.backward()
        norm = clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return torch.stack([loss.detach(), whole(norm)])

    return Training(net, step, optimizer)


def fully_sharded_flat() -> Training:
    """FSDP1: flat parameters, clipped by a method of its own."""
    net = FullyShardedDataParallel(blocks(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        loss = net(batch(dist.get_rank())).square().mean()
        loss.backward()
        norm = net.clip_grad_norm_(0.1)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([loss.detach(), norm])

    return Training(net, step, optimizer)


class OfOneRank(nn.Module):
    """A parameter in a mesh of the first rank alone."""

    def __init__(self) -> None:
        super().__init__()
        mesh = DeviceMesh("cpu", [0])
        self.weight = nn.Parameter(distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)]))

    def forward(self) -> torch.Tensor:
        return (self.weight * 2).sum()


def outside_of_mesh() -> Training:
    net = OfOneRank()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        loss = net()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return whole(loss)

    return Training(net, step, optimizer)


def fully_sharded_tensor_parallel() -> Training:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    net = split(blocks(), mesh["tp"])
    for block in net:
        fully_shard(block, mesh=mesh["dp"])
    return trained(Whole(fully_shard(net, mesh=mesh["dp"])), mesh["dp"].get_local_rank())


def data_parallel() -> Training:
    """Two microbatches, of which the first is not reduced."""
    net = nn.parallel.DistributedDataParallel(blocks())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step() -> torch.Tensor:
        first, second = batch(dist.get_rank()).chunk(2)
        with net.no_sync():
            (net(first).square().mean() / 2).backward()
        loss = net(second).square().mean() / 2
        loss.backward()
        norm = clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([loss.detach(), norm])

    return Training(net, step, optimizer)


def pipeline() -> Training:
    rank, world = dist.get_rank(), dist.get_world_size()
    net = blocks()[rank % 2]
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda x, y: (x - y).square().mean())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)

    def step() -> torch.Tensor:
        losses: list[torch.Tensor] = []
        given = (batch(),) if rank == 0 else ()
        schedule.step(*given, target=batch(1) if rank == world - 1 else None, losses=losses)
        norm = get_total_norm([parameter.grad for parameter in net.parameters()]).square()
        dist.all_reduce(norm)  # of all stages
        clip_grads_with_norm_(net.parameters(), 0.1, norm := norm.sqrt())
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack([norm, *(loss.detach() for loss in losses)])

    return Training(net, step, optimizer)


class Experts(nn.Module):
    """Tokens go to the expert of the rank that their router names, as many to each, and come back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        torch.manual_seed(1 + dist.get_rank())
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, WIDTH)
        shares = self.router(tokens).softmax(-1)
        order = shares[:, 0].argsort()
        counts = [len(tokens) // dist.get_world_size()] * dist.get_world_size()
        there = all_to_all_single_autograd(tokens[order], counts, counts, dist.group.WORLD)
        back = all_to_all_single_autograd(self.expert(there), counts, counts, dist.group.WORLD)
        return back * shares[order].amax(-1, keepdim=True)


def expert_parallel() -> Training:
    return trained(Experts(), dist.get_rank())


class Passed(torch.autograd.Function):
    """What the rank before has; its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return passed(x, 1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return passed(gradient, -1)


def passed(x: torch.Tensor, by: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(x)
    operations = [
        dist.P2POp(dist.isend, x.contiguous(), (rank + by) % world),
        dist.P2POp(dist.irecv, received, (rank - by) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


class Ring(nn.Module):
    """Attention of the part of the sequence that this rank has to all of it, part by part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.chunk(dist.get_world_size(), 1)[dist.get_rank()]
        query, key = self.query(x), self.key(x)
        total = norm = torch.zeros(())
        for turn in range(dist.get_world_size()):
            if turn:
                key = Passed.apply(key)
            weights = (query @ key.transpose(-1, -2)).exp()
            total, norm = total + weights @ key, norm + weights.sum(-1, keepdim=True)
        return total / norm


def context_parallel() -> Training:
    return trained(Ring(), 0)


def bits(make: Callable[[], Training], collecting: Callable[[nn.Module], Any] | None) -> Iterator[torch.Tensor]:
    """Loss, norm and parameters after each of two steps."""
    training = make()
    for _ in range(2):
        if collecting is None:
            yield training.step()
        else:
            with collecting(training.net):
                result = training.step()
            yield result
        yield vector([whole(parameter) for parameter in training.net.parameters()])


def main(dump: Path, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = [list(bits(globals()[kind], None)) for kind in kinds]
    debugger = PrecisionDebugger(dump_path=str(dump), level="mix", task="tensor")
    functions = dist.isend, dist.isend.__code__, dist.all_reduce
    for kind, expected in zip(kinds, before):
        found = list(bits(globals()[kind], debugger.collect))
        same = [one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(expected, found)]
        assert len(expected) == len(found), kind
        assert all(same), f"{kind}: the collector changed the training: {same}"
    assert functions == (dist.isend, dist.isend.__code__, dist.all_reduce)
    operation = dist.P2POp(dist.isend, torch.ones(1), (dist.get_rank() + 1) % 2)
    assert operation.op is dist.isend
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
