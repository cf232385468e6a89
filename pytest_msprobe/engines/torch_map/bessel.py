"""Bessel functions with their derivatives, which PyTorch lacks. Reached through `adapters`.

Derivatives: NIST Digital Library of Mathematical Functions, 10.6.3 (J0' = -J1, J1' = J0 - J1/x, the same for Y) and
10.29.3 (K0' = -K1, K1' = -K0 - K1/x); the scaled functions are exp(x) K(x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_J0, _J1 = torch.special.bessel_j0, torch.special.bessel_j1
_Y0, _Y1 = torch.special.bessel_y0, torch.special.bessel_y1
_K0, _K1 = torch.special.modified_bessel_k0, torch.special.modified_bessel_k1
_K0E, _K1E = torch.special.scaled_modified_bessel_k0, torch.special.scaled_modified_bessel_k1
_Function = Callable[[Tensor], Tensor]


def bessel_j0(x: Tensor) -> Tensor:
    """J0."""
    return _with_derivative(x, _J0, lambda at: -_J1(at))


def bessel_j1(x: Tensor) -> Tensor:
    """J1, whose derivative at 0 is 1/2."""
    return _with_derivative(x, _J1, lambda at: torch.where(at == 0, torch.full_like(at, 0.5), _J0(at) - _J1(at) / at))


def bessel_y0(x: Tensor) -> Tensor:
    """Y0."""
    return _with_derivative(x, _Y0, lambda at: -_Y1(at))


def bessel_y1(x: Tensor) -> Tensor:
    """Y1."""
    return _with_derivative(x, _Y1, lambda at: _Y0(at) - _Y1(at) / at)


def bessel_k0(x: Tensor) -> Tensor:
    """K0."""
    return _with_derivative(x, _K0, lambda at: -_K1(at))


def bessel_k1(x: Tensor) -> Tensor:
    """K1."""
    return _with_derivative(x, _K1, lambda at: -_K0(at) - _K1(at) / at)


def bessel_k0e(x: Tensor) -> Tensor:
    """exp(x) K0(x)."""
    return _with_derivative(x, _K0E, lambda at: _K0E(at) - _K1E(at))


def bessel_k1e(x: Tensor) -> Tensor:
    """exp(x) K1(x)."""
    return _with_derivative(x, _K1E, lambda at: _K1E(at) - _K0E(at) - _K1E(at) / at)


def _with_derivative(x: Tensor, function: _Function, derivative: _Function) -> Tensor:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, at: Tensor) -> Tensor:
            context.save_for_backward(at)
            return function(at)

        @staticmethod
        def backward(context: Any, *incoming: Tensor) -> Tensor:
            return incoming[0] * derivative(*context.saved_tensors)

    result: Tensor = Function.apply(x)  # type: ignore[no-untyped-call]  # torch types no apply
    return result
