"""Single arguments of MindSpore in the form that PyTorch takes. Reached through `adapters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from msprobe_collector.dump_format import find_dtype

Number = int | float
Axis = int | Sequence[int] | Tensor | None
T = TypeVar("T")


def axes(axis: Axis) -> int | tuple[int, ...] | None:
    """MindSpore's `()`, `[]` and None mean all axes; a Tensor of axes becomes integers."""
    if isinstance(axis, Tensor):
        return axes(axis.tolist())
    if axis is None or isinstance(axis, int):
        return axis
    return tuple(map(int, axis)) or None


def all_axes(axis: Axis, x: Tensor) -> tuple[int, ...]:
    """Axes like those of `axes`, spelled out where PyTorch does not take None."""
    chosen = axes(axis)
    if chosen is None:
        return tuple(range(x.dim()))
    return (chosen,) if isinstance(chosen, int) else chosen


def permutation(x: Tensor, *order: object) -> tuple[int, ...]:
    """A permutation of axes; none given reverses them."""
    if not order or order == (None,) or order == ((),):
        return tuple(reversed(range(x.dim())))
    return sizes(*order)


def softmax_axis(x: Tensor, dim: int | None) -> int:
    """The axis that both frameworks take when none is given."""
    if dim is not None:
        return dim
    return 0 if x.dim() in (0, 1, 3) else 1


def cross_axis(x: Tensor, other: Tensor, dim: int | None) -> int:
    """The first axis of length 3 when none is given."""
    if dim is not None and dim != -65530:
        return dim
    return list((x + other).shape).index(3)


def sizes(*shape: object) -> tuple[int, ...]:
    """A shape given as integers, one integer, a tuple or list, or an integer Tensor."""
    if len(shape) == 1 and isinstance(shape[0], Tensor):
        shape = tuple(shape[0].reshape(-1).tolist())
    elif len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = tuple(shape[0])
    return tuple(map(int, shape))  # type: ignore[arg-type]  # an int or a 0-d Tensor


def shape(x: Tensor) -> tuple[int, ...]:
    """The shape as a plain tuple."""
    return tuple(x.shape)


def scalar(value: Tensor | Number | bool) -> Number | bool:
    """The Python number in a one-element Tensor."""
    return value.item() if isinstance(value, Tensor) else value


def default(value: T | None, instead: T) -> T:
    """`instead` for None."""
    return instead if value is None else value


def long(index: Tensor) -> Tensor:
    """Indices as int64, which PyTorch wants where MindSpore also takes int32; other dtypes stay."""
    is_index = not index.is_floating_point() and index.dtype not in (torch.bool, torch.int64)
    return index.long() if is_index else index


def as_tensor(value: Tensor | Number | bool) -> Tensor:
    """A number as a 0-d tensor that takes part in promotion like the number itself, without loss of digits."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def vector(values: Tensor | Sequence[Number]) -> Tensor:
    """A list of numbers as a tensor."""
    return values if isinstance(values, Tensor) else torch.tensor(list(values), dtype=torch.float64)


def repeats(value: int | Sequence[int] | Tensor) -> int | Tensor:
    """Repeat counts: PyTorch takes no tuple or list."""
    return value if isinstance(value, (int, Tensor)) else torch.tensor(list(value))


def zero_as_none(value: int | None) -> int | None:
    """`divisor_override=0` of MindSpore pooling means none."""
    return value or None


def to_dtype(x: Tensor, dtype: torch.dtype | str | None) -> Tensor:
    """A cast; the dtype may be given by name."""
    target = _named_dtype(dtype) if isinstance(dtype, str) else dtype
    return x.clone() if target is None else x.to(target)


def _named_dtype(name: str) -> torch.dtype:
    dtype = find_dtype(name)
    if dtype is None or dtype.array_name is None:
        raise TypeError(f"PyTorch has no dtype {name}")
    torch_dtype: torch.dtype = getattr(torch, dtype.array_name)
    return torch_dtype
