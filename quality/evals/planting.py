"""Faults planted below autograd in PyTorch: kernels that compute something else in one of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Kernel = Callable[..., Any]


class WrongKernel(TorchDispatchMode):
    """A kernel that goes wrong in some of its calls; nothing above the dispatcher can see that.

    Args:
        operator: The operator's packet, such as `torch.ops.aten.gelu`.
        fault: Gets the right kernel and its arguments, and gives the wrong result.
        calls: Numbers of the calls that are wrong, from 0; None for all.
        picks: Which calls count, by their arguments; all unless given.
    """

    def __init__(
        self,
        operator: Any,
        fault: Callable[..., Any],
        calls: set[int] | None,
        picks: Callable[..., bool] = lambda *_, **__: True,
    ) -> None:
        super().__init__()
        self._operator, self._fault, self._calls, self._picks = operator, fault, calls, picks
        self.seen = 0
        self.is_on = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # what is computed down here is no call of the script
            if func.overloadpacket is not self._operator or not self._picks(*args, **kwargs):
                return func(*args, **kwargs)
            number, self.seen = self.seen, self.seen + 1
            is_right = not self.is_on or (self._calls is not None and number not in self._calls)
            return func(*args, **kwargs) if is_right else self._fault(func, *args, **kwargs)
