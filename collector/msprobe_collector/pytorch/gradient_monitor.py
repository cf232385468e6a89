"""The gradient monitor for optimizers of PyTorch."""

from __future__ import annotations

from msprobe_collector import gradient_monitor
from msprobe_collector.configuration import Configuration
from msprobe_collector.pytorch.framework import PyTorch


class GradientMonitor(gradient_monitor.GradientMonitor):
    """See `msprobe_collector.gradient_monitor.GradientMonitor`."""

    def __init__(self, configuration: Configuration) -> None:
        """Watch as `configuration` says.

        Raises:
            ValueError: its task is not `grad_probe`.
        """
        super().__init__(configuration, PyTorch())
