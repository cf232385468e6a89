"""Networks, collectives with gradients, and what all trainings of `quality.sharded.outside` share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, HEADS, WORDS, LENGTH = 16, 4, 24, 12


class Run:
    """A training, ready for its steps.

    Attributes:
        sizes: of the mesh; empty on one rank.
        model: what is trained.
        optimizer: of its parameters.
        loss, norm: after the step, as this rank would print them.
        parts: of parameters that this rank has in part: dimension, number and count of the parts.
        number: of the next step.
    """

    model: Any
    optimizer: torch.optim.Optimizer

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if sizes else (0, 1)
        self.mesh: Any = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes)) if sizes else None
        self.loss = self.norm = torch.zeros(())
        self.parts: dict[str, tuple[int, int, int]] = {}
        self.number = 0

    def group(self, name: str) -> Any:
        """The process group of a dimension of the mesh; None where the mesh lacks it."""
        return self.mesh.get_group(name) if name in self.sizes else None

    def step(self) -> None:
        """Forward, backward and optimizer, on the next batch."""
        self.optimizer.zero_grad()
        self.gradients()
        self.optimizer.step()
        self.number += 1

    def gradients(self) -> None:
        """Leave in `grad` what the optimizer gets."""
        raise NotImplementedError

    def take(self, model: nn.Module, whole: nn.Module) -> None:
        """Copy the parameters of the whole network, or the parts of this rank, into `model`."""
        values = dict(whole.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                dim, index, count = self.parts.get(name, (0, 0, 1))
                parameter.copy_(values[name].chunk(count, dim)[index])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Of all parameters."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw all parameters, scales around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = "norm" in name and name.endswith("weight")
            parameter.copy_(is_scale + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def drawn(*shape: int, seed: int) -> Tensor:
    """Real numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + seed))


def words(*shape: int, seed: int, below: int = WORDS) -> Tensor:
    """Whole numbers from 0."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(200 + seed))


def sentences(rows: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens, and the tokens that follow them."""
    text = words(rows, length + 1, seed=seed)
    return text[:, :-1], text[:, 1:]


def cross_entropy(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Over all tokens."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction=reduction)


class Local(nn.Module):
    """Causal attention of heads that this rank has with all of their tokens."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of shape (batch, heads, tokens, features)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """One projection with a bias for queries, keys and values."""

    def __init__(self, core: nn.Module, width: int) -> None:
        super().__init__()
        self.qkv, self.core, self.out = nn.Linear(width, 3 * width), core, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.core(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward network, normalised before."""

    def __init__(self, core: nn.Module, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.dropout = Attention(core, width), nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Language(nn.Module):
    """A language model with learned positions, whose blocks make their attention by `core`."""

    def __init__(self, core: Any = Local, width: int = WIDTH, dropout: float = 0.0, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(2 * LENGTH, width)
        self.blocks = nn.ModuleList(Block(core(), width, dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Logits of tokens, of which the first has the position `start`."""
        x = self.words(tokens) + self.places(torch.arange(start, start + tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Copied(torch.autograd.Function):
    """The same values on all ranks; gradients are summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """As it comes."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The sum."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """The sum over ranks; all of them have its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """The sum."""
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """As it comes."""
        return grad, None


class SummedBoth(torch.autograd.Function):
    """The sum over ranks, each of which goes on with another part: gradients are summed, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """The sum."""
        ctx.group = group
        return Summed.apply(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The sum."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """The parts of all ranks along a dimension."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def scattered(x: Tensor, dim: int, group: Any) -> Tensor:
    """The part of this rank of the sum over ranks."""
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


class Gathered(torch.autograd.Function):
    """All parts; each rank goes on with its own use of them, so that gradients are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        """All parts."""
        ctx.dim, ctx.group = dim, group
        return gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The part of this rank of the sum."""
        return scattered(grad, ctx.dim, ctx.group), None, None


class Scattered(torch.autograd.Function):
    """The part of this rank of the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Any) -> Tensor:
        """The part."""
        ctx.dim, ctx.group = dim, group
        return scattered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """All parts."""
        return gathered(grad, ctx.dim, ctx.group), None, None


def exchanged(x: Tensor, leaving: int, joined: int, group: Any) -> Tensor:
    """Parts along `leaving` go to their ranks; what arrives is joined along `joined`."""
    parts = torch.stack(x.chunk(dist.get_world_size(group), leaving))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group)
    return torch.cat(list(arrived), joined)


class Exchanged(torch.autograd.Function):
    """An all-to-all of parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: int, joined: int, group: Any) -> Tensor:
        """What arrives."""
        ctx.how = joined, leaving, group
        return exchanged(x, leaving, joined, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The way back."""
        return exchanged(grad, *ctx.how), None, None, None


def shifted(x: Tensor, by: int, group: Any) -> Tensor:
    """What the rank `by` places before this one sends, round the ring."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x, arrived = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    sent = dist.isend(x, dist.get_global_rank(group, (rank + by) % world), group=group)
    dist.recv(arrived, dist.get_global_rank(group, (rank - by) % world), group=group)
    sent.wait()
    return arrived


class Shifted(torch.autograd.Function):
    """Sends to the next rank, gradients to the one before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: int, group: Any) -> Tensor:
        """What the rank before sent."""
        ctx.by, ctx.group = by, group
        return shifted(x, by, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """What the next rank sent."""
        return shifted(grad, -ctx.by, ctx.group), None, None
