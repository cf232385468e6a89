"""What finished rows of an overflow run amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.suites.overflow.finding import OverflowRecord
from pytest_msprobe.suites.overflow.step_finding import StepAnomalies
from pytest_msprobe.suites.overflow.summary import RankSummary
from pytest_msprobe.verdicts import VerdictRow


class OverflowSummary(RowSummary):
    """The first anomaly of each step, and counts of each dump.

    Attributes:
        ranks: counts by dump.
        steps: findings by folder.
    """

    def __init__(self, name_of: Callable[[str], str] = str) -> None:
        """A summary that calls the dump at a path by what `name_of` makes of it."""
        self.ranks: dict[str, RankSummary] = {}
        self.steps: dict[str, StepAnomalies] = {}
        self._name_of = name_of

    def add(self, row: VerdictRow) -> None:
        """Take a finding."""
        if row.attachment is None:
            return
        if "step" in row.attachment:
            finding = StepAnomalies.from_wire(row.attachment["step"])
            self.steps[finding.folder] = finding
            return
        record = OverflowRecord.from_wire(row.attachment["finding"])
        rank, step = (row.place.rank, row.place.step) if row.place is not None else (None, None)
        self.ranks.setdefault(record.dump, RankSummary(record.dump, rank or 0, step)).add(record)

    def lines(self) -> Iterator[str]:
        """The first anomaly of each step, and counts of each dump."""
        for finding in self.steps.values():
            yield self._with_verdict(finding)
            if finding.anomalies:
                yield from finding.details()
        if not self.steps:
            yield "the first anomaly was not looked for: its item did not run"
        for summary in self.ranks.values():
            if summary.levels:
                yield f"{self._name_of(summary.dump)}: {summary.counts}"

    def _with_verdict(self, finding: StepAnomalies) -> str:
        """The headline, with what computing it again showed where that item has run."""
        if not finding.anomalies:
            return finding.headline
        first = finding.anomalies[0]
        origin = self.ranks[first.dump].first_origin if first.dump in self.ranks else None
        is_known = origin is not None and origin.record == first.record and origin.verdict
        return f"{finding.headline}: {origin.verdict}" if is_known and origin is not None else finding.headline
