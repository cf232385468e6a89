"""A device below autograd and below the collector: one wrong kernel, sums in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quality.accounting.foreign.watching import Watch

#: Where a wrong kernel was is kept as the calls of this place.
KERNEL = "kernel"


@dataclass(frozen=True)
class Fault:
    """One wrong call of an ATen operator.

    Attributes:
        operator: its name, `addmm`.
        call: which of its calls, from 0, in that phase.
        how: one of `SPOILS`.
        phase: `forward`, `backward`, or `recompute`: in a forward that a checkpoint repeats.
        output: which of its results.
        argument: which of its arguments, instead, for what it leaves there.
    """

    operator: str
    call: int
    how: str = "factor"
    phase: str = "forward"
    output: int = 0
    argument: int | None = None


class Device(TorchDispatchMode):
    """Computes what PyTorch does, but for a fault, or for the order of its sums.

    Attributes:
        is_done: whether the fault happened and changed values.
        seen: how often each (operator, phase) was called.
    """

    def __init__(self, watch: Watch, fault: Fault | None = None, *, is_reordered: bool = False) -> None:
        super().__init__()
        self.is_done = False
        self.seen: Counter[tuple[str, str]] = Counter()
        self._watch, self._fault, self._is_reordered = watch, fault, is_reordered

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a call of an operator; what it takes for that, nothing records."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            other = _REORDERED.get(function.overloadpacket.__name__) if self._is_reordered else None
            result = other(function, *args, **kwargs) if other is not None else NotImplemented
            if result is NotImplemented:
                result = function(*args, **kwargs)
            self._look(function.overloadpacket.__name__, args, result)
        return result

    def _look(self, operator: str, args: Any, result: Any) -> None:
        node = torch._C._current_autograd_node()
        watch, fault = self._watch, self._fault
        if watch.is_open:
            phase, record = "recompute" if node is not None else "forward", watch.current
        else:
            name = watch.call_of(node)
            phase, record = "backward", f"{name.removesuffix('.forward')}.backward" if name else ""
        if not record and phase != "recompute":
            return
        number = self.seen[operator, phase]
        self.seen[operator, phase] += 1
        if fault is not None and (operator, number, phase) == (fault.operator, fault.call, fault.phase):
            if fault.argument is not None:
                out = args[fault.argument]
            else:
                out = result[fault.output] if isinstance(result, (tuple, list)) else result
            self.is_done = _spoil(out, fault.how)
            watch.note(KERNEL, record)


def _spoil(out: Tensor, how: str) -> bool:
    """Whether values changed."""
    before = out.clone()
    SPOILS[how](out)
    return not torch.equal(before, out)


def _factor(out: Tensor) -> None:
    out.mul_(1.02)


def _five_percent(out: Tensor) -> None:
    out.mul_(1.05)


def _large_factor(out: Tensor) -> None:
    out.mul_(1.1)


def _tile(out: Tensor) -> None:
    rows = out if out.dim() > 1 else out.view(1, -1)
    rows[..., : max(1, rows.shape[-2] // 2), : max(1, rows.shape[-1] // 2)].mul_(1.05)


def _tail(out: Tensor) -> None:
    """The end of the last row is not written."""
    (out if out.dim() else out.view(1))[..., -3:].select(0, -1).zero_()


def _stale(out: Tensor) -> None:
    """The last rows hold what the first ones hold."""
    half = out.shape[0] // 2 if out.shape[0] > 1 else 0
    if half:
        out[-half:].copy_(out[:half].clone())
    else:
        _stale(out[0])


def _low(out: Tensor) -> None:
    """Kept in bfloat16."""
    out.copy_(out.bfloat16())


def _transposed(out: Tensor) -> None:
    """Rows and columns of the result are exchanged in its memory."""
    out.copy_(out.mT.reshape(out.shape).clone())


def _sign(out: Tensor) -> None:
    """One row has the other sign."""
    out.select(0, out.shape[0] // 2).neg_()


def _shifted(out: Tensor) -> None:
    out.copy_(out.roll(1, -1))


def _one(out: Tensor) -> None:
    """One element."""
    flat = out.view(-1) if out.is_contiguous() else out[tuple(slice(0, 1) for _ in out.shape)].view(-1)
    flat[flat.numel() // 2].add_(out.abs().max() * 0.5)


SPOILS: dict[str, Callable[[Tensor], None]] = {
    "factor": _factor,
    "5 %": _five_percent,
    "10 %": _large_factor,
    "tile": _tile,
    "tail": _tail,
    "stale": _stale,
    "low": _low,
    "transposed": _transposed,
    "sign": _sign,
    "shifted": _shifted,
    "one": _one,
}


def _wide(*values: Tensor) -> tuple[Tensor, ...]:
    """Sums are kept in float32 where values are narrower."""
    return tuple(value.float() if value.element_size() < 4 else value for value in values)


def _product(left: Tensor, right: Tensor) -> Tensor:
    half = left.shape[-1] // 2
    return left[..., half:] @ right[..., half:, :] + left[..., :half] @ right[..., :half, :]


def _is_split(left: Tensor) -> bool:
    return left.is_floating_point() and left.shape[-1] > 1


def _mm(function: Any, left: Tensor, right: Tensor) -> Any:
    return _product(*_wide(left, right)).to(left.dtype) if _is_split(left) else NotImplemented


def _addmm(function: Any, bias: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if (beta, alpha) != (1, 1) or not _is_split(left):
        return NotImplemented
    wide = _wide(bias, left, right)
    return (_product(*wide[1:]) + wide[0]).to(left.dtype)


def _convolution(function: Any, x: Tensor, weight: Tensor, bias: Any, *settings: Any) -> Any:
    *_, is_transposed, _, groups = settings
    half = x.shape[1] // 2
    if groups != 1 or is_transposed or not half:
        return NotImplemented
    wide, kernel = _wide(x, weight)
    second = function(wide[:, half:].contiguous(), kernel[:, half:].contiguous(), None, *settings)
    found = second + function(wide[:, :half].contiguous(), kernel[:, :half].contiguous(), None, *settings)
    if bias is not None:
        found = found + _wide(bias)[0].view(1, -1, *(1 for _ in range(x.dim() - 2)))
    return found.to(x.dtype)


def _total(value: Tensor, axes: Any, keeps: bool, dtype: Any) -> Any:
    """The sum over `axes`, the halves of the longest one apart."""
    axes = list(range(value.dim())) if not axes else [axis % value.dim() for axis in axes]
    if not axes or not value.is_floating_point():
        return NotImplemented
    axis = max(axes, key=lambda one: value.shape[one])
    (wide,), half = _wide(value), value.shape[axis] // 2
    if not half:
        return NotImplemented
    first, second = wide.split([half, value.shape[axis] - half], axis)
    return second.sum(axes, keepdim=keeps) + first.sum(axes, keepdim=keeps)


def _sum(function: Any, value: Tensor, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    found = _total(value, axes, keepdim, dtype)
    return found if found is NotImplemented else found.to(dtype or value.dtype)


def _mean(function: Any, value: Tensor, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    found = _total(value, axes, keepdim, dtype)
    return found if found is NotImplemented else (found / (value.numel() / found.numel())).to(dtype or value.dtype)


#: Operators whose sums are made in two halves.
_REORDERED: dict[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "convolution": _convolution,
    "sum": _sum,
    "mean": _mean,
}
