"""One step of the plain network: on one rank, or spread by PyTorch's own means."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from quality.sharded.plain_network import PlainGpt, PlainSettings, batch_of, loss_of, new_network

#: Dimensions of a mesh over which ranks have other rows of the batch.
DATA = ("replicate", "shard", "dp")


class PlainTraining:
    """A run of the plain network, ready for its step.

    Attributes:
        model: what is trained; wrapped or made of DTensors.
        mesh: the DeviceMesh; None on one rank.
        labels, microbatches: of this rank; what the optimizer, or a run of the pipeline's schedule, gets one by one.
        optimizers: one.
        loss, norm: after the step, as this rank would print them.
    """

    def __init__(self, settings: PlainSettings, sizes: dict[str, int], *, ways: str = "") -> None:
        self.settings, self.ways = settings, ways.split()
        self.mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes)) if sizes else None
        self.model: Any = new_network(settings)
        if "tp" in sizes:
            tensor_parallel(self.model, self.mesh["tp"], self.ways)
        if "pp" in sizes:
            keep_stage(self.model, self.mesh["pp"])
        if "shard" in sizes:
            shard(self.model, self.mesh[tuple(name for name in sizes if name in DATA)])
        if "ddp" in self.ways:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[settings.optimizer]
        self.optimizers = [kind(self.model.parameters(), lr=1e-2, weight_decay=0.1)]
        count = accumulations(self) if self._stages() is not None else settings.microbatches
        tokens, labels = (list(map(self._own_rows, each.chunk(count))) for each in batch_of(settings))
        self.labels, self.microbatches = torch.cat(labels), list(zip(tokens, labels))
        self.loss = self.norm = torch.zeros(())

    def step(self) -> None:
        """One optimizer step on the batch."""
        (self._accumulated if self._stages() is None else self._pipelined)()
        if self.settings.max_norm:
            self.norm = clipped(self.model, self.settings.max_norm, self._stages())
        for optimizer in self.optimizers:
            optimizer.step()

    def _stages(self) -> Any:
        """The process group of the pipeline; None without one."""
        staged = self.mesh is not None and "pp" in self.mesh.mesh_dim_names
        return self.mesh["pp"].get_group() if staged else None

    def _data(self) -> list[Any]:
        names = self.mesh.mesh_dim_names if self.mesh is not None else ()
        return [self.mesh[name] for name in names if name in DATA]

    def _own_rows(self, batch: Tensor) -> Tensor:
        for mesh in self._data():
            batch = batch.chunk(mesh.size())[mesh.get_local_rank()]
        return batch

    def _accumulated(self) -> None:
        counted = tokens_per_rank(self.labels, self._data())
        losses = []
        for number, (x, y) in enumerate(self.microbatches):
            with (
                synchronised(self.model, number, len(self.microbatches)),
                loss_parallel() if "losses" in self.ways else nullcontext(),
            ):
                loss = loss_of(self.model(x), y, self.settings.loss) / counted
                loss.backward()
            losses.append(plain(loss.detach()))
        self.loss = sum(losses)

    def _pipelined(self) -> None:
        mesh, count = self.mesh["pp"], self.settings.microbatches
        stage = PipelineStage(
            self.model, mesh.get_local_rank(), mesh.size(), torch.device("cpu"), group=mesh.get_group()
        )
        counted = tokens_per_rank(self.labels, self._data())

        def loss(logits: Tensor, y: Tensor) -> Tensor:
            factor = count if "scaled" in self.ways else 1
            return factor * loss_of(logits, y, self.settings.loss) / counted

        kind = ScheduleGPipe if "gpipe" in self.ways else Schedule1F1B
        scaled = "scaled" in self.ways
        schedule = kind(stage, count, loss_fn=loss, scale_grads=scaled)
        losses: list[Tensor] = []
        for x, y in self.microbatches:
            own: list[Tensor] = []
            if stage.is_first:
                schedule.step(x)
            else:
                schedule.step(target=y, losses=own)
            losses += own
        self.loss = sum(each.detach() for each in losses) if losses else self.loss


def accumulations(training: PlainTraining) -> int:
    """How many times the schedule runs before the optimizer."""
    return 2 if "twice" in training.ways else 1


def tokens_per_rank(labels: Tensor, data: list[Any]) -> Tensor:
    """How many tokens a rank has in the mean over the ranks with other rows; what is counted on all of them."""
    count = (labels >= 0).sum().float()
    ranks = 1
    for mesh in data:
        dist.all_reduce(count, group=mesh.get_group())
        ranks *= mesh.size()
    return count / ranks


def plain(x: Tensor) -> Tensor:
    """A DTensor as a whole tensor."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def clipped(model: nn.Module, max_norm: float, stages: Any = None) -> Tensor:
    """Scale the gradients to at most this norm, over all stages of a pipeline; the norm before."""
    if stages is None:
        return plain(nn.utils.clip_grad_norm_(model.parameters(), max_norm))
    norm = nn.utils.get_total_norm([one.grad for one in model.parameters()]).square()
    dist.all_reduce(norm, group=stages)
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm.sqrt())
    return norm.sqrt()


def synchronised(model: nn.Module, number: int, count: int) -> AbstractContextManager[Any]:
    """Gradients are reduced after the last microbatch."""
    is_last = number == count - 1
    if isinstance(model, nn.parallel.DistributedDataParallel) and not is_last:
        return model.no_sync()
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(is_last)
    return nullcontext()


def tensor_parallel(model: PlainGpt, mesh: Any, ways: list[str]) -> None:
    """DTensors over tensor parallel ranks; with `sp` activations between layers are shards of the sequence."""
    between = Shard(1) if "sp" in ways else Replicate()
    losses = (
        {"output_layouts": Shard(-1), "use_local_output": False}
        if "losses" in ways
        else {"output_layouts": Replicate()}
    )
    plan: dict[str, Any] = {
        "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, **losses),
    }
    if "sp" in ways:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for block in model.blocks.values():
        parallelize_module(block, mesh, block_plan(between, ways))


def block_plan(between: Any, ways: list[str]) -> dict[str, Any]:
    """How the layers of a block are spread."""
    out = RowwiseParallel(output_layouts=between)
    plan: dict[str, Any] = {name: ColwiseParallel() for name in ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3")}
    plan |= {"attn.wo": out, "mlp.w2": RowwiseParallel(output_layouts=between)}
    if "sp" in ways:
        plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        for name in ("attn", "mlp"):
            plan[name] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return plan


def keep_stage(model: PlainGpt, mesh: Any) -> None:
    """Remove what other stages have; names stay those of the whole network."""
    rank, size = mesh.get_local_rank(), mesh.size()
    if rank > 0:
        model.emb = None
    if rank < size - 1:
        model.norm = model.head = None
    own = len(model.blocks) // size
    for name in list(model.blocks):
        if int(name) // own != rank:
            del model.blocks[name]


def shard(model: PlainGpt, mesh: Any) -> None:
    """FSDP2, block by block."""
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
