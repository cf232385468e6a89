"""What finished rows of a comparison amount to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_msprobe.suites.comparison.divergence import Divergence, RecordSummary
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.verdicts import VerdictRow

_MOST_NAMED = 10


class ComparisonSummary(RowSummary):
    """The divergence of each target dump; where differences were accounted for, what is at fault."""

    def __init__(self) -> None:
        self._divergences: dict[str, Divergence] = {}
        self._is_accounted = False
        self._faults: list[tuple[int, str]] = []

    def add(self, row: VerdictRow) -> None:
        """Count one operation."""
        if row.attachment is not None:
            summary = RecordSummary.from_wire(row.attachment["summary"])
            self._divergences.setdefault(row.dump, Divergence()).add(summary)
            self._is_accounted |= "account" in row.attachment
            if row.outcome == "failed":
                self._faults.append((summary.order, f"{summary.record}: {row.message or summary.reason}"))

    def lines(self) -> Iterator[str]:
        """What is at fault, and the first divergence of each dump."""
        if self._is_accounted:
            first, *others = [text for _, text in sorted(self._faults)] or ["nothing is at fault"]
            yield f"at fault: {first}" if self._faults else first
            yield from (f"also at fault: {text}" for text in others[:_MOST_NAMED])
            if len(others) > _MOST_NAMED:
                yield f"and {len(others) - _MOST_NAMED} more"
        yield from divergence_lines(self._divergences)


def divergence_lines(divergences: Mapping[str, Divergence]) -> Iterator[str]:
    """The findings on dumps by their names, which stand above them where there are several."""
    for name, divergence in divergences.items():
        if len(divergences) > 1:
            yield f"{name}:"
        yield from (f"  {line}" if len(divergences) > 1 else line for line in divergence.lines())
