"""Wrong reductions, places, layouts, products, positions and steps, of kinds that people report."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quality.kernels import references as exact, right

wide = right.in_float32
Operation = Callable[..., Any]


# Reductions and scans.


def stale_block(x: Tensor, block: int = 64) -> Tensor:
    """The buffer of the last block, which is not whole, still holds the end of the block before."""
    rest = x.shape[-1] % block
    return x.sum(-1) + x[..., -block:-rest].sum(-1)


class Workspace:
    """Adds into memory that is not set to 0 between calls."""

    def __init__(self) -> None:
        """Start with 0, as a first call of a process does."""
        self.memory: dict[torch.dtype, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """Add the sums of rows."""
        total = x.float().sum(-1)
        self.memory[x.dtype] = self.memory.get(x.dtype, torch.zeros_like(total)) + total.detach()
        return (total + (self.memory[x.dtype] - total).detach()).to(x.dtype)


def row_sum(x: Tensor) -> Tensor:
    """Sums of rows."""
    return x.sum(-1)


def column_sum(x: Tensor) -> Tensor:
    """Sums of columns."""
    return x.sum(0)


def column_misses_a_block(x: Tensor) -> Tensor:
    """One column misses one block of rows."""
    keep = torch.ones_like(x)
    keep[32:40, 5] = 0
    return (x * keep).sum(0)


def cumulative_backwards(x: Tensor) -> Tensor:
    """Cumulative sum from the end."""
    return x.flip(-1).cumsum(-1).flip(-1)


def cumulative_exclusive(x: Tensor) -> Tensor:
    """Each element leaves itself out."""
    return x.cumsum(-1) - x


def product(x: Tensor) -> Tensor:
    """Products of rows."""
    return x.prod(-1)


class ProductByDivision(torch.autograd.Function):
    """A product whose gradient is the product divided by each factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(x)
        return x.float().prod(-1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Tensor:  # type: ignore[override]
        """Divide, by 0 as well."""
        x = ctx.saved_tensors[0].float()
        return (incoming.float().unsqueeze(-1) * x.prod(-1, keepdim=True) / x).to(incoming.dtype)


def largest(x: Tensor) -> Tensor:
    """Largest elements of rows."""
    return x.amax(-1)


def masked_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Means of the first elements of rows."""
    keep = torch.arange(x.shape[-1]) < lengths.unsqueeze(-1)
    return (x * keep).sum(-1) / lengths


def segments(x: Tensor, ends: Tensor) -> Tensor:
    """Sums of rows between ends."""
    bounds = [0, *ends.tolist()]
    return torch.stack([x[start:end].sum(0) for start, end in pairwise(bounds)])


def scan_next_decay(a: Tensor, x: Tensor) -> Tensor:
    """The decay of the step before."""
    return exact.scan(a.roll(1, 1), x)


def scan_cut(a: Tensor, x: Tensor, block: int = 8) -> Tensor:
    """The state is carried between blocks, its gradient is not."""
    state, states = torch.zeros_like(x[:, 0]), []
    for step in range(x.shape[1]):
        state = a[:, step] * (state if step % block else state.detach()) + x[:, step]
        states.append(state)
    return torch.stack(states, 1)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, late: bool = False) -> Tensor:
    """A memory of keys and values, read after each step, or before it."""
    memory, results = torch.zeros(key.shape[-1], value.shape[-1], dtype=key.dtype), []
    for q, k, v, b in zip(query, key, value, torch.sigmoid(beta)):
        read = q @ memory
        memory = memory + b * torch.outer(k, v - k @ memory)
        results.append(read if late else q @ memory)
    return torch.stack(results)


# Places and layouts.


def table_of_short_offsets(weight: Tensor, indices: Tensor) -> Tensor:
    """Offsets wrap around at 16 bits."""
    offsets = indices * weight.shape[1] % 65536
    return weight[offsets // weight.shape[1]]


def one_duplicate_lost(weight: Tensor, indices: Tensor) -> Tensor:
    """One of the gradients that meet in a row is lost."""
    order = indices.argsort(stable=True)
    place = order[1:][indices[order][1:] == indices[order][:-1]][0]
    rows = weight[indices]
    return torch.cat([rows[:place], rows[place : place + 1].detach(), rows[place + 1 :]])


def padding_row(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows of a table, whose row 0 gets no gradient."""
    return F.embedding(indices, weight, padding_idx=0)


def shuffled(x: Tensor) -> Tensor:
    """Channels become pixels, two by two."""
    return F.pixel_shuffle(x, 2)


def shuffled_other_way(x: Tensor) -> Tensor:
    """Pixels of a channel in another order."""
    batch, channels, height, width = x.shape
    return (
        x.reshape(batch, 2, 2, channels // 4, height, width)
        .permute(0, 3, 4, 1, 5, 2)
        .reshape(batch, channels // 4, 2 * height, 2 * width)
    )


def from_beginning(x: Tensor) -> Tensor:
    """Reads from the beginning of the memory, whatever the offset of the view is."""
    return wide(exact.gelu)(x.as_strided(x.shape, x.stride(), 0))


def expanded_as_dense(x: Tensor, bias: Tensor) -> Tensor:
    """Reads a bias whose step between columns is 0 as if it were dense."""
    memory = torch.zeros(x.shape, dtype=x.dtype)
    flat = bias.as_strided((bias.shape[0],), (bias.stride(0),))
    memory.view(-1)[: len(flat)] = flat
    return x + memory


def scratch(x: Tensor) -> Tensor:
    """Leaves its input changed."""
    result = torch.softmax(x.float(), -1).to(x.dtype)
    x.sub_(x.amax(-1, keepdim=True))
    return result


def shift_in_place(x: Tensor) -> None:
    """Move rows down by one, in place."""
    x[1:] = x[:-1].clone()


def shift_while_reading(x: Tensor) -> None:
    """Rows are read after they were written."""
    for row in range(1, len(x)):
        x[row] = x[row - 1]


def silu_and_mul_short(x: Tensor, out: Tensor) -> None:
    """The last column of the result is not written."""
    out[:, :-1] = wide(exact.silu_and_mul)(x)[:, :-1]


def squeezed(x: Tensor) -> Tensor:
    """Loses axes of length 1."""
    return torch.softmax(x, -1).squeeze()


def doubled_rows(x: Tensor) -> Tensor:
    """Twice the input."""
    return x * 2


class IncomingAsDense(torch.autograd.Function):
    """Twice the input, whose backward reads incoming gradients of any layout as if they were dense."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Multiply."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Tensor:  # type: ignore[override]
        """Read the memory in order."""
        if incoming.is_contiguous():
            return incoming * 2
        count = min(incoming.numel(), incoming.untyped_storage().nbytes() // incoming.element_size())
        memory = torch.zeros(incoming.numel(), dtype=incoming.dtype)
        memory[:count] = incoming.as_strided((count,), (1,), 0)
        return memory.reshape(incoming.shape) * 2


# Products and quantised numbers.


def in_groups(x: Tensor, quantised: Tensor, scale: Tensor, ahead: int = 0) -> Tensor:
    """Product with a quantised matrix, each eight rows of which have a scale."""
    group = (torch.arange(quantised.shape[0]) + ahead).clamp(max=quantised.shape[0] - 1) // 8
    return x @ (quantised.to(x.dtype) * scale[group])


def nibbles(x: Tensor, packed: Tensor, swapped: bool = False, zero: int = 8) -> Tensor:
    """Product with a matrix of four bits, two numbers a byte, the low one first."""
    halves = [packed & 15, packed >> 4]
    numbers = torch.stack(halves[::-1] if swapped else halves, 1).flatten(0, 1)
    return x @ (numbers.to(x.dtype) - zero)


def by_fewer_digits(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """The matrix goes through the float8 with fewer digits."""
    return x @ quantised.to(torch.float8_e5m2).float() * scale


def to_float8(x: Tensor) -> Tensor:
    """What float8 holds of x, limited to its range."""
    return x.clamp(-448, 448)


def to_float8_overflow(x: Tensor) -> Tensor:
    """Without a limit: what is too large becomes NaN, as in a cast of devices that does not saturate."""
    return torch.where(x.float().abs() < 464, x.float(), math.nan).to(torch.float8_e4m3fn)


def to_int8(x: Tensor) -> Tensor:
    """Nearest integer of 20 x."""
    return (x * 20).round().clamp(-128, 127).to(torch.int8)


def to_int8_cut(x: Tensor) -> Tensor:
    """Rounded to 0."""
    return (x.float() * 20).clamp(-128, 127).to(torch.int8)


def short_accumulator(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """Sums of integers wrap around at 16 bits."""
    total = (x.to(torch.int32) @ quantised.to(torch.int32)).to(torch.int16)
    return total.float() * scale


def split_with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each of two parts of k adds the bias."""
    half = x.shape[1] // 2
    return F.linear(x[:, :half], weight[:, :half], bias) + F.linear(x[:, half:], weight[:, half:], bias)


def batch_of_first(a: Tensor, b: Tensor) -> Tensor:
    """All products have the second matrix of the first."""
    return a @ b[:1]


def rounded_to(x: Tensor, bits: int) -> Tensor:
    """Numbers of float32 without their last bits, rounded to the nearest."""
    return ((x.view(torch.int32) + (1 << bits - 1)) >> bits << bits).view(torch.float32)


def in_tf32(a: Tensor, b: Tensor) -> Tensor:
    """Operands have ten bits behind the point."""
    return rounded_to(a.detach(), 13) @ rounded_to(b.detach(), 13)


def two_parts_without_cross(a: Tensor, b: Tensor) -> Tensor:
    """Operands are split into two bfloat16, and one of the cross products is forgotten."""
    left, right_ = a.detach().bfloat16().float(), b.detach().bfloat16().float()
    return left @ right_ + (a - left) @ right_


def scaled_product(a: Tensor, b: Tensor) -> Tensor:
    """Product divided by 1,000."""
    return a @ b / 1000


def scaled_after_overflow(a: Tensor, b: Tensor) -> Tensor:
    """The product is float16 before it is divided."""
    return (a.float() @ b.float()).to(torch.float16).float().div(1000).to(a.dtype)


def experts(x: Tensor, weights: Tensor, ends: Tensor, late: int = 0) -> Tensor:
    """Rows of sorted tokens times the matrix of their expert."""
    expert = torch.searchsorted(ends, torch.arange(len(x)) + late, right=True).clamp(max=len(weights) - 1)
    return (x.unsqueeze(1) @ weights[expert]).squeeze(1)


def combined(scores: Tensor, values: Tensor, swapped: bool = False) -> Tensor:
    """What the two best experts say, weighed."""
    best, indices = scores.topk(2, -1)
    weights = torch.softmax(best, -1)
    chosen = values[indices]
    return ((weights.flip(-1) if swapped else weights).unsqueeze(-1) * chosen).sum(1)


# Positions, optimizers, images.


def rope_back(x: Tensor, positions: Tensor) -> Tensor:
    """Rotated in the other direction."""
    return exact.rope(x, -positions)


def rope_of_rounded_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Positions are bfloat16."""
    return exact.rope(x, positions.to(torch.bfloat16))


def rope_partial(x: Tensor, positions: Tensor) -> Tensor:
    """Only the first half of the dimensions is rotated."""
    half = x.shape[-1] // 2
    return torch.cat([exact.rope(x[..., :half], positions), x[..., half:]], -1)


def written_wide(step: Operation) -> Operation:
    """`step` on float32 copies, written back."""

    def run(*state: Tensor) -> None:
        copies = [tensor.float() for tensor in state]
        step(*copies)
        for tensor, copy in zip(state, copies):
            tensor.copy_(copy)

    return run


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int = 10, kind: str = "") -> None:
    """A step of AdamW, or of what its `kind` says."""
    if kind == "coupled":
        g = g + 0.1 * p
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    mean, square = m / (1 - 0.9**step), v / (1 - 0.999**step)
    size = (square + 1e-3).sqrt() if kind == "inside" else square.sqrt() + 1e-3
    p.mul_(1.0 if kind == "coupled" else 1 - 0.001).sub_(0.01 * mean / size)


def lion(p: Tensor, g: Tensor, m: Tensor, early: bool = False) -> None:
    """A step of Lion; `early` updates the momentum before it is read."""
    if early:
        m.mul_(0.99).add_(0.01 * g)
    p.sub_(0.01 * torch.sign(0.9 * m + 0.1 * g))
    if not early:
        m.mul_(0.99).add_(0.01 * g)


def nesterov(p: Tensor, g: Tensor, m: Tensor, plain: bool = False) -> None:
    """A step with Nesterov's momentum, or with the plain one."""
    m.mul_(0.9).add_(g)
    p.sub_(0.1 * (m if plain else g + 0.9 * m))


def clipped(a: Tensor, b: Tensor, together: bool = True) -> tuple[Tensor, Tensor]:
    """Gradients with a norm of at most 1, together or each."""
    norms = [x.square().sum() for x in (a, b)]
    factors = [((sum(norms) if together else norm).sqrt() + 1e-6).reciprocal().clamp(max=1) for norm in norms]
    return a * factors[0], b * factors[1]


def causal_conv(x: Tensor, weight: Tensor, left: int = 2) -> Tensor:
    """Convolution of three taps that sees the past, if all padding is on the left."""
    return F.conv1d(F.pad(x, (left, 2 - left)), weight)


def dilated(x: Tensor, weight: Tensor, dilation: int = 2) -> Tensor:
    """Convolution of every second place."""
    return F.conv1d(F.pad(x, (dilation, dilation)), weight, dilation=dilation)


def grouped(x: Tensor, weight: Tensor, first: bool = False) -> Tensor:
    """Convolution of two groups of channels; `first` reads those of the first for both."""
    half = x.shape[1] // 2
    return F.conv1d(x[:, :half].repeat(1, 2, 1) if first else x, weight, groups=2)


def conv_with_flipped_weight(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weight is flipped."""
    flipped = weight.flip(-1)
    return exact.conv1d(x, weight.detach() + flipped - flipped.detach())


def transposed_conv(x: Tensor, weight: Tensor, padding: int = 1) -> Tensor:
    """Transposed convolution with steps of two."""
    return F.conv_transpose1d(x, weight, stride=2, padding=padding, output_padding=1)


def transposed_conv_shifted(x: Tensor, weight: Tensor) -> Tensor:
    """The same, one place further."""
    return transposed_conv(x, weight).roll(1, -1)


def mean_pool(x: Tensor, padding_counts: bool = False) -> Tensor:
    """Means of three neighbours."""
    return F.avg_pool1d(x, 3, 1, 1, count_include_pad=padding_counts)


def upsampled(x: Tensor, corners: bool = False) -> Tensor:
    """Twice as many places, by lines."""
    return F.interpolate(x, scale_factor=2, mode="linear", align_corners=corners)


def max_pool(x: Tensor, pad: float = -math.inf) -> Tensor:
    """Largest of three neighbours."""
    return F.max_pool1d(F.pad(x, (1, 1), value=pad), 3, 1)
