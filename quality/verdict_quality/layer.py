"""Calls of one training step at real sizes: a 7B layer with few tokens, its vocabulary, and blocks of a ResNet.

Values are like those of training and not independent: tokens are alike, some channels are far larger than others,
weights have directions that count more, and the rows of incoming gradients add up to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from quality.verdict_quality.samples import Sample, seed_of

_Rng = np.random.Generator
_Floats = np.ndarray[Any, np.dtype[np.float32]]
_Arguments = tuple[Any, ...]

#: Sizes of the layer: tokens, channels, the inner width of a quarter of its MLP (four devices share it), heads, their
#: width, and words.
TOKENS, HIDDEN, INNER, HEADS, WIDTH, WORDS = 256, 4096, 2752, 32, 128, 32000
#: Root mean square of incoming gradients.
_GRADIENT = 1e-3
#: Numbers of these calls begin here, clear of all others.
_FIRST_NUMBER = 9000
_PADDED = {"pad_mode": "pad", "padding": 1}
#: What stands for a masked score.
_MASKED = -10000.0


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of the material.

    Attributes:
        api: its name in a dump.
        part: what it is in the network; names the call together with `api`.
        draw: arguments for a generator.
        keywords: of the call.
        is_held_out: whether rules may not be tuned with it.
        is_planted: whether faults are planted into it; not into the largest ones, whose runs do not fit in memory.
        has_gradient: whether there is a backward.
    """

    api: str
    part: str
    draw: Callable[[_Rng], _Arguments]
    keywords: dict[str, Any]
    is_held_out: bool = False
    is_planted: bool = True
    has_gradient: bool = True

    def sample(self, number: int) -> Sample:
        """Its arguments in float32, from a seed of its own; `number` makes its name in the dump."""
        rng = np.random.default_rng(seed_of(self.api, self.part))
        return Sample(f"{self.api}.{_FIRST_NUMBER + number}", self.draw(rng), self.keywords, self.has_gradient)


def gradient_like(rng: _Rng, shape: tuple[int, ...]) -> _Floats:
    """An incoming gradient: few directions that all tokens share, tokens of unlike weight, rows that add up to zero."""
    if len(shape) < 2:
        return np.asarray(rng.standard_normal(shape) if shape else 1.0, np.float32)
    if len(shape) == 4 and shape[-1] == shape[-2]:
        return _of_images(rng, shape)
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    found = _alike(rng, rows, columns) * rng.lognormal(0.0, 1.0, (rows, 1))
    found -= found.mean(axis=1, keepdims=True)
    return (_GRADIENT * found / np.sqrt(np.mean(found**2))).reshape(shape).astype(np.float32)


def _of_images(rng: _Rng, shape: tuple[int, ...]) -> _Floats:
    """As a batch norm gives it back: each channel adds up to zero, and half of the places are off."""
    found = _smooth(rng, shape) + 0.5 * rng.standard_normal(shape)
    found -= found.mean(axis=(0, 2, 3), keepdims=True)
    found *= _smooth(rng, shape) > 0
    return (_GRADIENT * found).astype(np.float32)


def _alike(rng: _Rng, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """What all rows have in common, what they share in eight directions, and as much noise."""
    common = rng.standard_normal(columns)
    shared = rng.standard_normal((rows, 8)) @ rng.standard_normal((8, columns)) / np.sqrt(8.0)
    return common + shared + rng.standard_normal((rows, columns))


def _tokens(rng: _Rng, rows: int, columns: int) -> _Floats:
    """Hidden states: alike, channels of unlike size, and four that are 20 times as large."""
    channels = rng.lognormal(0.0, 0.5, columns)
    channels[rng.integers(0, columns, 4)] *= 20
    return (0.5 * _alike(rng, rows, columns) * channels).astype(np.float32)


def _weight(rng: _Rng, rows: int, columns: int) -> _Floats:
    """A trained weight: noise, and 16 directions that count more."""
    directions = rng.standard_normal((rows, 16)) @ rng.standard_normal((16, columns)) / 16
    return (0.02 * (rng.standard_normal((rows, columns)) + directions)).astype(np.float32)


def _heads(rng: _Rng, heads: int, rows: int, columns: int) -> _Floats:
    return np.stack([_alike(rng, rows, columns) for _ in range(heads)]).astype(np.float32)


def _scores(rng: _Rng, heads: int, rows: int, columns: int) -> _Floats:
    """Of a causal mask, with a first token that all look at."""
    scores = 2 * _heads(rng, heads, rows, columns)
    scores[..., 0] += 4
    scores[:, np.triu(np.ones((rows, columns), bool), 1 + columns - rows)] = _MASKED
    return scores


def _probabilities(rng: _Rng, heads: int, rows: int) -> _Floats:
    exponentials = np.exp(_scores(rng, heads, rows, rows))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True), np.float32)


