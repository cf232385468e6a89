"""Probability laws of one number, as far as testing a sample needs them: a distribution function in standard units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

#: A parameter: one for all elements, or an array that broadcasts to their shape.
Parameter = Any

_NORMAL = NormalDist()
#: TruncatedNormal draws within two standard deviations (mindspore.ops.TruncatedNormal).
_TRUNCATED_AT = 2.0
_TRUNCATED_MASS = 2 * _NORMAL.cdf(_TRUNCATED_AT) - 1


@dataclass(frozen=True, slots=True)
class Law:
    """The law of an element: `location + scale * z`, where z has the distribution function `cdf` on [low, high].

    Attributes:
        text: for people: `normal(0, 1)`.
        quantile: inverse of `cdf` on (0, 1), only used to choose where to look; None for a discrete law.
        is_discrete: z is an integer.
        is_logarithmic: the law is that of the element's logarithm.
    """

    text: str
    cdf: Callable[[float], float]
    quantile: Callable[[float], float] | None
    low: float = -math.inf
    high: float = math.inf
    location: Parameter = 0.0
    scale: Parameter = 1.0
    is_discrete: bool = False
    is_logarithmic: bool = False


def uniform(low: Parameter, high: Parameter) -> Law:
    """Uniform between `low` and `high`."""
    scale = np.asarray(high, np.float64) - np.asarray(low, np.float64)
    return Law(f"uniform({_shown(low)}, {_shown(high)})", _clipped, _same, 0.0, 1.0, low, scale)


def normal(mean: Parameter, deviation: Parameter) -> Law:
    """Normal with mean and standard deviation."""
    text = f"normal({_shown(mean)}, {_shown(deviation)})"
    return Law(text, _NORMAL.cdf, _NORMAL.inv_cdf, location=mean, scale=deviation)


def truncated_normal() -> Law:
    """Standard normal, within two standard deviations."""

    def cdf(z: float) -> float:
        return _clipped((_NORMAL.cdf(z) - _NORMAL.cdf(-_TRUNCATED_AT)) / _TRUNCATED_MASS)

    def quantile(p: float) -> float:
        return _NORMAL.inv_cdf(_NORMAL.cdf(-_TRUNCATED_AT) + p * _TRUNCATED_MASS)

    return Law("truncated normal(0, 1)", cdf, quantile, -_TRUNCATED_AT, _TRUNCATED_AT)


def log_normal(mean: Parameter, deviation: Parameter) -> Law:
    """Log-normal: the logarithm is normal, with this mean and deviation."""
    text = f"log-normal({_shown(mean)}, {_shown(deviation)})"
    return Law(text, _NORMAL.cdf, _NORMAL.inv_cdf, location=mean, scale=deviation, is_logarithmic=True)


def exponential(rate: Parameter) -> Law:
    """Exponential with mean 1/rate."""
    scale = 1 / np.asarray(rate, np.float64)
    return Law(
        f"exponential({_shown(rate)})",
        lambda z: -math.expm1(-max(z, 0.0)),
        lambda p: -math.log1p(-p),
        low=0.0,
        scale=scale,
    )


def laplace(mean: Parameter, scale: Parameter) -> Law:
    """Laplace (double exponential) with variance 2 scale^2."""

    def cdf(z: float) -> float:
        return 0.5 * math.exp(z) if z < 0 else 1 - 0.5 * math.exp(-z)

    def quantile(p: float) -> float:
        return math.log(2 * p) if p < 0.5 else -math.log(2 * (1 - p))

    return Law(f"Laplace({_shown(mean)}, {_shown(scale)})", cdf, quantile, location=mean, scale=scale)


def cauchy(median: Parameter, half_width: Parameter) -> Law:
    """Cauchy with median and half width at half maximum."""
    return Law(
        f"Cauchy({_shown(median)}, {_shown(half_width)})",
        lambda z: 0.5 + math.atan(z) / math.pi,
        lambda p: math.tan(math.pi * (p - 0.5)),
        location=median,
        scale=half_width,
    )


def integers(low: int, high: int) -> Law:
    """Each integer from `low` to `high - 1` alike."""
    count = high - low
    return Law(
        f"integers({low}, {high})",
        lambda z: _clipped((math.floor(z) - low + 1) / count),
        None,
        low,
        high - 1,
        is_discrete=True,
    )


def geometric(probability: float) -> Law:
    """Trials until the first success, 1 and up (torch.Tensor.geometric_)."""
    return Law(
        f"geometric({_shown(probability)})",
        lambda z: 1 - (1 - probability) ** max(math.floor(z), 0),
        None,
        1,
        is_discrete=True,
    )


def poisson(mean: float) -> Law:
    """Poisson; its distribution function is a sum over all integers below."""

    def cdf(z: float) -> float:
        if z < 0 or mean == 0:
            return float(z >= 0)
        terms = (math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(math.floor(z) + 1))
        return _clipped(math.fsum(terms))

    return Law(f"Poisson({_shown(mean)})", cdf, None, 0, is_discrete=True)


def _clipped(probability: float) -> float:
    return min(max(probability, 0.0), 1.0)


def _same(probability: float) -> float:
    return probability


def _shown(parameter: Parameter) -> str:
    array: npt.NDArray[Any] = np.asarray(parameter)
    return f"{float(array.reshape(-1)[0]):g}" if array.size == 1 else "one per element"
