"""Textbook formulas in NumPy, as they are written for devices: each is correct in float32, and rounds as it goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quality.verdict_quality.kernel import (
    F32,
    Drawn,
    Floats,
    Kernel,
    inside,
    is_narrow_inside,
    normal,
    rows,
    rows_last_axis,
    two,
)

Array = np.ndarray[Any, Any]
_ROOT_HALF, _ROOT_TWO_OVER_PI = F32(np.sqrt(0.5)), F32(np.sqrt(2 / np.pi))


def _erf(x: Floats) -> Floats:
    found: Floats = torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    return found


def _gelu(x: Floats, approximate: str = "none") -> Floats:
    return F32(0.5) * x * inside(F32(1) + inside(_erf(inside(x * _ROOT_HALF))))


def _gelu_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x = arguments[0]
    density = F32(0.3989422804) * np.exp(F32(-0.5) * x * x)
    return [incoming[0] * (F32(0.5) * (F32(1) + _erf(x * _ROOT_HALF)) + x * density)]


def _gelu_tanh(x: Floats, approximate: str = "tanh") -> Floats:
    return F32(0.5) * x * (F32(1) + np.tanh(_ROOT_TWO_OVER_PI * (x + F32(0.044715) * x * x * x)))


def _gelu_tanh_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x = arguments[0]
    t = np.tanh(_ROOT_TWO_OVER_PI * (x + F32(0.044715) * x * x * x))
    inner = _ROOT_TWO_OVER_PI * (F32(1) + F32(3 * 0.044715) * x * x)
    return [incoming[0] * (F32(0.5) * (F32(1) + t) + F32(0.5) * x * (F32(1) - t * t) * inner)]


def _sigmoid(x: Floats) -> Floats:
    return F32(1) / inside(F32(1) + inside(np.exp(-x)))


def _silu_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x = arguments[0]
    s = _sigmoid(x)
    return [incoming[0] * (s + x * s * (F32(1) - s))]


def _softmax(x: Floats, axis: int) -> Floats:
    e = inside(np.exp(inside(x - x.max(axis, keepdims=True))))
    return e / inside(e.sum(axis, keepdims=True, dtype=F32))


def _softmax_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    y, dy = outputs[0], incoming[0]
    return [y * inside(dy - inside(inside(dy * y).sum(-1, keepdims=True, dtype=F32)))]


def _log_softmax(x: Floats, axis: int) -> Floats:
    highest = x.max(axis, keepdims=True)
    return inside(x - highest) - inside(np.log(inside(np.exp(x - highest)).sum(axis, keepdims=True, dtype=F32)))


def _log_softmax_naive(x: Floats, axis: int) -> Floats:
    """By the log-sum-exp that is added up first, which loses the digits of the maximum."""
    highest = x.max(axis, keepdims=True)
    return x - inside(highest + np.log(np.exp(x - highest).sum(axis, keepdims=True, dtype=F32)))


def _log_softmax_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    y, dy = outputs[0], incoming[0]
    return [dy - np.exp(y) * dy.sum(-1, keepdims=True, dtype=F32)]


def _confident(rng: np.random.Generator, scale: float) -> Drawn:
    """Logits of a trained model: the right class stands out."""
    logits, target = normal(rng, 128, 2048, scale=2.0), rng.integers(0, 2048, 128)
    logits[np.arange(128), target] += F32(4 * scale)
    return (logits, target), {}


def _cross_entropy(x: Floats, target: Array) -> Floats:
    y = _log_softmax_naive(x, -1)
    return -y[np.arange(len(x)), target].mean(dtype=F32)


def _cross_entropy_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x, target = arguments
    probability = _softmax(x, -1)
    probability[np.arange(len(x)), target] -= F32(1)
    return [probability * (incoming[0] / F32(len(x)))]


def _normalised(rng: np.random.Generator, scale: float) -> Drawn:
    width = 2048
    weight, bias = 1 + normal(rng, width, scale=0.1), normal(rng, width, scale=0.1)
    return (normal(rng, 128, width, scale=scale) + F32(scale), (width,), weight, bias), {}


def _layer_norm_parts(x: Floats) -> tuple[Floats, Floats]:
    mean = inside(x.mean(-1, keepdims=True, dtype=F32))
    variance = inside(inside(np.square(inside(x - mean))).mean(-1, keepdims=True, dtype=F32))
    inverse = inside(F32(1) / np.sqrt(variance + F32(1e-5)))
    return inside((x - mean) * inverse), inverse


def _layer_norm(x: Floats, shape: Any, weight: Floats, bias: Floats) -> Floats:
    return _layer_norm_parts(x)[0] * weight + bias


def _layer_norm_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x, _, weight, _ = arguments
    normal, inverse = _layer_norm_parts(x)
    dy = incoming[0]
    scaled = dy * weight
    first, second = scaled.mean(-1, keepdims=True, dtype=F32), (scaled * normal).mean(-1, keepdims=True, dtype=F32)
    return [inverse * (scaled - first - normal * second), (dy * normal).sum(0, dtype=F32), dy.sum(0, dtype=F32)]


def _rms_inputs(rng: np.random.Generator, scale: float) -> Drawn:
    return (normal(rng, 128, 2048, scale=scale), 1 + normal(rng, 2048, scale=0.1)), {"epsilon": 1e-6}


def _rms_norm(x: Floats, weight: Floats, epsilon: float) -> tuple[Floats, Floats]:
    inverse = inside(F32(1) / np.sqrt(inside(np.square(x).mean(-1, keepdims=True, dtype=F32)) + F32(epsilon)))
    return inside(x * inverse) * weight, inverse


def _rms_norm_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x, weight = arguments
    inverse = F32(1) / np.sqrt(np.square(x).mean(-1, keepdims=True, dtype=F32) + F32(1e-6))
    dy, normal = incoming[0], x * inverse
    scaled = dy * weight
    found = inverse * (scaled - normal * (scaled * normal).mean(-1, keepdims=True, dtype=F32))
    found -= incoming[1] * inverse * inverse * inverse * x / F32(x.shape[-1])  # of the statistic that it returns
    return [found, (dy * normal).sum(0)]


def _factors(rng: np.random.Generator, scale: float) -> Drawn:
    return (normal(rng, 256, 1024, scale=scale), normal(rng, 1024, 192, scale=0.03)), {}


def _product(left: Floats, right: Floats) -> Floats:
    """One rank after the other, as a systolic array adds them up."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), F32)
    for start in range(0, left.shape[-1], 16):
        total = inside(total + left[..., start : start + 16] @ right[..., start : start + 16, :])
    return total


