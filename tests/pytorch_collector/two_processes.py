"""Two processes with gloo: python two_processes.py RANK STORE DUMP."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_gather
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from msprobe_collector.pytorch import PrecisionDebugger


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def gradients(net: nn.Module, rank: int) -> list[torch.Tensor]:
    net(torch.full((3, 4), rank + 1.0)).square().mean().backward()
    found = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    return [gradient.full_tensor() if hasattr(gradient, "placements") else gradient.clone() for gradient in found]


def sharded(mesh) -> nn.Module:
    net = network()
    for layer in net:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def main(rank: int, store: str, dump: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shards",))
    plain = [gradients(nn.parallel.DistributedDataParallel(network()), rank), gradients(sharded(mesh), rank)]
    group = dist.new_group([0, 1])
    debugger = PrecisionDebugger(dump_path=dump, level="mix", task="tensor")

    net = nn.parallel.DistributedDataParallel(network())
    with debugger.collect(net):
        collected = [gradients(net, rank)]
        one = torch.full((3,), rank + 1.0)
        dist.all_reduce(one, op=dist.ReduceOp.MAX, group=group)
        work = dist.all_reduce(other := torch.full((2,), rank + 1.0), async_op=True)
        work.wait()
        all_gather([torch.zeros(2), torch.zeros(2)], other)  # imported by name
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
        lost = dist.all_reduce(torch.ones(1), async_op=True)
    lost.wait()

    net = sharded(mesh)
    with debugger.collect(net):
        net(torch.full((3, 4), rank + 1.0)).square().mean().backward()
        whole = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)]).requires_grad_()
        (whole * 2).sum().backward()
    collected.append([parameter.grad.full_tensor() for parameter in net.parameters()])
    for before, after in zip(plain, collected):
        assert all(map(torch.equal, before, after)), "the collector changed a gradient"
    parallelize_module(
        net := network(),
        mesh,
        {"0": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel(output_layouts=Replicate())},
    )
    with debugger.collect(net):
        net(torch.full((3, 2), rank + 1.0)).square().mean().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
