"""Trainings whose ranks have other rows of the batch: DDP, ZeRO, FSDP2 and what goes with them; and their bugs."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from quality.sharded.outside_parts import (
    LENGTH,
    WORDS,
    Exchanged,
    Gathered,
    Language,
    Run,
    Summed,
    SummedBoth,
    adamw,
    cross_entropy,
    drawn,
    fill,
    sentences,
    words,
)

ROWS = 12


class SyncedNorm(nn.BatchNorm2d):
    """Normalises by the mean and variance of all ranks' images."""

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        count = x.numel() / x.shape[1] * dist.get_world_size()
        mean = total(x.sum((0, 2, 3))) / count
        centred = x - mean[:, None, None]
        variance = total(centred.square().sum((0, 2, 3))) / count
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale[:, None, None] + self.bias[:, None, None]


def total(x: Tensor) -> Tensor:
    """The sum over ranks."""
    return SummedBoth.apply(x, None)


def batch_norm(channels: int, is_spread: bool) -> nn.Module:
    """Synchronised where ranks have parts of the batch."""
    return SyncedNorm(channels) if is_spread else nn.BatchNorm2d(channels)


class Images(nn.Module):
    """Convolutions whose biases stand in front of a norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), norm(8)
        self.second, self.norm2 = nn.Conv2d(8, 8, 3, stride=2, padding=1), norm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of classes."""
        x = self.norm1(self.first(x)).relu()
        return self.head(self.norm2(self.second(x)).relu().mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM over words, of which some do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(WORDS, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of words."""
        return self.head(self.lstm(self.words(tokens))[0])


class Towers(nn.Module):
    """Two towers whose features of pairs are to be alike."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(10, 8), nn.Linear(6, 8)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Features of unit length."""
        return F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)


def network(kind: str, is_spread: bool) -> nn.Module:
    """The network of this kind."""
    if kind in ("batch norm", "group norm"):
        spread = is_spread and kind == "batch norm"
        return Images(lambda n: batch_norm(n, spread) if kind == "batch norm" else nn.GroupNorm(4, n))
    made: dict[str, Any] = {"language": Language, "lstm": Recurrent, "towers": Towers}
    made |= {
        "odd width": lambda: Language(width=20),
        "no dropout": lambda: Language(dropout=0.2).eval(),
        "line": lambda: nn.Sequential(nn.Linear(8, 5)),
    }
    return made[kind]()


class DataRun(Run):
    """Each rank has its rows, and the mean over all of them is wanted.

    Attributes:
        way: "ddp", "hand" (gradients are averaged after backward), "zero" (DDP, and ranks own optimizer states) or
            "fsdp".
        microbatches: that are accumulated.
        ema: an averaged copy of the network; None without one.
    """

    def __init__(
        self,
        sizes: dict[str, int],
        *,
        net: str = "language",
        way: str = "ddp",
        microbatches: int = 1,
        max_norm: float = 0.0,
        has_ema: bool = False,
        half: str = "",
        is_checkpointed: bool = False,
    ) -> None:
        super().__init__(sizes)
        self.net, self.way, self.microbatches, self.max_norm, self.half = net, way, microbatches, max_norm, half
        module = fill(network(net, bool(sizes)), first_seed(self.rank))
        if is_checkpointed:
            recompute(module)
        self.module, self.ema = module, copy.deepcopy(module) if has_ema else None
        if sizes and way in ("ddp", "zero"):
            module = DistributedDataParallel(module)
        elif sizes and way == "fsdp":
            shard(module, self.mesh, half)
        self.network = module
        self.model = nn.ModuleDict({"net": module, "ema": self.ema}) if self.ema is not None else module
        if sizes and way == "zero":
            self.optimizer = ZeroRedundancyOptimizer(
                module.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2, weight_decay=0.1
            )
        else:
            self.optimizer = adamw(module)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.rank)

    def step(self) -> None:
        """Forward, backward, clipping, optimizer and average."""
        self.optimizer.zero_grad()
        self.gradients()
        if self.sizes and self.way == "hand":
            reduced(self.network)
        if self.max_norm:
            clip(self)
        if steps(self):
            self.optimizer.step()
        if self.ema is not None:
            averaged(self)
        self.number += 1

    def gradients(self) -> None:
        """Of all microbatches."""
        batch = self.batch()
        rows = [own_rows(each, self.rank, self.world).chunk(self.microbatches) for each in batch]
        for number, (x, y) in enumerate(zip(*rows)):
            with synced(self.network, is_last=number == self.microbatches - 1), self.autocast():
                loss = divided(self.loss_of(x, y), self.microbatches)
                loss.backward()
            self.loss = loss.detach()

    def autocast(self) -> AbstractContextManager[Any]:
        """Layers in bfloat16 where that is wanted."""
        return torch.autocast("cpu", torch.bfloat16) if self.half == "autocast" else nullcontext()

    def batch(self) -> tuple[Tensor, Tensor]:
        """Of all ranks."""
        if self.net in ("batch norm", "group norm"):
            return drawn(ROWS, 3, 8, 8, seed=self.number), words(ROWS, seed=self.number, below=5)
        if self.net == "line":
            return drawn(ROWS, 8, seed=self.number), words(ROWS, seed=self.number, below=5)
        if self.net == "towers":
            return drawn(ROWS, 10, seed=self.number), drawn(ROWS, 6, seed=self.number + 50)
        tokens, labels = sentences(ROWS, LENGTH, self.number)
        if self.net == "lstm":
            labels = labels.clone()
            labels[: ROWS // 3, 4:] = -100
        return tokens, labels

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Of rows of this rank."""
        if self.net == "towers":
            return contrast(*self.network(x, y), self.mesh, self.rank)
        if self.net == "lstm":
            return cross_entropy(self.network(x), y, "sum") / counted(y, self.world)
        return cross_entropy(self.network(x), y)


def first_seed(rank: int) -> int:
    """The same first values on all ranks."""
    return 0


def learning_rate(rank: int) -> float:
    """The same on all ranks."""
    return 1e-2


def steps(run: DataRun) -> bool:
    """Whether the optimizer steps."""
    return True


def own_rows(batch: Tensor, rank: int, world: int) -> Tensor:
    """The part of this rank."""
    return batch.chunk(world)[rank]


def divided(loss: Tensor, microbatches: int) -> Tensor:
    """The share of a microbatch."""
    return loss / microbatches


def synced(network: Any, *, is_last: bool) -> AbstractContextManager[Any]:
    """Gradients are reduced after the last microbatch."""
    if hasattr(network, "no_sync"):
        return nullcontext() if is_last else network.no_sync()
    if hasattr(network, "set_requires_gradient_sync"):
        network.set_requires_gradient_sync(is_last)
    return nullcontext()


def counted(labels: Tensor, world: int) -> Tensor:
    """The tokens of all ranks that count, for each of them."""
    count = (labels >= 0).sum().float()
    if world > 1:
        dist.all_reduce(count)
    return count / world


def contrast(left: Tensor, right: Tensor, mesh: Any, rank: int) -> Tensor:
    """Each pair against all other pairs, on all ranks."""
    rows, labels = len(left), torch.arange(len(left))
    if mesh is not None:
        left, right = everywhere(left), everywhere(right)
        left, labels = left[rank * rows : (rank + 1) * rows], own_pairs(labels, rank)
    return F.cross_entropy(left @ right.T / 0.2, labels)


def everywhere(x: Tensor) -> Tensor:
    """The features of all ranks."""
    return Gathered.apply(x, 0, None)


def own_pairs(labels: Tensor, rank: int) -> Tensor:
    """The numbers of this rank's pairs among all."""
    return labels + rank * len(labels)


def reduced(network: nn.Module) -> None:
    """Average gradients over ranks."""
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def clip(run: DataRun) -> None:
    """Scale gradients to a norm, by the norm of all of them."""
    norm: Any = nn.utils.clip_grad_norm_(run.network.parameters(), run.max_norm)
    run.norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm


@torch.no_grad()
def averaged(run: DataRun) -> None:
    """Move the averaged copy towards the parameters."""
    for mean, parameter in zip(run.ema.parameters(), run.module.parameters()):
        mean.lerp_(parameter, 0.1)


def shard(module: Any, mesh: Any, half: str) -> None:
    """FSDP2, block by block."""
    kinds = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if half == "policy" else {}
    for block in getattr(module, "blocks", ()):
        fully_shard(block, mesh=mesh, **kinds)
    fully_shard(module, mesh=mesh, **kinds)


def recompute(module: Any) -> None:
    """Blocks are computed again in the backward."""
    for block in module.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)


