"""Trainings whose ranks have other parts of a sequence or an image, with their bugs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from quality.sharded.outside_parts import (
    LENGTH,
    Exchanged,
    Gathered,
    Language,
    Local,
    Run,
    Shifted,
    Summed,
    SummedBoth,
    adamw,
    cross_entropy,
    drawn,
    fill,
    sentences,
)


class Ulysses(nn.Module):
    """An all-to-all before attention gives each rank some heads with all tokens, another one gives them back."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of this rank's tokens."""
        q, k, v = (to_heads(each, self.group) for each in (q, k, v))
        return to_tokens(F.scaled_dot_product_attention(q, k, v, is_causal=True), self.group)


def to_heads(x: Tensor, group: Any) -> Tensor:
    """(batch, heads, own tokens, features) to (batch, own heads, tokens, features)."""
    return Exchanged.apply(x, 1, 2, group)


def to_tokens(x: Tensor, group: Any) -> Tensor:
    """The way back."""
    return Exchanged.apply(x, 2, 1, group)


class Ring(nn.Module):
    """Keys and values go round; each block of scores is merged by its log-sum-exp."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of this rank's queries."""
        out = total = None
        for turn in range(self.world):
            before = self.rank - owner_of(self.rank, turn, self.world)
            new, norm = block_of(q, k, v, before * q.shape[2])
            out, total = (new, norm) if out is None else merged(out, total, new, norm)
            if turn < self.world - 1:
                k, v = passed_on(k, self.group), passed_on(v, self.group)
        return out


def owner_of(rank: int, turn: int, world: int) -> int:
    """Whose keys are here after some turns."""
    return (rank - turn) % world


def passed_on(x: Tensor, group: Any) -> Tensor:
    """What the rank before had."""
    return Shifted.apply(x, 1, group)


def block_of(q: Tensor, k: Tensor, v: Tensor, before: int) -> tuple[Tensor, Tensor]:
    """Attention over keys that stand `before` places before the queries, and the log-sum-exp of its scores."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + before).bool(), -1e9)
    norm = scores.logsumexp(-1, keepdim=True)
    return (scores - norm).exp() @ v, norm


def merged(out: Tensor, total: Tensor, new: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Of both parts of the keys."""
    both = torch.logaddexp(total, norm)
    return out * (total - both).exp() + new * (norm - both).exp(), both


class SplitKeys(nn.Module):
    """All queries on all ranks over the rank's keys; the parts are added up, and each rank keeps its queries."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of this rank's queries."""
        q = Gathered.apply(q, 2, self.group)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        at = torch.arange(k.shape[2]) + self.rank * k.shape[2]
        scores = scores.masked_fill(at > torch.arange(q.shape[2])[:, None], -1e9)
        weights = (scores - largest(scores.detach().amax(-1, keepdim=True), self.group)).exp()
        above = SummedBoth.apply(weights @ v, self.group)
        below = SummedBoth.apply(weights.sum(-1, keepdim=True), self.group)
        return (above / below).chunk(self.world, 2)[self.rank]


def largest(x: Tensor, group: Any) -> Tensor:
    """Over all keys."""
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)
    return x


CORES: dict[str, Any] = {"ulysses": Ulysses, "ring": Ring, "split keys": SplitKeys}


class SequenceRun(Run):
    """A language model whose ranks have other tokens of all sentences."""

    def __init__(self, sizes: dict[str, int], *, core: str = "", is_mean: bool = False) -> None:
        super().__init__(sizes)
        self.is_mean = is_mean
        self.model = fill(Language(partial(CORES[core], self.group("cp")) if sizes else Local))
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """Of the mean over all tokens, by sums or by means of the own part."""
        tokens, labels = parts_of(*sentences(4, LENGTH, self.number), self.rank, self.world)
        logits = self.model(tokens, start_of(self.rank, tokens.shape[1]))
        loss = cross_entropy(logits, labels, "mean" if self.is_mean else "sum")
        loss = loss if self.is_mean else loss / (4 * LENGTH)
        loss.backward()
        self.loss = loss.detach()
        if self.sizes:
            reduced(self.model, self.world if self.is_mean else 1)


def start_of(rank: int, length: int) -> int:
    """The position of the first token of this rank."""
    return rank * length


