"""Why a comparison is no success although no item failed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis, open_key
from pytest_msprobe.support import without_numbers

_NOT_COMPARED = (
    "not everything could be compared, so this run is not a success; --msprobe-accept=unmatched accepts operations and "
    "values that only one side has"
)


class Compared(Protocol):
    """What is known of a pair of dumps."""

    @property
    def is_unmatched(self) -> bool:
        """Whether no operation matched."""

    @property
    def why_unmatched(self) -> str:
        """The likely reason."""

    @property
    def is_complete(self) -> bool:
        """Whether all was compared."""


class RunFaults(NamedTuple):
    """What is known of all pairs of a run.

    Attributes:
        divergences: where each pair begins to differ, and whether all of it was compared.
        diagnoses: what is at fault in each pair.
        lone: dumps without a partner, one line each.
        accept: differences that are accepted.
    """

    divergences: Sequence[Compared]
    diagnoses: Sequence[RunDiagnosis]
    lone: Sequence[str]
    accept: Collection[str]

    def text(self) -> str:
        """The first reason, as one line; "" for none."""
        for divergence in self.divergences:
            if divergence.is_unmatched:
                return divergence.why_unmatched
        if any(diagnosis.has_fault_without_item for diagnosis in self.diagnoses):
            return "the runs differ by more than rounding: see what is at fault above"
        if any(diagnosis.is_open for diagnosis in self.diagnoses) and "unaccounted" not in self.accept:
            return (
                "values are beyond their limits, and it is not shown that rounding made them so: see above what is not "
                "accounted for; --msprobe-accept=unaccounted accepts it"
            )
        if self.lone:
            return "not every dump has a partner, so this run is not a success"
        is_complete = all(divergence.is_complete for divergence in self.divergences)
        return "" if is_complete or "unmatched" in self.accept else _NOT_COMPARED

    def keys(self) -> Iterator[str]:
        """All reasons by names that stay while they are the same, for a baseline."""
        for divergence in self.divergences:
            if divergence.is_unmatched:
                yield without_numbers(divergence.why_unmatched)
            elif not divergence.is_complete and "unmatched" not in self.accept:
                yield "not everything could be compared"
        for diagnosis in self.diagnoses:
            if diagnosis.has_fault_without_item:
                yield from (fault.key for fault in diagnosis.faults if not fault.has_item)
            elif diagnosis.is_open and "unaccounted" not in self.accept:
                yield from map(open_key, diagnosis.unexplained)
                yield "values are beyond their limits, and it is not shown that rounding made them so"
        yield from map(without_numbers, self.lone)
