"""Files and findings of an overflow run, on the one process that writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msprobe_collector.dump_format.slot import Slot
from pytest_msprobe.suites.contract import SuiteReport
from pytest_msprobe.suites.node_names import file_id
from pytest_msprobe.suites.overflow.finding import OverflowRecord
from pytest_msprobe.suites.overflow.row_summary import OverflowSummary
from pytest_msprobe.suites.overflow.session import OverflowSession
from pytest_msprobe.suites.overflow.summary import RankSummary, SummaryFiles
from pytest_msprobe.verdicts import VerdictRow


class OverflowReport(SuiteReport):
    """Collects findings, and writes and says at the end what they amount to."""

    def __init__(self, session: OverflowSession, dumps: Sequence[Path], out: Path, root: Path) -> None:
        """A report into the folder `out`; `root` is pytest's rootdir."""
        self._summary = OverflowSummary(lambda dump: file_id(Path(dump), root))
        self._summary.ranks.update(
            {str(path): RankSummary(str(path), session.rank(path), Slot.of(path).step) for path in dumps}
        )
        self._files = SummaryFiles(out)

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take a finding; that on a record is a line of the CSV file."""
        self._summary.add(row)
        if row.attachment is not None and "finding" in row.attachment:
            record = OverflowRecord.from_wire(row.attachment["finding"])
            self._files.write(record, self._summary.ranks[record.dump])

    def finish(self) -> None:
        """Write the JSON file."""
        self._files.close([*self._summary.steps.values()], [*self._summary.ranks.values()])

    def findings(self) -> Iterator[str]:
        """The first anomaly of each step, and counts of each dump."""
        return self._summary.lines()

    def files(self) -> Iterator[tuple[str, Path]]:
        """The CSV file and the JSON file."""
        yield from ((what, Path(path)) for what, path in self._files.paths())
