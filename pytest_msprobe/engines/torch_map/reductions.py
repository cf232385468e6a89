"""Reductions of MindSpore that no PyTorch call has in one piece. Reached through `adapters`."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.torch_map.arguments import Axis, Number, all_axes, as_tensor, axes


def prod(x: Tensor, axis: Axis = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Product over several axes or all of them, which torch.prod cannot."""
    result = x if dtype is None else x.to(dtype)
    for dim in sorted({item % max(x.dim(), 1) for item in all_axes(axis, x)}, reverse=True):
        result = result.prod(dim, keepdim=keepdim)
    return result


def count_nonzero(x: Tensor, axis: Axis, keepdim: bool, dtype: torch.dtype | None) -> Tensor:
    """Number of elements other than 0, with kept axes and a dtype."""
    return (x != 0).sum(axes(axis), keepdim=keepdim, dtype=dtype)


def median(x: Tensor, dim: int | None = None, keepdim: bool = False) -> object:
    """Median: the value with `dim` None, else (values, indices). The lower one of an even count, as in PyTorch."""
    return torch.median(x) if dim is None else torch.median(x, dim, keepdim)


def trapz(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    """`dx` counts without `x`."""
    return torch.trapezoid(y, dx=dx, dim=dim) if x is None else torch.trapezoid(y, x, dim=dim)


def amax(x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | bool | None) -> Tensor:
    """Maximum as NumPy defines it: `where` replaces by `initial`, which also bounds the result."""
    return torch.amax(_selected(x, initial, where, is_max=True), all_axes(axis, x), keepdim)


def amin(x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | bool | None) -> Tensor:
    """Minimum, as `amax`."""
    return torch.amin(_selected(x, initial, where, is_max=False), all_axes(axis, x), keepdim)


def max_with_index(x: Tensor, axis: int | None, keepdim: bool, initial: Number | None, where: Tensor | None) -> object:
    """(values, indices); with `axis` None (maximum, 0) (mindspore/ops/function/array_func.py, max)."""
    if axis is None or x.dim() == 0:
        return torch.max(x), torch.tensor(0)
    return tuple(torch.max(_selected(x, initial, where, is_max=True), axis, keepdim))


def min_with_index(x: Tensor, axis: int | None, keepdim: bool, initial: Number | None, where: Tensor | None) -> object:
    """(values, indices) of the minimum; see `max_with_index`."""
    if axis is None or x.dim() == 0:
        return torch.min(x), torch.tensor(0)
    return tuple(torch.min(_selected(x, initial, where, is_max=False), axis, keepdim))


def numpy_max(
    x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | None, with_index: bool
) -> object:
    """Tensor.max in its NumPy form: values, or with `return_indices` (values, indices)."""
    if with_index and isinstance(axis, int):
        return max_with_index(x, axis, keepdim, initial, where)
    return amax(x, axis, keepdim, initial, where)


def numpy_min(
    x: Tensor, axis: Axis, keepdim: bool, initial: Number | None, where: Tensor | None, with_index: bool
) -> object:
    """Tensor.min in its NumPy form; see `numpy_max`."""
    if with_index and isinstance(axis, int):
        return min_with_index(x, axis, keepdim, initial, where)
    return amin(x, axis, keepdim, initial, where)


def numpy_sum(x: Tensor, axis: Axis, dtype: torch.dtype | None, keepdim: bool, initial: Number | None) -> Tensor:
    """Tensor.sum in its NumPy form: `initial` is added once."""
    result = torch.sum(x, axes(axis), keepdim, dtype=dtype)
    return result if initial is None else result + initial


def ptp(x: Tensor, axis: Axis, keepdim: bool) -> Tensor:
    """Maximum minus minimum."""
    return torch.amax(x, all_axes(axis, x), keepdim) - torch.amin(x, all_axes(axis, x), keepdim)


def _selected(x: Tensor, initial: Number | None, where: Tensor | bool | None, *, is_max: bool) -> Tensor:
    bound = as_tensor(0 if initial is None else initial).to(x.dtype)
    if where is not None:
        x = torch.where(as_tensor(where), x, bound)
    if initial is not None:
        x = torch.maximum(x, bound) if is_max else torch.minimum(x, bound)
    return x
