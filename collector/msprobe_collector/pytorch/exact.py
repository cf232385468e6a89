"""A step in float64: the exact run that two others are held to.

The script stays as it is, and so does what it draws at random. From the first step that is collected on every tensor of
a coarser float dtype becomes float64, and no operator makes one: casts and factories of such dtypes give float64. That
is done below autograd, where the backward, recomputed forwards and what functions call are seen as well; autocast
leaves float64 as it is.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from msprobe_collector.pytorch.script_state import outside

#: What a dtype becomes.
_EXACT = {
    dtype: torch.complex128 if dtype.is_complex else torch.float64
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_complex or dtype.is_floating_point)
}
#: Operators that draw other numbers in another dtype.
_DRAWS = frozenset(
    f"aten::{name}" for name in "rand rand_like randn randn_like normal normal_ uniform_ log_normal_ bernoulli".split()
)
#: Tensors that are no more than their elements; buffers have a class since PyTorch 2.5.
_PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
#: Operators of loss scalers, whose scale is a float32, beside the gradients in a list.
_SCALES = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")


class ExactMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own __init_subclass__
    """Computes in float64 what a script computes."""

    def __init__(self) -> None:
        """Compute as the script does until `begin`."""
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self._drawn_dtype = torch.get_default_dtype()

    def begin(self) -> None:
        """Compute in float64 from here to the end of the process."""
        self._drawn_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        if hasattr(torch.compiler, "set_stance"):  # since PyTorch 2.6
            torch.compiler.set_stance("force_eager")
        for value in gc.get_objects():
            # Before autograd sees them; what is not tracked here is exact when it is first used.
            if type(value) in _PLAIN and value.is_leaf:
                _made_exact(value)
                if value.grad is not None:
                    _made_exact(value.grad)
        self.__enter__()  # type: ignore[no-untyped-call]  # PyTorch's own

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator in float64."""
        kwargs = kwargs or {}
        with outside():
            if func._schema.name in _DRAWS:
                return self._drawn(func, args, kwargs)
            args, kwargs = tree_map(_exact, args), tree_map(_exact, kwargs)
            if func._schema.name in _SCALES:
                return _scaled(func, args)
            return tree_map(_exact, func(*args, **kwargs))

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw in the dtype in which the script would."""
        if any(argument.name == "dtype" for argument in func._schema.arguments) and kwargs.get("dtype") is None:
            kwargs["dtype"] = self._drawn_dtype
        result = func(*tree_map(self._coarse, args), **tree_map(self._coarse, kwargs))
        if func._schema.name.endswith("_"):
            return _exact(args[0]).copy_(result)
        return _exact(result)

    def _coarse(self, value: Any) -> Any:
        return value.to(self._drawn_dtype) if isinstance(value, torch.Tensor) and value.dtype in _EXACT else value


def _scaled(func: Any, args: tuple[Any, ...]) -> Any:
    scales = [argument.float() if isinstance(argument, torch.Tensor) else argument for argument in args]
    func(*scales)
    for argument, scale in zip(args, scales):
        if isinstance(argument, torch.Tensor):
            argument.copy_(scale)
    return args[0] if isinstance(args[0], torch.Tensor) else None


def _exact(value: Any) -> Any:
    """A dtype or a tensor in float64; all else, integers too, as it is.

    A tensor is changed itself, so that what is written to it later is not lost, unless autograd knows its dtype.
    """
    if isinstance(value, torch.dtype):
        return _EXACT.get(value, value)
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(_EXACT[value.dtype]) if value.requires_grad and value.dtype in _EXACT else _made_exact(value)


def _made_exact(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _EXACT and tensor.dtype is not _EXACT[tensor.dtype]:
        tensor.data = tensor.data.to(_EXACT[tensor.dtype])
    return tensor
