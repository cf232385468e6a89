"""Element-wise and creating APIs, reductions and losses that PyTorch lacks. Reached through `adapters`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.adapters.arguments import Axis, Number, T, all_axes, as_tensor, axes, long, scalar, sizes


def add_n(x: Tensor | Sequence[Tensor]) -> Tensor:
    """Sum of a list."""
    total, *rest = x
    for item in rest:
        total = total + item
    return total


def addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Tensor | Number) -> Tensor:
    """`value` may be a Tensor."""
    return x + value * (tensor1 / tensor2)


def addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, value: Tensor | Number) -> Tensor:
    """`value` may be a Tensor."""
    return x + value * (tensor1 * tensor2)


def assign(variable: Tensor, value: Tensor | Number) -> Tensor:
    """The variable after the assignment. MindSpore passes its gradient to the variable alone (seen on CPU)."""
    result = variable.clone()
    result.data.copy_(as_tensor(value))
    return result


def sgn(x: Tensor) -> Tensor:
    """Sign, or x / |x| of complex numbers. torch.sgn gives real numbers a gradient that has no memory."""
    return torch.sgn(x) if x.is_complex() else torch.sign(x)


def vander(x: Tensor, columns: int | None) -> Tensor:
    """Powers of `x`, falling from columns - 1 to 0."""
    count = x.shape[0] if columns is None else columns
    return x.unsqueeze(-1) ** torch.arange(count - 1, -1, -1, device=x.device)


def xdivy(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Quotient, and 0 where x is 0."""
    x, y = as_tensor(x), as_tensor(y)
    return torch.where(x == 0, torch.zeros_like(x), x / torch.where(x == 0, torch.ones_like(y), y))


