"""A dump as pytest nodes: file, call, direction; and one item per training step for its first anomaly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import Any

import pytest

from msprobe_collector.dump_format import DIRECTIONS, DumpError
from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe import _keys
from pytest_msprobe.node_names import escape
from pytest_msprobe.overflow import keys
from pytest_msprobe.overflow.judgement import Judgement, judge_record, judge_step
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.suite_reports import send_row

FIRST_ANOMALY = "first_anomaly"


class Anomalous(Exception):
    """An `error` verdict on its way to pytest; the text is all that the report shows."""


class OverflowFile(pytest.File):
    """A dump.json; its children are its calls, after the first dump of a step the step itself."""

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path) -> OverflowFile:
        """The node for the dump at `path`."""
        node_id = parent.config.stash[keys.SESSION].node_id(path)
        node: OverflowFile = cls.from_parent(parent, path=path, nodeid=node_id)
        return node

    def collect(self) -> Iterator[CallScope]:
        """One node per call."""
        session = self.config.stash[keys.SESSION]
        try:
            names = session.dump(self.path).record_names
        except DumpError as error:
            raise self.CollectError(str(error)) from None
        calls: dict[str, list[Operation]] = {}
        for order, name in enumerate(names):
            operation = Operation.of(name, order)
            calls.setdefault(operation.call, []).append(operation)
        for call, operations in calls.items():
            yield CallScope.of(self, call, operations)
        if session.is_leader(self.path):
            yield CallScope.of(self, FIRST_ANOMALY, [])


class CallScope(pytest.Collector):
    """One call; its items are its directions. Without operations: the step that its dump belongs to.

    Attributes:
        call: name of the call.
        operations: its records.
    """

    call: str
    operations: list[Operation]

    @classmethod
    def of(cls, parent: OverflowFile, call: str, operations: list[Operation]) -> CallScope:
        """The node for `call`."""
        node: CallScope = cls.from_parent(parent, name=escape(call))
        node.call, node.operations = call, operations
        return node

    def collect(self) -> Iterator[OverflowItem]:
        """One item per direction; `record` for records that have none, `step` for the step."""
        for operation in self.operations:
            name = operation.phase if operation.phase in DIRECTIONS else "record"
            yield OverflowItem.of(self, name, operation)
        if not self.operations:
            yield OverflowItem.of(self, "step", None)


class OverflowItem(pytest.Item):
    """One record; or the first anomaly of a step.

    Attributes:
        operation: the record; None for a step.
    """

    parent: CallScope
    operation: Operation | None

    @classmethod
    def of(cls, parent: CallScope, name: str, operation: Operation | None) -> OverflowItem:
        """The item called `name`."""
        item: OverflowItem = cls.from_parent(parent, name=name)
        item.operation = operation
        return item

    def runtest(self) -> None:
        """Judge, keep the rows for the reports, and raise or skip as the verdict says."""
        started = perf_counter()
        session = self.config.stash[keys.SESSION]
        with warnings.catch_warnings():
            # A framework's deprecation warning is no verdict, also where a project turns warnings into errors.
            warnings.simplefilter("ignore")
            if self.operation is None:
                judged = judge_step(session, self.path)
            else:
                judged = judge_record(session, self.path, self.operation)
        self.stash[_keys.ROW] = self._row(judged, perf_counter() - started)
        self.stash[keys.FINDING] = judged.wire
        self.user_properties.extend(judged.properties)
        if judged.status == "skip":
            pytest.skip(judged.message)
        if judged.status == "error":
            raise Anomalous(judged.explanation)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The explanation instead of a traceback through our own code."""
        if isinstance(excinfo.value, Anomalous):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Headline of a failure."""
        return self.path, 0, f"{self.parent.call}, {self.name}"

    def _row(self, judged: Judgement, seconds: float) -> VerdictRow:
        phases = {operation.phase for operation in self.parent.operations}
        directions = tuple(direction for direction in DIRECTIONS if direction in phases)
        return VerdictRow(
            node_id=self.nodeid,
            dump=str(self.path),
            call=self.parent.call if self.operation is not None else f"{FIRST_ANOMALY}.{self.name}",
            direction=next((direction for direction in DIRECTIONS if direction == self.name), None),
            recorded=directions,
            selected=directions,
            status=judged.status,
            message=judged.message,
            device="recorded values",
            bench=judged.bench,
            outputs=judged.outputs,
            seconds=seconds,
            host=gethostname(),
        )


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the row of `item`, and its finding for the files, on the report that every process can read."""
    if not isinstance(item, OverflowItem) or report.when != "call":
        return
    if send_row(item, report, _keys.ROW):
        report.msprobe_overflow = item.stash[keys.FINDING]  # type: ignore[attr-defined]  # an extra attribute
        del item.stash[keys.FINDING]
