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
    Level,
    NumberRanges,
    RecordSelection,
    Refusal,
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
    "Level",
    "NumberRanges",
    "Overrides",
    "RecordSelection",
    "Refusal",
    "read_configuration",
]
