"""What finished rows of a comparison amount to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pytest_msprobe.suites.comparison.cells import CellDifferences
from pytest_msprobe.suites.comparison.divergence import Divergence, RecordSummary
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.verdicts import VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.faults import Causes
    from pytest_msprobe.suites.comparison.accounting.flow import Step

_MOST_NAMED = 10


class ComparisonSummary(RowSummary):
    """The divergence of each target dump; where differences were accounted for, what is at fault."""

    def __init__(self) -> None:
        self._divergences: dict[str, Divergence] = {}
        self._steps: dict[str, list[Step]] = {}
        self._sources: dict[tuple[str, str], str] = {}
        self._cells: dict[str, CellDifferences] = {}
        self._causes: dict[str, Causes] = {}

    def add(self, row: VerdictRow) -> None:
        """Count one operation."""
        if row.attachment is None:
            return
        summary = RecordSummary.from_wire(row.attachment["summary"])
        self._divergences.setdefault(row.dump, Divergence()).add(summary)
        self._cells.setdefault(row.dump, CellDifferences()).add(row)
        if "account" in row.attachment:
            from pytest_msprobe.suites.comparison.accounting.flow import Step

            step = Step.of(row)
            assert step is not None
            self._steps.setdefault(row.dump, []).append(step)
            self._sources[row.dump, summary.record] = row.place.source if row.place is not None else ""

    def lines(self) -> Iterator[str]:
        """What is at fault, and the first divergence of each dump."""
        for dump, steps in self._steps.items():
            name = f"{dump}: " if len(self._steps) > 1 else ""
            yield from (f"{name}{line}" for line in self._fault_lines(dump, steps))
        yield from divergence_lines(self._divergences, {dump: cells.line() for dump, cells in self._cells.items()})

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """What the calls of other shards say of the Cells around them."""
        return {
            (dump, *key): level
            for dump, cells in self._cells.items()
            for key, level in self._changed(dump, cells).items()
        }

    def _changed(self, dump: str, cells: CellDifferences) -> dict[tuple[str, str], str]:
        causes = self._causes.get(dump)
        return cells.changed(causes.origins() if causes is not None else (), only_born=True)

    def _fault_lines(self, dump: str, steps: list[Step]) -> Iterator[str]:
        """What the rows alone tell of faults: sums of gradients cannot be made again without the tensors."""
        from pytest_msprobe.suites.comparison.accounting import observed_text
        from pytest_msprobe.suites.comparison.accounting.diagnosis import is_suspect
        from pytest_msprobe.suites.comparison.accounting.faults import Causes
        from pytest_msprobe.suites.comparison.accounting.flow import DataFlow

        steps.sort(key=lambda step: step.operation.index)
        self._causes[dump] = causes = Causes(DataFlow(steps), lambda *_: False)
        faults = [fault for fault in causes.find() if not fault.after]
        basis = observed_text.basis_of(steps)
        leads = ("at fault", "also at fault")
        if basis != "tensors" and faults:
            leads = observed_text.lead(basis), "also"
        for number, fault in enumerate(faults[:_MOST_NAMED]):
            record = next(iter(fault.records), fault.step.record)
            source = self._sources.get((dump, record), "").partition(", in ")[0]
            where = f", called from {source}" if source else ""
            inside = f", in {fault.step.cells[-1]}" if fault.step.cells else ""
            inherit = observed_text.REACHED.get(basis, "operations inherit it")
            reach = f"; {len(fault.reached)} {inherit}" if fault.reached else ""
            yield f"{leads[number > 0]}: {record}{inside}: {fault.sentence.rstrip('.')}{where}{reach}."
        if len(faults) > _MOST_NAMED:
            yield f"and {len(faults) - _MOST_NAMED} more"
        if not faults and basis != "tensors":
            yield observed_text.without_fault(steps, basis)
        elif not faults and (causes.unlinked or any(map(is_suspect, steps))):
            yield "no operation is found to be wrong, but not every difference is accounted for"
        elif not faults and any(key.differs for step in steps for key in step.account.keys):
            yield "no operation is found to be wrong on either side: all that was accounted for is rounding"
        elif not faults:
            yield "every tensor that was compared is equal, bit by bit"


def divergence_lines(divergences: Mapping[str, Divergence], cells: Mapping[str, str]) -> Iterator[str]:
    """The findings on dumps by their names, which stand above them where there are several; `cells` on their Cells."""
    for name, divergence in divergences.items():
        if len(divergences) > 1:
            yield f"{name}:"
        lines = filter(None, [*divergence.lines(), cells.get(name, "")])
        yield from (f"  {line}" if len(divergences) > 1 else line for line in lines)
