"""The collector for MindSpore: how calls, Cells, gradients and communication are seen there.

The public names load when they are first used.
"""

from __future__ import annotations

from msprobe_collector.loading import loader_of

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
__getattr__ = loader_of(__name__, _HOMES)
