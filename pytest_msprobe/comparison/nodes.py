"""Two dumps as pytest nodes: target file, call, direction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import Any

import pytest

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe import _keys
from pytest_msprobe.comparison.divergence import RecordSummary
from pytest_msprobe.comparison.dump_comparison import DumpComparison
from pytest_msprobe.comparison.mapping_files import MappingError
from pytest_msprobe.comparison.record_verdict import RecordVerdict
from pytest_msprobe.comparison.table import rows
from pytest_msprobe.comparison.verdict_row import verdict_row
from pytest_msprobe.node_names import escape
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.suite_reports import send_row

#: Before the names of operations that only the golden dump has, so that they are not taken for the target's.
GOLDEN = "golden"


class Disagreement(Exception):
    """An `error` verdict on its way to pytest; the text is all that the report shows."""


class ComparedFile(pytest.File):
    """A target dump; its children are its calls, then those that only the golden dump has."""

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path) -> ComparedFile:
        """The node for the dump at `path`."""
        node_id = parent.config.stash[_keys.COMPARISON].node_id(path)
        node: ComparedFile = cls.from_parent(parent, path=path, nodeid=node_id)
        return node

    def collect(self) -> Iterator[CallScope]:
        """One node per call."""
        session = self.config.stash[_keys.COMPARISON]
        if self.path in session.pairs.problems:
            raise self.CollectError(session.pairs.problems[self.path])
        try:
            comparison = session.comparison(self.path)
        except (DumpError, MappingError) as error:
            raise self.CollectError(str(error)) from None
        if not comparison.operations:
            raise self.CollectError(f"{self.path}: this dump and its golden dump hold no record; dump a step that runs")
        yield from self._scopes(comparison, comparison.target.operations, "")
        yield from self._scopes(comparison, comparison.matching.golden_only, f"{GOLDEN}.")

    def _scopes(self, comparison: DumpComparison, operations: Any, prefix: str) -> Iterator[CallScope]:
        calls: dict[str, list[Operation]] = {}
        for operation in operations:
            calls.setdefault(operation.call, []).append(operation)
        for call, directions in calls.items():
            scope: CallScope = CallScope.from_parent(self, name=escape(f"{prefix}{call}"))
            scope.comparison, scope.call, scope.operations = comparison, call, directions
            scope.is_golden_only = bool(prefix)
            yield scope


class CallScope(pytest.Collector):
    """One call; its items are its directions.

    Attributes:
        comparison: the dumps.
        call: name of the call.
        operations: its records.
        is_golden_only: whether the target has no such call.
    """

    comparison: DumpComparison
    call: str
    operations: list[Operation]
    is_golden_only: bool

    def collect(self) -> Iterator[ComparedItem]:
        """One item per direction; `record` for records that have none."""
        for operation in self.operations:
            name = operation.phase if operation.phase in ("forward", "backward") else "record"
            item: ComparedItem = ComparedItem.from_parent(self, name=name)
            item.operation = operation
            yield item


class ComparedItem(pytest.Item):
    """One operation of the target against its partner."""

    parent: CallScope
    operation: Operation

    def runtest(self) -> None:
        """Compare, keep the row for the reports, and raise or skip as the verdict says."""
        started = perf_counter()
        scope = self.parent
        comparison = scope.comparison
        found = comparison.golden_only(self.operation) if scope.is_golden_only else comparison.verdict(self.operation)
        seconds = perf_counter() - started
        style = self.config.stash[_keys.COMPARISON].settings.comparison.result_column
        self.stash[_keys.ROW] = self.row(found, seconds)
        self.stash[_keys.TABLE_ROWS] = {
            "dump": str(self.path),
            "summary": RecordSummary.of(found).to_wire(),
            "rows": rows(found, comparison.mode, style),
        }
        if found.status == "skip":
            pytest.skip(found.message)
        if found.status == "error":
            raise Disagreement(self._failure_text(found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The explanation instead of a traceback through our own code."""
        if isinstance(excinfo.value, Disagreement):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Headline of a failure."""
        return self.path, 0, f"{self.parent.call}, {self.name}"

    def row(self, found: RecordVerdict, seconds: float) -> VerdictRow:
        """The verdict row of this item."""
        directions = [operation.phase for operation in self.parent.operations]
        name = f"{GOLDEN}.{self.parent.call}" if self.parent.is_golden_only else self.parent.call
        return verdict_row(
            found,
            place=(self.nodeid, str(self.path), name),
            directions=directions,
            bench=f"golden dump, {self.parent.comparison.mode}",
            seconds=seconds,
            host=gethostname(),
        )

    def _failure_text(self, found: RecordVerdict) -> str:
        comparison = self.parent.comparison
        wrong = [value for value in found.values if value.status in ("error", "unreadable")]
        lines = [found.fault] if found.fault else []
        lines += [value.explanation or f"{value.name} {value.status}: {value.message}" for value in wrong]
        partner = found.partner.record if found.partner is not None else "nothing"
        lines.append(f"tested: {found.operation.record}; benchmark: {partner} of {comparison.golden.path}")
        if found.is_origin:
            lines.append("its inputs agree: the difference is born here, unless a backward got it from its forward")
        frame = comparison.target.stacks.user_frame(f"{self.parent.call}.forward")
        if frame is not None:
            lines.append(f"called from {frame.file}:{frame.line}, in {frame.function}:\n    {frame.source}")
        return "\n\n".join(lines)


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the row of `item`, and its rows for the table, on the report that every process can read."""
    if not isinstance(item, ComparedItem) or report.when != "call":
        return
    if send_row(item, report, _keys.ROW):
        report.msprobe_comparison = item.stash[_keys.TABLE_ROWS]  # type: ignore[attr-defined]  # an extra attribute
        del item.stash[_keys.TABLE_ROWS]
