"""The files of a run as pytest nodes: file, group of records, record. The same nodes for every suite.

Whatever ends an item, its row goes onto pytest's report.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from socket import gethostname
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.dump import own_frames
from msprobe_collector.dump_format.values import printable, printable_lines
from pytest_msprobe.engines.process import DeviceFailure, ending_after, time_limit_seconds
from pytest_msprobe.reports.baseline import PROPERTY, complaint_of
from pytest_msprobe.run.settings import ENDED, ENDED_IN_WORKER, ROW, RUN, STATUS, SUITE
from pytest_msprobe.suites.contract import Group, ItemRecord, Problem, Suite, SuiteError, file_id
from pytest_msprobe.verdicts import EXPECTED, OUTCOMES, Outcome, Status, Verdict, VerdictRow

if TYPE_CHECKING:
    from msprobe_collector.dump_format import Frame


class CheckFailure(AssertionError):
    """An `error` verdict on its way to pytest; the text is all that the report shows."""


class RecordFolder(pytest.Directory):
    """A folder that the suite reads by rules of its own."""

    children: Sequence[Path | Problem]

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, children: Sequence[Path | Problem]) -> RecordFolder:
        """The node for the folder at `path`."""
        node: RecordFolder = cls.from_parent(parent, path=path, nodeid=file_id(path, parent.config.rootpath))
        node.children = children
        return node

    def collect(self) -> Iterator[pytest.Collector]:
        """One node per child: a folder, a file, or an error."""
        suite = self.config.stash[SUITE]
        for child in self.children:
            if isinstance(child, Problem):
                yield ProblemNode.from_parent(self, problem=child)
            elif (below := suite.folder(child)) is not None:
                yield RecordFolder.of(self, child, below)
            else:
                yield RecordFile.of(self, child)


class ProblemNode(pytest.Collector):
    """What cannot be judged: an error of the collection."""

    def __init__(self, *, problem: Problem, **others: Any) -> None:
        super().__init__(name=problem.name, **others)
        self.problem = problem

    def collect(self) -> Iterator[pytest.Item]:
        """Report the problem as an error of the collection; there is nothing to collect.

        Raises:
            CollectError: always.
        """
        raise self.CollectError(self.problem.message)


class RecordFile(pytest.File):
    """A dump.json, or another file that the suite judges; its children are its groups of records."""

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path) -> RecordFile:
        """The node for the file at `path`, with an id that is the same in every process and never empty."""
        node: RecordFile = cls.from_parent(parent, path=path, nodeid=file_id(path, parent.config.rootpath))
        return node

    def collect(self) -> Iterator[GroupNode | RecordItem]:
        """One node per group; the records themselves where they form none.

        Raises:
            CollectError: the suite cannot read the file.
        """
        try:
            for group in self.config.stash[SUITE].groups(self.path):
                if group.scope:
                    yield GroupNode.from_parent(self, group=group)
                else:
                    yield from (RecordItem.of(self, group, part) for part in group.parts)
        except (DumpError, SuiteError) as error:
            raise self.CollectError(str(error)) from None


class GroupNode(pytest.Collector):
    """Records that belong together; what the suite keeps of them is released before the next group.

    Attributes:
        group: the records.
        selected: parts of it that this run judges.
    """

    def __init__(self, *, group: Group, **others: Any) -> None:
        super().__init__(name=group.scope, **others)
        self.group = group
        self.selected: tuple[str, ...] = ()

    def collect(self) -> list[RecordItem]:
        """Records of the group, in order."""
        return [RecordItem.of(self, self.group, part) for part in self.group.parts]

    def teardown(self) -> None:
        """Free what the suite keeps of the group."""
        self.config.stash[SUITE].release(self.group)


class RecordItem(pytest.Item):
    """One record.

    Attributes:
        group: that it belongs to.
        part: which of its records; the name of the item until the run is collected, then that of the call and this.
    """

    group: Group
    part: str

    @classmethod
    def of(cls, parent: GroupNode | RecordFile, group: Group, part: str) -> RecordItem:
        """The item for the record `part` of `group`."""
        item: RecordItem = cls.from_parent(parent, name=part)
        item.group, item.part = group, part
        run = item.config.stash[RUN]
        item.own_markers += map(run.mark, run.suite.marks(item.record))
        return item

    @property
    def record(self) -> ItemRecord:
        """What the suite judges."""
        selected = self.parent.selected if isinstance(self.parent, GroupNode) else (self.part,)
        return ItemRecord(self.path, self.group, self.part, selected)

    def runtest(self) -> None:
        """Judge, keep the row for the report, and raise, skip or xfail as the verdict says.

        Raises:
            CheckFailure: the verdict is `error`.
            Exit: no call can be judged.
            Exception: whatever the suite raised; the record then gets a row of its own that says so.
        """
        suite, record = self.config.stash[SUITE], self.record
        if STATUS in self.stash:  # another plugin has it run again: from its forward on, whose graph is used up
            suite.release(self.group)
        started = perf_counter()
        try:
            limit = self._time_limit(record)
            with warnings.catch_warnings(), nullcontext() if limit is None else ending_after(limit):
                # A framework's deprecation warning must not fail a record where a project turns warnings into errors.
                warnings.simplefilter("ignore")
                verdict = suite.judge(record)
        except DeviceFailure as failure:
            end_run(self.session, str(failure))
        except Exception as error:
            message = f"internal error of pytest-msprobe: {type(error).__name__}: {error}"
            self.stash[ROW] = self.unjudged_row("error", message, seconds=perf_counter() - started)
            raise
        row = self._row(record, verdict, seconds=perf_counter() - started)
        known_failures, held = self.config.stash[RUN].known_failures, None
        if known_failures is not None:
            held = known_failures.hold(row, fails=verdict.status == "error" and not verdict.excuse)
        if held is not None:
            row = row.with_property(PROPERTY, held.as_property)
        self.stash[ROW] = row
        if verdict.status == "skip":
            pytest.skip(printable(verdict.message))
        if verdict.excuse:
            self.stash[EXCUSED] = True
            pytest.xfail(printable(verdict.excuse))
        if verdict.status == "error":
            if held is not None and held.is_expected:
                pytest.xfail(printable(held.text))
            self.location = self._training_line() or self.location
            text = printable_lines(verdict.explanation) or printable(verdict.message)
            complaint = "" if held is None else printable(complaint_of(row))
            raise CheckFailure("\n\n".join(filter(None, (text, complaint))))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """The explanation instead of a traceback through our own code, which also takes long to make."""
        if isinstance(excinfo.value, (CheckFailure, DumpError, pytest.xfail.Exception)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Headline of a failure, with its file where there are several.

        Not a suffix of the node id, or pytest would print it twice.
        """
        run = self.config.stash[RUN]
        file = run.names.of(str(self.path), "").rstrip("/.")
        headline = printable(run.suite.headline(self.record))
        return self.path, 0, f"{file}: {headline}" if file else headline

    def _training_line(self) -> tuple[str, int | None, str] | None:
        """The place that made the call, as pytest keeps places; None where it is not known. CI systems annotate it.

        Its file is the innermost that the project has, below rootdir under whatever folder it was trained in.
        """
        root = self.config.rootpath
        frames = own_frames(self.config.stash[SUITE].frames(self.record))
        for frame in frames:
            if place := _place_below(root, frame.file):
                return place, frame.line - 1, self.location[2]
        return (frames[0].file, frames[0].line - 1, self.location[2]) if frames else None

    def unjudged_row(self, status: Status, message: str, *, seconds: float = 0.0) -> VerdictRow:
        """The row of this item when it could not be judged."""
        attachment = self.config.stash[SUITE].attachment_of_unjudged(self.record, status, message)
        return self._row(self.record, Verdict(status, message, attachment=attachment), seconds=seconds)

    def _time_limit(self, record: ItemRecord) -> float | None:
        if not hasattr(self.config, "workerinput"):
            return None  # the only process of a run cannot be replaced
        run = self.config.stash[RUN]
        return time_limit_seconds(run.settings.timeout_seconds, run.suite.cost(record.file, record.group))

    def _row(self, record: ItemRecord, verdict: Verdict, *, seconds: float) -> VerdictRow:
        suite, seed, host = self.config.stash[SUITE], self.config.stash[RUN].settings.values["seed"], gethostname()
        return row_of(self.nodeid, record, verdict, suite=suite, seed=seed, seconds=seconds, host=host)