def parts_of(tokens: Tensor, labels: Tensor, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Of this rank."""
    return tokens.chunk(world, 1)[rank], labels.chunk(world, 1)[rank]


def reduced(model: nn.Module, divisor: int) -> None:
    """Add gradients up over ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= divisor


class Window(nn.Module):
    """Causal attention over the last tokens only."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of shape (batch, heads, tokens, features)."""
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < 3))


class WindowRun(Run):
    """Ranks have their tokens and those before them that two layers of windows reach."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self.model = fill(Language(Window))
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """Of the own tokens; those before them have no loss."""
        tokens, labels = sentences(4, 2 * LENGTH, self.number)
        own = 2 * LENGTH // self.world
        start = max(self.rank * own - overlap(), 0)
        logits = self.model(tokens[:, start : (self.rank + 1) * own], start)
        loss = loss_of_own(logits, labels[:, start : (self.rank + 1) * own], own) / labels.numel()
        loss.backward()
        self.loss = loss.detach()
        if self.sizes:
            reduced(self.model, 1)


def overlap() -> int:
    """Two tokens before, in each of two layers."""
    return 4


def loss_of_own(logits: Tensor, labels: Tensor, own: int) -> Tensor:
    """The sum over the last tokens."""
    return cross_entropy(logits[:, -own:], labels[:, -own:], "sum")


class Halo(torch.autograd.Function):
    """Rows of an image with the rows of both neighbours around them, zeros at the image's border."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, group: Any) -> Tensor:
        """As many more rows on both sides."""
        ctx.rows, ctx.group = rows, group
        above, below = neighbours(x[:, :, -rows:], x[:, :, :rows], group)
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """What neighbours got comes back."""
        rows = ctx.rows
        own = grad[:, :, rows:-rows].clone()
        from_above, from_below = neighbours(grad[:, :, -rows:], grad[:, :, :rows], ctx.group)
        own[:, :, :rows] += from_above
        own[:, :, -rows:] += from_below
        return own, None, None


