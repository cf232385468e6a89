"""Gradients of training runs: which step is the first that differs from another run, or is broken by itself."""

from __future__ import annotations

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.gradients.options import GradientSettings

ENTRY = SuiteEntry(
    "gradients",
    "at which step do gradients go wrong",
    GradientSettings.declared(),
    "pytest_msprobe.suites.gradients.suite:GradientSuite",
)
