"""Right kernels of unusual make: fused, recomputed, in other orders, by other formulas, of other layouts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quality.kernels import (
    references as exact,
    right,
    wrong_formulas as formulas,
    wrong_places as places,
    wrong_second as wrong,
)
from quality.kernels.entries import Draw, Kernel, Shape
from quality.kernels.wrong_second import drawn

wide = right.in_float32
LOG2E = math.log2(math.e)


def softmax_by_exp2(x: Tensor) -> Tensor:
    """Softmax in blocks by powers of 2 of scores that are scaled before."""
    scaled = x * LOG2E
    largest = torch.full((*x.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(largest)
    for part in scaled.split(4, -1):
        new = torch.maximum(largest, part.detach().amax(-1, keepdim=True))
        total = total * torch.exp2(largest - new) + torch.exp2(part - new).sum(-1, keepdim=True)
        largest = new
    return torch.exp2(scaled - largest) / total


def tanh_by_sigmoid(x: Tensor) -> Tensor:
    """Tanh by a sigmoid."""
    return 2 * torch.sigmoid(2 * x) - 1


def sigmoid_by_tanh(x: Tensor) -> Tensor:
    """Sigmoid by a tanh."""
    return 0.5 * torch.tanh(0.5 * x) + 0.5


def softplus_stable(x: Tensor) -> Tensor:
    """Softplus whose exponential does not overflow."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def matmul_in_any_order(a: Tensor, b: Tensor) -> Tensor:
    """Parts of k added in another order at every call, as atomic additions do."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for part in torch.randperm(a.shape[1]).split(2):
        total = total + a[:, part] @ b[part]
    return total


def matmul_of_six_products(a: Tensor, b: Tensor) -> Tensor:
    """Operands split into three bfloat16, with the six products that matter."""

    def parts(x: Tensor) -> list[Tensor]:
        first = x.bfloat16().float()
        second = (x - first).bfloat16().float()
        return [first, second, (x - first - second).bfloat16().float()]

    left, right_ = parts(a), parts(b)
    return sum(left[i] @ right_[j] for i, j in ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)))


def sum_of_kahan(x: Tensor) -> Tensor:
    """Sum with compensation."""
    total, lost = torch.zeros(()), torch.zeros(())
    for part in x.reshape(-1):
        corrected = part - lost
        new = total + corrected
        lost = ((new - total) - corrected).detach()
        total = new
    return total


class Flash(torch.autograd.Function):
    """Causal attention that saves its totals alone and computes its weights again for the gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute weights by powers of 2."""
        q, k, v = (x.float() for x in (query, key, value))
        scores = Flash.scores(q, k)
        largest = scores.amax(-1, keepdim=True)
        powers = torch.exp2(scores - largest)
        total = powers.sum(-1, keepdim=True)
        result = powers @ v / total
        ctx.save_for_backward(query, key, value, result, largest + torch.log2(total))
        return result.to(query.dtype)

    @staticmethod
    def scores(q: Tensor, k: Tensor) -> Tensor:
        """Scores to base 2, without those of the future."""
        scores = q @ k.transpose(-2, -1) * (LOG2E / math.sqrt(q.shape[-1]))
        return scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Compute the weights again."""
        dtype, scale = incoming.dtype, 1 / math.sqrt(incoming.shape[-1])
        q, k, v, result, total = (x.float() for x in ctx.saved_tensors)
        wide_incoming = incoming.float()
        weights = torch.exp2(Flash.scores(q, k) - total)
        delta = (wide_incoming * result).sum(-1, keepdim=True)
        of_scores = weights * (wide_incoming @ v.transpose(-2, -1) - delta) * scale
        gradients = of_scores @ k, of_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ wide_incoming
        return tuple(gradient.to(dtype) for gradient in gradients)


