"""mindspore.ops.rms_norm, add_rms_norm and add_layer_norm. Source: their pages in mindspore.ops 2.10."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.references.fused_precision import fused


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


def _normalised(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    axes = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd
