"""Files and findings of an overflow run, on the one process that writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msprobe_collector.dump_format.slot import Slot
from pytest_msprobe.suites.contract import SuiteReport
from pytest_msprobe.suites.node_names import file_id
from pytest_msprobe.suites.overflow.finding import OverflowRecord
from pytest_msprobe.suites.overflow.session import OverflowSession
from pytest_msprobe.suites.overflow.step_finding import StepAnomalies
from pytest_msprobe.suites.overflow.summary import RankSummary, SummaryFiles
from pytest_msprobe.verdicts import VerdictRow


class OverflowReport(SuiteReport):
    """Collects findings, and writes and says at the end what they amount to."""

    def __init__(self, session: OverflowSession, dumps: Sequence[Path], out: Path, root: Path) -> None:
        """A report into the folder `out`; `root` is pytest's rootdir."""
        self._root = root
        self._ranks = {str(path): RankSummary(str(path), session.rank(path), Slot.of(path).step) for path in dumps}
        self._steps: dict[str, StepAnomalies] = {}
        self._files = SummaryFiles(out)

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take a finding; that on a record is a line of the CSV file."""
        if row.attachment is None:
            return
        if "step" in row.attachment:
            finding = StepAnomalies.from_wire(row.attachment["step"])
            self._steps[finding.folder] = finding
            return
        record = OverflowRecord.from_wire(row.attachment["finding"])
        summary = self._ranks[record.dump]
        summary.add(record)
        self._files.write(record, summary)

    def finish(self) -> None:
        """Write the JSON file."""
        self._files.close([*self._steps.values()], [*self._ranks.values()])

    def findings(self) -> Iterator[str]:
        """The first anomaly of each step, and counts of each dump."""
        for finding in self._steps.values():
            yield self._with_verdict(finding)
            if finding.anomalies:
                yield from finding.details()
        if not self._steps:
            yield "the first anomaly was not looked for: its item did not run"
        for summary in self._ranks.values():
            if summary.levels:
                yield f"{file_id(Path(summary.dump), self._root)}: {summary.counts}"

    def files(self) -> Iterator[tuple[str, Path]]:
        """The CSV file and the JSON file."""
        yield from ((what, Path(path)) for what, path in self._files.paths())

    def _with_verdict(self, finding: StepAnomalies) -> str:
        """The headline, with what computing it again showed where that item has run."""
        if not finding.anomalies:
            return finding.headline
        first = finding.anomalies[0]
        origin = self._ranks[first.dump].first_origin
        is_known = origin is not None and origin.record == first.record and origin.verdict
        return f"{finding.headline}: {origin.verdict}" if is_known and origin is not None else finding.headline
