"""Seeing the gradients that an optimizer of PyTorch updates with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class TorchOptimizers:
    """See `msprobe_collector.framework.OptimizerAccess`."""

    def names(self, optimizer: Any) -> tuple[str, ...]:
        """Parameter names: those that the optimizer was made with (`named_parameters`), or `param_groups.0.params.3`.

        Raises:
            TypeError: it is not a torch.optim.Optimizer.
        """
        import torch

        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"monitor: {type(optimizer).__name__} is not a torch.optim.Optimizer")
        names: list[str] = []
        for number, group in enumerate(optimizer.param_groups):
            given = group.get("param_names")
            places = (f"param_groups.{number}.params.{index}" for index in range(len(group["params"])))
            names += given or places
        return tuple(names)

    def warning(self) -> str:
        """Nothing hides."""
        return ""

    def watch(self, optimizer: Any, show: Callable[[Any], None]) -> Callable[[], None]:
        """Show the gradients before each `optimizer.step`."""

        def before(_: Any, __: Any, ___: Any) -> None:
            show([parameter.grad for group in optimizer.param_groups for parameter in group["params"]])

        remove: Callable[[], None] = optimizer.register_step_pre_hook(before).remove
        return remove

    def values(self, gradient: Any) -> npt.NDArray[np.floating[Any]]:
        """The gradient as an array of a float dtype that NumPy has.

        Raises:
            TypeError: it is not a Tensor of real floats.
        """
        import torch

        if not isinstance(gradient, torch.Tensor):
            raise TypeError(f"it is a {type(gradient).__name__}, not a Tensor")
        if not gradient.is_floating_point():
            raise TypeError(f"its dtype is {gradient.dtype}, not a real float")
        dense = gradient.detach().to_dense() if gradient.layout is not torch.strided else gradient.detach()
        is_native = dense.dtype in (torch.float16, torch.float32, torch.float64)
        values: npt.NDArray[np.floating[Any]] = (dense if is_native else dense.float()).cpu().numpy()
        return values
