"""What an entry of the catalogue of kernels is, and how its inputs are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: The three dtypes that every kernel is run in, unless its entry names others.
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Shape = tuple[int, ...]


class Draw:
    """Draws the inputs of one run, all from one seed."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        """Tensors of floats get `dtype`."""
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, grad: bool = True, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        """Normal numbers, rounded to the dtype; `grad` says whether their gradient is judged."""
        drawn = torch.randn(shape, generator=self._generator) * scale + shift
        return drawn.to(self.dtype).requires_grad_(grad)

    def positive(self, *shape: int, grad: bool = False) -> Tensor:
        """Magnitudes of normal numbers."""
        return torch.randn(shape, generator=self._generator).abs().to(self.dtype).requires_grad_(grad)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to `high` - 1."""
        return torch.randint(0, max(1, high), shape, generator=self._generator)


Inputs = Callable[[Draw, Shape], tuple[Any, ...]]


@dataclass(frozen=True)
class Kernel:
    """A right kernel: what it computes, how, and from which inputs.

    Attributes:
        name: for reports.
        reference: computes the same from float64 tensors.
        kernel: the kernel.
        inputs: draws its arguments for one of the `shapes`.
        shapes: small ones, among them odd ones, 1 and empty where the operation has them.
        options: keywords of `assert_rounding_only`.
        dtypes: that it takes.
    """

    name: str
    reference: Callable[..., Any]
    kernel: Callable[..., Any]
    inputs: Inputs
    shapes: tuple[Shape, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = DTYPES


@dataclass(frozen=True)
class WrongKernel:
    """A wrong kernel: one entry of the catalogue.

    Attributes:
        name: what is wrong with it.
        reference: computes the right result from float64 tensors.
        kernel: the wrong one.
        inputs: draws its arguments for `shape`.
        shape: of the inputs.
        is_above: whether its error is above two roundings of the output.
        options: keywords of `assert_rounding_only`.
        dtypes: in which it is wrong.
    """

    name: str
    reference: Callable[..., Any]
    kernel: Callable[..., Any]
    inputs: Inputs
    shape: Shape
    is_above: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = DTYPES
