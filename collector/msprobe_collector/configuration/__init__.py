"""config.json of the collector: read, checked once, and folded with constructor arguments into a frozen Configuration.

Loads PyYAML when a configuration names an `api_list`, and no framework.
"""

from __future__ import annotations

from msprobe_collector.configuration.api_list import ApiList, ApiPlace
from msprobe_collector.configuration.configuration import Configuration, GradientMonitorSettings, KernelSettings
from msprobe_collector.configuration.errors import ConfigurationError
from msprobe_collector.configuration.number_ranges import NumberRanges
from msprobe_collector.configuration.reader import Overrides, read_configuration
from msprobe_collector.configuration.selection import Part, RecordSelection
from msprobe_collector.configuration.switch import DumpSwitch
from msprobe_collector.configuration.tasks import LEVELS, Level, Task

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
    "Task",
    "read_configuration",
]