class FusedNorm(torch.autograd.Function):
    """Layer norm with the gradient in one formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Keep mean and inverse deviation."""
        mean = x.float().mean(-1, keepdim=True)
        inverse = torch.rsqrt((x.float() - mean).square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, mean, inverse)
        return ((x.float() - mean) * inverse * weight.float() + bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Subtract both means."""
        x, weight, mean, inverse = (saved.float() for saved in ctx.saved_tensors)
        normal, wide_incoming = (x - mean) * inverse, incoming.float()
        inner = wide_incoming * weight
        means = inner.mean(-1, keepdim=True) + normal * (inner * normal).mean(-1, keepdim=True)
        gradients = (inner - means) * inverse, (wide_incoming * normal).sum(0), wide_incoming.sum(0)
        return tuple(gradient.to(incoming.dtype) for gradient in gradients)


class LossOfLinear(torch.autograd.Function):
    """Cross entropy of a linear layer by chunks of rows, whose gradients are computed in the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """Never hold all logits."""
        loss, of_weight, of_x = torch.zeros(()), torch.zeros(weight.shape), []
        for rows, labels in zip(x.float().split(3), target.split(3)):
            logits = rows @ weight.float().t()
            total = torch.logsumexp(logits, -1)
            loss = loss + (total - logits.gather(1, labels.unsqueeze(1)).squeeze(1)).sum()
            of_logits = (torch.softmax(logits, -1) - F.one_hot(labels, len(weight))) / len(x)
            of_x.append(of_logits @ weight.float())
            of_weight += of_logits.t() @ rows
        ctx.save_for_backward(torch.cat(of_x), of_weight)
        return (loss / len(x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Scale what is there."""
        of_x, of_weight = (incoming.float() * saved for saved in ctx.saved_tensors)
        return of_x.to(incoming.dtype), of_weight.to(incoming.dtype), None


def loss_of_linear(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of a linear layer."""
    return F.cross_entropy(x @ weight.t(), target)


class RecomputedGate(torch.autograd.Function):
    """SiLU and product, whose sigmoid is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Keep the input alone."""
        ctx.save_for_backward(x)
        return wide(exact.silu_and_mul)(x)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Tensor:  # type: ignore[override]
        """Compute both halves."""
        gate, up = ctx.saved_tensors[0].float().chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        of_gate = incoming.float() * up * sigmoid * (1 + gate * (1 - sigmoid))
        return torch.cat([of_gate, incoming.float() * gate * sigmoid], -1).to(incoming.dtype)


def variance_shifted(x: Tensor) -> Tensor:
    """Variance in one pass of what is left of the first element."""
    left = x - x[..., :1].detach()
    return left.square().mean(-1) - left.mean(-1).square()


def cumulative_doubling(x: Tensor) -> Tensor:
    """Cumulative sum by doubling."""
    step = 1
    while step < x.shape[-1]:
        x = x + F.pad(x, (step, 0))[..., : x.shape[-1]]
        step *= 2
    return x * 1


def conv_by_winograd(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution of three taps, two results by four products."""
    padded = F.pad(x, (1, 1 + x.shape[-1] % 2))
    tiles = padded.unfold(-1, 4, 2)
    before = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    of_weight = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    after = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])
    products = torch.einsum("bctk,ock->botk", tiles @ before.t(), weight @ of_weight.t())
    return (products @ after.t()).flatten(-2)[..., : x.shape[-1]]


def conv_by_fft(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution by products of spectra."""
    size = x.shape[-1] + 2
    spectra = torch.einsum("bcf,ocf->bof", torch.fft.rfft(F.pad(x, (1, 1))), torch.fft.rfft(weight, size).conj())
    return torch.fft.irfft(spectra, size)[..., : x.shape[-1]]


def shared_by_loop(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads one after the other, without copies of keys."""
    groups = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        k, v = key[:, head // groups], value[:, head // groups]
        scores = torch.einsum("bqd,bkd->bqk", query[:, head], k) * query.shape[-1] ** -0.5
        powers = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        heads.append(torch.einsum("bqk,bkd->bqd", powers, v) / powers.sum(-1, keepdim=True))
    return torch.stack(heads, 1)


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention without softmax."""
    return (query @ key.t()).tril() @ value


def linear_attention_chunks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """By chunks, with the state of all before."""
    state, results = torch.zeros(key.shape[1], value.shape[1]), []
    for q, k, v in zip(query.split(4), key.split(4), value.split(4)):
        results.append(q @ state + (q @ k.t()).tril() @ v)
        state = state + k.t() @ v
    return torch.cat(results)


def experts_by_group(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """One product an expert."""
    bounds = [0, *ends.tolist()]
    return torch.cat([x[start:end] @ weight for start, end, weight in zip(bounds, bounds[1:], weights)])


def float8_product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """Product of float8 matrices with a scale."""
    return a.to(scale.dtype) @ b.to(scale.dtype) * scale


def float8_product_late(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """In float32, the scale at the end."""
    return ((a.float() @ b.float()) * scale.float()).to(scale.dtype)


def to_float8(x: Tensor) -> Tensor:
    """Limited and rounded to float8."""
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn)


def state_of(x: Tensor, weight: Tensor) -> dict[str, Any]:
    """Nested results."""
    return {"normal": exact.rms_norm(x, weight), "sums": (x.sum(-1), [x.amax(-1)]), "places": x.argmax(-1)}


def state_of_half(x: Tensor, weight: Tensor) -> dict[str, Any]:
    """The same in float32."""
    found, dtype = state_of(x.float(), weight.float()), x.dtype
    return {
        "normal": found["normal"].to(dtype),
        "sums": (found["sums"][0].to(dtype), [found["sums"][1][0].to(dtype)]),
        "places": found["places"],
    }


def sort_and_segment(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows chosen in sorted order, and put back."""
    order = indices.argsort()
    return weight[indices[order]][torch.argsort(order)]


def smoothed_by_parts(logits: Tensor, target: Tensor) -> Tensor:
    """Loss of smoothed labels from totals, chosen logits and means."""
    chosen = logits.gather(1, target.unsqueeze(1)).squeeze(1)
    return (torch.logsumexp(logits, -1) - 0.9 * chosen - 0.1 * logits.mean(-1)).mean()


def column_major(x: Tensor) -> Tensor:
    """GELU, written column by column."""
    return wide(exact.gelu)(x.t()).contiguous().t()


def in_place(x: Tensor) -> Tensor:
    """SiLU in place."""
    return x.copy_(F.silu(x.float()))


def in_place_exact(x: Tensor) -> Tensor:
    """What it computes."""
    return x.copy_(F.silu(x))


def norm_into(x: Tensor, weight: Tensor, *, out: Tensor) -> None:
    """RMS norm written into a keyword argument."""
    out.copy_(exact.rms_norm(x.float(), weight.float()) if x.dtype != torch.float64 else exact.rms_norm(x, weight))


def norm_into_last(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """The same with a positional argument."""
    norm_into(x, weight, out=out)


def float8_pair(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Two float8 matrices and a scale."""
    m, k, n = shape
    a, b = (draw.normal(*of, grad=False).to(torch.float8_e4m3fn) for of in ((m, k), (k, n)))
    return a, b, draw.positive(n)


def transposed(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Two matrices that are views of transposed ones."""
    m, k, n = shape
    return draw.normal(k, m, grad=False).t().requires_grad_(), draw.normal(n, k, grad=False).t().requires_grad_()


def with_out(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, weight and memory that is not a number yet."""
    x, weight = (value.detach() for value in right.of_rms(draw, shape))
    return x, weight, torch.full(shape, math.nan, dtype=draw.dtype)


HEADS = ((1, 2, 2, 6, 4), (1, 1, 1, 1, 4))
ANY: tuple[Shape, ...] = ((),)
SAME = {"accumulates": "same"}
E, R, A, B = exact, right, formulas, places
#: Of what is right in float32 as a whole, and not in each element: small ones carry the errors of larger ones.
HALVES = wrong.HALVES
KERNELS = [
    Kernel("softmax by exp2", E.softmax, wide(softmax_by_exp2), R.large, ((3, 9), (2, 1))),
    Kernel("tanh by sigmoid", torch.tanh, wide(tanh_by_sigmoid), R.one, ((3, 7), (1, 1)), dtypes=HALVES),
    Kernel("sigmoid by tanh", torch.sigmoid, wide(sigmoid_by_tanh), R.one, ((3, 7), (1, 1))),
    Kernel("softplus", F.softplus, wide(softplus_stable), R.large, ((3, 7), (1, 1), (0, 2))),
    Kernel("matmul in any order", E.matmul, wide(matmul_in_any_order), R.of_matmul, ((4, 16, 3), (1, 1, 1))),
    Kernel("matmul of six products", E.matmul, wide(matmul_of_six_products), R.of_matmul, ((4, 16, 3),)),
    Kernel("sum of Kahan", E.total, wide(sum_of_kahan), R.one, ((5, 20), (1, 1))),
    Kernel("flash attention recomputed", E.causal_attention, Flash.apply, R.of_attention, HEADS),
    Kernel("layer norm with its own gradient", E.layer_norm, FusedNorm.apply, R.of_norm, R.NORMS),
    Kernel("loss of a linear layer", loss_of_linear, LossOfLinear.apply, drawn((7, 4), (9, 4), "7<9"), ANY),
    Kernel("gate recomputed", E.silu_and_mul, RecomputedGate.apply, R.one, ((3, 8), (1, 2))),
    Kernel("variance shifted", E.variance, wide(variance_shifted), drawn((3, 30), shift=300.0), ANY),
    Kernel("cumulative sum by doubling", E.cumulative, wide(cumulative_doubling), R.one, ((3, 21), (2, 1))),
    Kernel(
        "convolution by Winograd", E.conv1d, wide(conv_by_winograd), R.of_conv1d, ((2, 3, 8), (1, 1, 5)), dtypes=HALVES
    ),
    Kernel("convolution by spectra", E.conv1d, wide(conv_by_fft), R.of_conv1d, ((2, 3, 8), (1, 1, 5)), dtypes=HALVES),
    Kernel("shared heads by a loop", E.attention, wide(shared_by_loop), R.of_attention, R.SHARED),
    Kernel(
        *("linear attention by chunks", linear_attention, wide(linear_attention_chunks)),
        *(drawn((10, 4), (10, 4), (10, 3)), ANY),
    ),
    Kernel("experts by group", B.experts, wide(experts_by_group), drawn((24, 5), (3, 5, 4), wrong.ENDS), ANY),
    Kernel("float8 product", float8_product, float8_product_late, float8_pair, ((3, 7, 5),)),
    Kernel("result in float8", B.to_float8, to_float8, drawn((4, 9), scale=200.0, grad=False), ANY),
    Kernel("nested results", state_of, state_of_half, R.of_rms, ((3, 7),)),
    Kernel("embedding in sorted order", E.embedding, sort_and_segment, R.of_embedding, ((5, 4, 9),)),
    Kernel("smoothed labels by parts", A.smoothed, wide(smoothed_by_parts), drawn((6, 11), "6<11"), ANY),
    Kernel("result column by column", E.gelu, column_major, R.one, ((3, 7), (1, 1))),
    Kernel("transposed inputs", E.matmul, E.matmul, transposed, ((4, 8, 4), (3, 7, 5))),
    Kernel("expanded input", E.add_bias, E.add_bias, wrong.with_expanded, ((3, 7),)),
    Kernel("slice of memory", E.gelu, wide(E.gelu), wrong.sliced, ((3, 7),)),
    Kernel("SiLU in place", in_place_exact, in_place, drawn((3, 7), grad=False), ANY),
    Kernel("RMS norm into memory", norm_into_last, norm_into_last, with_out, R.NORMS),
    Kernel("keys of some sequences", A.padded, wide(A.padded), drawn(*wrong.HEADS, wrong.LENGTHS), ANY),
    Kernel("a delta rule", B.delta_rule, wide(B.delta_rule), drawn((9, 4), (9, 4), (9, 4), (9,), scale=0.5), ANY),
    Kernel(
        "batch norm in place",
        A.batch_norm,
        lambda *s: A.batch_norm(*s),
        wrong.statistics,
        ((12, 5),),
        SAME,
    ),
    Kernel("lion", B.lion, B.written_wide(B.lion), R.of_sgd, ((40,),)),
    Kernel("gradients clipped", B.clipped, wide(B.clipped), drawn((20,), (30,)), ANY),
    Kernel("transposed convolution", B.transposed_conv, B.transposed_conv, drawn((2, 3, 7), (3, 4, 3)), ANY),
]
