"""How a run is spread over ranks: the process groups of this rank, and which part of a whole tensor is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

#: Dimensions of the mesh, outermost first, as Megatron-LM orders them.
DIMENSIONS = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True)
class Group:
    """The ranks along one dimension of the mesh, seen from this rank.

    Attributes:
        size, index: how many ranks, and which of them this one is.
        process_group: of torch.distributed; None where one rank is alone and nothing is sent.
        ranks: global ranks.
    """

    size: int = 1
    index: int = 0
    process_group: Any = None
    ranks: tuple[int, ...] = (0,)

    def sum(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """The tensor, reduced in place over the ranks."""
        if self.size > 1:
            dist.all_reduce(tensor, op=op, group=self.process_group)
        return tensor


@dataclass(frozen=True)
class Layout:
    """The groups of this rank.

    Attributes:
        tp, cp, dp, pp: tensor, context, data and pipeline parallel.
        sequence_parallel: whether activations between layers are shards of the sequence over tp.
        zigzag: whether cp rank i has the i-th and the i-th last of 2 * cp chunks of the sequence.
        mesh: the DeviceMesh of the dimensions of more than one rank; None on one rank.
    """

    tp: Group = Group()
    cp: Group = Group()
    dp: Group = Group()
    pp: Group = Group()
    sequence_parallel: bool = False
    zigzag: bool = False
    mesh: Any = field(default=None, compare=False)

    @property
    def averaged(self) -> int:
        """Over how many ranks losses are averaged: those with other tokens."""
        return self.dp.size * self.cp.size

    def local_batch(self, batch: Tensor) -> Tensor:
        """Rows of a batch, and positions of the sequence, that this rank reads."""
        return self.own_positions(batch.chunk(self.dp.size)[self.dp.index])

    def own_positions(self, whole: Tensor) -> Tensor:
        """The positions (dimension 1) of this context parallel rank."""
        if self.cp.size == 1:
            return whole
        if not self.zigzag:
            return whole.chunk(self.cp.size, 1)[self.cp.index].contiguous()
        parts = whole.chunk(2 * self.cp.size, 1)
        return torch.cat([parts[self.cp.index], parts[2 * self.cp.size - 1 - self.cp.index]], 1)


def layout_of(sizes: dict[str, int], *, sequence_parallel: bool = False, zigzag: bool = False) -> Layout:
    """The layout of this rank, where torch.distributed has as many ranks as the product of the sizes."""
    names = tuple(name for name in DIMENSIONS if sizes.get(name, 1) > 1)
    if not names:
        return Layout(sequence_parallel=sequence_parallel, zigzag=zigzag)
    mesh = init_device_mesh("cpu", tuple(sizes[name] for name in names), mesh_dim_names=names)
    groups = {name: _group(mesh.get_group(name)) for name in names}
    return Layout(**groups, sequence_parallel=sequence_parallel, zigzag=zigzag, mesh=mesh)


def _group(process_group: Any) -> Group:
    ranks = dist.get_process_group_ranks(process_group)
    return Group(len(ranks), dist.get_rank(process_group), process_group, tuple(ranks))


@dataclass(frozen=True)
class Shard:
    """Which part of a whole parameter a rank has.

    Attributes:
        group: over whose ranks it is divided.
        dim: along which dimension.
        parts: into how many parts it falls that are divided each on its own: 3 of a fused query, key and value.
    """

    group: Group
    dim: int
    parts: int | Sequence[int] = 1

    def of(self, whole: Tensor) -> Tensor:
        """The part of this rank."""
        lengths = self.parts if not isinstance(self.parts, int) else [whole.shape[self.dim] // self.parts] * self.parts
        own = [part.chunk(self.group.size, self.dim)[self.group.index] for part in whole.split(list(lengths), self.dim)]
        return torch.cat(own, self.dim)
