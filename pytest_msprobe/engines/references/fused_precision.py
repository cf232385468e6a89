"""What a fused kernel computes in: float32 inside, one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])
_HALVES = (torch.float16, torch.bfloat16)


def fused(*, float32_outputs: tuple[int, ...] = ()) -> Callable[[_Function], _Function]:
    """A decorator: tensors of half precision are raised to float32 on the way in, outputs are rounded on the way out.

    Float outputs get the dtype of the first float tensor. Those numbered in `float32_outputs`, statistics that the
    kernels return in float32, stay as they are. Float64 and float32 pass unchanged: the benchmark is not touched.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            first = _first_float((args, kwargs))
            returned = function(*_raised(args), **_raised(kwargs))
            if first is None or first.dtype not in _HALVES:
                return returned
            is_tuple = isinstance(returned, tuple)
            rounded = list(returned) if is_tuple else [returned]
            for index, value in enumerate(rounded):
                if index not in float32_outputs and isinstance(value, Tensor) and value.is_floating_point():
                    rounded[index] = value.to(first.dtype)
            return tuple(rounded) if is_tuple else rounded[0]

        return call  # type: ignore[return-value]  # wraps keeps the signature

    return decorate


def _first_float(value: Any) -> Tensor | None:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, (tuple, list)):
        return None
    return next((tensor for tensor in map(_first_float, value) if tensor is not None), None)


def _raised(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALVES else value
    if isinstance(value, (tuple, list)):
        return tuple(_raised(item) for item in value)
    if isinstance(value, dict):
        return {key: _raised(item) for key, item in value.items()}
    return value
