"""What rows come to: the counts that the terminal and both pages show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.verdicts import EXPLAINED, VerdictRow


@dataclass(slots=True)
class RowCounts:
    """Running counts over the rows of one suite, in any order; their size does not grow with the number of rows.

    Attributes:
        suite: of the rows, or its class: how it calls them and their figures.
        outcomes: rows by what pytest made of them.
        by_api: the same by API, or by the suite's own kind.
        reasons: skipped rows by reason.
        explained: how many failures rounding explains.
    """

    suite: Suite | type[Suite] = Suite
    outcomes: Counter[str] = field(default_factory=Counter)
    by_api: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    explained: int = 0

    def count(self, row: VerdictRow) -> None:
        """Count one row."""
        self.outcomes[row.outcome] += 1
        self.by_api.setdefault(row.api, Counter())[row.outcome] += 1
        if row.status == "skip":
            self.reasons[row.message] += 1
        self.explained += row.outcome == "failed" and row.rounding == EXPLAINED
