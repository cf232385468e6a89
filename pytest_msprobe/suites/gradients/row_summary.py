"""What finished rows on gradients amount to."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.suites.gradients.findings import Findings
from pytest_msprobe.suites.gradients.result import GradientResult
from pytest_msprobe.verdicts import VerdictRow


class GradientSummary(RowSummary):
    """Findings on the gradients of all rows."""

    def __init__(self) -> None:
        self.findings = Findings()

    def add(self, row: VerdictRow) -> None:
        """Take the verdicts behind a row."""
        for wire in row.attachment["verdicts"] if row.attachment is not None else ():
            self.findings.add(GradientResult.from_wire(wire))

    def lines(self) -> Iterator[str]:
        """The first problem step."""
        return self.findings.lines()
