"""The training side of pytest-msprobe, and the owner of the dump format.

Importing this package imports neither a framework nor NumPy: `dump_format` reads names, records and
stacks with the standard library and msgspec, and loads NumPy when a tensor's values are first asked for;
the collector's own names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "PrecisionDebugger": "debugger",
    "DebuggerError": "debugger",
    "ConfigurationError": "configuration",
    "seed_all": "seeding",
    "MsprobeStep": "callbacks",
    "MsprobeInitStep": "callbacks",
    "GradientMonitor": "gradient_monitor",
    "save": "static_graph.graph_code.saving",
    "save_grad": "static_graph.graph_code.saving",
    "step": "static_graph.saved_files",
}

__all__ = list(_HOMES)  # strings all


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