def _product_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    left, right = arguments
    dy = incoming[0]
    return [_product(dy, right.swapaxes(-1, -2)), _product(left.swapaxes(-1, -2), dy)]


def _scores(rng: np.random.Generator, scale: float) -> Drawn:
    return (normal(rng, 8, 128, 64, scale=scale), normal(rng, 8, 64, 128, scale=scale)), {}


_CAUSAL = ~np.tril(np.ones((128, 128), bool))


def _attention_inputs(rng: np.random.Generator, scale: float) -> Drawn:
    query, key, value = (normal(rng, 1, 4, 128, 64, scale=size) for size in (scale, scale, 1.0))
    keywords = {"input_layout": "BNSD", "scalar_value": 0.125, "attn_mask": _CAUSAL}
    return (query, key, value, 4), keywords


def _probabilities(query: Floats, key: Floats) -> Floats:
    scores = inside(_product(query, key.swapaxes(-1, -2)) * F32(0.125))
    scores = np.where(_CAUSAL, F32(-np.inf), scores)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True, dtype=F32)


def _attention(query: Floats, key: Floats, value: Floats, heads: int, **keywords: Any) -> Floats:
    return _product(_probabilities(query, key), value)


def _attention_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    """With delta = sum(dO * O) from the stored output, as flash attention has it."""
    query, key, value, _ = arguments
    p, dy = _probabilities(query, key), incoming[0]
    delta = (dy * outputs[0]).sum(-1, keepdims=True, dtype=F32)
    scores = p * (_product(dy, value.swapaxes(-1, -2)) - delta) * F32(0.125)
    return [_product(scores, key), _product(scores.swapaxes(-1, -2), query), _product(p.swapaxes(-1, -2), dy)]


def _serial_sum(x: Floats) -> Floats:
    if not is_narrow_inside():
        return np.cumsum(x.reshape(-1), dtype=F32)[-1]
    total = F32(0)
    for start in range(0, x.size, 256):
        total = inside(total + x.reshape(-1)[start : start + 256].sum(dtype=F32))
    return total


def _variance(x: Floats) -> Floats:
    mean = _serial_sum(x) / F32(x.size)
    return _serial_sum(np.square(x - mean)) / F32(x.size - 1)


def _binary(rng: np.random.Generator, scale: float) -> Drawn:
    return (normal(rng, 64, 2048, scale=scale), (rng.random((64, 2048)) < 0.3).astype(F32)), {}


def _bce(x: Floats, target: Floats) -> Floats:
    return np.mean((F32(1) - target) * x + np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, F32(0)), dtype=F32)


def _mse(x: Floats, target: Floats) -> Floats:
    return np.mean(np.square(x - target), dtype=F32)


def _mse_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    x, target = arguments
    found = (x - target) * (F32(2) / F32(x.size)) * incoming[0]
    return [found, -found]


def _softplus(x: Floats) -> Floats:
    return np.maximum(x, F32(0)) + np.log1p(np.exp(-np.abs(x)))


def _tables(rng: np.random.Generator, scale: float) -> Drawn:
    return (rng.integers(0, 200, (8, 512)), normal(rng, 500, 128, scale=scale)), {}


def _embedding_backward(arguments: list[Any], outputs: list[Any], incoming: list[Any]) -> list[Any]:
    indices, table = arguments
    found = np.zeros_like(table)
    np.add.at(found, indices.reshape(-1), incoming[0].reshape(-1, table.shape[1]))
    return [found]


