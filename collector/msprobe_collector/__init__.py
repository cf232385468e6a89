"""The training side of pytest-msprobe, and the owner of the dump format.

Importing this package imports neither a framework nor NumPy: `dump_format` reads names, records and
stacks with the standard library and msgspec, and loads NumPy when a tensor's values are first asked for;
the collector's own names load when they are first used. Those of MindSpore's side are here too.
PYTEST_DONT_REWRITE: pytest need not look for assertions here.
"""

from __future__ import annotations

import logging

from msprobe_collector.loading import loader_of

_HOMES = {
    "DebuggerError": "debugger",
    "ConfigurationError": "configuration",
    "PrecisionDebugger": "mindspore",
    "GradientMonitor": "mindspore",
    "seed_all": "mindspore",
    "MsprobeStep": "mindspore",
    "MsprobeInitStep": "mindspore",
    "save": "mindspore",
    "save_grad": "mindspore",
    "step": "mindspore",
}

__all__ = list(_HOMES)  # strings all
__getattr__ = loader_of(__name__, _HOMES)


logger = logging.getLogger("msprobe_collector")
