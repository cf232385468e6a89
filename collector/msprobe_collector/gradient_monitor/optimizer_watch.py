"""Seeing what an optimizer is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OptimizerWatch:
    """Shows the gradients of each call of an optimizer before the update.

    The optimizer's class is replaced by a subclass with a `__call__` of its own. A forward pre-hook, the obvious way,
    is compiled with the optimizer wherever a graph holds it, and fails there (seen on 2.10: `mindspore.jit` of a
    training step, GRAPH_MODE). A graph passes `__call__` over: it shows nothing, and trains.
    """

    def __init__(self, optimizer: Any, show: Callable[[Any], None]) -> None:
        self._optimizer = optimizer
        self._original = type(optimizer)
        self._watched = _watched_class(self._original, show)
        optimizer.__class__ = self._watched

    def remove(self) -> None:
        """Give the optimizer its class back."""
        if type(self._optimizer) is self._watched:
            self._optimizer.__class__ = self._original


def _watched_class(original: type, show: Callable[[Any], None]) -> type:
    def call(self: Any, gradients: Any, *others: Any, **keywords: Any) -> Any:
        show(gradients)
        return original.__call__(self, gradients, *others, **keywords)

    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(original.__name__, (original,), {**names, "__call__": call})
