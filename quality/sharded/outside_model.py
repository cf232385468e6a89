"""Trainings whose ranks have other parts of the layers: tensor and expert parallel, DTensor; and their bugs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from quality.sharded.outside_parts import (
    HEADS,
    LENGTH,
    WIDTH,
    WORDS,
    Copied,
    Gathered,
    Run,
    Scattered,
    Summed,
    adamw,
    cross_entropy,
    drawn,
    fill,
    sentences,
    words,
)

ROWS = 4


class Side:
    """How a network is spread: the tensor parallel group, None for not at all, and whether tokens are, too."""

    def __init__(self, group: Any, *, is_sequence: bool) -> None:
        self.group, self.is_sequence = group, is_sequence
        self.rank = dist.get_rank(group) if group is not None else 0
        self.world = dist.get_world_size(group) if group is not None else 1


def entering(x: Tensor, side: Side) -> Tensor:
    """What a column-parallel layer reads."""
    if side.group is None:
        return x
    return Gathered.apply(x, 1, side.group) if side.is_sequence else Copied.apply(x, side.group)


def leaving(x: Tensor, side: Side) -> Tensor:
    """The sum of what the parts of a row-parallel layer give."""
    if side.group is None:
        return x
    return Scattered.apply(x, 1, side.group) if side.is_sequence else Summed.apply(x, side.group)


class Row(nn.Linear):
    """Has a part of the input's features."""

    side: Side

    def forward(self, x: Tensor) -> Tensor:
        """The bias comes after the sum."""
        return leaving(F.linear(x, self.weight), self.side) + self.bias


class Words(nn.Embedding):
    """Has a part of the vocabulary."""

    side: Side

    def forward(self, tokens: Tensor) -> Tensor:
        """Zeros for the words of other ranks, until the sum."""
        local = tokens - self.side.rank * len(self.weight)
        is_own = (local >= 0) & (local < len(self.weight))
        rows = F.embedding(local.clamp(0, len(self.weight) - 1), self.weight)
        return leaving(own_words(rows, is_own), self.side)


def own_words(rows: Tensor, is_own: Tensor) -> Tensor:
    """Zeros for the words of other ranks."""
    return rows * is_own[..., None]


class Heads(nn.Module):
    """Attention of the heads that this rank has; all heads may share keys and values, which all ranks have."""

    def __init__(self, side: Side, *, is_shared: bool) -> None:
        super().__init__()
        own = WIDTH // side.world
        shared = WIDTH // HEADS if is_shared else own
        self.side, self.is_shared = side, is_shared
        self.q, self.k, self.v = nn.Linear(WIDTH, own), nn.Linear(WIDTH, shared), nn.Linear(WIDTH, shared)
        self.out = Row(own, WIDTH)
        self.out.side = side

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        entered = entering(x, self.side)
        q, k, v = self.q(entered), self.k(entered), self.v(entered)
        if self.is_shared:
            q, k, v = self.q(entered), shared(self.k(x), self.side), shared(self.v(x), self.side)
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (q, k, v))
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        )


def shared(x: Tensor, side: Side) -> Tensor:
    """Keys or values that each rank uses for its own queries."""
    return x if side.group is None else Copied.apply(x, side.group)


class SpreadBlock(nn.Module):
    """Attention and feed-forward network."""

    def __init__(self, side: Side, *, is_shared: bool) -> None:
        super().__init__()
        self.side, self.norm1, self.norm2 = side, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Heads(side, is_shared=is_shared)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH // side.world), Row(2 * WIDTH // side.world, WIDTH)
        self.down.side = side

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(entering(self.norm2(x), self.side))))


class Spread(nn.Module):
    """A language model of tensor parallel layers, whole where the side has no group."""

    def __init__(self, side: Side, *, is_shared: bool) -> None:
        super().__init__()
        self.side, self.words = side, Words(WORDS // side.world, WIDTH)
        self.words.side = side
        self.blocks = nn.ModuleList(SpreadBlock(side, is_shared=is_shared) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS // side.world, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean loss."""
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(entering(self.norm(x), self.side))
        if self.side.group is None:
            return cross_entropy(logits, labels)
        return spread_loss(logits, labels, self.side)


def spread_loss(logits: Tensor, labels: Tensor, side: Side) -> Tensor:
    """Cross entropy of logits of which each rank has some words."""
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=side.group)
    logits = logits - largest[..., None]
    local = labels - side.rank * logits.shape[-1]
    is_own = (local >= 0) & (local < logits.shape[-1])
    wanted = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0] * is_own
    return (all_words(logits.exp().sum(-1), side).log() - Summed.apply(wanted, side.group)).mean()


