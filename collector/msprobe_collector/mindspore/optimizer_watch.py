"""Seeing what an optimizer of MindSpore is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class MindSporeOptimizers:
    """See `msprobe_collector.framework.OptimizerAccess`."""

    def names(self, optimizer: Any) -> tuple[str, ...]:
        """Names of the parameters of an optimizer.

        Raises:
            TypeError: it is not a Cell that has `parameters`.
        """
        import mindspore

        if not (isinstance(optimizer, mindspore.nn.Cell) and hasattr(optimizer, "parameters")):
            raise TypeError(f"monitor: {type(optimizer).__name__} is not a MindSpore optimizer: a Cell with parameters")
        return tuple(parameter.name for parameter in optimizer.parameters)

    def warning(self) -> str:
        """Warning in GRAPH_MODE, where graphs hide gradients; "" otherwise."""
        from msprobe_collector.mindspore.mindspore_internals import is_graph_mode

        if is_graph_mode():
            return "GRAPH_MODE: gradients are seen only where Python calls the optimizer, not inside a graph"
        return ""

    def watch(self, optimizer: Any, show: Callable[[Any], None]) -> Callable[[], None]:
        """Show the gradients of each call of `optimizer` before the update.

        The optimizer's class is replaced by a subclass with a `__call__` of its own. A forward pre-hook, the obvious
        way, is compiled with the optimizer wherever a graph holds it, and fails there (seen on 2.10: `mindspore.jit` of
        a training step, GRAPH_MODE). A graph passes `__call__` over: it shows nothing, and trains.
        """
        original = type(optimizer)
        watched = _watched_class(original, show)
        optimizer.__class__ = watched

        def remove() -> None:
            if type(optimizer) is watched:
                optimizer.__class__ = original

        return remove

    def values(self, gradient: Any) -> npt.NDArray[np.floating[Any]]:
        """The gradient as an array of a float dtype that NumPy has.

        Raises:
            TypeError: it is not a dense Tensor of real floats.
        """
        import mindspore

        if not isinstance(gradient, mindspore.Tensor):
            raise TypeError(f"it is a {type(gradient).__name__}, not a dense Tensor")
        if not gradient.is_floating_point():
            raise TypeError(f"its dtype is {gradient.dtype}, not a real float")
        # NumPy has no bfloat16 or float8
        is_native = gradient.dtype in (mindspore.float16, mindspore.float32, mindspore.float64)
        values: npt.NDArray[np.floating[Any]] = (
            gradient if is_native else gradient.astype(mindspore.float32)
        ).asnumpy()
        return values


def _watched_class(original: type, show: Callable[[Any], None]) -> type:
    def call(self: Any, gradients: Any, *others: Any, **keywords: Any) -> Any:
        show(gradients)
        return original.__call__(self, gradients, *others, **keywords)

    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(original.__name__, (original,), {**names, "__call__": call})
