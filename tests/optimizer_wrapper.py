"""An optimizer around another one, as accelerate makes it: it never runs `Optimizer.__init__`, and so has no hooks."""

from __future__ import annotations

from typing import Any

import torch


class WrappingOptimizer(torch.optim.Optimizer):
    """Shows groups, state and defaults of the optimizer that it holds."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


class RenamedWrapper(WrappingOptimizer):
    """Holds the optimizer under a name of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.wrapped = optimizer

    optimizer = property(lambda self: None)  # type: ignore[assignment]
    state = property(lambda self: self.wrapped.state)
    param_groups = property(lambda self: self.wrapped.param_groups)
    defaults = property(lambda self: self.wrapped.defaults)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.wrapped.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.wrapped.step(closure)
