"""config.json of the collector: read, checked once, and folded with constructor arguments into a frozen Configuration.

Loads PyYAML when a configuration names an `api_list`, and no framework.
"""

from __future__ import annotations

from msprobe_collector.configuration.configuration import (
    LEVELS,
    ApiList,
    ApiPlace,
    Configuration,
    ConfigurationError,
    DumpSwitch,
    GradientMonitorSettings,
    KernelSettings,
    Level,
    NumberRanges,
    Part,
    RecordSelection,
    Refusal,
    Task,
)
from msprobe_collector.configuration.reader import Overrides, read_configuration

__all__ = [
    "LEVELS",
    "ApiList",
    "ApiPlace",
    "Configuration",
    "ConfigurationError",
    "DumpSwitch",
    "GradientMonitorSettings",
    "KernelSettings",
    "Level",
    "NumberRanges",
    "Overrides",
    "Part",
    "RecordSelection",
    "Refusal",
    "Task",
    "read_configuration",
]
