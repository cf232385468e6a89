"""PrecisionDebugger for training with MindSpore."""

from __future__ import annotations

from msprobe_collector.debugger import Debugger
from msprobe_collector.framework import Framework
from msprobe_collector.mindspore.framework import MindSpore


class PrecisionDebugger(Debugger):
    """Collects what the APIs and Cells of a MindSpore training compute; see `Debugger`."""

    @staticmethod
    def _make_framework() -> Framework:
        return MindSpore()