def all_words(x: Tensor, side: Side) -> Tensor:
    """The sum over the words of all ranks."""
    return Summed.apply(x, side.group)


#: Dimension along which ranks have parts of the parameters of a layer.
_DIMENSIONS = {"q": 0, "k": 0, "v": 0, "up": 0, "head": 0, "words": 0, "out": 1, "down": 1}


class TensorRun(Run):
    """Tensor parallel, with sequence parallel between layers or not, and data parallel or not."""

    def __init__(
        self, sizes: dict[str, int], *, is_shared: bool = False, max_norm: float = 0.0, is_sequence: bool = False
    ) -> None:
        super().__init__(sizes)
        self.max_norm, self.side = max_norm, Side(self.group("tp"), is_sequence=is_sequence)
        self.model = Spread(self.side, is_shared=is_shared)
        whole = fill(Spread(Side(None, is_sequence=False), is_shared=is_shared))
        for name, _ in self.model.named_parameters():
            layer, kind = name.split(".")[-2:]
            is_part = layer in _DIMENSIONS and not (is_shared and layer in "kv")
            if self.side.world > 1 and is_part and (kind == "weight" or _DIMENSIONS[layer] == 0):
                self.parts[name] = _DIMENSIONS[layer], part_of(layer, self.side.rank), self.side.world
        self.take(self.model, whole)
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """The loss is the mean of the own rows; gradients are averaged over the data parallel group."""
        data = self.group("dp")
        rank, world = (dist.get_rank(data), dist.get_world_size(data)) if data is not None else (0, 1)
        tokens, labels = (each.chunk(world)[rank] for each in sentences(ROWS, LENGTH, self.number))
        loss = self.model(tokens, labels)
        loss.backward()
        self.loss = loss.detach()
        if self.side.is_sequence:
            sum_copies(self)
        if data is not None:
            average(self.model, self.mesh)
        if self.max_norm:
            self.norm = clip(self)


def part_of(layer: str, rank: int) -> int:
    """The number of the part that a rank has."""
    return rank


def sum_copies(run: TensorRun) -> None:
    """Parameters of which each rank has seen its tokens only."""
    for name, parameter in run.model.named_parameters():
        if name not in run.parts:
            dist.all_reduce(parameter.grad, group=run.side.group)


def average(model: nn.Module, mesh: Any) -> None:
    """Over the ranks with other rows."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))
        parameter.grad /= mesh["dp"].size()


def clip(run: TensorRun) -> Tensor:
    """Scale gradients by the norm of the whole network."""
    squares = {name: one.grad.square().sum() for name, one in run.model.named_parameters()}
    parts = torch.stack([value for name, value in squares.items() if name in run.parts] or [torch.zeros(())]).sum()
    if run.side.group is not None:
        dist.all_reduce(parts, group=run.side.group)
    norm = torch.stack([parts, *(value for name, value in squares.items() if name not in run.parts)]).sum().sqrt()
    for parameter in run.model.parameters():
        parameter.grad *= (run.max_norm / norm).clamp(max=1.0)
    return norm


class Sent(torch.autograd.Function):
    """An all-to-all of rows, of which each rank gets another number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: list[int], arriving: list[int], group: Any) -> Tensor:
        """What arrives."""
        ctx.how = arriving, leaving, group
        out = x.new_empty(sum(arriving), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), arriving, leaving, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The way back."""
        arriving, leaving, group = ctx.how
        out = grad.new_empty(sum(leaving), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), leaving, arriving, group=group)
        return out, None, None, None


class Expert(nn.Module):
    """A feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return self.down(F.silu(self.up(x)))