def read_ahead(item: pytest.Item, following: pytest.Item) -> None:
    """Have what `following` needs read while `item` is judged, unless both need the same."""
    if isinstance(following, RecordItem) and following.parent is not item.parent:
        with suppress(DumpError):  # which the record itself says
            item.config.stash[SUITE].read_ahead(following.record)


def end_run(session: pytest.Session, reason: str) -> NoReturn:
    """End the whole run; a worker has the process that hands out the work do so.

    Raises:
        Exit: always.
    """
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[ENDED_IN_WORKER] = session.shouldfail = reason
    else:
        session.config.stash[ENDED] = reason
    pytest.exit(reason, returncode=pytest.ExitCode.USAGE_ERROR)


@lru_cache(maxsize=4096)  # thousands of failures come from a few lines
def _place_below(root: Path, recorded: str) -> str:
    """The file below `root` that ends as the `recorded` path of another machine does; "" without one."""
    parts = re.split(r"[/\\]", recorded)
    # Folders of a recorded path that are looked for below rootdir.
    ends = ("/".join(parts[start:]) for start in range(max(0, len(parts) - 32), len(parts)))
    return next((end for end in ends if ".." not in parts and end and os.path.isfile(f"{root}/{end}")), "")


def row_of(
    node_id: str, record: ItemRecord, verdict: Verdict, *, suite: Suite, seed: int, host: str, seconds: float = 0.0
) -> VerdictRow:
    """The row for `verdict` on `record`; its outcome is that of an item without marks."""
    return VerdictRow(
        node_id=node_id,
        dump=str(record.file),
        call=record.group.call,
        part=record.part,
        recorded=record.group.parts,
        selected=record.selected,
        status=verdict.status,
        outcome=OUTCOMES[verdict.status],
        message=verdict.message,
        device=verdict.device,
        bench=verdict.bench,
        outputs=verdict.outputs,
        seconds=seconds,
        seed=seed,
        host=host,
        suite=suite.name,
        properties=verdict.properties,
        attachment=verdict.attachment,
        place=suite.place(record),
        # A dump may make it as long as it likes.
        explanation=verdict.explanation[:4000] if verdict.status == "error" else "",
    )


