"""PrecisionDebugger for training with PyTorch."""

from __future__ import annotations

from msprobe_collector.debugger import Debugger
from msprobe_collector.framework import Framework
from msprobe_collector.pytorch.framework import PyTorch


class PrecisionDebugger(Debugger):
    """Collects what the APIs and Modules of a PyTorch training compute; see `Debugger`."""

    @staticmethod
    def _make_framework() -> Framework:
        return PyTorch()
