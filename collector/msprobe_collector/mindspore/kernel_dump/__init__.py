"""Level L2: configuration files for MindSpore's own kernel dump, and its switch."""

from __future__ import annotations

from msprobe_collector.mindspore.kernel_dump.kernel_dump import KernelDump

__all__ = ["KernelDump"]
