"""Gradient monitoring: statistics and signs of every parameter's gradient at each optimizer step, in small files."""

from __future__ import annotations

from msprobe_collector.gradient_monitor.monitor import GradientMonitor

__all__ = ["GradientMonitor"]