def _logits(rng: _Rng, rows: int) -> _Floats:
    """Words that are frequent whatever the token, and one per token that stands out."""
    logits = 1.5 * _alike(rng, rows, WORDS)
    logits[np.arange(rows), rng.integers(0, WORDS, rows)] += 15
    return logits.astype(np.float32)


def _smooth(rng: _Rng, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Images whose neighbouring places are alike: coarse noise, four times as large."""
    images, channels, height, width = shape
    coarse = rng.standard_normal((images, channels, -(-height // 4), -(-width // 4)))
    coarse += rng.standard_normal((1, channels, 1, 1))
    return coarse.repeat(4, axis=2).repeat(4, axis=3)[:, :, :height, :width]


def _images(rng: _Rng, *shape: int) -> _Floats:
    """Activations after a ReLU."""
    return np.maximum(_smooth(rng, shape) + 0.5 * rng.standard_normal(shape), 0).astype(np.float32)


def _filters(rng: _Rng, *shape: int) -> _Floats:
    deviation = np.sqrt(2 / np.prod(shape[1:]))
    return (deviation * (rng.standard_normal(shape) + 0.5 * rng.standard_normal((shape[0], 1, 1, 1)))).astype(
        np.float32
    )


def _scale(rng: _Rng, columns: int) -> _Floats:
    return (1 + 0.2 * rng.standard_normal(columns)).astype(np.float32)


def _product(rows: int, inner: int, columns: int) -> Callable[[_Rng], _Arguments]:
    return lambda rng: (_tokens(rng, rows, inner), _weight(rng, inner, columns))


def _linear(rows: int, columns: int, outputs: int, *, has_bias: bool = False) -> Callable[[_Rng], _Arguments]:
    def draw(rng: _Rng) -> _Arguments:
        bias = (0.1 * rng.standard_normal(outputs).astype(np.float32),) if has_bias else ()
        return _tokens(rng, rows, columns), _weight(rng, outputs, columns), *bias

    return draw


def _activation(rows: int, columns: int) -> Callable[[_Rng], _Arguments]:
    return lambda rng: (_tokens(rng, rows, columns),)


def _rotary(rng: _Rng) -> _Arguments:
    angles = np.outer(np.arange(TOKENS), 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH))
    cosines = np.cos(np.concatenate([angles, angles], -1)).astype(np.float32)
    return _heads(rng, HEADS, TOKENS, WIDTH)[None], cosines[None, None]


def _embedding(words: int, width: int, tokens: int) -> Callable[[_Rng], _Arguments]:
    def draw(rng: _Rng) -> _Arguments:
        # Few words make up most of a text: their gradients are sums of many.
        ids = np.minimum(rng.zipf(1.3, tokens) - 1, words - 1)
        return ids.astype(np.int64).reshape(1, -1), _weight(rng, words, width)

    return draw


def _layer_norm(rows: int) -> Callable[[_Rng], _Arguments]:
    return lambda rng: (_tokens(rng, rows, HIDDEN), (HIDDEN,), _scale(rng, HIDDEN), _scale(rng, HIDDEN) - 1)


def _rms_norm(rows: int) -> Callable[[_Rng], _Arguments]:
    return lambda rng: (_tokens(rng, rows, HIDDEN), _scale(rng, HIDDEN))


def _convolution(images: int, channels: int, filters: int, size: int) -> Callable[[_Rng], _Arguments]:
    return lambda rng: (_images(rng, images, channels, 56, 56), _filters(rng, filters, channels, size, size))


#: Each kind of operation is in both halves; which call is held out was fixed before any was judged.
CALLS = (
    LayerCall("MintFunctional.linear", "key", _linear(TOKENS, HIDDEN, 1024), {}),
    LayerCall("MintFunctional.linear", "up", _linear(TOKENS, HIDDEN, INNER), {}, True),
    LayerCall("MintFunctional.linear", "bias", _linear(512, 1024, HIDDEN, has_bias=True), {}, True),
    LayerCall("MintFunctional.linear", "output", _linear(TOKENS, HIDDEN, HIDDEN // 2), {}, True, False),
    LayerCall("MintFunctional.linear", "words", _linear(TOKENS, HIDDEN, 4000), {}, False, False, False),
    LayerCall("Functional.dense", "down", _linear(TOKENS, INNER, HIDDEN, has_bias=True), {}),
    LayerCall("Functional.dense", "value", _linear(512, HIDDEN, 1024, has_bias=True), {}, True),
    LayerCall("Mint.matmul", "query", _product(512, HIDDEN, 1024), {}),
    LayerCall("Mint.matmul", "down", _product(TOKENS, INNER, HIDDEN), {}, True),
    LayerCall("Mint.bmm", "scores", lambda r: (_heads(r, HEADS, TOKENS, WIDTH), _heads(r, HEADS, WIDTH, TOKENS)), {}),
    LayerCall(
        "Mint.bmm", "values", lambda r: (_probabilities(r, HEADS, TOKENS), _heads(r, HEADS, TOKENS, WIDTH)), {}, True
    ),
    LayerCall("MintFunctional.softmax", "scores", lambda r: (_scores(r, HEADS, TOKENS, TOKENS), -1), {}),
    LayerCall("MintFunctional.softmax", "long", lambda r: (_scores(r, 8, TOKENS, 2048), -1), {}, True),
    LayerCall("Functional.log_softmax", "words", lambda r: (_logits(r, 128), -1), {}),
    LayerCall(
        "MintFunctional.cross_entropy", "words", lambda r: (_logits(r, 128), r.integers(0, WORDS, 128)), {}, True
    ),
    LayerCall("Functional.cross_entropy", "few", lambda r: (_logits(r, 64), r.integers(0, WORDS, 64)), {}),
    LayerCall("MintFunctional.silu", "gate", _activation(TOKENS, 11008), {}),
    LayerCall("MintFunctional.silu", "quarter", _activation(512, INNER), {}, True),
    LayerCall("MintFunctional.gelu", "quarter", _activation(512, INNER), {}),
    LayerCall("Functional.gelu", "whole", _activation(TOKENS, 11008), {}, True),
    LayerCall("Mint.mul", "gate", lambda r: (_tokens(r, TOKENS, 11008), _tokens(r, TOKENS, 11008)), {}),
    LayerCall("Mint.mul", "scale", lambda r: (_tokens(r, 512, HIDDEN), _scale(r, HIDDEN)), {}, True),
    LayerCall("Mint.mul", "rotary", _rotary, {}),
    LayerCall("Mint.add", "residual", lambda r: (_tokens(r, TOKENS, HIDDEN), _tokens(r, TOKENS, HIDDEN)), {}),
    LayerCall("Mint.add", "bias", lambda r: (_tokens(r, 512, INNER), _scale(r, INNER)), {}, True),
    LayerCall("Functional.rms_norm", "first", _rms_norm(TOKENS), {"epsilon": 1e-6}),
    LayerCall("Functional.rms_norm", "second", _rms_norm(512), {"epsilon": 1e-5}, True),
    LayerCall("MintFunctional.layer_norm", "first", _layer_norm(512), {"eps": 1e-5}),
    LayerCall("Functional.layer_norm", "second", _layer_norm(TOKENS), {"eps": 1e-6}, True),
    LayerCall("MintFunctional.embedding", "words", _embedding(WORDS, 256, 512), {}),
    LayerCall("Functional.gather", "wide", lambda r: (*_embedding(2000, 1024, 512)(r)[::-1], 0), {}, True),
    LayerCall("Mint.sum", "tokens", lambda r: (_tokens(r, 512, HIDDEN), 0), {}),
    LayerCall("Mint.sum", "all", lambda r: (_tokens(r, 512, HIDDEN),), {}, True),
    LayerCall("Mint.mean", "channels", lambda r: (_tokens(r, 512, HIDDEN), -1), {}, True),
    LayerCall("Mint.norm", "gradient", lambda r: (gradient_like(r, (1024, HIDDEN)),), {}),
    LayerCall("Functional.norm", "weight", lambda r: (_weight(r, 1024, HIDDEN),), {}, True),
    LayerCall("Functional.conv2d", "3x3", _convolution(8, 64, 64, 3), _PADDED),
    LayerCall("Functional.conv2d", "3x3 wide", _convolution(4, 64, 128, 3), _PADDED, True),
    LayerCall("Functional.conv2d", "1x1", _convolution(8, 64, 64, 1), {}),
    LayerCall("Functional.conv2d", "1x1 wide", _convolution(2, 64, 256, 1), {}, True),
    LayerCall("MintFunctional.relu", "block", lambda r: (_smooth(r, (8, 64, 56, 56)).astype(np.float32),), {}, True),
)