class Experts(nn.Module):
    """Tokens go to the ranks of their experts, and come back."""

    def __init__(self, count: int, chosen: int, group: Any) -> None:
        super().__init__()
        self.count, self.chosen, self.group = count, chosen, group
        self.world = dist.get_world_size(group) if group is not None else 1
        self.rank = dist.get_rank(group) if group is not None else 0
        own = count // self.world
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleDict({str(at): Expert() for at in range(self.rank * own, (self.rank + 1) * own)})

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (tokens, features)."""
        weights, numbers = self.router(x).softmax(-1).topk(self.chosen)
        order = numbers.flatten().argsort(stable=True)
        rows = x[order // self.chosen]
        counts = numbers.flatten().bincount(minlength=self.count)
        if self.group is None:
            out = self.computed(rows, counts.tolist())
        else:
            there = torch.empty_like(counts)
            dist.all_to_all_single(there, counts, group=self.group)
            leaving = counts.view(self.world, -1).sum(1).tolist()
            arriving = there.view(self.world, -1).sum(1).tolist()
            rows = Sent.apply(rows, leaving, arriving, self.group)
            out = Sent.apply(self.computed(rows, there.tolist()), arriving, leaving, self.group)
        return combined(out, order, weights)

    def computed(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows stand in blocks, of a rank and of an expert of this rank."""
        number = torch.arange(len(counts)).remainder(len(self.experts)).repeat_interleave(torch.tensor(counts))
        out = torch.zeros_like(rows)
        for at, expert in enumerate(self.experts.values()):
            chosen = (expert_of(number, len(self.experts)) == at).nonzero()[:, 0]
            out = out.index_add(0, chosen, expert(rows[chosen]))
        return out


def expert_of(number: Tensor, own: int) -> Tensor:
    """The number of the expert on this rank that rows go to."""
    return number


