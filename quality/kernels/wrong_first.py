"""Wrong kernels of the kinds that people report, written before `assert_rounding_only`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from quality.kernels import references as exact, right
from quality.kernels.entries import Draw, Shape, WrongKernel

wide = right.in_float32
HALVES = (torch.bfloat16, torch.float16)


def changed(reference: Callable[..., Tensor], change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The right result in float32, changed, rounded once."""
    return wide(wraps(reference)(lambda *inputs: change(reference(*inputs))))


def in_dtype(dtype: torch.dtype, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`kernel` on inputs rounded to `dtype`, with the result in the dtype of the first input."""

    def run(*inputs: Tensor) -> Tensor:
        return kernel(*[item.to(dtype) for item in inputs]).to(inputs[0].dtype)

    return run


def stale_tile(result: Tensor) -> Tensor:
    """One tile that holds what stood there before."""
    keep = torch.ones_like(result)
    keep[4:8, 8:16] = 0
    return result * keep + result.detach().roll(1, 0) * (1 - keep)


def scaled_row(result: Tensor) -> Tensor:
    """One row 2 % too large."""
    factor = torch.ones(result.shape[0], *[1] * (result.dim() - 1))
    factor[3] = 1.02
    return result * factor


def some_zeros(result: Tensor) -> Tensor:
    """1.3 % of the elements set to 0."""
    keep = torch.rand(result.shape, generator=torch.Generator().manual_seed(5)) >= 0.013
    return result * keep


def lost_tail(result: Tensor, count: int = 5) -> Tensor:
    """The last columns are 0."""
    keep = torch.ones(result.shape[-1])
    keep[-count:] = 0
    return result * keep


def unwritten_tail(x: Tensor) -> Tensor:
    """The last columns of the result are never written."""
    result = torch.empty_like(x)
    result[..., :-5] = right.in_float32(exact.gelu)(x)[..., :-5]
    return result


def softmax_of_sixty_four(x: Tensor) -> Tensor:
    """The total counts whole blocks of 64 alone."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers[..., : x.shape[-1] // 64 * 64].sum(-1, keepdim=True)


def softmax_online_without_decay(x: Tensor) -> Tensor:
    """The total is not rescaled when the maximum grows."""
    largest, total = x[..., :1], torch.zeros_like(x[..., :1])
    for part in x.split(8, -1):
        largest = torch.maximum(largest, part.amax(-1, keepdim=True))
        total = total + (part - largest).exp().sum(-1, keepdim=True)
    return (x - largest).exp() / total


def softmax_without_maximum(x: Tensor) -> Tensor:
    """The maximum is not subtracted."""
    powers = x.exp()
    return powers / powers.sum(-1, keepdim=True)


def softmax_of_columns(x: Tensor) -> Tensor:
    """Along the other axis."""
    return torch.softmax(x, 0)


def layer_norm_with(
    x: Tensor, weight: Tensor, bias: Tensor, *, outside: bool = False, correction: int = 0, epsilon: float = 1e-5
) -> Tensor:
    """Layer norm with another place of epsilon or another variance."""
    centred = x - x.mean(-1, keepdim=True)
    square = centred.square().sum(-1, keepdim=True) / (x.shape[-1] - correction)
    deviation = square.sqrt() + epsilon if outside else (square + epsilon).sqrt()
    return centred / deviation * weight + bias


def layer_norm_one_pass(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The variance as a difference of large numbers."""
    mean, square = x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((square - mean.square()).clamp(min=0) + 1e-5) * weight + bias


def rms_norm_of_mean(x: Tensor, weight: Tensor) -> Tensor:
    """The mean is subtracted as well."""
    return exact.rms_norm(x - x.mean(-1, keepdim=True), weight)


def rms_norm_without_weight(x: Tensor, weight: Tensor) -> Tensor:
    """The weight is forgotten in one column."""
    keep = torch.ones_like(weight)
    keep[-1] = 0
    return exact.rms_norm(x, weight * keep + (1 - keep))


def matmul_skips_last_k(a: Tensor, b: Tensor) -> Tensor:
    """The last block of k, which is not whole, is skipped."""
    whole = a.shape[1] // 32 * 32
    return a[:, :whole] @ b[:whole]


def matmul_misses_a_term(a: Tensor, b: Tensor) -> Tensor:
    """A race: one element misses one of its terms."""
    lost = torch.zeros(a.shape[0], b.shape[1])
    lost[5, 7] = 1
    return a @ b - lost * (a[:, 9:10] @ b[9:10])


def matmul_rounded_parts(a: Tensor, b: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Each partial sum is rounded to a half dtype."""
    result = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for step in range(a.shape[1]):
        result = (result.float() + a[:, step, None].float() * b[None, step].float()).to(dtype)
    return result.to(a.dtype)


def matmul_of_strides(a: Tensor, b: Tensor) -> Tensor:
    """Reads the second matrix as if it were contiguous."""
    flat = b.as_strided((b.numel(),), (1,), b.storage_offset())
    return right.in_float32(exact.matmul)(a, flat.reshape(b.shape))


def matmul_transposed_result(a: Tensor, b: Tensor) -> Tensor:
    """The result is transposed; the matrices are square."""
    return (a @ b).t()


def attention_with(
    query: Tensor, key: Tensor, value: Tensor, *, factor: float = 0.0, shift: int = 0, causal: bool = True
) -> Tensor:
    """Causal attention with another scale or a mask that is off by `shift`."""
    factor = factor or 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-2, -1) * factor
    rows, columns = scores.shape[-2:]
    seen = torch.arange(columns) <= torch.arange(rows).unsqueeze(1) + shift
    if causal:
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ value


def attention_strict(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The diagonal is masked, so that the first row is NaN."""
    return attention_with(query, key, value, shift=-1)


def attention_wrong_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads share keys in turns in place of in groups."""
    groups = query.shape[1] // key.shape[1]
    return exact.attention(query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1))


def attention_probabilities_in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weights are float8 before the last product."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores, -1).to(torch.float8_e4m3fn).float()
    return weights @ value


def gelu_other_formula(x: Tensor) -> Tensor:
    """The sigmoid approximation in place of erf."""
    return x * torch.sigmoid(1.702 * x)


def silu_halves_swapped(x: Tensor) -> Tensor:
    """The halves are swapped."""
    gate, up = x.chunk(2, -1)
    return gate * torch.sigmoid(up) * up


def rope_interleaved(x: Tensor, positions: Tensor) -> Tensor:
    """Neighbours are rotated in place of halves."""
    order = torch.arange(x.shape[-1]).reshape(2, -1).t().reshape(-1)
    return exact.rope(x[..., order], positions)[..., torch.argsort(order)]


def rope_next_position(x: Tensor, positions: Tensor) -> Tensor:
    """Positions begin with 1."""
    return exact.rope(x, positions + 1)


def cross_entropy_sum(logits: Tensor, target: Tensor) -> Tensor:
    """The sum in place of the mean."""
    return exact.cross_entropy(logits, target) * target.numel()


class WrongGradient(torch.autograd.Function):
    """A right forward of a mean cross entropy, whose gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the mean."""
        ctx.save_for_backward(logits, target)
        return exact.cross_entropy(logits.float(), target).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Compute the gradient of the sum."""
        logits, target = ctx.saved_tensors
        found = torch.softmax(logits.float(), -1)
        found[torch.arange(len(target)), target] -= 1
        return (found * incoming.float()).to(logits.dtype), None


class NoGradientOfWeight(torch.autograd.Function):
    """A right linear layer without the gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute the layer."""
        ctx.save_for_backward(x, weight)
        return wide(exact.linear)(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Leave out the weight."""
        x, weight = ctx.saved_tensors
        gradient = (incoming.float() @ weight.float()).to(x.dtype)
        return gradient, None, incoming.float().sum(0).to(x.dtype)


class BiasOfFirstRow(torch.autograd.Function):
    """x + bias, whose gradient of the bias is that of the first row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        """Add."""
        return x + bias

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Leave the sum over rows out."""
        return incoming, incoming[0].clone()


class NormWithoutMean(torch.autograd.Function):
    """A right layer norm, whose gradient leaves out what goes through the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Compute the norm."""
        ctx.save_for_backward(x, weight)
        return wide(exact.layer_norm)(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Leave the mean out."""
        x, weight = (saved.float() for saved in ctx.saved_tensors)
        wide_incoming = incoming.float()
        centred = x - x.mean(-1, keepdim=True)
        factor = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        normal, inner = centred * factor, wide_incoming * weight
        gradient = factor * (inner - normal * (inner * normal).mean(-1, keepdim=True))
        found = gradient, (wide_incoming * normal).sum(0), wide_incoming.sum(0)
        return tuple(each.to(incoming.dtype) for each in found)


class EmbeddingLastWins(torch.autograd.Function):
    """An embedding, in whose gradient the last of equal rows wins."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor) -> Tensor:
        """Choose rows."""
        ctx.save_for_backward(indices)
        ctx.rows = weight.shape[0]
        return weight[indices]

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Put in place of add."""
        (indices,) = ctx.saved_tensors
        found = torch.zeros(ctx.rows, incoming.shape[-1], dtype=incoming.dtype)
        return found.index_put_((indices,), incoming), None


def embedding_of_next(weight: Tensor, indices: Tensor) -> Tensor:
    """The row behind, but for the last."""
    return weight[(indices + 1).clamp(max=weight.shape[0] - 1)]


def conv_without_last_tap(x: Tensor, weight: Tensor) -> Tensor:
    """The last tap is left out."""
    return exact.conv1d(x, torch.cat([weight[..., :-1], torch.zeros_like(weight[..., -1:])], -1))


def conv_of_flipped(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution in place of a correlation."""
    return exact.conv2d(x, weight.flip(-1, -2))


def scan_without_carry(a: Tensor, x: Tensor) -> Tensor:
    """The state is lost between blocks."""
    return torch.cat([exact.scan(*part) for part in zip(a.split(16, 1), x.split(16, 1))], 1)


def index_add_overwrites(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Equal indices overwrite each other."""
    result = x.clone()
    result[indices] = x[indices] + rows
    return result


def route_not_normalised(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights are not divided by their sum."""
    weights, indices = torch.softmax(logits, -1).topk(2, -1)
    dense = torch.zeros_like(logits).scatter(-1, indices, weights)
    return weights, indices, dense.transpose(0, 1) @ values


def route_second_and_third(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of one token are another one's."""
    weights, indices, result = right.route_sparse(logits, values)
    return weights, torch.cat([indices[1:2], indices[1:]]), result


def dequantised_scale_of_rows(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """The scale of columns taken for one of rows; the matrix is square."""
    return x @ (quantised.float() * scale.unsqueeze(1))


def dequantised_saturated(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """The product saturates where float8 does."""
    return (x @ quantised.float()).clamp(-448, 448) * scale


def adamw_without_correction(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """The bias of the second moment is not corrected."""
    first.copy_(first.float() * 0.9 + 0.1 * gradient.float())
    second.copy_(second.float() * 0.999 + 0.001 * gradient.float().square())
    step = first.float() / (1 - 0.9**10) / (second.float().sqrt() + 1e-8)
    parameter.copy_(parameter.float() * (1 - 0.001) - 0.01 * step)


def sgd_before_update(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    """The parameter moves by the momentum of the step before."""
    parameter.copy_(parameter.float() - 0.1 * momentum.float())
    momentum.copy_(momentum.float() * 0.9 + gradient.float())


def total_in_half(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Sums of blocks are added in a half dtype."""
    result = torch.zeros((), dtype=dtype)
    for part in x.reshape(-1).split(64):
        result = result + part.float().sum().to(dtype)
    return result.to(x.dtype)


def total_misses_one_in_512(x: Tensor) -> Tensor:
    """A race: 1 of 512 terms is missing."""
    keep = torch.ones(x.numel())
    keep[::512] = 0
    return (x.reshape(-1) * keep).sum()


def norm_flushed(x: Tensor) -> Tensor:
    """Squares below 1e-6 are flushed."""
    square = x.square()
    return (square * (square > 0.01)).sum(-1).sqrt()


def size_one(x: Tensor) -> Tensor:
    """Wrong where rows have one element."""
    return torch.log_softmax(x, -1) - (1.0 if x.shape[-1] == 1 else 0.0)


def offsets_overflow(x: Tensor) -> Tensor:
    """Rows whose offset does not fit into eight bits are read from the beginning."""
    rows = torch.arange(x.shape[0])
    return exact.gelu(x[torch.where(rows * x.shape[1] < 256, rows, rows % 4)])


def unsquared_rows(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """A matrix and a transposed one."""
    rows, size = shape
    return draw.normal(rows, size, grad=False), draw.normal(size, size, grad=False).t()


def positive(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Magnitudes."""
    return (draw.positive(*shape, grad=True),)


def far_from_zero(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows with a mean of 300."""
    return draw.normal(*shape, shift=300.0), draw.normal(shape[-1]), draw.normal(shape[-1])


def beyond_exp(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Scores of about 100."""
    return (draw.normal(*shape, scale=3.0, shift=100.0),)


def near_zero(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows as small as epsilon."""
    return draw.normal(*shape, scale=0.003), draw.normal(shape[-1]), draw.normal(shape[-1])


E, R = exact, right
W = WrongKernel
ATTENTION: Shape = (1, 2, 2, 24, 16)
ROWS: Shape = (64, 200)
KERNELS = [
    W("zeros for a softmax", E.softmax, changed(E.softmax, lambda y: y * 0), R.one, (4, 32768)),
    W("one tile stale", E.softmax, changed(E.softmax, stale_tile), R.one, ROWS),
    W("a row 2 % off", E.softmax, changed(E.softmax, scaled_row), R.one, (8, 2048)),
    W("1.3 % of elements are 0", E.softmax, changed(E.softmax, some_zeros), R.one, ROWS),
    W("the last columns lost", E.layer_norm, changed(E.layer_norm, lost_tail), R.of_norm, (16, 69)),
    W("the last columns not written", E.gelu, unwritten_tail, R.one, (16, 69)),
    W("total of whole blocks", E.softmax, wide(softmax_of_sixty_four), R.one, (16, 200)),
    W("online softmax without decay", E.softmax, wide(softmax_online_without_decay), R.one, ROWS),
    W("maximum not subtracted", E.softmax, wide(softmax_without_maximum), beyond_exp, (8, 50)),
    W("softmax of columns", E.softmax, wide(softmax_of_columns), R.one, (40, 40)),
    W("epsilon outside", E.layer_norm, wide(partial(layer_norm_with, outside=True)), near_zero, (16, 64)),
    W("variance over n - 1", E.layer_norm, wide(partial(layer_norm_with, correction=1)), R.of_norm, (16, 64)),
    W("epsilon of 1e-3", E.layer_norm, wide(partial(layer_norm_with, epsilon=1e-3)), near_zero, (16, 64)),
    W(
        *("variance in one pass", E.layer_norm, wide(layer_norm_one_pass), far_from_zero, (16, 64)),
        dtypes=(torch.float32, torch.float16),
    ),
    W(  # 0.4 roundings as a whole, as half of the values are equal in bfloat16
        *("variance in one pass", E.layer_norm, wide(layer_norm_one_pass), far_from_zero, (16, 64)),
        is_above=False,
        dtypes=(torch.bfloat16,),
    ),
    W("mean subtracted in rms_norm", E.rms_norm, wide(rms_norm_of_mean), R.of_rms, (16, 64)),
    W("weight forgotten in a column", E.rms_norm, wide(rms_norm_without_weight), R.of_rms, (16, 65)),
    W("the last block of k skipped", E.matmul, wide(matmul_skips_last_k), R.of_matmul, (16, 70, 12)),
    W("an element misses a term", E.matmul, wide(matmul_misses_a_term), R.of_matmul, (16, 512, 12)),
    W("sums in bfloat16", E.matmul, matmul_rounded_parts, R.of_matmul, (16, 512, 12)),
    W(
        *("sums in float16", E.matmul, partial(matmul_rounded_parts, dtype=torch.float16)),
        *(R.of_matmul, (16, 512, 12)),
        dtypes=(torch.float32,),
    ),
    W("strides ignored", E.matmul, matmul_of_strides, unsquared_rows, (16, 24)),
    W("result transposed", E.matmul, wide(matmul_transposed_result), R.of_matmul, (24, 24, 24)),
    W("mask one too far", E.causal_attention, wide(partial(attention_with, shift=1)), R.of_attention, ATTENTION),
    W("diagonal masked", E.causal_attention, wide(attention_strict), R.of_attention, ATTENTION),
    W("mask missing", E.causal_attention, wide(partial(attention_with, causal=False)), R.of_attention, ATTENTION),
    W("wrong scale", E.causal_attention, wide(partial(attention_with, factor=1 / 16)), R.of_attention, ATTENTION),
    W("scale 1 % off", E.causal_attention, wide(partial(attention_with, factor=0.2525)), R.of_attention, ATTENTION),
    W("heads shared in turns", E.attention, wide(attention_wrong_heads), R.of_attention, (1, 4, 2, 12, 8)),
    W("weights in float8", E.attention, wide(attention_probabilities_in_half), R.of_attention, ATTENTION),
    W("another GELU", E.gelu, wide(gelu_other_formula), R.one, ROWS),
    W("halves swapped", E.silu_and_mul, wide(silu_halves_swapped), R.one, ROWS),
    W("neighbours rotated", E.rope, wide(rope_interleaved), R.of_rope, (2, 12, 2, 16)),
    W("positions from 1", E.rope, wide(rope_next_position), R.of_rope, (2, 12, 2, 16)),
    W("sum in place of mean", E.cross_entropy, wide(cross_entropy_sum), R.of_cross_entropy, (16, 50)),
    W("gradient of the sum", E.cross_entropy, WrongGradient.apply, R.of_cross_entropy, (16, 50)),
    W("gradient of the weight dropped", E.linear, NoGradientOfWeight.apply, R.of_linear, (16, 30, 20)),
    W("gradient of a bias not summed", E.add_bias, BiasOfFirstRow.apply, R.of_rms, (16, 30)),
    W("gradient through the mean left out", E.layer_norm, NormWithoutMean.apply, R.of_norm, (16, 64)),
    W("equal rows overwrite gradients", E.embedding, EmbeddingLastWins.apply, R.of_embedding, (8, 16, 40)),
    W("the next row", E.embedding, embedding_of_next, R.of_embedding, (8, 16, 40)),
    W("a tap left out", E.conv1d, wide(conv_without_last_tap), R.of_conv1d, (2, 3, 40)),
    W("convolution flipped", E.conv2d, wide(conv_of_flipped), R.of_conv2d, (2, 3, 12, 12)),
    W("state lost between blocks", E.scan, wide(scan_without_carry), R.of_scan, (2, 40, 8)),
    W("equal indices overwrite", E.index_add, wide(index_add_overwrites), R.of_index_add, (8, 16, 40)),
    W("weights not normalised", E.route, wide(route_not_normalised), R.of_route, (40, 8, 16)),
    W("indices of another token", E.route, wide(route_second_and_third), R.of_route, (40, 8, 16)),
    W("scale of rows", E.dequantised_matmul, wide(dequantised_scale_of_rows), R.of_int8, (16, 24, 24)),
    W("product saturated", E.dequantised_matmul, wide(dequantised_saturated), R.of_int8, (16, 24, 24)),
    W("bias not corrected", E.adamw, adamw_without_correction, R.of_adamw, (500,)),
    W("momentum of the step before", E.sgd, sgd_before_update, R.of_sgd, (500,)),
    W("partial sums in bfloat16", E.total, total_in_half, positive, (100, 512)),
    W(
        *("1 of 512 terms missing", E.total, wide(total_misses_one_in_512), positive, (100, 512)),
        dtypes=(torch.float32, torch.float16),
    ),
    W(
        *("1 of 512 terms missing", E.total, wide(total_misses_one_in_512), positive, (100, 512)),
        is_above=False,
        dtypes=(torch.bfloat16,),
    ),
    W("small squares flushed", E.norm, wide(norm_flushed), R.one, (40, 60), dtypes=(torch.float32,)),
    W("small squares flushed", E.norm, wide(norm_flushed), R.one, (40, 60), is_above=False, dtypes=HALVES),
    W("wrong for size 1", E.log_softmax, wide(size_one), R.one, (5, 1)),
    W("offsets overflow", E.gelu, wide(offsets_overflow), R.one, (40, 20)),
]
