"""Kernels of PyTorch as the arithmetic that a device does for them, for `torch_arithmetic`.

Most formulas are PyTorch's own decompositions, without the wrappers that promote dtypes: what is decomposed here is
float64 already, and promotion imports SymPy and PyTorch's compiler, 800 modules. The few that import these themselves
are written below.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

#: Kernels that are decomposed: those that cancel or saturate inside. All others are one arithmetic operation, or
#: move and select values only.
_DECOMPOSED = """
    _log_softmax_backward_data _softmax_backward_data gelu gelu_backward silu silu_backward softplus
    softplus_backward mish mish_backward elu elu_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_functional binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits mse_loss mse_loss_backward smooth_l1_loss
    smooth_l1_loss_backward huber_loss huber_loss_backward log_sigmoid_forward log_sigmoid_backward
    tanh_backward sigmoid_backward soft_margin_loss soft_margin_loss_backward nll_loss_backward hardswish
    hardswish_backward hardsigmoid hardsigmoid_backward var std std_mean var_mean
    logsumexp addmm addmv addr addcmul addcdiv logit logit_backward glu glu_backward lerp _fused_rms_norm
    _fused_rms_norm_backward grid_sampler_2d celu
""".split()

Axes = list[int] | int | None


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of each overload that has one; it may raise for arguments that it cannot take."""
    from torch._decomp import decomposition_table

    found = {}
    for name in _DECOMPOSED:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            function = getattr(packet, overload)
            if function in decomposition_table:
                found[function] = inspect.unwrap(decomposition_table[function])
    aten = torch.ops.aten
    return found | {
        aten._softmax.default: _softmax,
        aten._log_softmax.default: _log_softmax,
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten.native_group_norm.default: _group_norm,
        aten.native_group_norm_backward.default: _group_norm_backward,
        aten.nll_loss_forward.default: _nll_loss,
        aten.linspace.default: _linspace,
        aten.linspace.Tensor_Tensor: _linspace,
        aten.linspace.Tensor_Scalar: _linspace,
        aten.linspace.Scalar_Tensor: _linspace,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.var.correction: _var,
        aten.std.correction: lambda x, *axes, **options: _var(x, *axes, **options).sqrt(),
        aten.var_mean.correction: _var_mean,
    }


def _softmax(x: Tensor, axis: int, _to_float: bool) -> Tensor:
    powers = (x - x.amax(axis, keepdim=True)).exp()
    return powers / powers.sum(axis, keepdim=True)


def _log_softmax(x: Tensor, axis: int, _to_float: bool) -> Tensor:
    shifted = x - x.amax(axis, keepdim=True)
    return shifted - shifted.exp().sum(axis, keepdim=True).log()


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    if list(shape) != list(x.shape[x.dim() - len(shape) :]):
        raise NotImplementedError("the kernel says what is wrong with the shape")
    result, mean, factor = _normalized(x, list(range(x.dim() - len(shape), x.dim())), epsilon)
    return _scaled(result, weight, bias), mean, factor


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    _samples: int,
    channels: int,
    _area: int,
    groups: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    result, mean, factor = _normalized(x.reshape(x.shape[0], groups, -1), [2], epsilon)
    per_channel = [channels] + [1] * (x.dim() - 2)
    parts = [None if part is None else part.reshape(per_channel) for part in (weight, bias)]
    return _scaled(result.reshape(x.shape), *parts), mean.squeeze(2), factor.squeeze(2)


def _normalized(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    variance, mean = _var_mean(x, axes, correction=0, keepdim=True)
    factor = (variance + epsilon).rsqrt()
    return (x - mean) * factor, mean, factor


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


def _layer_norm_backward(
    incoming: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    factor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    samples = list(range(x.dim() - len(shape)))
    normalized = (x - mean) * factor
    inner = incoming if weight is None else incoming * weight
    found = (
        _through_normalization(inner, normalized, factor, list(range(len(samples), x.dim()))),
        _summed(incoming * normalized, samples),
        _summed(incoming, samples),
    )
    return _only(found, wanted)


def _group_norm_backward(
    incoming: Tensor,
    x: Tensor,
    mean: Tensor,
    factor: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    _area: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    grouped, per_channel = (samples, groups, -1), (samples, channels, -1)
    factor = factor.reshape(samples, groups, 1)
    normalized = (x.reshape(grouped) - mean.reshape(samples, groups, 1)) * factor
    incoming = incoming.reshape(per_channel)
    inner = incoming if weight is None else incoming * weight.reshape(1, channels, 1)
    found = (
        _through_normalization(inner.reshape(grouped), normalized, factor, [2]).reshape(x.shape),
        (incoming * normalized.reshape(per_channel)).sum([0, 2]),
        incoming.sum([0, 2]),
    )
    return _only(found, wanted)


def _through_normalization(inner: Tensor, normalized: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    """The gradient of what was normalised along `axes`, from the one of the result."""
    count = max(1, math.prod(inner.shape[axis] for axis in axes))
    along = normalized * (inner * normalized).sum(axes, keepdim=True)
    return (inner * count - inner.sum(axes, keepdim=True) - along) * (factor / count)


def _only(found: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    return tuple(value if is_wanted else None for value, is_wanted in zip(found, wanted))


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x.clone()  # sum over no axis means all


def _var(x: Tensor, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, axes, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: Tensor, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if axes is None or (not isinstance(axes, int) and not axes):
        axes = list(range(x.dim()))
    mean = x.mean(axes, keepdim=True)
    terms = math.prod(x.shape) // max(1, mean.numel()) - (1 if correction is None else correction)
    variance = (x - mean).square().sum(axes, keepdim=keepdim) / max(0, terms)
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    is_counted = target != ignored
    chosen = torch.where(is_counted, target, 0)
    weights = torch.ones_like(chosen, dtype=x.dtype) if weight is None else weight[chosen]
    weights = torch.where(is_counted, weights, 0.0)
    terms = -x.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) * weights
    terms = torch.where(is_counted, terms, 0.0)
    if reduction == 0:
        return terms, x.new_zeros(())
    total = weights.sum()
    return (terms.sum() / total if reduction == 1 else terms.sum()), total


def _linspace(start: float | Tensor, end: float | Tensor, steps: int, **options: Any) -> Tensor:
    """Counted from the nearer end, as kernels do: in between, where the numbers are small, both terms cancel."""
    first, last = float(start), float(end)
    step = (last - first) / max(1, steps - 1)
    places = torch.arange(steps, **options)
    return torch.where(2 * places < steps, first + step * places, last - step * (steps - 1 - places))


def _vector_norm(x: Tensor, order: float = 2, axes: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if order != 2 or dtype is not None or x.is_complex():
        raise NotImplementedError(f"the norm of order {order}")
    return x.square().sum(axes, keepdim=keepdim).sqrt()