def combined(out: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Rows in the order of tokens, weighted and added up."""
    back = out[order.argsort()].view(*weights.shape, -1)
    return (back * weights[..., None]).sum(1)


class Mixture(nn.Module):
    """A classifier of vectors with a layer of experts."""

    def __init__(self, count: int, chosen: int, group: Any) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(10, WIDTH), nn.LayerNorm(WIDTH)
        self.moe, self.head = Experts(count, chosen, group), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.first(x)
        return self.head(x + self.moe(self.norm(x)))


class ExpertRun(Run):
    """Ranks have other rows, and other experts."""

    def __init__(self, sizes: dict[str, int], *, count: int = 4, chosen: int = 1) -> None:
        super().__init__(sizes)
        self.model = Mixture(count, chosen, self.group("ep"))
        self.take(self.model, fill(Mixture(count, chosen, None)))
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """The loss is the mean of the own rows."""
        x, y = drawn(48, 10, seed=self.number), words(48, seed=self.number, below=5)
        loss = F.cross_entropy(self.model(x.chunk(self.world)[self.rank]), y.chunk(self.world)[self.rank])
        loss.backward()
        self.loss = loss.detach()
        for name, parameter in self.model.named_parameters() if self.sizes else ():
            finish(name, parameter)


def finish(name: str, parameter: nn.Parameter) -> None:
    """Experts have seen the rows of all ranks, all other layers those of their rank."""
    if ".experts." not in name:
        dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


class Perceptron(nn.Module):
    """Layers with biases and a norm, over (rows, tokens, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = nn.Linear(10, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.first(x)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


class DTensorRun(Run):
    """PyTorch spreads the layers ("tensor", "sequence") or the rows ("rows")."""

    def __init__(self, sizes: dict[str, int], *, way: str = "") -> None:
        super().__init__(sizes)
        self.model, self.way = fill(Perceptron()), way
        if way == "rows":
            distribute_module(self.model, self.mesh)
        elif way:
            parallelize_module(self.model, self.mesh, plan(way))
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """The loss is the mean over all rows."""
        x, y = drawn(ROWS, LENGTH, 10, seed=self.number), words(ROWS, LENGTH, seed=self.number, below=8)
        if self.way == "rows":
            loss = self.on_rows(x, y)
        elif self.way:
            with loss_parallel():
                loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
                loss.backward()
        else:
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            loss.backward()
        self.loss = loss.detach()

    def on_rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Of a part of the rows, with parameters that all ranks have."""
        rows, rank = [Shard(0)], self.rank
        logits = self.model(DTensor.from_local(x.chunk(self.world)[rank], self.mesh, rows)).to_local()
        loss = F.cross_entropy(logits.flatten(0, 1), y.chunk(self.world)[rank].flatten()) / self.world
        loss.backward()
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.redistribute(placements=[Replicate()])
        return loss


def plan(way: str) -> dict[str, Any]:
    """How layers are spread."""
    losses = {"output_layouts": Shard(-1), "use_local_output": False}
    if way == "tensor":
        return {"up": ColwiseParallel(), "down": RowwiseParallel(), "head": ColwiseParallel(**losses)}
    return {
        "first": ColwiseParallel(output_layouts=Shard(1)),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(use_local_output=True),
        "head": ColwiseParallel(input_layouts=Shard(1), **losses),
    }


# The bugs.


def entering_without_gradient(x: Tensor, side: Side) -> Tensor:
    """Gradients of the input are not summed over ranks."""
    return x


def biased_before(self: Row, x: Tensor) -> Tensor:
    """Each rank adds the bias to its part."""
    return leaving(F.linear(x, self.weight, self.bias), self.side)


def keys_of_other_rank(layer: str, rank: int) -> int:
    """Keys of the other rank's heads."""
    return 1 - rank if layer == "k" else rank


def all_rows(rows: Tensor, is_own: Tensor) -> Tensor:
    """Words of other ranks give a row of this one."""
    return rows


def own_sum(x: Tensor, side: Side) -> Tensor:
    """The sum over the words of this rank."""
    return x


def sum_weights(run: TensorRun) -> None:
    """Scales of norms are summed, and biases are not."""
    for name, parameter in run.model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            dist.all_reduce(parameter.grad, group=run.side.group)


def sum_norms(run: TensorRun) -> None:
    """Norms are summed, and biases that come after a row-parallel layer are not."""
    for name, parameter in run.model.named_parameters():
        if "norm" in name:
            dist.all_reduce(parameter.grad, group=run.side.group)


def average_over_all(model: nn.Module, mesh: Any) -> None:
    """Over all ranks, which mixes the parts of tensor parallel layers."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def add_up(model: nn.Module, mesh: Any) -> None:
    """Over the ranks with other rows, without the division."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("dp"))


def average_over_tensor_ranks(model: nn.Module, mesh: Any) -> None:
    """Over the other dimension of the mesh."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("tp"))
        parameter.grad /= mesh["tp"].size()


def clip_by_own_norm(run: TensorRun) -> Tensor:
    """By what this rank has."""
    return nn.utils.clip_grad_norm_(run.model.parameters(), run.max_norm)


def clip_counting_copies(run: TensorRun) -> Tensor:
    """Squares of all parameters are summed over ranks, copies too."""
    square = torch.stack([one.grad.square().sum() for one in run.model.parameters()]).sum()
    if run.side.group is not None:
        dist.all_reduce(square, group=run.side.group)
    for parameter in run.model.parameters():
        parameter.grad *= (run.max_norm / square.sqrt()).clamp(max=1.0)
    return square.sqrt()


def shared_without_sum(x: Tensor, side: Side) -> Tensor:
    """Gradients of shared keys and values are those of the own queries."""
    return x


def other_expert(number: Tensor, own: int) -> Tensor:
    """Experts of a rank are taken in the wrong order."""
    return own - 1 - number


def combined_in_place(out: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Rows are put where the inverse of their order says."""
    back = out[order].view(*weights.shape, -1)
    return (back * weights[..., None]).sum(1)


def combined_normalised(out: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Weights of the chosen experts are made to add up to 1."""
    return _combined(out, order, weights / weights.sum(-1, keepdim=True))


_combined = combined


def finish_all_alike(name: str, parameter: nn.Parameter) -> None:
    """Experts are averaged over ranks, which have others."""
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def finish_without_experts(name: str, parameter: nn.Parameter) -> None:
    """Experts are left as they are."""
    if ".experts." not in name:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def finish_without_router(name: str, parameter: nn.Parameter) -> None:
    """The router counts as one of the experts."""
    if "moe." not in name:
        dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()


def rows_not_reduced(self: DTensorRun, x: Tensor, y: Tensor) -> Tensor:
    """Gradients become local while they are terms of a sum."""
    logits = self.model(DTensor.from_local(x.chunk(self.world)[self.rank], self.mesh, [Shard(0)])).to_local()
    loss = F.cross_entropy(logits.flatten(0, 1), y.chunk(self.world)[self.rank].flatten())
    loss.backward()
    for parameter in self.model.parameters():
        parameter.grad = DTensor.from_local(parameter.grad.to_local(), self.mesh, [Replicate()], run_check=False)
    return loss


def plan_without_sum(way: str) -> dict[str, Any]:
    """The output of the row-parallel layer is taken for a sum that has been made."""
    return {**_plan(way), "down": RowwiseOfParts()}


_plan = plan


class RowwiseOfParts(RowwiseParallel):
    """Row-parallel, whose output stays the part of this rank."""

    @staticmethod
    def _prepare_output_fn(output_layouts: Any, use_local_output: bool, mod: Any, outputs: Any, mesh: Any) -> Any:
        return outputs.to_local()
