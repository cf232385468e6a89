"""Whether ranks that share a model compute what one run of the whole model does."""

from __future__ import annotations

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.sharded.options import ShardedSettings

ENTRY = SuiteEntry(
    "sharded",
    "do ranks compute what the whole model does",
    ShardedSettings.declared(),
    "pytest_msprobe.suites.sharded.suite:ShardedSuite",
)
