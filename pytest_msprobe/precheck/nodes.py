"""The dump as pytest nodes: file, API call, direction."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from msprobe_collector.dump_format import (
    DIRECTIONS,
    Direction,
    Dump,
    DumpError,
    is_cell_record,
    name_fault,
    parse_api_name,
    split_record_name,
)
from pytest_msprobe import _keys
from pytest_msprobe.engines.specification import own_device
from pytest_msprobe.node_names import escape
from pytest_msprobe.precheck.cost import estimate_cost
from pytest_msprobe.precheck.finding import Finding
from pytest_msprobe.precheck.time_limit import ending_after, time_limit_seconds
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.row import VerdictRow
from pytest_msprobe.reports.suite_reports import send_row

if TYPE_CHECKING:
    from pytest_msprobe.precheck.check import CallCheck


class CheckFailure(Exception):
    """An `error` verdict on its way to pytest; the text is all that the report shows."""


class DumpFile(pytest.File):
    """A dump.json; its children are the API calls in the order in which they were first recorded."""

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path) -> DumpFile:
        """The node for the dump at `path`, with an id that is the same in every process and never empty."""
        node_id = parent.config.stash[_keys.SESSION].node_id(path)
        node: DumpFile = cls.from_parent(parent, path=path, nodeid=node_id)
        return node

    def collect(self) -> Iterator[CallNode]:
        """One node per API call, and one for each record that has no valid name."""
        try:
            dump = self.config.stash[_keys.SESSION].dump(self.path)
        except DumpError as error:
            raise self.CollectError(str(error)) from None
        calls, strangers = group_records(dump)
        for name, directions in calls.items():
            yield CallNode.of(self, dump, name, directions)
        for name in strangers:
            yield CallNode.of(self, dump, name, ())


def group_records(dump: Dump) -> tuple[dict[str, list[Direction]], list[str]]:
    """(directions of every API call by its name, names that are no record names). Cell records are in neither."""
    calls: dict[str, list[Direction]] = {}
    strangers = []
    for record in dump.record_names:
        found = split_record_name(record)
        if found is not None and not is_cell_record(record):
            calls.setdefault(found[0], []).append(found[1])
        elif not is_cell_record(record):
            strangers.append(record)
    return calls, strangers


class CallNode(pytest.Collector):
    """One API call. Its directions share the inputs and the forward, which `teardown` lets go of.

    Attributes:
        call: name of the API call, or of a record without a valid name.
        recorded: directions that the dump has.
        selected: those of them that this run checks.
    """

    call: str
    dump: Dump
    recorded: tuple[Direction, ...]
    selected: tuple[Direction, ...]
    _check: CallCheck | None

    @classmethod
    def of(cls, parent: DumpFile, dump: Dump, call: str, directions: Sequence[Direction]) -> CallNode:
        """The node for the API call named `call`."""
        node: CallNode = cls.from_parent(parent, name=escape(call))
        node.dump = dump
        node.call = call
        node.recorded = tuple(direction for direction in DIRECTIONS if direction in directions)
        node.selected = ()
        node._check = None
        return node

    def collect(self) -> list[CheckItem]:
        """Its directions, forward first; one item for a record without a valid name."""
        if not self.recorded:
            return [CheckItem.of(self, None)]
        return [CheckItem.of(self, direction) for direction in self.recorded]

    def check(self, direction: Direction | None) -> Finding:
        """The finding for one direction."""
        if direction is None:
            return Finding("error", f"{self.path}: {name_fault(self.call)}; it cannot be checked")
        if self._check is None:
            from pytest_msprobe.precheck.check import CallCheck

            session = self.config.stash[_keys.SESSION]
            self._check = CallCheck(
                self.dump, self.call, session.engines, session.check_settings, directions=self.selected or self.recorded
            )
        return self._check.run(direction)

    def teardown(self) -> None:
        """Let go of the call's tensors before the next call."""
        if self._check is not None:
            self._check.close()
            self._check = None


