"""The PyTorch functions that table lines may call as `adapters.name`. Only the torch engine imports this module.

All are differentiable where their API is. In-place APIs of MindSpore are computed out of place where they stand
here: what the API returns is judged, and PyTorch forbids writing into a leaf whose gradient is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction

from pytest_msprobe.engines.adapters import arguments, arrays, elementwise, layers

#: What these modules define for others, by name; nothing that they import.
FUNCTIONS: dict[str, Callable[..., object]] = {
    name: value
    for module in (arguments, arrays, elementwise, layers)
    for name, value in vars(module).items()
    if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
}


def __getattr__(name: str) -> Callable[..., object]:
    """The function called `name`.

    Raises:
        AttributeError: no module of functions defines it.
    """
    if name not in FUNCTIONS:
        raise AttributeError(f"there is no adapters.{name}")
    return FUNCTIONS[name]
