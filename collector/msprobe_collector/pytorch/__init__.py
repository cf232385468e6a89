"""The collector for PyTorch: how calls, Modules, gradients and communication are seen there.

The public names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "PrecisionDebugger": "framework",
    "GradientMonitor": "framework",
    "seed_all": "framework",
}

__all__ = list(_HOMES)  # strings all


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