def div_no_nan(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Quotient, and 0 where y is 0."""
    x, y = as_tensor(x), as_tensor(y)
    return torch.where(y == 0, torch.zeros_like(y), x / torch.where(y == 0, torch.ones_like(y), y))


def mul_no_nan(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Product, and 0 where y is 0 even if x is not finite."""
    x, y = as_tensor(x), as_tensor(y)
    return torch.where(y == 0, torch.zeros_like(y), torch.where(y == 0, torch.zeros_like(x), x) * y)


def masked_fill(x: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """`x` and `mask` broadcast against each other; PyTorch's masked_fill keeps the shape of `x`."""
    return torch.where(mask.bool(), as_tensor(value).to(x.dtype), x)


def clip(x: Tensor | Sequence[Tensor], low: Tensor | Number | None, high: Tensor | Number | None) -> object:
    """Bounds may be a number on one side and a Tensor on the other; `x` may be a list."""
    if not isinstance(x, Tensor):
        return tuple(clip(item, low, high) for item in x)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        least = None if low is None else as_tensor(low).to(x.device, x.dtype)
        largest = None if high is None else as_tensor(high).to(x.device, x.dtype)
        return torch.clamp(x, least, largest)
    return x.clone() if low is None and high is None else torch.clamp(x, min=low, max=high)


def clip_by_norm(x: Tensor | Sequence[Tensor], max_norm: float, norm_type: float) -> object:
    """Scaled by max_norm / (norm + 1e-6) when that is below 1 (mindspore/ops/function/clip_func.py)."""
    tensors = [x] if isinstance(x, Tensor) else list(x)
    norms = torch.stack([torch.linalg.vector_norm(item, float(norm_type)) for item in tensors])
    factor = torch.clamp(max_norm / (torch.linalg.vector_norm(norms, float(norm_type)) + 1e-6), max=1.0)
    scaled = [item * factor for item in tensors]
    return scaled[0] if isinstance(x, Tensor) else scaled


def clip_by_global_norm(x: Tensor | Sequence[Tensor], clip_norm: float) -> object:
    """Each x * clip_norm / max(global norm, clip_norm)."""
    norm = torch.sqrt(add_n([(item * item).sum() for item in x]))
    factor = clip_norm / torch.clamp(norm, min=clip_norm)
    if isinstance(x, Tensor):
        return x * factor
    return tuple(item * factor for item in x)


# Creation


def arange(start: Number, end: Number | None = None, step: Number = 1, *, dtype: torch.dtype | None = None) -> Tensor:
    """torch.arange with `start` as the end where `end` is None."""
    if end is None:
        start, end = 0, start
    return torch.arange(scalar(start), scalar(end), scalar(step), dtype=dtype)


def eye(n: int, m: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """torch.eye, square where `m` is None or -1."""
    return torch.eye(n, n if m is None or m == -1 else m, dtype=dtype)


def full(size: object, fill_value: Tensor | Number, dtype: torch.dtype | None = None) -> Tensor:
    """Size may be one integer or a Tensor."""
    return torch.full(sizes(size), scalar(fill_value), dtype=dtype)


def linspace(start: Tensor | Number, end: Tensor | Number, steps: Tensor | int) -> Tensor:
    """Computed in float64, as the benchmark is."""
    return torch.linspace(float(start), float(end), int(steps), dtype=torch.float64)


def one_hot(indices: Tensor, depth: int, on_value: Tensor | Number, off_value: Tensor | Number, axis: int) -> Tensor:
    """An index outside of 0..depth-1 gives off values alone. The dtype is that of the values."""
    classes = torch.arange(int(scalar(depth)), device=indices.device)
    hot = (indices.unsqueeze(-1) == classes).movedim(-1, axis)
    return torch.where(hot, as_tensor(on_value).detach(), as_tensor(off_value).detach())


def sequence_mask(lengths: Tensor, maxlen: int | None) -> Tensor:
    """True before each length."""
    longest = int(lengths.max()) if maxlen is None else maxlen
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


def population_count(x: Tensor) -> Tensor:
    """Number of ones among the 16 bits, as uint8."""
    bits = [torch.bitwise_and(torch.bitwise_right_shift(x.to(torch.int32), bit), 1) for bit in range(16)]
    return torch.stack(bits).sum(0).to(torch.uint8)


def scalar_cast(value: Number, dtype: torch.dtype) -> Number | bool:
    """A Python number of the kind of `dtype`."""
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


# Bessel functions with their derivatives, which PyTorch lacks

_J0, _J1 = torch.special.bessel_j0, torch.special.bessel_j1
_Y0, _Y1 = torch.special.bessel_y0, torch.special.bessel_y1
_K0, _K1 = torch.special.modified_bessel_k0, torch.special.modified_bessel_k1
_K0E, _K1E = torch.special.scaled_modified_bessel_k0, torch.special.scaled_modified_bessel_k1
_Function = Callable[[Tensor], Tensor]

#: Each function and its derivative: NIST Digital Library of Mathematical Functions, 10.6.3 (J0' =
#: -J1, J1' = J0 - J1/x, the same for Y) and 10.29.3 (K0' = -K1, K1' = -K0 - K1/x); the scaled
#: functions are exp(x) K(x).
_BESSEL: dict[str, tuple[_Function, _Function]] = {
    "j0": (_J0, lambda at: -_J1(at)),
    "j1": (_J1, lambda at: torch.where(at == 0, torch.full_like(at, 0.5), _J0(at) - _J1(at) / at)),
    "y0": (_Y0, lambda at: -_Y1(at)),
    "y1": (_Y1, lambda at: _Y0(at) - _Y1(at) / at),
    "k0": (_K0, lambda at: -_K1(at)),
    "k1": (_K1, lambda at: -_K0(at) - _K1(at) / at),
    "k0e": (_K0E, lambda at: _K0E(at) - _K1E(at)),
    "k1e": (_K1E, lambda at: _K1E(at) - _K0E(at) - _K1E(at) / at),
}


def bessel(name: str, x: Tensor) -> Tensor:
    """The Bessel function `name`: J0, J1, Y0, Y1, K0, K1, and exp(x) times K0 or K1 (`k0e`, `k1e`)."""
    function, derivative = _BESSEL[name]

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


# Reductions


def prod(x: Tensor, axis: Axis = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Product over several axes or all of them, which torch.prod cannot."""
    result = x if dtype is None else x.to(dtype)
    for dim in sorted({item % max(x.dim(), 1) for item in all_axes(axis, x)}, reverse=True):
        result = result.prod(dim, keepdim=keepdim)
    return result


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> object:
    """Median: the value with `dim` None, else (values, indices). The lower one of an even count, as in PyTorch."""
    return torch.median(x) if dim is None else torch.median(x, dim, keepdim)


def trapz(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    """`dx` counts without `x`."""
    return torch.trapezoid(y, dx=dx, dim=dim) if x is None else torch.trapezoid(y, x, dim=dim)


def extreme(
    x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | bool | None, how: str
) -> Tensor:
    """The `max` or `min` as NumPy defines it: `where` replaces by `initial`, which also bounds the result."""
    extremes: Tensor = getattr(torch, f"a{how}")(_selected(x, initial, where, how), all_axes(axis, x), keepdim)
    return extremes


def extreme_with_index(
    x: Tensor, axis: int | None, keepdim: bool, initial: Number | None, where: Tensor | None, how: str
) -> tuple[Tensor, Tensor]:
    """(values, indices) of `max` or `min`; with `axis` None (value, 0) (mindspore/ops/function/array_func.py, max)."""
    reduce = getattr(torch, how)
    if axis is None or x.dim() == 0:
        return reduce(x), torch.tensor(0)
    values, indices = reduce(_selected(x, initial, where, how), axis, keepdim)
    return values, indices


def numpy_extreme(
    x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | None, with_index: bool, how: str
) -> object:
    """Tensor.max or .min in its NumPy form: values, or with `return_indices` (values, indices)."""
    if with_index and isinstance(axis, int):
        return extreme_with_index(x, axis, keepdim, initial, where, how)
    return extreme(x, axis, keepdim, initial, where, how)


def numpy_sum(x: Tensor, axis: Axis, dtype: torch.dtype | None, keepdim: bool, initial: Number | None) -> Tensor:
    """Tensor.sum in its NumPy form: `initial` is added once."""
    result = torch.sum(x, axes(axis), keepdim, dtype=dtype)
    return result if initial is None else result + initial


def _selected(x: Tensor, initial: Number | None, where: Tensor | bool | None, how: str) -> Tensor:
    bound = as_tensor(initial or 0).to(x.dtype)
    if where is not None:
        x = torch.where(as_tensor(where), x, bound)
    if initial is not None:
        x = getattr(torch, f"{how}imum")(x, bound)
    return x


# Losses, with the gradients that MindSpore defines


def kl_div(x: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    """PyTorch warns about the reduction `mean`, which is the mean over all elements in both."""
    if reduction == "mean":
        return functional.kl_div(x, target, reduction="none", log_target=log_target).mean()
    return functional.kl_div(x, target, reduction=reduction, log_target=log_target)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """The weight too has a gradient in MindSpore, and label smoothing is only in PyTorch's cross_entropy."""
    if not label_smoothing and (weight is None or not weight.requires_grad):
        return functional.nll_loss(x, long(target), weight, ignore_index=ignore_index, reduction=reduction)
    return _smoothed(x, long(target), weight, ignore_index, reduction, label_smoothing)


def cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """Targets are classes or probabilities, as in PyTorch; the weight too has a gradient in MindSpore."""
    if weight is not None and weight.requires_grad and not target.is_floating_point():
        logarithms = functional.log_softmax(x, min(x.dim() - 1, 1))
        return _smoothed(logarithms, long(target), weight, ignore_index, reduction, label_smoothing)
    return functional.cross_entropy(
        x, long(target), weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def _smoothed(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """The formulas of torch.nn.CrossEntropyLoss on log-probabilities; the mean is over the weights of the targets."""
    channel = min(x.dim() - 1, 1)
    classes = torch.ones(x.shape[channel], dtype=x.dtype, device=x.device) if weight is None else weight
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    share = classes[index] * is_counted
    loss = -x.gather(channel, index.unsqueeze(channel)).squeeze(channel) * share
    if label_smoothing:
        spread = -(x * classes.reshape(-1, *[1] * (x.dim() - 1 - channel))).sum(channel) * is_counted
        loss = (1 - label_smoothing) * loss + label_smoothing / x.shape[channel] * spread
    if reduction == "none":
        return loss
    return loss.sum() / share.sum() if reduction == "mean" else loss.sum()


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(loss per row, its gradient with respect to the logits).

    MindSpore passes no gradient through the second output, nor to the labels (seen on CPU).
    """
    gradient = functional.softmax(logits, -1) - labels
    return -(labels.detach() * functional.log_softmax(logits, -1)).sum(-1), gradient.detach()


def detached(value: T) -> T | Tensor:
    """An argument that MindSpore gives no gradient, or a zero one."""
    return value.detach() if isinstance(value, Tensor) else value
