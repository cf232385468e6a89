"""Calls in the sizes of a language model: OpInfo's shapes hold a few elements, and flatter every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quality.verdict_quality.samples import Sample, seed_of

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
#: Numbers of these calls begin here, clear of those of OpInfo's samples.
_FIRST_NUMBER = 1000


def large_samples(is_wanted: Callable[[str], bool], *, material: int = 0) -> Iterator[Sample]:
    """One call for each wanted entry of `_MAKERS` (asked as `Mint.bmm.1001`), from fixed seeds."""
    for index, api in enumerate(_MAKERS):
        name = f"{api.partition(' ')[0]}.{_FIRST_NUMBER + index}"
        if is_wanted(name):
            arguments, keywords = _MAKERS[api](np.random.default_rng(seed_of(name, material=material)))
            yield Sample(name, arguments, keywords, has_gradient=True)


def is_large(name: str) -> bool:
    """Whether an API call (`Mint.bmm.1001`), or a record of one, is one of these."""
    return int(name.removesuffix(".forward").removesuffix(".backward").rpartition(".")[2]) >= _FIRST_NUMBER


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def _matmul(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 512, 1024), _normal(rng, 1024, 1024, scale=0.03)), {}


def _bmm(rng: np.random.Generator) -> _Arguments:
    """Scores of attention: 8 heads, 256 positions, 128 wide."""
    return (_normal(rng, 8, 256, 128), _normal(rng, 8, 128, 256)), {}


def _attention_values(rng: np.random.Generator) -> _Arguments:
    scores = np.exp(_normal(rng, 8, 256, 256, scale=2.0))
    return ((scores / scores.sum(-1, keepdims=True)).astype(np.float32), _normal(rng, 8, 256, 128)), {}


def _linear(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 64, 4096), _normal(rng, 512, 4096, scale=0.02), _normal(rng, 512, scale=0.1)), {}


def _long_matmul(rng: np.random.Generator) -> _Arguments:
    """All of one sign, 8192 terms: nothing cancels, and a narrow accumulator swamps."""
    return (np.abs(_normal(rng, 32, 8192)), np.abs(_normal(rng, 8192, 64))), {}


def _softmax(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 32, 4096, scale=3.0), -1), {}


def _vocabulary_softmax(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 8, 32000, scale=4.0), -1), {}


def _masked_softmax(rng: np.random.Generator) -> _Arguments:
    """Scores under a causal mask of -10000, as attention without a fused kernel has them."""
    scores = _normal(rng, 8, 256, 256)
    scores[:, np.triu(np.ones((256, 256), bool), 1)] = -10000.0
    return (scores, -1), {}


def _layer_norm(rng: np.random.Generator) -> _Arguments:
    weight, bias = 1 + _normal(rng, 4096, scale=0.1), _normal(rng, 4096, scale=0.1)
    return (_normal(rng, 64, 4096), (4096,), weight, bias), {"eps": 1e-5}


def _rms_norm(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 64, 4096), 1 + _normal(rng, 4096, scale=0.1)), {"epsilon": 1e-6}


def _small_rms_norm(rng: np.random.Generator) -> _Arguments:
    """Activations so small that epsilon counts."""
    return (_normal(rng, 64, 1024, scale=1e-2), 1 + _normal(rng, 1024, scale=0.1)), {"epsilon": 1e-5}


def _embedding(rng: np.random.Generator) -> _Arguments:
    return (rng.integers(0, 4000, (4, 256)), _normal(rng, 4000, 256)), {}


def _cross_entropy(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 32, 32000, scale=2.0), rng.integers(0, 32000, 32)), {}


def _million(rng: np.random.Generator) -> _Arguments:
    return (1 + _normal(rng, 1_000_000),), {}


def _cumsum(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 16, 8192), -1), {}


def _norm(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 1024, 1024, scale=0.05),), {}


def _activation(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 64, 4096, scale=2.0),), {}


def _square_bias(rng: np.random.Generator) -> _Arguments:
    """A bias as long as the rows are many: on the wrong axis it broadcasts just as well."""
    return (_normal(rng, 512, 512), _normal(rng, 512)), {}


def _clip_coefficient(rng: np.random.Generator) -> _Arguments:
    """Gradients of scale 1e-4: an absolute limit of 1e-4 sees nothing here."""
    return (_normal(rng, 512, 512, scale=1e-4), _normal(rng, 512, 512)), {}


def _convolution(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 2, 64, 28, 28), _normal(rng, 64, 64, 3, 3, scale=0.05), _normal(rng, 64)), {"padding": 1}


def _top(rng: np.random.Generator) -> _Arguments:
    return (_normal(rng, 32, 4096), 8), {}


#: API, and after a blank what tells calls of one API apart.
_MAKERS = {
    "Mint.matmul": _matmul,
    "Mint.bmm scores": _bmm,
    "Mint.bmm values": _attention_values,
    "MintFunctional.linear": _linear,
    "Mint.matmul long": _long_matmul,
    "MintFunctional.softmax": _softmax,
    "MintFunctional.softmax vocabulary": _vocabulary_softmax,
    "MintFunctional.softmax masked": _masked_softmax,
    "MintFunctional.log_softmax": _vocabulary_softmax,
    "MintFunctional.layer_norm": _layer_norm,
    "Functional.rms_norm": _rms_norm,
    "Functional.rms_norm small": _small_rms_norm,
    "MintFunctional.embedding": _embedding,
    "MintFunctional.cross_entropy": _cross_entropy,
    "Mint.sum": _million,
    "Mint.mean": _million,
    "Mint.cumsum": _cumsum,
    "Mint.norm": _norm,
    "MintFunctional.gelu": _activation,
    "MintFunctional.silu": _activation,
    "Mint.add": _square_bias,
    "Mint.mul": _clip_coefficient,
    "MintFunctional.conv2d": _convolution,
    "Mint.topk": _top,
}
