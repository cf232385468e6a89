"""The main job: every API call of a dump, run, compared and judged."""

from __future__ import annotations

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.precheck.options import PrecheckSettings

ENTRY = SuiteEntry(
    "precheck",
    "is each API call right",
    PrecheckSettings.declared(),
    "pytest_msprobe.suites.precheck.suite:PrecheckSuite",
)
