"""Where NaN and Inf first appear: each record of a dump classified, origins computed again, the first one named."""

from __future__ import annotations

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.overflow.options import OverflowSettings

ENTRY = SuiteEntry(
    "overflow",
    "where do NaN and Inf begin",
    OverflowSettings.declared(),
    "pytest_msprobe.suites.overflow.suite:OverflowSuite",
)
