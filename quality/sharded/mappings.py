"""Communication with gradients, as the regions of Megatron-LM have it: each forward has its conjugate as backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from quality.sharded.layout import Group


def gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    """The shards of all ranks, joined along `dim`; no gradient passes."""
    parts = [torch.empty_like(x) for _ in range(group.size)]
    dist.all_gather(parts, x.contiguous(), group=group.process_group)
    return torch.cat(parts, dim)


def scattered(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's shard along `dim` of the sum over ranks; no gradient passes."""
    parts = [part.contiguous() for part in x.chunk(group.size, dim)]
    own = torch.empty_like(parts[group.index])
    dist.reduce_scatter(own, parts, group=group.process_group)
    return own


def own_shard(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's shard along `dim` of what all ranks have."""
    return x.chunk(group.size, dim)[group.index].contiguous()


class Copy(Function):
    """What every rank has goes into a region of shards; its gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """The same values."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The sum over ranks."""
        return ctx.group.sum(grad.clone()), None


class Reduce(Function):
    """Partial sums leave a region of shards; every rank's gradient is the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """The sum over ranks."""
        return group.sum(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """As it comes."""
        return grad, None


class Gather(Function):
    """Shards become whole before a region of shards of another kind; gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        """The whole tensor."""
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """This rank's shard of the sum."""
        return scattered(grad, ctx.group, ctx.dim), None, None


class GatherCopies(Function):
    """Shards become whole where every rank then computes the same: the gradient is this rank's shard."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        """The whole tensor."""
        ctx.group, ctx.dim = group, dim
        return gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """This rank's shard, not summed."""
        return own_shard(grad, ctx.group, ctx.dim), None, None


class Scatter(Function):
    """Partial sums become shards of the sum; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        """This rank's shard of the sum."""
        ctx.group, ctx.dim = group, dim
        return scattered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The whole gradient."""
        return gathered(grad, ctx.group, ctx.dim), None, None


class Exchange(Function):
    """Rows go to the ranks that want them, and gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sent: list[int], received: list[int]) -> Tensor:
        """The rows that the ranks sent here, in the order of ranks."""
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchanged(x, group, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradients of the rows that this rank sent."""
        return _exchanged(grad, ctx.group, ctx.received, ctx.sent), None, None, None


def _exchanged(x: Tensor, group: Group, sent: list[int], received: list[int]) -> Tensor:
    rows = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(rows, x.contiguous(), received, sent, group=group.process_group)
    return rows


def copied(x: Tensor, group: Group) -> Tensor:
    """`Copy`, where there is more than one rank."""
    return Copy.apply(x, group) if group.size > 1 else x


def reduced(x: Tensor, group: Group) -> Tensor:
    """`Reduce`, where there is more than one rank."""
    return Reduce.apply(x, group) if group.size > 1 else x


def whole(x: Tensor, group: Group, dim: int) -> Tensor:
    """`Gather`, where there is more than one rank."""
    return Gather.apply(x, group, dim) if group.size > 1 else x


def shards_of_sum(x: Tensor, group: Group, dim: int) -> Tensor:
    """`Scatter`, where there is more than one rank."""
    return Scatter.apply(x, group, dim) if group.size > 1 else x


def exchanged(x: Tensor, group: Group, sent: list[int], received: list[int]) -> Tensor:
    """`Exchange`, where there is more than one rank."""
    return Exchange.apply(x, group, sent, received) if group.size > 1 else x
