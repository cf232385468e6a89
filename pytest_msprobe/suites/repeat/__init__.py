"""Whether a device computes the same bytes every time, and whether all devices compute the same."""

from __future__ import annotations

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.repeat.options import RepeatSettings

ENTRY = SuiteEntry(
    "repeat",
    "is each result the same every time",
    RepeatSettings.declared(),
    "pytest_msprobe.suites.repeat.suite:RepeatSuite",
)
