"""What finished rows of a comparison amount to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_msprobe.suites.comparison.divergence import Divergence, RecordSummary
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.verdicts import VerdictRow


class ComparisonSummary(RowSummary):
    """The divergence of each target dump."""

    def __init__(self) -> None:
        self._divergences: dict[str, Divergence] = {}

    def add(self, row: VerdictRow) -> None:
        """Count one operation."""
        if row.attachment is not None:
            summary = RecordSummary.from_wire(row.attachment["summary"])
            self._divergences.setdefault(row.dump, Divergence()).add(summary)

    def lines(self) -> Iterator[str]:
        """The first divergence of each dump."""
        return divergence_lines(self._divergences)


def divergence_lines(divergences: Mapping[str, Divergence]) -> Iterator[str]:
    """The findings on dumps by their names, which stand above them where there are several."""
    for name, divergence in divergences.items():
        if len(divergences) > 1:
            yield f"{name}:"
        yield from (f"  {line}" if len(divergences) > 1 else line for line in divergence.lines())