class FlatRun(Run):
    """ZeRO 2 by hand: each rank steps on its part of all parameters in one row, and gathers the others."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self.model = fill(Language(depth=1))
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        self.own = nn.Parameter(F.pad(flat, (0, -len(flat) % self.world)).chunk(self.world)[self.rank].clone())
        self.optimizer = torch.optim.AdamW([self.own], lr=1e-2, weight_decay=0.1) if sizes else adamw(self.model)

    def step(self) -> None:
        """Reduce-scatter, step, gather."""
        self.model.zero_grad()
        tokens, labels = (own_rows(each, self.rank, self.world) for each in sentences(ROWS, LENGTH, self.number))
        loss = cross_entropy(self.model(tokens), labels)
        loss.backward()
        self.loss = loss.detach()
        if self.sizes:
            self.own.grad = own_gradient(torch.cat([one.grad.flatten() for one in self.model.parameters()]))
        self.optimizer.step()
        if self.sizes:
            size = sum(one.numel() for one in self.model.parameters())
            nn.utils.vector_to_parameters(joined(self.own.detach())[:size], self.model.parameters())
        self.number += 1


def own_gradient(flat: Tensor) -> Tensor:
    """The part of this rank of the mean."""
    world = dist.get_world_size()
    flat = F.pad(flat, (0, -len(flat) % world))
    own = torch.empty(len(flat) // world)
    dist.reduce_scatter_tensor(own, flat, op=dist.ReduceOp.SUM)
    return own / world


def joined(own: Tensor) -> Tensor:
    """The parts of all ranks in their order."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.cat(parts)


