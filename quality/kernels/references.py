"""What the kernels of the catalogue compute: compositions of PyTorch operations, which run in any dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5


def softmax(x: Tensor) -> Tensor:
    """Softmax along the last axis."""
    return torch.softmax(x, dim=-1)


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of softmax along the last axis."""
    return torch.log_softmax(x, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm of the last axis."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm of the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of matrices."""
    return a @ b


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Linear layer."""
    return functional.linear(x, weight, bias)


def _mask(rows: int, columns: int, kind: str, window: int) -> Tensor:
    row, column = torch.arange(rows).unsqueeze(1), torch.arange(columns)
    is_seen = column <= row + columns - rows
    return is_seen & (column > row - window) if kind == "window" else is_seen


def attention(query: Tensor, key: Tensor, value: Tensor, mask: str = "", window: int = 0) -> Tensor:
    """Attention, where fewer heads of keys than of queries are shared."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask:
        scores = scores.masked_fill(~_mask(*scores.shape[-2:], mask, window), -math.inf)
    return torch.softmax(scores, -1) @ value


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention."""
    return attention(query, key, value, "causal")


def window_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of a window of four."""
    return attention(query, key, value, "window", 4)


def gelu(x: Tensor) -> Tensor:
    """GELU by erf."""
    return functional.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by tanh."""
    return functional.gelu(x, approximate="tanh")


def silu_and_mul(x: Tensor) -> Tensor:
    """SiLU of the first half of the last axis times the second half."""
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def rope(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of (batch, sequence, heads, dimension), halves rotated."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / max(1, half))
    angles = (positions.to(torch.float64).unsqueeze(-1) * frequencies).unsqueeze(-2)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], -1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy."""
    return functional.cross_entropy(logits, target)


def embedding(weight: Tensor, indices: Tensor) -> Tensor:
    """Rows of a table."""
    return functional.embedding(indices, weight)


def conv1d(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution along one axis with padding."""
    return functional.conv1d(x, weight, padding=weight.shape[-1] // 2)


def conv2d(x: Tensor, weight: Tensor) -> Tensor:
    """Convolution of images with padding."""
    return functional.conv2d(x, weight, padding=weight.shape[-1] // 2)


def scan(a: Tensor, x: Tensor) -> Tensor:
    """Linear recurrence h[t] = a[t] h[t - 1] + x[t] along the second axis."""
    state, states = torch.zeros_like(x[:, 0]) if x.shape[1] else x.sum(1), []
    for step in range(x.shape[1]):
        state = a[:, step] * state + x[:, step]
        states.append(state)
    return torch.stack(states, 1) if states else x.clone()


def index_add(x: Tensor, indices: Tensor, rows: Tensor) -> Tensor:
    """Add rows to those of x at some indices."""
    return x.index_add(0, indices, rows)


def route(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two best experts of each token: their weights, indices, and the tokens scattered to them."""
    weights, indices = torch.softmax(logits, -1).topk(min(2, logits.shape[-1]), -1)
    weights = weights / weights.sum(-1, keepdim=True)
    dense = torch.zeros_like(logits).scatter(-1, indices, weights)
    return weights, indices, dense.transpose(0, 1) @ values


def dequantised_matmul(x: Tensor, quantised: Tensor, scale: Tensor) -> Tensor:
    """Product with a quantised matrix, whose columns have scales."""
    return x @ (quantised.to(x.dtype) * scale)


def sgd(parameter: Tensor, gradient: Tensor, momentum: Tensor) -> None:
    """One step of SGD with momentum, in place."""
    momentum.mul_(0.9).add_(gradient)
    parameter.sub_(0.1 * momentum)


def adamw(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> None:
    """The tenth step of AdamW, in place."""
    first.mul_(0.9).add_(0.1 * gradient)
    second.mul_(0.999).add_(0.001 * gradient * gradient)
    step = (first / (1 - 0.9**10)) / ((second / (1 - 0.999**10)).sqrt() + 1e-8)
    parameter.mul_(1 - 0.01 * 0.1).sub_(0.01 * step)


def total(x: Tensor) -> Tensor:
    """Sum of everything."""
    return x.sum()


def row_mean(x: Tensor) -> Tensor:
    """Mean of each row."""
    return x.mean(-1)


def norm(x: Tensor) -> Tensor:
    """2-norm of each row."""
    return torch.linalg.vector_norm(x, dim=-1)


def logsumexp(x: Tensor) -> Tensor:
    """Logarithm of the sum of exponentials of each row."""
    return torch.logsumexp(x, -1)


def variance(x: Tensor) -> Tensor:
    """Variance of each row."""
    return x.var(-1, correction=0)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """x + bias, the bias broadcast to rows."""
    return x + bias


def cumulative(x: Tensor) -> Tensor:
    """Cumulative sum of each row."""
    return x.cumsum(-1)


def residual_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """RMS norm of a sum, and the sum."""
    total = x + residual
    return rms_norm(total, weight), total
