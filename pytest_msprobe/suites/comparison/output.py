"""What one pair of dumps leaves behind: table, advice, findings. The same for a pytest run and for a script."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format.slot import Slot
from msprobe_collector.dump_format.text import shown_lines
from pytest_msprobe.suites.comparison.advisor import advice
from pytest_msprobe.suites.comparison.divergence import Divergence, RecordSummary
from pytest_msprobe.suites.comparison.dump_comparison import DumpComparison
from pytest_msprobe.suites.comparison.dump_pairs import table_stem
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.table_files import NO_XLSXWRITER, RowStore, TableFiles
from pytest_msprobe.suites.comparison.unmatched import why_unmatched


class ComparisonOutput:
    """Collects rows and summaries of one target dump.

    Attributes:
        divergence: counts and findings so far.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._rows = RowStore()
        self.divergence = Divergence()

    def add(self, summary: RecordSummary, rows: list[list[Any]]) -> None:
        """Take one operation."""
        self.divergence.add(summary)
        self._rows.add(summary.order, summary.record, rows)

    def write(
        self,
        folder: Path,
        comparison: DumpComparison,
        settings: ComparisonSettings,
        *,
        targets: Sequence[Path],
        with_advice: bool = True,
    ) -> list[Path]:
        """Write table and advice into `folder`; their paths. `targets` are all target dumps of the run.

        Raises:
            OSError: a file cannot be written.
            ImportError: a workbook was asked for and cannot be made; all else is written.
        """
        if self.divergence.is_unmatched:
            self.divergence.why_unmatched = why_unmatched(comparison)
        several_steps = len({Slot.of(target).step for target in targets}) > 1
        stem = table_stem(self._target, several_steps=several_steps)
        table = TableFiles(folder, stem, comparison.mode, settings.result_column)

        def stack_of(record: str) -> str:
            frames = comparison.target.stacks.frames(record)
            return json.dumps([str(frame) for frame in frames], ensure_ascii=False) if frames else ""

        paths = table.write_csv(self._rows, stack_of)
        if with_advice:
            paths.append(self._write_advice(paths[0], stem))
        if settings.xlsx:
            try:
                paths.append(table.write_xlsx(self._rows, stack_of, beside=paths[0]))
            except ImportError:
                raise ImportError(NO_XLSXWRITER) from None
        return paths

    def close(self) -> None:
        """Let go of the temporary file."""
        self._rows.close()

    def _write_advice(self, table: Path, stem: str) -> Path:
        first = self.divergence.first
        line = self._rows.line_of(first.order, first.row) if first is not None else 0
        suffix = stem.partition("compare_result")[2]
        path = table.with_name(f"advisor{suffix}_{table.stem.rpartition('_')[2]}.txt")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(shown_lines(advice(self.divergence, line)))
        return path