class Tables(nn.Module):
    """Embeddings of three categories, of which each rank has some tables, and a network that all ranks have."""

    def __init__(self, own: range, rank: int, world: int) -> None:
        super().__init__()
        self.own, self.rank, self.world = own, rank, world
        self.tables = nn.ModuleDict({str(at): nn.Embedding(10, 4) for at in own})
        self.bottom, self.top = nn.Linear(5, 4), nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Logits of this rank's rows."""
        looked_up = torch.cat([table(categories[:, at]) for at, table in zip(self.own, self.tables.values())], 1)
        if self.world > 1:
            looked_up = rows_of_all_tables(looked_up)
            dense = dense.chunk(self.world)[self.rank]
        return self.top(torch.cat([self.bottom(dense), looked_up], 1)).squeeze(1)


def rows_of_all_tables(looked_up: Tensor) -> Tensor:
    """An all-to-all: own tables of all rows become all tables of own rows."""
    return Exchanged.apply(looked_up, 0, 1, None)


class TablesRun(Run):
    """A recommender: tables are spread over ranks, the dense part is data parallel."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        count = 4 // self.world
        own = range(self.rank * count, (self.rank + 1) * count)
        self.model = Tables(own, self.rank, self.world)
        self.take(self.model, fill(Tables(range(4), 0, 1)))
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """The loss is the mean of the own rows; tables have seen the rows of all ranks."""
        dense, labels = drawn(ROWS, 5, seed=self.number), words(ROWS, seed=self.number, below=2).float()
        categories = words(ROWS, 4, seed=self.number + 9, below=10)
        logits = self.model(dense, categories)
        loss = F.binary_cross_entropy_with_logits(logits, labels.chunk(self.world)[self.rank])
        loss.backward()
        self.loss = loss.detach()
        for name, parameter in self.model.named_parameters() if self.sizes else ():
            parameter.grad /= gradient_divisor(name)
            if not name.startswith("tables"):
                dist.all_reduce(parameter.grad)


def gradient_divisor(name: str) -> int:
    """Of all gradients: the loss is a mean over ranks."""
    return dist.get_world_size()


# The bugs.


def first_seed_of_rank(rank: int) -> int:
    """Each rank draws its own first values."""
    return rank


def batch_norm_of_own_images(channels: int, is_spread: bool) -> nn.Module:
    """Nothing converts the norm."""
    return nn.BatchNorm2d(channels)


def stale(self: ZeroRedundancyOptimizer) -> None:
    """Owners of parameters do not send them after the step."""


def learning_rate_of_rank(rank: int) -> float:
    """One rank takes another schedule."""
    return 5e-3 if rank == 1 else 1e-2


def steps_but_first_on_last_rank(run: DataRun) -> bool:
    """A rank leaves out its first step, as after an overflow that it alone saw."""
    return run.number > 0 or run.rank == 0


def rows_of_next_rank_twice(batch: Tensor, rank: int, world: int) -> Tensor:
    """The sampler of the last rank has the number of the rank before."""
    return batch.chunk(world)[min(rank, max(world - 2, 0))]


def undivided(loss: Tensor, microbatches: int) -> Tensor:
    """The loss of each microbatch counts as that of the batch."""
    return loss * 1.0


def never_synced(network: Any, *, is_last: bool) -> AbstractContextManager[Any]:
    """No microbatch is taken for the last one."""
    if hasattr(network, "set_requires_gradient_sync"):
        network.set_requires_gradient_sync(False)
    return network.no_sync() if hasattr(network, "no_sync") else nullcontext()


def counted_on_own_rank(labels: Tensor, world: int) -> Tensor:
    """The tokens of this rank."""
    return (labels >= 0).sum().float()


def gathered_without_gradient(x: Tensor) -> Tensor:
    """A plain all_gather; only the own features keep their gradient."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach())
    parts[dist.get_rank()] = x
    return torch.cat(parts)


