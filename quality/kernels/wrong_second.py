"""Wrong kernels of other kinds that people report, written after `assert_rounding_only` by another author."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quality.kernels import references as exact, right
from quality.kernels.entries import Draw, Inputs, Shape, WrongKernel

wide = right.in_float32
FLOAT32 = (torch.float32,)
FLOAT16 = (torch.float16,)
BFLOAT16 = (torch.bfloat16,)
HALVES = (*BFLOAT16, *FLOAT16)
Operation = Callable[..., Any]


def gradient_of(forward: Operation, other: Operation) -> Operation:
    """The right result of `forward`, with the gradients of `other`, both in float32."""

    class Mixed(torch.autograd.Function):
        """A forward and a backward that do not belong together."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            """Compute the right result."""
            ctx.inputs = inputs
            return wide(forward)(*inputs)

        @staticmethod
        def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            """Compute the gradients of the other function."""
            inputs = [
                x.detach().float().requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x
                for x in ctx.inputs
            ]
            leaves = [x for x in inputs if torch.is_tensor(x) and x.requires_grad]
            with torch.enable_grad():
                output = other(*inputs)
            gradients = iter(torch.autograd.grad(output, leaves, incoming.float(), allow_unused=True))
            dtype = incoming.dtype
            result = [next(gradients) if any(x is leaf for leaf in leaves) else None for x in inputs]
            return tuple(None if gradient is None else gradient.to(dtype) for gradient in result)

    return Mixed.apply


# Attention.


def alibi(query: Tensor, key: Tensor, value: Tensor, first: int = 1) -> Tensor:
    """Attention with a bias that falls with the distance, steeper from head to head."""
    heads, rows, columns = query.shape[1], query.shape[2], key.shape[2]
    slopes = 2.0 ** -torch.arange(first, heads + first, dtype=query.dtype)
    distance = (torch.arange(rows).unsqueeze(1) - torch.arange(columns)).abs()
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) - slopes[:, None, None] * distance
    return torch.softmax(scores, -1) @ value


def window_of_five(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The window holds a key too many."""
    return exact.attention(query, key, value, "window", 5)


def capped(query: Tensor, key: Tensor, value: Tensor, cap: float = 5.0, late: bool = False) -> Tensor:
    """Attention with a soft cap of scores, of scaled ones unless `late`."""
    scores, scale = query @ key.transpose(-2, -1), math.sqrt(query.shape[-1])
    scores = cap * torch.tanh(scores / cap) / scale if late else cap * torch.tanh(scores / scale / cap)
    return torch.softmax(scores, -1) @ value