class CheckItem(pytest.Item):
    """One direction of one API call.

    Attributes:
        direction: `forward` or `backward`; None for a record without a valid name.
    """

    parent: CallNode
    direction: Direction | None

    @classmethod
    def of(cls, parent: CallNode, direction: Direction | None) -> CheckItem:
        """The item for `direction` of the call `parent`."""
        item: CheckItem = cls.from_parent(parent, name=direction or "record")
        item.direction = direction
        if direction is not None:
            mark = item.config.stash[_keys.SESSION].mark
            item.own_markers += (mark(direction), mark(parent.call.partition(".")[0]))
        return item

    def runtest(self) -> None:
        """Check, keep the row for the report, and raise or skip as the verdict says."""
        started = perf_counter()
        try:
            with warnings.catch_warnings(), ending_after(self._time_limit()):
                # A framework's deprecation warning is no verdict, also where a project turns warnings into errors.
                warnings.simplefilter("ignore")
                finding = self.parent.check(self.direction)
        except Exception as error:
            self._keep(Finding("error", f"internal error of pytest-msprobe: {type(error).__name__}: {error}"), started)
            raise
        self._keep(finding, started)
        if finding.status == "skip":
            pytest.skip(finding.message)
        if finding.status == "error":
            raise CheckFailure(self._failure_text(finding))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The explanation instead of a traceback through our own code."""
        if isinstance(excinfo.value, CheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Headline of a failure; not a suffix of the node id, or pytest would print it twice."""
        if self.direction is None:
            return self.path, 0, f"record {self.parent.call}"
        api = parse_api_name(self.parent.call)
        return self.path, 0, f"{api.type}.{api.api}, call {api.number}, {self.direction}"

    def _time_limit(self) -> float | None:
        if not hasattr(self.config, "workerinput") or self.direction is None:
            return None  # the only process of a run cannot be replaced
        chosen = self.config.stash[_keys.SESSION].settings.timeout_seconds
        return time_limit_seconds(chosen, estimate_cost(self.parent.dump, self.parent.call))

    def _keep(self, finding: Finding, started: float) -> None:
        self.stash[_keys.ROW] = self.row(finding, seconds=perf_counter() - started)
        self.stash[_keys.PLOT] = finding.plot

    def row(self, finding: Finding, *, seconds: float = 0.0) -> VerdictRow:
        """The verdict row for `finding`."""
        return VerdictRow(
            node_id=self.nodeid,
            dump=str(self.path),
            call=self.parent.call,
            direction=self.direction,
            recorded=self.parent.recorded,
            selected=self.parent.selected,
            status=finding.status,
            message=finding.message,
            device=f"{finding.device} (device {own_device()})" if finding.device and own_device() else finding.device,
            bench=finding.bench,
            outputs=finding.outputs,
            seconds=seconds,
            seed=self.config.stash[_keys.SESSION].settings.seed,
            host=gethostname(),
        )

    def _failure_text(self, finding: Finding) -> str:
        lines = [finding.explanation or finding.message]
        if finding.device:
            names = dict.fromkeys(output.standard for output in finding.outputs if output.standard)
            standard = f"; standard: {', '.join(names)}" if names else ""
            lines.append(f"tested: {finding.device}; benchmark: {finding.bench}{standard}")
        frame = self.parent.dump.stacks.user_frame(f"{self.parent.call}.forward")
        if frame is not None:
            lines.append(f"called from {frame.file}:{frame.line}, in {frame.function}:\n    {frame.source}")
        return "\n\n".join(lines)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the API calls out of `items` that `pytest_msprobe_select` leaves out, each asked once."""
    is_kept = config.stash[_keys.SESSION].hooks.selection()
    if is_kept is None:
        return
    calls = {item.parent: True for item in items if isinstance(item, CheckItem) and item.direction is not None}
    for node in calls:
        calls[node] = is_kept(node.call, node.path)
    left_out = [item for item in items if isinstance(item, CheckItem) and not calls.get(item.parent, True)]
    if left_out:
        items[:] = [item for item in items if not isinstance(item, CheckItem) or calls.get(item.parent, True)]
        config.hook.pytest_deselected(items=left_out)


def mark_selected(items: Iterable[pytest.Item]) -> None:
    """Tell every API call which directions were selected, so that it knows what to keep and what to await."""
    for item in items:
        if isinstance(item, CheckItem) and item.direction is not None:
            item.parent.selected += (item.direction,)


def deselect_done(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the API calls that a resumed run has done already."""
    session = config.stash[_keys.SESSION]
    if not session.done:
        return
    names = CallNames(session.named_dumps)
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        is_done = isinstance(item, CheckItem) and names.of(str(item.path), item.parent.call) in session.done
        (left if is_done else kept).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def attach_row(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the verdict row of `item` on the report that every process can read."""
    if not isinstance(item, CheckItem):
        return
    send_row(item, report, _keys.ROW, unrun=lambda status, reason: item.row(Finding(status, reason)))
