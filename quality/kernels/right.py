"""Right kernels, as they are written for accelerators: by blocks, online, split, transposed, fused, in place.

Unless its entry says "same", a kernel adds in float32 and rounds what it returns once to the dtype of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quality.kernels import references as exact
from quality.kernels.entries import Draw, Inputs, Kernel, Shape

EPSILON = exact.EPSILON


def in_float32(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` on float32 copies of its tensors, with its results rounded to the dtype of the first one."""

    @wraps(kernel)
    def run(*arguments: Any) -> Any:
        wide = [item.float() if torch.is_tensor(item) and item.is_floating_point() else item for item in arguments]
        dtype = arguments[0].dtype

        def rounded(result: Any) -> Any:
            if isinstance(result, tuple):
                return tuple(map(rounded, result))
            return result.to(dtype) if result.is_floating_point() else result

        return rounded(kernel(*wide))

    return run


def softmax_two_passes(x: Tensor) -> Tensor:
    """Softmax with its maximum subtracted."""
    # The maximum is a constant for gradients, as in every kernel: what goes through it cancels.
    powers = (x - x.detach().amax(-1, keepdim=True)).exp() if x.numel() else x.exp()
    return powers / powers.sum(-1, keepdim=True)


def softmax_online(x: Tensor, block: int = 8) -> Tensor:
    """Softmax whose maximum and total are carried from block to block."""
    largest = torch.full((*x.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(largest)
    for part in x.split(block, -1) if x.numel() else ():
        new = torch.maximum(largest, part.detach().amax(-1, keepdim=True))
        total = total * (largest - new).exp() + (part - new).exp().sum(-1, keepdim=True)
        largest = new
    return (x - largest).exp() / total


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of softmax by its log-sum-exp."""
    return x - logsumexp_online(x).unsqueeze(-1)


def layer_norm_two_passes(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm from the mean and the mean square of what is left."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON) * weight + bias


def layer_norm_welford(x: Tensor, weight: Tensor, bias: Tensor, block: int = 4) -> Tensor:
    """Layer norm whose moments are merged from block to block (Chan)."""
    count, mean, squares = 0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for part in x.split(block, -1):
        size = part.shape[-1]
        own = part.mean(-1, keepdim=True)
        delta = own - mean
        squares = squares + (part - own).square().sum(-1, keepdim=True) + delta**2 * count * size / (count + size)
        mean, count = mean + delta * size / (count + size), count + size
    return (x - mean) * torch.rsqrt(squares / count + EPSILON) * weight + bias


def rms_norm_blocks(x: Tensor, weight: Tensor, block: int = 8) -> Tensor:
    """RMS norm whose squares are added block by block."""
    total = torch.zeros_like(x[..., :1])
    for part in x.split(block, -1):
        total = total + part.square().sum(-1, keepdim=True)
    return x / (total / x.shape[-1] + EPSILON).sqrt() * weight


def matmul_tiled(a: Tensor, b: Tensor, tile: int = 4) -> Tensor:
    """Product by tiles of the result, each a sum over tiles of k."""
    rows = []
    for left in a.split(tile, 0):
        row = []
        for right in b.split(tile, 1):
            tile_sum = torch.zeros(left.shape[0], right.shape[1])
            for one, other in zip(left.split(tile, 1), right.split(tile, 0)):
                tile_sum = tile_sum + one @ other
            row.append(tile_sum)
        rows.append(torch.cat(row, 1))
    return torch.cat(rows, 0) if rows else a @ b


def matmul_split_k(a: Tensor, b: Tensor, splits: int = 3) -> Tensor:
    """Product in parts of k, which are added at the end."""
    step = max(1, -(-a.shape[1] // splits))
    return torch.stack([x @ y for x, y in zip(a.split(step, 1), b.split(step, 0))]).sum(0)


def matmul_transposed(a: Tensor, b: Tensor) -> Tensor:
    """Product as the transposed product of the transposed matrices."""
    return (b.t().contiguous() @ a.t().contiguous()).t()


def matmul_by_rank_one(a: Tensor, b: Tensor) -> Tensor:
    """Product as a sum of outer products, one after the other."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for step in range(a.shape[1]):
        total = total + a[:, step, None] * b[None, step]
    return total


def linear_fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer whose bias is where the sum begins."""
    return torch.addmm(bias, x, weight.t())


def attention_online(query: Tensor, key: Tensor, value: Tensor, mask: str = "", window: int = 0) -> Tensor:
    """Attention by blocks of keys, rescaled from block to block."""
    groups, block = query.shape[1] // key.shape[1], 4
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    rows, columns = query.shape[-2], key.shape[-2]
    seen = exact._mask(rows, columns, mask, window) if mask else torch.ones(rows, columns, dtype=torch.bool)
    largest = torch.full((*query.shape[:-1], 1), -1e30)
    total, result = torch.zeros_like(largest), torch.zeros(*query.shape[:-1], value.shape[-1])
    for start in range(0, columns, block):
        part = slice(start, start + block)
        scores = query @ key[..., part, :].transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~seen[:, part], -1e30)
        new = torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
        powers = (scores - new).exp() * seen[:, part]
        decay = (largest - new).exp()
        total, result = total * decay + powers.sum(-1, keepdim=True), result * decay + powers @ value[..., part, :]
        largest = new
    return result / total


def attention_online_causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with a causal mask."""
    return attention_online(query, key, value, "causal")


def attention_two_passes(query: Tensor, key: Tensor, value: Tensor, mask: str = "", window: int = 0) -> Tensor:
    """Attention with its weights in float32."""
    return exact.attention(query, key, value, mask, window)


def gelu_by_erf(x: Tensor) -> Tensor:
    """GELU by erf."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu_by_erfc(x: Tensor) -> Tensor:
    """GELU by erfc, which loses no digits on the left."""
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def gelu_by_tanh(x: Tensor) -> Tensor:
    """GELU by tanh."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_by_sigmoid(x: Tensor) -> Tensor:
    """The same by a sigmoid of twice the argument."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def silu_and_mul_fused(x: Tensor) -> Tensor:
    """SiLU and product in one step."""
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    return gate / (1 + torch.exp(-gate)) * up


def silu_and_mul_out(x: Tensor, out: Tensor) -> None:
    """The same written into an argument."""
    gate, up = x.float().chunk(2, -1)
    out.copy_(gate * torch.sigmoid(gate) * up)


def rope_table(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding by a table of cosines and sines in float32."""
    half = x.shape[-1] // 2
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, half, dtype=torch.float32) * 2 / max(1, 2 * half)))
    angles = positions.float().unsqueeze(-1) * frequencies
    cosine, sine = (function(angles).unsqueeze(-2) for function in (torch.cos, torch.sin))
    left, right = x.split(half, -1) if half else (x, x)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def rope_complex(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding as a product of complex numbers."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / max(1, half))
    angles = (positions.float().unsqueeze(-1) * frequencies).unsqueeze(-2)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def cross_entropy_chunked(logits: Tensor, target: Tensor, chunk: int = 5) -> Tensor:
    """Cross entropy by chunks of the vocabulary."""
    chosen = logits.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return (logsumexp_online(logits, chunk) - chosen).mean()


def cross_entropy_by_rows(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy row by row."""
    losses = [-torch.log_softmax(row, -1)[label] for row, label in zip(logits, target)]
    return torch.stack(losses).sum() / len(losses)


class Embedding(torch.autograd.Function):
    """Rows of a table, whose gradient is added in float32."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor) -> Tensor:
        """Choose rows."""
        ctx.save_for_backward(indices)
        ctx.rows = weight.shape[0]
        return weight[indices]

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Add the gradients of equal rows."""
        (indices,) = ctx.saved_tensors
        flat = incoming.float().reshape(-1, incoming.shape[-1])
        found = torch.zeros(ctx.rows, flat.shape[-1]).index_add_(0, indices.reshape(-1), flat)
        return found.to(incoming.dtype), None


def embedding_one_hot(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows of a table as a product with ones."""
    return functional.one_hot(indices, weight.shape[0]).to(weight.dtype) @ weight


def conv1d_unfolded(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution as a product with what each place sees."""
    width = weight.shape[-1]
    seen = functional.pad(x, (width // 2, width // 2)).unfold(-1, width, 1)
    return torch.einsum("bclw,ocw->bol", seen, weight)


def conv1d_taps(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution as a sum over taps."""
    width = weight.shape[-1]
    padded = functional.pad(x, (width // 2, width // 2))
    length = padded.shape[-1] - width + 1
    return sum(torch.einsum("bcl,oc->bol", padded[..., t : t + length], weight[..., t]) for t in range(width))


def conv2d_unfolded(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution of images as a product of matrices."""
    size = weight.shape[-1]
    seen = functional.unfold(x, size, padding=size // 2)
    out = weight.flatten(1) @ seen
    return out.reshape(x.shape[0], weight.shape[0], x.shape[2], x.shape[3])


def scan_pairs(a: Tensor, x: Tensor) -> Tensor:
    """Linear recurrence by doubling (Hillis and Steele)."""
    step = 1
    while step < x.shape[1]:
        before_x = functional.pad(x, (0, 0, step, 0))[:, : x.shape[1]]
        before_a = functional.pad(a, (0, 0, step, 0))[:, : a.shape[1]]
        x, a = x + a * before_x, a * before_a
        step *= 2
    return x * 1


def scan_by_step(a: Tensor, x: Tensor) -> Tensor:
    """Linear recurrence step by step."""
    return exact.scan(a, x)


def index_add_one_hot(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Rows added by a product with ones."""
    return x + functional.one_hot(indices, x.shape[0]).to(x.dtype).t() @ rows


def index_add_one_by_one(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Rows added one by one."""
    result = x.clone()
    for place, row in zip(indices.tolist(), rows):
        result = torch.cat([result[:place], (result[place] + row)[None], result[place + 1 :]])
    return result


def index_add_in_place(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Rows added in place."""
    return x.index_add_(0, indices, rows)


def index_add_exact(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """The reference of what is written in place."""
    return x.index_add_(0, indices, rows)


def route_sparse(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Top-2 routing by the logits, whose weights need no softmax of the others."""
    best, indices = logits.topk(min(2, logits.shape[-1]), -1)
    weights = torch.softmax(best, -1)
    result = torch.zeros(logits.shape[-1], values.shape[-1])
    for choice in range(indices.shape[-1]):
        result = result.index_add(0, indices[:, choice], weights[:, choice, None] * values)
    return weights, indices, result


def dequantised_matmul_late(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """Product with the integers, scaled at the end."""
    return (x @ quantised.float()) * scale


def dequantised_matmul_early(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """Product with the scaled matrix."""
    return x @ (quantised.float() * scale)


def sgd_fused(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    """SGD in float32, written back."""
    moved = momentum.float() * 0.9 + gradient.float()
    parameter.copy_(parameter.float() - 0.1 * moved)
    momentum.copy_(moved)


def adamw_fused(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """AdamW in float32, written back."""
    one = torch.lerp(first.float(), gradient.float(), 0.1)
    two = second.float() * 0.999 + 0.001 * gradient.float().square()
    step = one / (1 - 0.9**10) / (two.sqrt() / math.sqrt(1 - 0.999**10) + 1e-8)
    parameter.copy_(parameter.float() * (1 - 0.001) - 0.01 * step)
    first.copy_(one)
    second.copy_(two)


def total_pairwise(x: Tensor) -> Tensor:
    """Sum by pairs."""
    x = x.reshape(-1)
    while x.numel() > 1:
        half = x.numel() // 2
        x = torch.cat([x[:half] + x[half : 2 * half], x[2 * half :]])
    return x.sum()


def total_by_blocks(x: Tensor) -> Tensor:
    """Sum of sums of blocks, one after the other."""
    result = torch.zeros(())
    for part in x.reshape(-1).split(max(1, x.numel() // 16)):
        result = result + part.sum()
    return result


def row_mean_late(x: Tensor) -> Tensor:
    """Mean as a sum that is divided."""
    return x.sum(-1) / x.shape[-1]


def row_mean_early(x: Tensor) -> Tensor:
    """Mean as a sum of what was divided."""
    return (x / x.shape[-1]).sum(-1)


def norm_scaled(x: Tensor) -> Tensor:
    """2-norm with the largest magnitude taken out."""
    largest = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return (x / largest).square().sum(-1).sqrt() * largest.squeeze(-1)


def logsumexp_online(x: Tensor, block: int = 8) -> Tensor:
    """Log-sum-exp from block to block."""
    largest, total = torch.full(x.shape[:-1], -math.inf), torch.zeros(x.shape[:-1])
    for part in x.split(block, -1):
        new = torch.maximum(largest, part.amax(-1).detach())
        total = total * (largest - new).exp() + (part - new.unsqueeze(-1)).exp().sum(-1)
        largest = new
    return largest + total.log()


def variance_two_passes(x: Tensor) -> Tensor:
    """Variance from what is left of the mean."""
    return (x - x.mean(-1, keepdim=True)).square().mean(-1)


def add_bias_fused(x: Tensor, bias: Tensor) -> Tensor:
    """A bias added."""
    return torch.add(bias, x)


def cumulative_blocks(x: Tensor, block: int = 4) -> Tensor:
    """Cumulative sum of blocks, with the sum of all before carried."""
    carried, parts = torch.zeros_like(x[..., :1]), []
    for part in x.split(block, -1):
        parts.append(carried + part.cumsum(-1))
        carried = parts[-1][..., -1:]
    return torch.cat(parts, -1)


def residual_norm_fused(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and its RMS norm."""
    total = x + residual
    return rms_norm_blocks(total, weight), total


# Inputs, by what they are of.


def one(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """One tensor."""
    return (draw.normal(*shape),)


def large(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """One tensor of scores."""
    return (draw.normal(*shape, scale=4.0),)


def of_norm(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows with a mean, weight and bias."""
    return draw.normal(*shape, shift=2.0), draw.normal(shape[-1]), draw.normal(shape[-1])


def of_rms(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows and a weight."""
    return draw.normal(*shape), draw.normal(shape[-1])


def of_residual(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, what is added to them, and a weight."""
    return draw.normal(*shape), draw.normal(*shape), draw.normal(shape[-1])


def of_matmul(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Two matrices, (m, k) and (k, n)."""
    m, k, n = shape
    return draw.normal(m, k), draw.normal(k, n)


def of_linear(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, weight and bias."""
    m, k, n = shape
    return draw.normal(m, k), draw.normal(n, k), draw.normal(n)


def of_attention(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Query, key and value of (batch, heads, heads of keys, sequence, dimension)."""
    batch, heads, shared, length, size = shape
    query = draw.normal(batch, heads, length, size)
    return query, draw.normal(batch, shared, length, size), draw.normal(batch, shared, length, size)


def of_rope(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Heads and the positions of tokens."""
    return draw.normal(*shape), torch.arange(shape[1])


def of_cross_entropy(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Logits and targets."""
    return draw.normal(*shape, scale=2.0), draw.integers(shape[1], shape[0])


def of_embedding(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """A table and indices, many of which are the same."""
    rows, size, count = shape
    return draw.normal(rows, size), draw.integers(rows, count)


def of_conv1d(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Signals and a weight of three taps."""
    batch, channels, length = shape
    return draw.normal(batch, channels, length), draw.normal(4, channels, 3)


def of_conv2d(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Images and a weight of 3 x 3."""
    batch, channels, height, width = shape
    return draw.normal(batch, channels, height, width), draw.normal(4, channels, 3, 3)


def of_scan(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Decays below 1 and inputs."""
    decay = torch.sigmoid(draw.normal(*shape, grad=False).float()).to(draw.dtype).requires_grad_()
    return decay, draw.normal(*shape)


def of_index_add(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """A table, indices and rows."""
    rows, size, count = shape
    return draw.normal(rows, size), draw.integers(rows, count), draw.normal(count, size)


def of_index_add_in_place(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """The same, without gradients."""
    rows, size, count = shape
    return draw.normal(rows, size, grad=False), draw.integers(rows, count), draw.normal(count, size, grad=False)


def of_route(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Logits of experts and what tokens hold."""
    tokens, experts, size = shape
    return draw.normal(tokens, experts), draw.normal(tokens, size)


def of_int8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, an int8 matrix and the scales of its columns."""
    m, k, n = shape
    quantised = (draw.integers(255, k, n) - 127).to(torch.int8)
    return draw.normal(m, k), quantised, draw.positive(n)


def of_float8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, a float8 matrix and the scales of its columns."""
    m, k, n = shape
    quantised = draw.normal(k, n, grad=False).to(torch.float8_e4m3fn)
    return draw.normal(m, k), quantised, draw.positive(n)


def of_sgd(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Parameter, gradient and momentum."""
    return tuple(draw.normal(*shape, grad=False) for _ in range(3))


def of_adamw(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Parameter, gradient and both moments."""
    moments = draw.normal(*shape, grad=False, scale=0.1), draw.positive(*shape)
    return draw.normal(*shape, grad=False), draw.normal(*shape, grad=False), *moments


def of_silu_out(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Both halves, and the memory of the result."""
    return draw.normal(*shape, grad=False), torch.zeros(*shape[:-1], shape[-1] // 2, dtype=draw.dtype)


def silu_and_mul_into(x: Tensor, out: Tensor) -> None:
    """The reference of what is written into an argument."""
    out.copy_(exact.silu_and_mul(x))


ROWS = ((3, 7), (2, 16), (1, 1), (0, 4))
NORMS = ((3, 7), (2, 16), (4, 9))
MATRICES = ((4, 8, 4), (3, 7, 5), (1, 1, 1), (0, 3, 2))
HEADS = ((1, 2, 2, 6, 4), (2, 1, 1, 5, 3), (1, 1, 1, 1, 4))
SHARED = ((1, 4, 2, 6, 4), (1, 3, 1, 5, 4))
SAME = {"accumulates": "same"}


def _entries() -> list[Kernel]:
    def of(
        family: str, reference: Callable[..., Any], inputs: Inputs, shapes: tuple[Shape, ...], **kernels: Any
    ) -> list[Kernel]:
        return [
            Kernel(f"{family} {name.replace('_', ' ')}", reference, kernel, inputs, shapes)
            for name, kernel in kernels.items()
        ]

    def same(
        name: str, reference: Callable[..., Any], kernel: Callable[..., Any], inputs: Inputs, *shapes: Shape
    ) -> Kernel:
        """A kernel that rounds every result inside to its dtype."""
        return Kernel(f"{name}, every step in its dtype", reference, kernel, inputs, shapes, SAME)

    wide = in_float32
    causal, window = attention_online_causal, partial(attention_online, mask="window", window=4)
    return [
        *of("softmax", exact.softmax, large, ROWS, two_passes=wide(softmax_two_passes)),
        *of("softmax", exact.softmax, large, ROWS[:3], online=wide(softmax_online)),
        *of("log_softmax", exact.log_softmax, large, ROWS[:3], online=wide(log_softmax)),
        *of("layer_norm", exact.layer_norm, of_norm, NORMS, two_passes=wide(layer_norm_two_passes)),
        *of("layer_norm", exact.layer_norm, of_norm, NORMS, welford=wide(layer_norm_welford)),
        *of("rms_norm", exact.rms_norm, of_rms, NORMS, two_passes=wide(exact.rms_norm), blocks=wide(rms_norm_blocks)),
        *of("matmul", exact.matmul, of_matmul, MATRICES, plain=exact.matmul, tiled=wide(matmul_tiled)),
        *of("matmul", exact.matmul, of_matmul, MATRICES, split_k=wide(matmul_split_k)),
        *of("matmul", exact.matmul, of_matmul, MATRICES, transposed=wide(matmul_transposed)),
        *of("matmul", exact.matmul, of_matmul, MATRICES, rank_one=wide(matmul_by_rank_one)),
        *of("linear", exact.linear, of_linear, MATRICES, plain=exact.linear, fused=wide(linear_fused)),
        *of("attention", exact.attention, of_attention, HEADS, two_passes=wide(attention_two_passes)),
        *of("attention", exact.attention, of_attention, HEADS, online=wide(attention_online)),
        *of("attention", exact.attention, of_attention, SHARED, shared_heads=wide(attention_online)),
        *of("attention", exact.causal_attention, of_attention, HEADS, causal=wide(causal)),
        *of("attention", exact.causal_attention, of_attention, SHARED, causal_shared=wide(causal)),
        *of("attention", exact.window_attention, of_attention, HEADS, window=wide(window)),
        *of("gelu", exact.gelu, one, ROWS, plain=exact.gelu, erf=wide(gelu_by_erf), erfc=wide(gelu_by_erfc)),
        *of("gelu_tanh", exact.gelu_tanh, one, ROWS, tanh=wide(gelu_by_tanh), sigmoid=wide(gelu_by_sigmoid)),
        *of("silu_and_mul", exact.silu_and_mul, one, ((3, 8), (1, 2), (0, 4)), fused=wide(silu_and_mul_fused)),
        *of("silu_and_mul", silu_and_mul_into, of_silu_out, ((3, 8), (1, 2)), out=silu_and_mul_out),
        *of("rope", exact.rope, of_rope, ((2, 5, 1, 4), (1, 3, 2, 6)), table=wide(rope_table)),
        *of("rope", exact.rope, of_rope, ((2, 5, 1, 4), (1, 3, 2, 6)), complex=wide(rope_complex)),
        *of("cross_entropy", exact.cross_entropy, of_cross_entropy, ((4, 11),), chunked=wide(cross_entropy_chunked)),
        *of("cross_entropy", exact.cross_entropy, of_cross_entropy, ((4, 11),), rows=wide(cross_entropy_by_rows)),
        *of("embedding", exact.embedding, of_embedding, ((5, 4, 9), (1, 3, 4)), plain=exact.embedding),
        *of("embedding", exact.embedding, of_embedding, ((5, 4, 9), (1, 3, 4)), own_gradient=Embedding.apply),
        *of("embedding", exact.embedding, of_embedding, ((5, 4, 9), (1, 3, 4)), one_hot=wide(embedding_one_hot)),
        *of("conv1d", exact.conv1d, of_conv1d, ((2, 3, 7), (1, 1, 1)), plain=exact.conv1d),
        *of("conv1d", exact.conv1d, of_conv1d, ((2, 3, 7), (1, 1, 4)), unfolded=wide(conv1d_unfolded)),
        *of("conv1d", exact.conv1d, of_conv1d, ((2, 3, 7), (1, 1, 4)), taps=wide(conv1d_taps)),
        *of("conv2d", exact.conv2d, of_conv2d, ((1, 2, 5, 4), (2, 1, 3, 3)), plain=exact.conv2d),
        *of("conv2d", exact.conv2d, of_conv2d, ((1, 2, 5, 4), (2, 1, 3, 3)), unfolded=wide(conv2d_unfolded)),
        *of("scan", exact.scan, of_scan, ((2, 7, 3), (1, 1, 1)), step=wide(scan_by_step)),
        # Autograd multiplies out (g5 + a6 g6) (x4 + a4 h3), which no kernel does: not stable where both factors cancel.
        Kernel("scan pairs", exact.scan, wide(scan_pairs), of_scan, ((2, 7, 3), (1, 1, 1)), {"gradients": False}),
        *of("index_add", exact.index_add, of_index_add, ((5, 3, 8), (1, 2, 3)), one_hot=wide(index_add_one_hot)),
        *of("index_add", exact.index_add, of_index_add, ((5, 3, 8),), one_by_one=wide(index_add_one_by_one)),
        Kernel(
            *("index_add in place, every step in its dtype", index_add_exact, index_add_in_place),
            *(of_index_add_in_place, ((5, 3, 8),), SAME),
        ),
        *of("routing", exact.route, of_route, ((6, 4, 3), (5, 7, 2)), sparse=wide(route_sparse)),
        *of("int8 matmul", exact.dequantised_matmul, of_int8, ((3, 7, 5),), late=wide(dequantised_matmul_late)),
        *of("int8 matmul", exact.dequantised_matmul, of_int8, ((3, 7, 5),), early=wide(dequantised_matmul_early)),
        *of("fp8 matmul", exact.dequantised_matmul, of_float8, ((3, 7, 5),), late=wide(dequantised_matmul_late)),
        *of("sgd", exact.sgd, of_sgd, ((9,), (1,)), fused=sgd_fused),
        *of("adamw", exact.adamw, of_adamw, ((9,), (1,)), fused=adamw_fused),
        *of("sum", exact.total, one, ((40, 50), (1,), (0,)), pairwise=wide(total_pairwise)),
        *of("sum", exact.total, one, ((40, 50), (7,)), blocks=wide(total_by_blocks)),
        *of("mean", exact.row_mean, one, ((3, 500), (2, 1)), late=wide(row_mean_late), early=wide(row_mean_early)),
        *of("norm", exact.norm, one, ((3, 50), (2, 1)), scaled=wide(norm_scaled)),
        *of("logsumexp", exact.logsumexp, large, ((3, 50), (2, 1)), online=wide(logsumexp_online)),
        *of("variance", exact.variance, one, ((3, 50), (2, 4)), two_passes=wide(variance_two_passes)),
        *of("bias", exact.add_bias, of_rms, NORMS, fused=wide(add_bias_fused)),
        *of("cumsum", exact.cumulative, one, ((3, 21), (2, 1)), blocks=wide(cumulative_blocks)),
        *of("residual", exact.residual_norm, of_residual, NORMS, fused=wide(residual_norm_fused)),
        # PyTorch's own gradients begin with outputs and statistics that were rounded to the dtype.
        same("softmax of PyTorch", exact.softmax, exact.softmax, large, *ROWS),
        same("log_softmax of PyTorch", exact.log_softmax, exact.log_softmax, large, *ROWS[:3]),
        same("layer_norm of PyTorch", exact.layer_norm, exact.layer_norm, of_norm, *NORMS),
        same("cross_entropy of PyTorch", exact.cross_entropy, exact.cross_entropy, of_cross_entropy, (4, 11), (1, 3)),
        same("rms_norm", exact.rms_norm, exact.rms_norm, of_rms, *NORMS),
        same("attention", exact.attention, exact.attention, of_attention, *HEADS),
        same("causal attention", exact.causal_attention, exact.causal_attention, of_attention, *HEADS),
        same("scan", exact.scan, exact.scan, of_scan, (2, 7, 3)),
        same("silu_and_mul", exact.silu_and_mul, exact.silu_and_mul, one, (3, 8)),
        same("softmax", exact.softmax, softmax_two_passes, one, (3, 7), (2, 16)),
        same("gelu_tanh", exact.gelu_tanh, gelu_by_tanh, one, (3, 8)),
        same("sgd", exact.sgd, exact.sgd, of_sgd, (9,)),
        same("residual", exact.residual_norm, exact.residual_norm, of_residual, *NORMS),
    ]


KERNELS = _entries()
