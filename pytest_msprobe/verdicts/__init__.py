"""The value that travels from a suite to every report: `Verdict`, and as a row with its place `VerdictRow`."""

from __future__ import annotations

from pytest_msprobe.verdicts.figure import Figure
from pytest_msprobe.verdicts.place import Place
from pytest_msprobe.verdicts.row import OUTCOMES, Outcome, VerdictRow
from pytest_msprobe.verdicts.verdict import EXPLAINED, OutputRow, Status, Verdict

__all__ = ["EXPLAINED", "OUTCOMES", "Figure", "Outcome", "OutputRow", "Place", "Status", "Verdict", "VerdictRow"]