def neighbours(down: Tensor, up: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Send `down` to the next rank and `up` to the one before; what arrives from above and from below."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    above, below = torch.zeros_like(up.contiguous()), torch.zeros_like(up.contiguous())
    operations = []
    if rank > 0:
        operations += [dist.P2POp(dist.isend, up.contiguous(), rank - 1), dist.P2POp(dist.irecv, above, rank - 1)]
    if rank < world - 1:
        operations += [dist.P2POp(dist.isend, down.contiguous(), rank + 1), dist.P2POp(dist.irecv, below, rank + 1)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return above, below


class SpatialConv(nn.Conv2d):
    """A convolution over images of which this rank has some rows."""

    group: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Of as many rows."""
        if self.group is None:
            return super().forward(x)
        rows = halo_of(self.kernel_size[0])
        x = with_halo(x, rows, self.group)
        missing = self.kernel_size[0] // 2 - rows
        return F.conv2d(x, self.weight, self.bias, padding=(missing, self.kernel_size[1] // 2))


def halo_of(kernel: int) -> int:
    """Rows of neighbours that a kernel reaches."""
    return kernel // 2


def with_halo(x: Tensor, rows: int, group: Any) -> Tensor:
    """With the rows of neighbours."""
    return Halo.apply(x, rows, group)


class Spatial(nn.Module):
    """Convolutions, a norm over each image and a mean over all places."""

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.group: Any = None
        self.first = SpatialConv(3, 6, kernel, padding=kernel // 2)
        self.norm_weight = nn.Parameter(torch.ones(6))
        self.second = SpatialConv(6, 6, kernel, padding=kernel // 2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of classes."""
        x = F.gelu(normalised(self.first(x), self.group) * self.norm_weight[:, None, None])
        return self.head(pooled(F.gelu(self.second(x)), self.group))


def pooled(x: Tensor, group: Any) -> Tensor:
    """The mean over all places, for the head."""
    return mean_of_places(x, group)


def mean_of_places(x: Tensor, group: Any) -> Tensor:
    """Over all rows of an image."""
    mean = x.mean((2, 3))
    return mean if group is None else SummedBoth.apply(mean, group) / dist.get_world_size(group)


def normalised(x: Tensor, group: Any) -> Tensor:
    """By mean and variance of each channel over all rows of an image."""
    mean = mean_of_places(x, group)[:, :, None, None]
    return (x - mean) * (mean_of_places((x - mean).square(), group)[:, :, None, None] + 1e-5).rsqrt()


class SpatialRun(Run):
    """Ranks have other rows of all images; all of them compute the loss."""

    def __init__(self, sizes: dict[str, int], *, kernel: int = 3) -> None:
        super().__init__(sizes)
        self.model = fill(Spatial(kernel))
        for layer in (self.model, self.model.first, self.model.second):
            layer.group = self.group("rows")
        self.optimizer = adamw(self.model)

    def gradients(self) -> None:
        """Each rank has the whole loss, of which it takes its share."""
        images = drawn(4, 3, 12, 8, seed=self.number).chunk(self.world, 2)[self.rank]
        loss = F.cross_entropy(self.model(images), torch.tensor([0, 3, 1, 4]))
        (loss / self.world).backward()
        self.loss = loss.detach()
        if self.sizes:
            reduced(self.model, 1)


# The bugs.


def start_of_zero(rank: int, length: int) -> int:
    """Positions count from 0 on each rank."""
    return 0


def labels_rolled(tokens: Tensor, labels: Tensor, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """The next tokens within the own part: the last one gets the first as label."""
    own = tokens.chunk(world, 1)[rank]
    return own, own.roll(-1, 1) if world > 1 else labels


def weights_reduced(model: nn.Module, divisor: int) -> None:
    """Add gradients of matrices up."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= divisor


def averaged(model: nn.Module, divisor: int) -> None:
    """The mean over ranks, though each of them has a share of the loss."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def heads_in_turn(x: Tensor, group: Any) -> Tensor:
    """Heads are dealt out in turn, and come back in blocks."""
    world = dist.get_world_size(group)
    return _to_heads(x.unflatten(1, (-1, world)).transpose(1, 2).flatten(1, 2), group)


_to_heads = to_heads


def values_of_other_heads(self: Ulysses, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values are sent with their heads in another order than queries and keys."""
    q, k, v = to_heads(q, self.group), to_heads(k, self.group), to_heads(v.flip(1), self.group)
    return to_tokens(F.scaled_dot_product_attention(q, k, v, is_causal=True), self.group)


def owner_after(rank: int, turn: int, world: int) -> int:
    """The ring is taken to turn the other way."""
    return (rank + turn) % world


def passed_on_without_gradient(x: Tensor, group: Any) -> Tensor:
    """What the rank before had, without a way back for its gradient."""
    return _passed_on(x.detach(), group)


_passed_on = passed_on


def merged_with_old_norm(out: Tensor, total: Tensor, new: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """What is there is not scaled to the new sum."""
    both = torch.logaddexp(total, norm)
    return out + new * (norm - both).exp(), both


def largest_of_own(x: Tensor, group: Any) -> Tensor:
    """Over the keys of this rank."""
    return x


def overlap_of_one_layer() -> int:
    """What one layer reaches."""
    return 2


def loss_of_all(logits: Tensor, labels: Tensor, own: int) -> Tensor:
    """The sum over the own tokens and those before them."""
    return cross_entropy(logits, labels, "sum")


def one_row(kernel: int) -> int:
    """As for a kernel of 3."""
    return 1


def halo_exchanged(x: Tensor, rows: int, group: Any) -> Tensor:
    """Rows from above come below, and the other way round."""
    with_both = _with_halo(x, rows, group)
    return torch.cat([with_both[:, :, -rows:], x, with_both[:, :, :rows]], 2)


_with_halo = with_halo


def halo_without_gradient(x: Tensor, rows: int, group: Any) -> Tensor:
    """Rows of neighbours are constants."""
    above, below = neighbours(x.detach()[:, :, -rows:], x.detach()[:, :, :rows], group)
    return torch.cat([above, x, below], 2)


def mean_of_own_places(x: Tensor, group: Any) -> Tensor:
    """Over the rows of this rank."""
    return x.mean((2, 3))


def normalised_by_own(x: Tensor, group: Any) -> Tensor:
    """By mean and variance of the rows of this rank."""
    return _normalised(x, None)


_normalised = normalised


def places_summed_without_gradient(x: Tensor, group: Any) -> Tensor:
    """The sum over ranks, whose gradient stays where it arises."""
    mean = x.mean((2, 3))
    return mean if group is None else Summed.apply(mean, group) / dist.get_world_size(group)
