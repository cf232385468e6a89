"""The collector for PyTorch: how calls, Modules, gradients and communication are seen there.

The public names load when they are first used.
"""

from __future__ import annotations

from msprobe_collector.loading import loader_of

_HOMES = {
    "PrecisionDebugger": "framework",
    "GradientMonitor": "framework",
    "seed_all": "framework",
}

__all__ = list(_HOMES)  # strings all
__getattr__ = loader_of(__name__, _HOMES)
