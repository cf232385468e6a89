"""The collector for MindSpore: how calls, Cells, gradients and communication are seen there.

The public names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "PrecisionDebugger": "framework",
    "GradientMonitor": "framework",
    "seed_all": "framework",
    "MsprobeStep": "callbacks",
    "MsprobeInitStep": "callbacks",
    "save": "static_graph.graph_code.saving",
    "save_grad": "static_graph.graph_code.saving",
    "step": "static_graph.files",
}

__all__ = list(_HOMES)  # strings all


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
