"""mindspore.ops.swiglu, fast_gelu and mindspore.mint.npu_gelu; the masked softmax of torch_npu.

- mindspore.ops.rms_norm, add_rms_norm and add_layer_norm. Source: their pages in mindspore.ops 2.10.
- torch_npu.npu_group_norm_silu.
- mindspore.ops.auto_generate.cross_entropy_loss, the fused one with its four outputs.
- mindspore.ops.rotary_position_embedding and apply_rotary_pos_emb_, torch_npu.npu_rotary_mul.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """SiLU of the first half along `dim` times the second half. Source: mindspore.ops.swiglu 2.10."""
    first, second = input.chunk(2, dim)
    return first * first.sigmoid() * second


@fused()
def fast_gelu(x: Tensor) -> Tensor:
    """The value x * sigmoid(1.702 x).

    Source: mindspore.ops.fast_gelu 2.10, as x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), which is the same.
    """
    return x * torch.sigmoid(1.702 * x)


@fused()
def npu_gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """The value x * Phi(x), or its tanh approximation. Source: mindspore.mint.nn.functional.gelu 2.10.

    At the infinities Ascend takes the limits where the formula gives NaN: value 0 and gradient 0 at -inf, value inf and
    gradient 1 at inf.
    """
    limited = torch.where(input.isinf(), 0, input)
    finite = functional.gelu(limited, approximate=approximate)
    return torch.where(input == torch.inf, input, torch.where(input == -torch.inf, 0, finite))


@fused()
def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    """The softmax along the last axis of scale * x, with -10000 where `mask` is true.

    With `fixed_triu_mask` true is what lies above the diagonal of the last two axes, whatever `mask` holds. A row that
    is masked as a whole is uniform. Source: op-plugin's documentation and test of npu_scaled_masked_softmax.
    """
    hidden = torch.ones_like(mask, dtype=torch.bool).triu(1) if fixed_triu_mask else mask.bool()
    return (x * scale).masked_fill(hidden, -10000.0).softmax(-1)


@fused(float32_outputs=(1,))
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """(x * rstd * gamma, rstd): rstd is 1 / sqrt(mean x^2 + epsilon) over the trailing axes of gamma, kept as 1."""
    return _normalised(x, gamma, epsilon)


@fused(float32_outputs=(1,))
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, x1 + x2): `rms_norm` of the sum."""
    return (*_normalised(x1 + x2, gamma, epsilon), x1 + x2)


@fused(float32_outputs=(1, 2))
def add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, additional_output: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(y, mean, rstd, x1 + x2 or None): layer norm of the sum over the last axis, population variance.

    The fourth output has no meaning unless `additional_output` is set.
    """
    x = x1 + x2
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + epsilon)
    return (x - mean) * rstd * gamma + beta, mean, rstd, x if additional_output else None


@fused()
def group_norm_silu(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """(SiLU of the group norm, mean (N, group), 1 / sqrt(variance + eps) (N, group)), population variance.

    Source: CANN 8.2 aclnnGroupNormSilu.
    """
    groups = input.reshape(input.shape[0], group, -1)
    rstd = torch.rsqrt(groups.var(-1, unbiased=False) + eps)
    return functional.silu(functional.group_norm(input, group, weight, bias, eps)), groups.mean(-1), rstd


def _normalised(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    axes = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


@fused()
def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss (N,) or (1,), log probabilities (N, C), two unused outputs of size 0).

    loss[n] = -weight[target[n]] * log_softmax(input)[n, target[n]], 0 where the target is `ignore_index`; the mean
    divides by the sum of the weights that count. A negative `ignore_index` ignores the targets that equal it as well:
    the page says that it ignores none, but also allows no negative target. Source: its page in MindSpore 2.10.

    Raises:
        Unsupported: `label_smoothing`, `lse_square_scale_for_zloss` or `return_zloss` is set.
    """
    if label_smoothing or lse_square_scale_for_zloss or return_zloss:
        raise Unsupported("label_smoothing, lse_square_scale_for_zloss or return_zloss: MindSpore 2.10 takes none yet")
    log_probabilities = input - input.logsumexp(-1, keepdim=True)
    counts = target != ignore_index
    labels = torch.where(counts, target, 0).long()
    weights = counts.to(input.dtype) if weight is None else weight[labels].to(input.dtype) * counts
    losses = -weights * log_probabilities.gather(-1, labels[:, None])[:, 0]
    if reduction == "mean":
        losses = (losses.sum() / weights.sum()).reshape(1)
    elif reduction == "sum":
        losses = losses.sum().reshape(1)
    return losses, log_probabilities, input.new_zeros(0), input.new_zeros(0)


@fused()
def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """``x * cos + R(x) * sin``; cos and sin are broadcast to x.

    R turns (a, b) into (-b, a), where a and b are: the halves of the last axis (mode 0), its even and odd elements
    (mode 1), the halves of each half (mode 2). Mode 3 first moves the even elements to the front and the odd ones to
    the back, also in x itself, and goes on as mode 0. Source: mindspore.ops 2.10 for modes 0 and 1, CANN's
    RotaryPositionEmbedding for 2 and 3.

    Raises:
        Unsupported: `mode` is not one of 0 to 3.
    """
    if mode == 0:
        return x * cos + _half_turned(x) * sin
    if mode == 1:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cos + turned * sin
    if mode == 2:
        turned = torch.cat([_half_turned(half) for half in x.chunk(2, -1)], -1)
        return x * cos + turned * sin
    if mode == 3:
        moved = torch.cat([x[..., ::2], x[..., 1::2]], -1)
        return moved * cos + _half_turned(moved) * sin
    raise Unsupported(f"mode {mode}: only 0 to 3 are documented")


@fused()
def npu_rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """`rotary_position_embedding` with cos `r1` and sin `r2`; mode `half` or `interleave`. Source: torch_npu."""
    return rotary_position_embedding(x, r1, r2, {"half": 0, "interleave": 1}[rotary_mode])


@fused()
def apply_rotary_pos_emb_(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, cos_format: int = 0
) -> tuple[Tensor, Tensor]:
    """(query, key) with every head turned, computed out of place.

    Query and key are (T, N * D), (B, S, N * D) or (B, S, N, D); D is the last axis of cos. Formats 0 and 1 pick rows of
    cos and sin by `position_ids`, one for each token or one for each of S; formats 2 and 3 have a row for each token.
    Formats 0 and 2 turn halves, 1 and 3 pairs of elements. Source: MindSpore's own test of ApplyRotaryPosEmb.

    Raises:
        Unsupported: `cos_format` is not one of 0 to 3.
    """
    if cos_format not in range(4):
        raise Unsupported(f"cos_format {cos_format}: only 0 to 3 are documented")
    if cos_format in (0, 1):
        rows = position_ids.reshape(-1).long()
        cos, sin = cos[rows], sin[rows]
    mode = cos_format % 2
    return _turned_heads(query, cos, sin, mode=mode), _turned_heads(key, cos, sin, mode=mode)


def _turned_heads(x: Tensor, cos: Tensor, sin: Tensor, *, mode: int) -> Tensor:
    tokens, size = x.shape[: max(1, min(2, x.dim() - 1))].numel(), cos.shape[-1]
    rows = cos.numel() // size
    if tokens % rows:
        raise Unsupported(f"{rows} rows of cos for {tokens} tokens")
    heads = x.reshape(tokens // rows, rows, -1, size)
    turned = rotary_position_embedding(heads, cos.reshape(rows, 1, size), sin.reshape(rows, 1, size), mode)
    return turned.reshape(x.shape)


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