def pairs_from_zero(labels: Tensor, rank: int) -> Tensor:
    """Own pairs are taken for the first ones."""
    return labels.clone()


def weights_reduced(network: nn.Module) -> None:
    """Average gradients of matrices over ranks."""
    for parameter in network.parameters():
        if parameter.dim() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def reduced_twice(network: nn.Module) -> None:
    """A hook and the loop both sum; the sum is divided once."""
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def summed(network: nn.Module) -> None:
    """Add gradients up over ranks."""
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)


def clipped_before_reduced(network: nn.Module) -> None:
    """Each rank clips what it has, then gradients are averaged."""
    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
    _reduced(network)


_reduced = reduced


def clipped_by_own_norm(run: DataRun) -> None:
    """The norm of the shards of this rank."""
    own = [parameter.grad.to_local() for parameter in run.network.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one) for one in own]))
    for one in own:
        one.mul_((run.max_norm / (norm + 1e-6)).clamp(max=1.0))
    run.norm = norm


@torch.no_grad()
def averaged_by_rank(run: DataRun) -> None:
    """One rank has another decay."""
    for mean, parameter in zip(run.ema.parameters(), run.module.parameters()):
        mean.lerp_(parameter, 0.1 if run.rank == 0 else 0.01)


@torch.no_grad()
def averaged_by_rank_count(run: DataRun) -> None:
    """The decay is taken to the power of the number of ranks."""
    for mean, parameter in zip(run.ema.parameters(), run.module.parameters()):
        mean.lerp_(parameter, 1 - 0.9**run.world)


def total_without_gradient(x: Tensor) -> Tensor:
    """The sum over ranks, whose gradient stays where it arises."""
    return Summed.apply(x, None)


def joined_backwards(own: Tensor) -> Tensor:
    """Parts of ranks in the wrong order."""
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.cat(parts[::-1])


def own_gradient_before(flat: Tensor) -> Tensor:
    """The part of this rank of its own gradient, which nothing has reduced."""
    world = dist.get_world_size()
    return F.pad(flat, (0, -len(flat) % world)).chunk(world)[dist.get_rank()].clone()


def shard_without_replicas(module: Any, mesh: Any, half: str) -> None:
    """Over the inner dimension of the mesh alone: replicas never meet."""
    _shard(module, mesh["shard"], half)


_shard = shard


def tables_exchanged(looked_up: Tensor) -> Tensor:
    """Tables of ranks in the wrong order."""
    arrived = _rows_of_all_tables(looked_up)
    return torch.cat(arrived.chunk(dist.get_world_size(), 1)[::-1], 1)


_rows_of_all_tables = rows_of_all_tables


def dense_divisor(name: str) -> int:
    """Only the dense part is divided."""
    return 1 if name.startswith("tables") else dist.get_world_size()