#: Set on an item whose failure the suite itself expects.
EXCUSED: pytest.StashKey[bool] = pytest.StashKey()


def records_among(items: Iterable[pytest.Item]) -> Iterator[RecordItem]:
    """The items that are ours."""
    return (item for item in items if isinstance(item, RecordItem))


#: How pytest begins the text of an item that passed although its strict xfail mark says that it must not.
_STRICT = "[XPASS(strict)]"


def attach_row(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the row of `item`, in builtin types, on the report that every process can read.

    An item that was skipped or broken before it ran (a skip mark, a failing fixture of a conftest) gets its row here.
    """
    if not isinstance(item, RecordItem) or (report.passed and report.when != "call"):
        return
    if report.skipped and report.when == "call" and isinstance(report.longrepr, tuple):
        # The place of a skip is what was judged, not the line of our code that raised it.
        report.longrepr = (str(item.path), 0, report.longrepr[2])
    row = _row(item, report)
    if row is not None:
        if row.outcome != (outcome := _outcome(report)):
            row = replace(row, outcome=outcome)
        if row.outcome == "xfailed" and not item.stash.get(EXCUSED, False):
            row = row.with_property(EXPECTED, str(report.wasxfail) or "xfail mark")
        report.msprobe_row = row.to_wire()  # type: ignore[attr-defined]  # reports carry extra attributes


def _row(item: RecordItem, report: pytest.TestReport) -> VerdictRow | None:
    if report.when == "call":
        row = item.stash.get(ROW, None)
        if row is not None:
            del item.stash[ROW]
            item.stash[STATUS] = row.status
            return _overruled(row, report)
    # In a call, a hook of a conftest.py that wraps the test ended it before or in place of ours.
    if report.passed or report.when == "teardown":
        return None
    return item.unjudged_row("skip" if report.skipped else "error", _reason(report))


def _overruled(row: VerdictRow, report: pytest.TestReport) -> VerdictRow:
    """`row`, or an error where a hook of a conftest.py raised beside a verdict that is none."""
    if not report.failed or row.status == "error" or report.longreprtext.startswith(_STRICT):
        return row
    reason = report.longreprtext.strip().splitlines()[-1:] or ["no reason"]
    return replace(row, status="error", message=f"a hook raised after the verdict {row.status!r}: {reason[0]}")


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure, not run: {report.wasxfail}".removesuffix(": ")
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


def _outcome(report: pytest.TestReport) -> Outcome:
    """What pytest counts the item as."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


_LONGEST = 300


class StackReports:
    """Puts the call stack of a failing item on its report, in builtin types. Registered for `--html` only."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the stack of an item whose verdict is `error`, expected or not."""
        report = yield
        is_wrong = item.stash.get(STATUS, "") == "error"
        if report.when == "call" and is_wrong and isinstance(item, RecordItem):
            frames = item.config.stash[SUITE].frames(item.record)
            report.msprobe_stack = _stack(frames)  # type: ignore[attr-defined]  # reports carry extra attributes
        return report


def _stack(frames: Sequence[Frame]) -> list[list[str]]:
    """(place, source line) of every frame, innermost first."""
    stack = []
    for frame in frames[:50]:
        place = f"{frame.file}:{frame.line}, in {frame.function}" if frame.file else ""
        stack.append([place[:_LONGEST], frame.source[:_LONGEST]])
    return stack
