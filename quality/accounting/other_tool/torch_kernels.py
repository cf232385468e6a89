"""Wrong kernels and another device, below autograd and below everything that records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class WrongKernel(TorchDispatchMode):
    """Spoils one output of one call of an ATen operator.

    Attributes:
        name: of the operator, such as `addmm` or `gelu_backward`.
        call: number of the call, from 0 on; None for all calls.
        output: number of the output.
        fault: a factor, `tile`, `tail`, `bfloat16` (of the inputs and the output) or `one` (element).
    """

    def __init__(self, name: str, call: int | None, output: int, fault: str) -> None:
        super().__init__()
        self.name, self.call, self.output, self.fault = name, call, output, fault
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            is_wanted = function.overloadpacket.__name__ == self.name
            if is_wanted:
                is_wanted = self.call is None or self.calls == self.call
                self.calls += 1
            if is_wanted and self.fault == "bfloat16":
                args = [_coarse(item) if isinstance(item, Tensor) else item for item in args]
            result = function(*args, **(kwargs or {}))
            if is_wanted:
                whole = result if isinstance(result, (tuple, list)) else [result]
                _spoil(whole[self.output], self.fault)
            return result


def _coarse(value: Tensor) -> Tensor:
    if value.dtype != torch.float32:
        return value
    return aten._to_copy.default(aten._to_copy.default(value, dtype=torch.bfloat16), dtype=torch.float32)


def _spoil(out: Tensor, fault: str) -> None:
    if fault == "bfloat16":
        aten.copy_.default(out, _coarse(out))
    elif fault == "tile":
        corner = out
        for axis in range(max(0, out.dim() - 2), out.dim()):
            corner = aten.slice.Tensor(corner, axis, 0, max(1, out.shape[axis] // 4))
        aten.mul_.Scalar(corner, 1.06)
    elif fault == "tail":
        flat = aten.as_strided.default(out, [out.numel()], [1])
        aten.fill_.Scalar(aten.slice.Tensor(flat, 0, out.numel() - max(1, out.numel() // 50), out.numel()), 0.0)
    elif fault == "one":
        flat = aten.as_strided.default(out, [out.numel()], [1])
        aten.add_.Scalar(aten.slice.Tensor(flat, 0, 3, 4), 0.25)
    else:
        aten.mul_.Scalar(out, float(fault))


class OtherDevice(TorchDispatchMode):
    """Adds up in another order: products and convolutions in two parts, means and sums from behind in thirds."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            way = _WAYS.get(function)
            result = way(*args, **(kwargs or {})) if way is not None else None
            return function(*args, **(kwargs or {})) if result is None else result


def _halves(value: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    size = value.shape[axis]
    middle = size // 2
    return aten.slice.Tensor(value, axis, 0, middle), aten.slice.Tensor(value, axis, middle, size)


def _mm(a: Tensor, b: Tensor) -> Tensor | None:
    if a.shape[-1] < 2:
        return None
    (a0, a1), (b0, b1) = _halves(a, a.dim() - 1), _halves(b, b.dim() - 2)
    product = aten.mm.default if a.dim() == 2 else aten.bmm.default
    return aten.add.Tensor(product(a1, b1), product(a0, b0))


def _addmm(bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Tensor | None:
    product = None if scales else _mm(a, b)
    return None if product is None else aten.add.Tensor(product, bias)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor | None:
    transposed, groups = rest[3], rest[5]
    if transposed or groups != 1 or weight.shape[1] < 2:
        return None
    (x0, x1), (w0, w1) = _halves(x, 1), _halves(weight, 1)
    second = aten.convolution.default(x1, w1, None, *rest)
    return aten.add.Tensor(second, aten.convolution.default(x0, w0, bias, *rest))


def _sum(x: Tensor, axes: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor | None:
    if not axes or dtype is not None or not x.is_floating_point() or x.dim() == 0:
        return None
    axis = axes[0] % x.dim()
    size = x.shape[axis]
    if size < 3:
        return None
    total = None
    for start in reversed(range(0, size, -(-size // 3))):
        part = aten.slice.Tensor(x, axis, start, min(size, start + -(-size // 3)))
        part = aten.sum.dim_IntList(part, list(axes), keepdim)
        total = part if total is None else aten.add.Tensor(total, part)
    return total


def _mean(x: Tensor, axes: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor | None:
    total = _sum(x, axes, keepdim, dtype=dtype)
    if total is None:
        return None
    count = 1
    for axis in axes or ():
        count *= x.shape[axis]
    return aten.div.Scalar(total, count)


_WAYS: dict[Any, Any] = {
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _mean,
}
