"""Element-wise and creating APIs of MindSpore that no PyTorch call has. Reached through `adapters`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_msprobe.engines.torch_map.arguments import Number, as_tensor, scalar, sizes


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


def approximate_equal(x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    """|x - y| < tolerance."""
    return (x - y).abs() < tolerance


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
        bounds = [None if bound is None else as_tensor(bound).to(x.device, x.dtype) for bound in (low, high)]
        return torch.clamp(x, *bounds)
    return x.clone() if low is None and high is None else torch.clamp(x, min=low, max=high)


def clip_by_norm(x: Tensor | Sequence[Tensor], max_norm: float, norm_type: float) -> object:
    """Scaled by max_norm / (norm + 1e-6) when that is below 1 (mindspore/ops/function/clip_func.py)."""
    tensors = [x] if isinstance(x, Tensor) else list(x)
    norms = torch.stack([torch.linalg.vector_norm(item, float(norm_type)) for item in tensors])
    factor = torch.clamp(max_norm / (torch.linalg.vector_norm(norms, float(norm_type)) + 1e-6), max=1.0)
    return x * factor if isinstance(x, Tensor) else [item * factor for item in tensors]


def clip_by_global_norm(x: Tensor | Sequence[Tensor], clip_norm: float) -> object:
    """Each x * clip_norm / max(global norm, clip_norm)."""
    norm = torch.sqrt(add_n([(item * item).sum() for item in x]))
    factor = clip_norm / torch.clamp(norm, min=clip_norm)
    return x * factor if isinstance(x, Tensor) else tuple(item * factor for item in x)


# Creation


def arange(start: Number, end: Number | None = None, step: Number = 1, *, dtype: torch.dtype | None = None) -> Tensor:
    """torch.arange with `start` as the end where `end` is None."""
    start, step = scalar(start), scalar(step)
    end = None if end is None else scalar(end)
    return torch.arange(0, start, step, dtype=dtype) if end is None else torch.arange(start, end, step, dtype=dtype)


def eye(n: int, m: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """torch.eye, square where `m` is None or -1."""
    return torch.eye(n, n if m is None or m == -1 else m, dtype=dtype)


def full(size: object, fill_value: Tensor | Number, dtype: torch.dtype | None = None) -> Tensor:
    """Size may be one integer or a Tensor."""
    return torch.full(sizes(size), scalar(fill_value), dtype=dtype)


def full_tensor(size: object, value: Tensor) -> Tensor:
    """A tensor filled with the Tensor `value`, in its dtype."""
    return value.expand(sizes(size))


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