def _labelled(rng: np.random.Generator, scale: float) -> Drawn:
    labels = rng.choice([-1.0, 1.0], 256).astype(F32)
    return (normal(rng, 256, 256, scale=scale), normal(rng, 256, 256, scale=scale), labels), {}


def _cosine_embedding(x: Floats, y: Floats, label: Floats) -> Floats:
    norms = np.sqrt(np.square(x).sum(-1) + F32(1e-12)) * np.sqrt(np.square(y).sum(-1) + F32(1e-12))
    cosine = (x * y).sum(-1) / norms
    return np.where(label > 0, F32(1) - cosine, np.maximum(cosine, F32(0))).mean(dtype=F32)


def _image(rng: np.random.Generator, scale: float) -> Drawn:
    weight, bias = 1 + normal(rng, 64, scale=0.1), normal(rng, 64, scale=0.1)
    return (normal(rng, 4, 64, 16, 16, scale=scale), 8, weight, bias), {}


def _group_norm(x: Floats, groups: int, weight: Floats, bias: Floats) -> Floats:
    normal = _layer_norm_parts(x.reshape(x.shape[0], groups, -1))[0].reshape(x.shape)
    return normal * weight[:, None, None] + bias[:, None, None]


KERNELS = (
    Kernel("MintFunctional.gelu", rows(64, 2048), _gelu, _gelu_backward),
    Kernel(
        "MintFunctional.gelu",
        lambda rng, scale: ((normal(rng, 64, 2048, scale=scale),), {"approximate": "tanh"}),
        _gelu_tanh,
        _gelu_tanh_backward,
    ),
    Kernel("MintFunctional.silu", rows(64, 2048), lambda x: x * _sigmoid(x), _silu_backward),
    Kernel("Mint.tanh", rows(64, 2048), np.tanh, lambda a, outputs, dy: [dy[0] * (F32(1) - outputs[0] * outputs[0])]),
    Kernel(
        "Mint.sigmoid",
        rows(64, 2048),
        _sigmoid,
        lambda a, outputs, dy: [dy[0] * outputs[0] * (F32(1) - outputs[0])],
    ),
    Kernel("MintFunctional.softplus", rows(64, 2048), _softplus, lambda a, outputs, dy: [dy[0] * _sigmoid(a[0])]),
    Kernel("MintFunctional.softmax", rows_last_axis(128, 2048), _softmax, _softmax_backward),
    Kernel("MintFunctional.log_softmax", rows_last_axis(128, 2048), _log_softmax, _log_softmax_backward),
    Kernel("MintFunctional.log_softmax", rows_last_axis(64, 1000), _log_softmax_naive, _log_softmax_backward),
    Kernel("MintFunctional.cross_entropy", _confident, _cross_entropy, _cross_entropy_backward),
    Kernel("MintFunctional.layer_norm", _normalised, _layer_norm, _layer_norm_backward),
    Kernel("Functional.rms_norm", _rms_inputs, _rms_norm, _rms_norm_backward),
    Kernel("MintFunctional.group_norm", _image, _group_norm),
    Kernel("Mint.matmul", _factors, _product, _product_backward),
    Kernel("Mint.bmm", _scores, _product, _product_backward),
    Kernel("Functional.flash_attention_score", _attention_inputs, _attention, _attention_backward),
    Kernel("Mint.sum", rows(128, 2048), _serial_sum, lambda a, o, dy: [np.broadcast_to(dy[0], a[0].shape)]),
    Kernel("Mint.mean", rows(128, 2048), lambda x: _serial_sum(x) / F32(x.size)),
    Kernel("Mint.var", rows(64, 512), _variance),
    Kernel("Mint.std", rows(64, 512), lambda x: np.sqrt(_variance(x))),
    Kernel("Mint.cumsum", rows_last_axis(64, 512), lambda x, axis: np.cumsum(x, axis, dtype=F32)),
    Kernel("Mint.norm", rows(128, 1024), lambda x: np.sqrt(_serial_sum(np.square(x)))),
    Kernel("Mint.mul", two(64, 2048), np.multiply, lambda a, o, dy: [dy[0] * a[1], dy[0] * a[0]]),
    Kernel("Mint.add", two(64, 2048), np.add, lambda a, o, dy: [dy[0], dy[0]]),
    Kernel("Mint.div", two(64, 2048), np.divide),
    Kernel("MintFunctional.mse_loss", two(64, 2048), _mse, _mse_backward),
    Kernel("MintFunctional.binary_cross_entropy_with_logits", _binary, _bce),
    Kernel("Functional.cosine_embedding_loss", _labelled, _cosine_embedding),
    Kernel("MintFunctional.embedding", _tables, lambda i, t: t[i], _embedding_backward),
    Kernel("Mint.exp", rows(64, 2048), np.exp),
    Kernel("Mint.erf", rows(64, 2048), _erf),
)
