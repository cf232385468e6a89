"""Tables, advice and findings of a comparison, on the one process that writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_msprobe.suites.comparison.cells import CellDifferences
from pytest_msprobe.suites.comparison.divergence import RecordSummary
from pytest_msprobe.suites.comparison.output import ComparisonOutput
from pytest_msprobe.suites.comparison.rank_merge import MergeError, merge_steps
from pytest_msprobe.suites.comparison.row_summary import divergence_lines
from pytest_msprobe.suites.contract import SuiteError, SuiteReport
from pytest_msprobe.suites.node_names import file_id
from pytest_msprobe.verdicts import VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.diagnosis import Diagnosis
    from pytest_msprobe.suites.comparison.accounting.flow import Step
    from pytest_msprobe.suites.comparison.suite import ComparisonSuite


class ComparisonReport(SuiteReport):
    """Collects table rows, and writes and says at the end what they amount to."""

    def __init__(self, suite: ComparisonSuite, out: Path, root: Path) -> None:
        """A report into the folder `out`; `root` is pytest's rootdir."""
        self._suite = suite
        self._out = out
        self._root = root
        self._outputs: dict[Path, ComparisonOutput] = {}
        self._files: list[Path] = []
        self._steps: dict[Path, list[Step]] = {}
        self._cells: dict[Path, CellDifferences] = {}
        self._diagnoses: dict[Path, Diagnosis] = {}

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take the table rows."""
        if row.attachment is not None:
            target = Path(row.dump)
            if target not in self._outputs:
                self._outputs[target] = ComparisonOutput(target)
            summary = RecordSummary.from_wire(row.attachment["summary"])
            self._outputs[target].add(summary, row.attachment["rows"])
            self._cells.setdefault(target, CellDifferences()).add(row)
            if "account" in row.attachment:
                from pytest_msprobe.suites.comparison.accounting.flow import Step

                step = Step.of(row)
                assert step is not None
                self._steps.setdefault(target, []).append(step)

    def finish(self) -> None:
        """Write the files; those that rows were added to are closed in any case.

        Raises:
            SuiteError: the tables of ranks cannot be merged, or a package that a table needs is missing.
        """
        settings, tables = self._suite.settings, []
        try:
            for target, output in self._outputs.items():
                comparison = self._suite.comparison(target)
                written = output.write(self._out, comparison, settings, targets=self._suite.files)
                tables.append(written[0])
                self._files += written
            self._files += merge_steps(tables, self._out)
            self._diagnose()
        except (ImportError, MergeError) as error:
            raise SuiteError(str(error)) from None
        finally:
            for output in self._outputs.values():
                output.close()

    def findings(self) -> Iterator[str]:
        """The first divergence of each dump, and what was not compared."""
        several = len(self._outputs) > 1
        for target, diagnosis in self._diagnoses.items():
            yield f"{f'{file_id(target, self._root)}: ' if several else ''}{diagnosis.text}"
        names = {target: file_id(target, self._root) for target in self._outputs}
        yield from divergence_lines(
            {names[target]: output.divergence for target, output in self._outputs.items()},
            {names[target]: cells.line() for target, cells in self._cells.items()},
        )
        yield from (f"not compared: {problem}" for problem in self._suite.pairs.lone())

    def _diagnose(self) -> None:
        if not self._steps:
            return
        from pytest_msprobe.suites.comparison.accounting.diagnosis import Diagnosis
        from pytest_msprobe.suites.comparison.accounting.diagnosis_file import write_diagnosis

        for target, steps in self._steps.items():
            comparison = self._suite.comparison(target)
            steps.sort(key=lambda step: step.operation.index)
            self._diagnoses[target] = Diagnosis.of(comparison.target, comparison.golden, steps)
        if self._suite.settings.diagnosis is not None:
            found = [
                (diagnosis, self._cells[target].of(diagnosis.origins)) for target, diagnosis in self._diagnoses.items()
            ]
            write_diagnosis(self._suite.settings.diagnosis, found)

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """What the calls say of the Cells around them."""
        return {
            (str(target), *key): level
            for target, cells in self._cells.items()
            for key, level in cells.changed(
                self._diagnoses[target].origins if target in self._diagnoses else ()
            ).items()
        }

    def files(self) -> Iterator[tuple[str, Path]]:
        """Diagnosis, tables and advice."""
        if self._diagnoses and self._suite.settings.diagnosis is not None:
            yield "diagnosis", self._suite.settings.diagnosis
        yield from (("advice" if path.suffix == ".txt" else "table", path) for path in self._files)

    def fault(self) -> str:
        """A run that did not compare everything is not a success."""
        divergences = [output.divergence for output in self._outputs.values()]
        for divergence in divergences:
            if divergence.is_unmatched:
                return divergence.why_unmatched
        if any(diagnosis.has_fault_without_item for diagnosis in self._diagnoses.values()):
            return "the runs differ by more than rounding: see what is at fault above"
        if self._suite.pairs.lone():
            return "not every dump has a partner, so this run is not a success"
        if "unmatched" in self._suite.settings.accept or all(divergence.is_complete for divergence in divergences):
            return ""
        return (
            "not everything could be compared, so this run is not a success; --msprobe-accept=unmatched accepts "
            "operations and values that only one side has"
        )