def split_keys_mean(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Two parts of the keys are merged by a mean that does not weigh them by their totals."""
    half = key.shape[2] // 2
    return (
        exact.attention(query, key[:, :, :half], value[:, :, :half])
        + exact.attention(query, key[:, :, half:], value[:, :, half:])
    ) / 2


def padded(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, more: int = 0) -> Tensor:
    """Attention to the first keys of each sequence."""
    seen = torch.arange(key.shape[2]) < (lengths + more).reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    return weights.masked_fill(~seen, 0.0) @ value


def padded_nan(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """A sequence without keys becomes NaN in place of 0."""
    seen = torch.arange(key.shape[2]) < lengths.reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ value


def padded_mean(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """A sequence without keys gets the mean of all values, because masked scores are a finite number."""
    seen = torch.arange(key.shape[2]) < lengths.reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~seen, -1e4), -1) @ value


def causal_top_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mask starts at the first key where there are more keys than queries."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf), -1) @ value


def with_totals(query: Tensor, key: Tensor, value: Tensor, base: float = math.e) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its totals."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1) / math.log(base)


def paged(query: Tensor, pages: Tensor, table: Tensor, last: int = 0) -> Tensor:
    """Attention of one query a sequence to pages of four keys, which are values as well."""
    table = torch.cat([table[:, :-1], table[:, -1:].roll(last, 0)], 1)
    keys = pages[table].flatten(1, 2)
    return exact.attention(query[:, None, None], keys[:, None], keys[:, None])[:, 0, 0]


def shared_first_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Only the first head of a group gives a gradient to its key."""
    groups = query.shape[1] // key.shape[1]
    copies = torch.stack([key] + [key.detach()] * (groups - 1), 2).flatten(1, 2)
    return exact.attention(query, copies, value.repeat_interleave(groups, 1))


def softmax_without_delta(x: Tensor) -> Tensor:
    """The gradient leaves out the row's sum."""
    powers = (x - x.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.detach().sum(-1, keepdim=True)


def bias_of_first(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """A bias of heads, whose gradient is that of the first sequence."""
    biases = torch.stack([bias] + [bias.detach()] * (len(query) - 1))
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + biases, -1) @ value


def biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention with a bias of heads."""
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias, -1) @ value


# Norms.


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Norm of two groups of channels."""
    return F.group_norm(x, 2, weight, bias, 1e-5)


def group_norm_in_turns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Channels belong to groups in turns."""
    order = torch.arange(x.shape[1]).reshape(2, -1).t().flatten()
    normal = F.group_norm(x[:, torch.argsort(order)], 2, eps=1e-5)[:, order]
    return normal * weight[:, None] + bias[:, None]


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, correction: int = 1) -> Tensor:
    """Batch norm that updates its running statistics in place."""
    mean.mul_(0.9).add_(0.1 * x.mean(0))
    variance.mul_(0.9).add_(0.1 * x.var(0, correction=correction))
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)


def batch_norm_written(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The running variance gets the biased one."""
    wide_mean, wide_variance = mean.float(), variance.float()
    result = batch_norm(x.float(), wide_mean, wide_variance, 0)
    mean.copy_(wide_mean)
    variance.copy_(wide_variance)
    return result.to(x.dtype)


def rms_first_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weight counts whole tiles of 32 rows alone."""
    rows = (torch.arange(len(x)) < len(x) // 32 * 32).unsqueeze(1)
    return exact.rms_norm(x, torch.where(rows, weight, weight.detach()))


def residual_returned(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The residual of before is returned."""
    return exact.rms_norm(x + residual, weight), residual * 1


def chan_without_means(x: Tensor) -> Tensor:
    """Variances of two halves are merged without the distance of their means."""
    return torch.stack([part.var(-1, correction=0) for part in x.chunk(2, -1)]).mean(0)


def normalised(x: Tensor, epsilon: float = 1e-3, added: bool = False) -> Tensor:
    """Rows of length 1, at least `epsilon` being taken for their length."""
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x / (length + epsilon if added else length.clamp(min=epsilon))


# Element by element.


def softplus(x: Tensor, threshold: float = 20.0) -> Tensor:
    """Softplus, which is x above a threshold."""
    return F.softplus(x, threshold=threshold)


def sigmoid_by_short_exp(x: Tensor) -> Tensor:
    """The exponential from three terms of the fraction of its exponent."""
    scaled = -x * math.log2(math.e)
    fraction = (scaled - scaled.floor()) * math.log(2)
    power = (1 + fraction * (1 + fraction * (0.5 + fraction / 6))) * 2.0 ** scaled.detach().floor()
    return 1 / (1 + power)


def rms_by_estimate(x: Tensor, weight: Tensor) -> Tensor:
    """The inverse root has twelve bits and no step of Newton."""
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    exponent = inverse.detach().log2().floor()
    return x * (inverse * 2**-exponent * 4096).round() / 4096 * 2**exponent * weight


def tanh_by_exp(x: Tensor) -> Tensor:
    """Overflows for large arguments."""
    power = (2 * x).exp()
    return (power - 1) / (power + 1)


def limited(x: Tensor, limit: float = 3.0) -> Tensor:
    """SiLU and product of limited halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * (up.clamp(-limit, limit) + 1)


def flushed(x: Tensor) -> Tensor:
    """Half of x; what is denormal becomes 0."""
    result = x * 0.5
    return torch.where(result.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(result), result)


def truncated(x: Tensor) -> Tensor:
    """The last digits are cut off in place of rounded."""
    result = exact.gelu(x.detach().float())
    if x.dtype == torch.float32:
        return (result.double() * (1 - 2.0**-24)).float()
    bits = 16 if x.dtype == torch.bfloat16 else 13
    return (result.view(torch.int32) >> bits << bits).view(torch.float32).to(x.dtype)


def rounded_twice(x: Tensor) -> Tensor:
    """Rounded to a wider half dtype before it is rounded to its own."""
    return exact.gelu(x.detach().float()).to(torch.float16).float().to(x.dtype)


def dropped_out(x: Tensor, keep: Tensor, factor: float = 2.0) -> Tensor:
    """Dropout of one half by a given mask."""
    return x * keep * factor


# Losses.


def ignoring(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of rows whose target is not 0."""
    return F.cross_entropy(logits, target, ignore_index=0)


def ignored_counted(logits: Tensor, target: Tensor) -> Tensor:
    """Ignored rows count in the mean."""
    return F.cross_entropy(logits, target, ignore_index=0, reduction="sum") / len(target)


def smoothed(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of smoothed labels."""
    return F.cross_entropy(logits, target, label_smoothing=0.1)


def smoothed_over_others(logits: Tensor, target: Tensor) -> Tensor:
    """What is smoothed is spread over the other labels alone."""
    logs, size = torch.log_softmax(logits, -1), logits.shape[-1]
    chosen = logs.gather(1, target.unsqueeze(1)).squeeze(1)
    return -(0.9 * chosen + 0.1 / (size - 1) * (logs.sum(-1) - chosen)).mean()


def padded_vocabulary(logits: Tensor, target: Tensor) -> Tensor:
    """The vocabulary is padded to whole blocks of 64 by logits of 0."""
    return F.cross_entropy(F.pad(logits, (0, -logits.shape[-1] % 64)), target)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    """Divergence of distributions, by rows."""
    return F.kl_div(torch.log_softmax(x, -1), torch.log_softmax(y, -1), log_target=True, reduction="batchmean")


def divergence_swapped(x: Tensor, y: Tensor) -> Tensor:
    """The divergence of the other direction."""
    return divergence(y, x)


def binary(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of each logit."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


def binary_of_logarithms(logits: Tensor, target: Tensor) -> Tensor:
    """Logarithms of a sigmoid that is rounded to 0 or 1."""
    p = torch.sigmoid(logits)
    return -(target * p.log() + (1 - target) * (1 - p).log())


def huber(x: Tensor, y: Tensor) -> Tensor:
    """Huber loss beyond 2."""
    return F.huber_loss(x, y, delta=2.0)


def huber_scaled(x: Tensor, y: Tensor) -> Tensor:
    """The smooth loss, which is divided by 2."""
    return F.smooth_l1_loss(x, y, beta=2.0)


def squared_logsumexp(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy and 1e-3 of the squared logarithm of totals."""
    return F.cross_entropy(logits, target) + 1e-3 * torch.logsumexp(logits, -1).square().mean()


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
    return torch.stack([x[start:end].sum(0) for start, end in zip(bounds, bounds[1:])])


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
    return x.reshape(batch, 2, 2, channels // 4, height, width).permute(0, 3, 4, 1, 5, 2).reshape(
        batch, channels // 4, 2 * height, 2 * width
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
    """Without a limit, so that large values become NaN."""
    return x.float().to(torch.float8_e4m3fn)


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


# Inputs.


def drawn(*shapes: Any, grad: bool = True, scale: float = 1.0, shift: float = 0.0) -> Inputs:
    """Normal tensors of the given shapes; an integer tensor where one is given, 2-tuples (high, shape) drawn below."""

    def draw_all(draw: Draw, shape: Shape) -> tuple[Any, ...]:
        def value(spec: Any) -> Any:
            if torch.is_tensor(spec):
                return spec.clone()
            if isinstance(spec, str):
                size, _, high = spec.partition("<")
                return draw.integers(int(high), int(size))
            return draw.normal(*spec, grad=grad, scale=scale, shift=shift)

        return tuple(value(spec) for spec in shapes)

    return draw_all


def sliced(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows of a larger matrix from the third on."""
    return (draw.normal(shape[0] + 2, shape[1], grad=False)[2:],)


def with_expanded(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """A matrix and a column that is expanded to its shape."""
    return draw.normal(*shape, grad=False), draw.normal(shape[0], 1, grad=False).expand(shape)


def with_zero(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows in which one factor is 0."""
    x = draw.normal(*shape, grad=False)
    x[:, 1] = 0
    return (x.requires_grad_(),)


def packed_bits(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, and bytes of two numbers."""
    return draw.normal(shape[0], shape[1]), draw.integers(256, shape[1] // 2, shape[2]).to(torch.uint8)


def groups_of_int8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, an int8 matrix and scales of its groups."""
    x, quantised, _ = right.of_int8(draw, shape)
    return x, quantised, draw.positive(shape[1] // 8, shape[2])


def integers_and_int8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows of integers in a dtype of floats, an int8 matrix and scales."""
    x, quantised, scale = right.of_int8(draw, shape)
    return (x.detach() * 40).round(), quantised, scale


def statistics(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, and running statistics."""
    return draw.normal(*shape, grad=False), draw.normal(shape[1], grad=False), draw.positive(shape[1])


def probabilities(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Large logits and targets of 0 or 1."""
    return draw.normal(*shape, scale=60.0), draw.integers(2, *shape).to(draw.dtype)


def masks(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Values, and which of them are kept."""
    return draw.normal(*shape), draw.integers(2, *shape).to(draw.dtype)


def _of(
    name: str,
    reference: Operation,
    kernel: Operation,
    inputs: Inputs,
    shape: Shape = (),
    *,
    dtypes: tuple[torch.dtype, ...] = (*FLOAT32, *BFLOAT16, *FLOAT16),
    below: tuple[torch.dtype, ...] = (),
) -> list[WrongKernel]:
    """Entries of one kernel, whose error is below two roundings of the output in some dtypes."""
    above = tuple(dtype for dtype in dtypes if dtype not in below)
    kinds = ((above, True), (tuple(dtype for dtype in dtypes if dtype in below), False))
    return [
        WrongKernel(name, reference, kernel, inputs, shape, is_above, dtypes=kind) for kind, is_above in kinds if kind
    ]


def _with(function: Operation, **options: Any) -> Operation:
    """`function` in float32 with other options."""
    return wide(lambda *inputs: function(*inputs, **options))


HEADS = ((2, 2, 12, 8), (2, 2, 12, 8), (2, 2, 12, 8))
LENGTHS = torch.tensor([5, 9])
EMPTY = torch.tensor([0, 9])
ENDS = torch.tensor([7, 20, 24])
SIGNAL = ((2, 4, 30), (6, 4, 3))
E, R = exact, right
KERNELS = [
    *_of("slope of the next head", alibi, _with(alibi, first=2), drawn(*HEADS)),
    *_of("window one too wide", E.window_attention, wide(window_of_five), drawn(*HEADS)),
    *_of("cap before the scale", capped, _with(capped, late=True), drawn(*HEADS)),
    *_of("parts of keys merged by their mean", E.attention, wide(split_keys_mean), drawn(*HEADS)),
    *_of("a padded key counted", padded, _with(padded, more=1), drawn(*HEADS, LENGTHS)),
    *_of("NaN where all is masked", padded, wide(padded_nan), drawn(*HEADS, EMPTY)),
    *_of("mean where all is masked", padded, wide(padded_mean), drawn(*HEADS, EMPTY)),
    *_of(
        *("mask from the first key", E.causal_attention, wide(causal_top_left)),
        drawn((1, 2, 6, 8), (1, 2, 10, 8), (1, 2, 10, 8)),
    ),
    *_of("totals to base 2", with_totals, _with(with_totals, base=2.0), drawn(*HEADS)),
    *_of(
        *("last page of another sequence", paged, _with(paged, last=1)),
        drawn((3, 8), (12, 4, 8), torch.tensor([[3, 1, 7], [0, 5, 2], [8, 4, 9]])),
    ),
    *_of(
        *("gradient of shared keys from one head", E.attention, gradient_of(E.attention, shared_first_head)),
        *(R.of_attention, (1, 4, 2, 12, 8)),
    ),
    *_of("softmax gradient without its sum", E.softmax, gradient_of(E.softmax, softmax_without_delta), R.one, (8, 40)),
    *_of(
        *("gradient of a bias from one sequence", biased, gradient_of(biased, bias_of_first)),
        drawn(*HEADS, (2, 12, 12)),
    ),
    *_of("channels grouped in turns", group_norm, wide(group_norm_in_turns), drawn((3, 8, 10), (8,), (8,), shift=0.5)),
    *_of("running variance biased", batch_norm, batch_norm_written, statistics, (12, 20)),
    *_of("weight gradient of whole tiles", E.rms_norm, gradient_of(E.rms_norm, rms_first_rows), R.of_rms, (70, 20)),
    *_of("residual of before", E.residual_norm, wide(residual_returned), R.of_residual, (8, 20)),
    *_of("variances merged without means", E.variance, wide(chan_without_means), R.one, (8, 128)),
    *_of("epsilon added to a length", normalised, _with(normalised, added=True), drawn((8, 30), scale=0.01)),
    *_of("softplus from 5 on", softplus, _with(softplus, threshold=5.0), drawn((20, 30), scale=4.0), below=BFLOAT16),
    *_of("log1p of a sum", torch.log1p, wide(lambda x: torch.log(1 + x)), drawn((20, 30), scale=1e-4)),
    *_of("expm1 of a difference", torch.expm1, wide(lambda x: torch.exp(x) - 1), drawn((20, 30), scale=1e-4)),
    *_of("short exponential", torch.sigmoid, wide(sigmoid_by_short_exp), drawn((20, 30))),
    *_of("inverse root of twelve bits", E.rms_norm, wide(rms_by_estimate), R.of_rms, (20, 30)),
    *_of("tanh overflows", torch.tanh, wide(tanh_by_exp), drawn((20, 30), scale=40.0)),
    *_of(
        *("gradient of SiLU without its sigmoid", F.silu),
        *(gradient_of(F.silu, lambda x: x * torch.sigmoid(x).detach()), R.one, (20, 30)),
    ),
    *_of("GELU by tanh for erf", E.gelu, wide(E.gelu_tanh), R.one, (20, 30)),
    *_of(
        *("gradient beyond a limit", lambda x: x.clamp(-1, 1)),
        *(gradient_of(lambda x: x.clamp(-1, 1), lambda x: x * 1), R.one, (20, 30)),
    ),
    *_of("limit forgotten", limited, _with(limited, limit=math.inf), drawn((20, 30), scale=2.0)),
    *_of(
        *("denormals flushed", lambda x: x * 0.5, flushed),
        drawn((20, 30), scale=1e-38, grad=False),
        dtypes=(*FLOAT32, *BFLOAT16),
    ),
    *_of(
        *("denormals flushed", lambda x: x * 0.5, flushed),
        drawn((20, 30), scale=1e-4, grad=False),
        dtypes=FLOAT16,
    ),
    *_of("cut in place of rounded", E.gelu, truncated, drawn((20, 30), grad=False), below=(*FLOAT32, *HALVES)),
    *_of("rounded twice", E.gelu, rounded_twice, drawn((20, 30), grad=False), dtypes=BFLOAT16, below=BFLOAT16),
    *_of("rounded to float16 on the way", E.gelu, rounded_twice, drawn((20, 30), grad=False), dtypes=FLOAT32),
    *_of("dropout without its factor", dropped_out, _with(dropped_out, factor=1.0), masks, (20, 30)),
    *_of(
        *("another mask in the gradient", dropped_out),
        *(gradient_of(dropped_out, lambda x, keep: x * keep.roll(1, 0) * 2), masks, (20, 30)),
    ),
    *_of("ignored rows counted", ignoring, wide(ignored_counted), drawn((30, 10), "30<10")),
    *_of("gradient of ignored rows", ignoring, gradient_of(ignoring, E.cross_entropy), drawn((30, 10), "30<10")),
    *_of("smoothed over the others", smoothed, wide(smoothed_over_others), drawn((30, 10), "30<10")),
    *_of("padding of a vocabulary counted", E.cross_entropy, wide(padded_vocabulary), drawn((30, 50), "30<50")),
    *_of("divergence of the other direction", divergence, wide(divergence_swapped), drawn((10, 30), (10, 30))),
    *_of("logarithm of a rounded sigmoid", binary, wide(binary_of_logarithms), probabilities, (20, 30)),
    *_of("loss divided by its limit", huber, wide(huber_scaled), drawn((20, 30), (20, 30), scale=2.0)),
    *_of(
        *("gradient of squared totals dropped", squared_logsumexp),
        *(gradient_of(squared_logsumexp, E.cross_entropy), drawn((30, 10), "30<10")),
    ),
    *_of("a block counted twice", row_sum, wide(stale_block), R.one, (8, 200)),
    *_of("memory not set to 0 between calls", row_sum, Workspace(), R.one, (8, 200)),
    *_of("a column misses a block", column_sum, wide(column_misses_a_block), R.one, (512, 12)),
    *_of("cumulative gradient forwards", E.cumulative, gradient_of(E.cumulative, cumulative_backwards), R.one, (4, 20)),
    *_of("cumulative sum without the element", E.cumulative, wide(cumulative_exclusive), R.one, (4, 20)),
    *_of("product divided by its factors", product, ProductByDivision.apply, with_zero, (6, 5)),
    *_of("maximum from 0", largest, wide(lambda x: x.amax(-1).clamp(min=0)), drawn((8, 30), shift=-6.0)),
    *_of("mean over the longest", masked_mean, wide(lambda x, n: masked_mean(x, n) * n / n.amax()), drawn((2, 9), LENGTHS)),
    *_of("segments one row late", segments, wide(lambda x, ends: segments(x, ends + 1)), drawn((26, 8), ENDS)),
    *_of("decay of the step before", E.scan, wide(scan_next_decay), R.of_scan, (2, 30, 4)),
    *_of("gradient of the state cut", E.scan, gradient_of(E.scan, scan_cut), R.of_scan, (2, 30, 4)),
    *_of(
        *("read before it is written", delta_rule, _with(delta_rule, late=True)),
        drawn((16, 4), (16, 4), (16, 4), (16,), scale=0.5),
    ),
    *_of("offsets wrap at 16 bits", E.embedding, table_of_short_offsets, R.of_embedding, (5000, 16, 40)),
    *_of("one duplicate lost", E.embedding, gradient_of(E.embedding, one_duplicate_lost), R.of_embedding, (8, 16, 40)),
    *_of("gradient of a padding row", padding_row, gradient_of(padding_row, E.embedding), R.of_embedding, (8, 16, 40)),
    *_of("pixels in another order", shuffled, wide(shuffled_other_way), R.one, (2, 8, 4, 4)),
    *_of("offset of a view ignored", E.gelu, from_beginning, sliced, (20, 30)),
    *_of("expanded input read as dense", E.add_bias, expanded_as_dense, with_expanded, (10, 20)),
    *_of("input left changed", E.softmax, scratch, drawn((20, 30), grad=False)),
    *_of("rows read after they were written", shift_in_place, shift_while_reading, drawn((20, 30), grad=False)),
    *_of("last column of out not written", R.silu_and_mul_into, silu_and_mul_short, R.of_silu_out, (8, 20)),
    *_of("an axis of length 1 lost", E.softmax, wide(squeezed), R.one, (1, 30)),
    *_of("incoming gradient read as dense", doubled_rows, IncomingAsDense.apply, R.one, (20, 30)),
    *_of("scale of the next group", in_groups, _with(in_groups, ahead=1), groups_of_int8, (6, 32, 10)),
    *_of("halves of bytes swapped", nibbles, _with(nibbles, swapped=True), packed_bits, (6, 32, 10)),
    *_of("zero point one off", nibbles, _with(nibbles, zero=7), packed_bits, (6, 32, 10)),
    *_of("fewer digits of float8", E.dequantised_matmul, wide(by_fewer_digits), R.of_float8, (6, 32, 10)),
    *_of("overflow of float8", to_float8, to_float8_overflow, drawn((20, 30), scale=200.0, grad=False)),
    *_of("integers cut", to_int8, to_int8_cut, drawn((20, 30), grad=False)),
    *_of("sums wrap at 16 bits", E.dequantised_matmul, wide(short_accumulator), integers_and_int8, (6, 64, 10)),
    *_of("bias added twice", E.linear, wide(split_with_bias), R.of_linear, (8, 30, 20)),
    *_of("matrix of the first in a batch", E.matmul, wide(batch_of_first), drawn((3, 8, 20), (3, 20, 6))),
    *_of("operands of TF32", E.matmul, wide(in_tf32), drawn((8, 64), (64, 6), grad=False), dtypes=FLOAT32),
    *_of(
        *("a cross product forgotten", E.matmul, wide(two_parts_without_cross)),
        drawn((8, 64), (64, 6), grad=False),
        dtypes=FLOAT32,
    ),
    *_of(
        *("product overflows before its scale", scaled_product, scaled_after_overflow),
        drawn((8, 64), (64, 6), grad=False, scale=100.0),
    ),
    *_of("last row of the next expert", experts, _with(experts, late=1), drawn((24, 8), (3, 8, 5), ENDS)),
    *_of("weights of two experts swapped", combined, _with(combined, swapped=True), drawn((10, 4), (4, 8))),
    *_of("rotated the other way", E.rope, wide(rope_back), R.of_rope, (2, 12, 2, 16)),
    *_of("gradient rotated the same way", E.rope, gradient_of(E.rope, rope_back), R.of_rope, (2, 12, 2, 16)),
    *_of("positions in bfloat16", E.rope, wide(rope_of_rounded_positions), R.of_rope, (1, 400, 1, 8)),
    *_of("all dimensions rotated", rope_partial, wide(E.rope), R.of_rope, (2, 12, 2, 16)),
    *_of("corrected for the next step", adam, written_wide(lambda *s: adam(*s, step=11)), R.of_adamw, (500,), below=BFLOAT16),
    *_of("decay through the moments", adam, written_wide(lambda *s: adam(*s, kind="coupled")), R.of_adamw, (500,)),
    *_of("epsilon inside the root", adam, written_wide(lambda *s: adam(*s, kind="inside")), R.of_adamw, (500,), below=HALVES),
    *_of("momentum updated first", lion, written_wide(lambda *s: lion(*s, early=True)), R.of_sgd, (500,)),
    *_of("plain momentum for Nesterov's", nesterov, written_wide(lambda *s: nesterov(*s, plain=True)), R.of_sgd, (500,)),
    *_of("norms of gradients not shared", clipped, _with(clipped, together=False), drawn((20,), (30,), grad=False)),
    *_of("padding on both sides", causal_conv, _with(causal_conv, left=1), drawn(*SIGNAL)),
    *_of("dilation of one", dilated, _with(dilated, dilation=1), drawn(*SIGNAL)),
    *_of("channels of the first group", grouped, _with(grouped, first=True), drawn((2, 4, 30), (6, 2, 3))),
    *_of("weight gradient flipped", E.conv1d, gradient_of(E.conv1d, conv_with_flipped_weight), drawn(*SIGNAL)),
    *_of("result one place further", transposed_conv, wide(transposed_conv_shifted), drawn((2, 4, 15), (4, 6, 3))),
    *_of("padding counts in a mean", mean_pool, _with(mean_pool, padding_counts=True), R.one, (2, 3, 20)),
    *_of("corners aligned", upsampled, _with(upsampled, corners=True), R.one, (2, 3, 20)),
    *_of("pooling padded by 0", max_pool, _with(max_pool, pad=0.0), drawn((2, 3, 20), shift=-2.0)),
]
