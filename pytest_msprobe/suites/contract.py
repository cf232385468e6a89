"""What a suite is: one way to judge records. `run` does the rest, for every suite alike.

A suite says which groups of records a file holds, judges one record at a time, and sums up. It knows nothing of
pytest's items, of workers and of other suites. An entry point names its `SuiteEntry`, of which the class here comes
when the suite is chosen; `tests/contract` tests each suite.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msprobe_collector.dump_format import DIRECTIONS, ApiName, Dump, DumpError
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.support import without_numbers
from pytest_msprobe.verdicts import Figure, HeldBy, Status, StepPosition, Verdict, VerdictRow

if TYPE_CHECKING:
    import pytest

    from msprobe_collector.dump_format import Frame
    from pytest_msprobe.answers import Answer, Confidence, RunRows


class SuiteError(Exception):
    """Why a file cannot be read or a run cannot begin, as one line that says what to do."""


@dataclass(frozen=True, slots=True)
class Group:
    """Records of one file that belong together: the directions of an API call, which share inputs and forward.

    Attributes:
        scope: name of the group's node; "" where the records stand directly below the file.
        call: name in reports: of the API call, or what the suite uses instead.
        parts: last components of the node ids of its records, in order.
        payload: what the suite keeps of it.
    """

    scope: str
    call: str
    parts: tuple[str, ...]
    payload: Any = None


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """One item of a run, as a suite sees it.

    Attributes:
        file: the dump.json, or another file that the suite judges.
        group: that it belongs to.
        part: which of the group's records.
        selected: parts of the group that this run judges; of a lost item, those that are known.
    """

    file: Path
    group: Group
    part: str
    selected: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """Name of the API call in reports."""
        return self.group.call

    @property
    def payload(self) -> Any:
        """What the suite keeps of the group."""
        return self.group.payload


class Problem(NamedTuple):
    """Something in a folder that cannot be judged: an error of the collection."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """What a suite wants of the workers of a run.

    Attributes:
        target: what they run on: `ascend`, `npu`, `cuda` or `cpu`.
        device_index: number of the device that a single process names; None for none.
        devices: ids to assign; empty for all that are visible.
        workers_per_device: how many workers may share one.
        remote_root: folder for rootdir on other hosts; None when the suite runs on this machine only.
        evidence: folders for what failing records leave behind, by what they hold.
        open_engine: the engine whose target was left open, so that all hosts must have the same; "" where it was not.
        compares_devices: whether `devices` may name the workers where there is a CPU only, as if it were several.
    """

    target: str = "cpu"
    device_index: int | None = None
    devices: tuple[str, ...] = ()
    workers_per_device: int = 1
    remote_root: str | None = None
    evidence: Mapping[str, Path] = field(default_factory=dict)
    open_engine: str = ""
    compares_devices: bool = False


#: Where the attachment of the last row holds the answer of the run.
ANSWER = "answer"
#: Likewise, a number of the rows that it was made from.
COVERS = "covers"
#: Likewise, what made the run no success although no item failed.
RUN_FAULTS = "run_faults"
#: Likewise, those of them that the baseline of the run knows.
KNOWN_FAULTS = "known_faults"
#: Likewise, why the rows are not those of all that was given, one reason each.
PARTIAL = "partial"


class RowSummary:
    """What finished rows amount to, from them alone, for a page of merged runs; the defaults say nothing."""

    def add(self, row: VerdictRow) -> None:
        """Take one row, with its attachment, in any order."""

    def lines(self) -> Iterable[str]:
        """The findings, most important first."""
        return ()

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """Levels as `SuiteReport.levels` has them; asked after `answer`."""
        return {}

    def run_pairs(self) -> Mapping[str, Any]:
        """For the page, in types of JSON: what two runs of different calls hold of each other, by target dump."""
        return {}

    def markup(self) -> str:
        """A picture of all rows for the pages, in markup that holds no text of a dump unescaped; "" for none."""
        return ""

    @property
    def is_bad(self) -> bool:
        """Whether the findings say that something is wrong, item or not; asked after `lines`."""
        return False

    def answer(self, rows: RunRows) -> Answer:
        """The answer as `SuiteReport.answer` gives it, by default what the rows say alone."""
        return rows.answer()


class SuiteReport:
    """What a suite makes of its rows on the process that writes; the defaults say what its summary does.

    Attributes:
        summary: of the rows so far; that of this class says nothing.
    """

    summary: RowSummary = RowSummary()

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take one row, with its attachment. Raises OSError when a file cannot be written."""
        self.summary.add(row)

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Take all rows of one group, once they are in. Raises OSError when a file cannot be written."""

    def finish(self) -> None:
        """Complete the files. Raises OSError or SuiteError when one cannot be written."""

    def conclude(self, answer: Answer) -> None:
        """Write what is made of the answer of the run. Raises OSError when a file cannot be written."""

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """Property `level` by (dump, call, part), of rows of which all rows together say more than they did."""
        return self.summary.levels()

    def findings(self) -> Iterable[str]:
        """What the run amounts to, most important first."""
        return self.summary.lines()

    def facts(self) -> Iterable[str]:
        """What of the findings the answer does not say, for the terminal, which prints the answer above them."""
        return self.findings()

    def tells(self, row: VerdictRow) -> bool:
        """Whether the answer says all that the failure of this record says, so that the terminal need not twice."""
        return False

    def files(self) -> Iterable[tuple[str, Path]]:
        """(what it is, path) of each file."""
        return ()

    def resumable(self) -> Path | None:
        """The file of its own with which `--msprobe-resume` continues an interrupted run; None for none."""
        return None

    def fault(self) -> str:
        """Why the run is not a success although no item failed, as one line; "" when it is none."""
        return ""

    def fault_keys(self) -> Iterable[str]:
        """What `fault` is about, by names that stay while it is the same one, for a baseline of known failures."""
        return [without_numbers(text)] if (text := self.fault()) else []

    def untested(self) -> str:
        """Why the verdicts say nothing of what was to be tested, as one line; "" when they do."""
        return ""

    def markup(self) -> str:
        """Pictures for the HTML page, between its summary and its table."""
        return self.summary.markup()

    def answer(self, rows: RunRows) -> Answer:
        """The answer of the run, once the files are complete."""
        return self.summary.answer(rows)


class Suite(ABC):
    """One way to judge records; one object per process of a run.

    A suite must say how it judges: `groups` and `judge`. The rest has defaults:

    - of the run: `make`, `files`, `roots`, `folder`, `dump`;
    - of a record: `headline`, `api`, `marks`, `place`, `frames`, `attachment_of_unjudged`, `release`, `close`;
    - of the work: `cost`, `placement`, `assign`, `device_of`;
    - of the reports, asked on the process that writes: `header`, `dumps`, `warnings`, `report`, `plugins`,
      `advice_when_empty`.

    Attributes:
        name: on the command line.
        title: of the HTML page.
        item_noun: what an item is about, in the plural.
        group_noun: what items are about without their number, in the plural.
        call_names_are_unique: whether the calls of files in one folder have different names.
        figures: numbers of an output, in the order of their columns; the first ones stand in the summary.
        severity_figures: the figures whose sum pictures show, `ratio` where there is one: 1 is then the limit.
        passing: what a pass shows, a kind of `answers.Measure`; `passed` claims nothing more.
        certainty: how sure a failure is, in the answer.
        excuses: whether it expects failures (xfailed) of records that inherit what is wrong.
        summary: what finished rows amount to, from them alone.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    item_noun: ClassVar[str] = "records"
    group_noun: ClassVar[str] = "APIs"
    call_names_are_unique: ClassVar[bool] = False
    figures: ClassVar[tuple[Figure, ...]] = ()
    severity_figures: ClassVar[tuple[str, ...]] = ("ratio",)
    passing: ClassVar[str] = "passed"
    certainty: ClassVar[Confidence] = "likely"
    excuses: ClassVar[bool] = False
    summary: ClassVar[type[RowSummary]] = RowSummary

    @classmethod
    def make(cls, context: Context) -> Suite:
        """The suite for one process of a run.

        Raises:
            SuiteError: the run cannot begin; by default, since there is no dump.
        """
        if not context.dumps:
            raise SuiteError(f"--msprobe-suite={cls.name} needs --msprobe-dump=PATH, the dumps to judge")
        return cls(context)

    def __init__(self, context: Context, data_dirs: tuple[Path, ...] = ()) -> None:
        """A suite of one process; `data_dirs` are folders outside of the dumps that may hold their tensors."""
        self._context = context
        self._data_dirs = data_dirs
        self._read_dumps: dict[Path, Dump] = {}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the run, absolute, in the order in which they are judged; by default the dumps."""
        return self._context.dumps

    @property
    def roots(self) -> tuple[Path, ...]:
        """What pytest is to collect for them: the files, or folders that `folder` knows."""
        return self.files

    def dump(self, path: Path) -> Dump:
        """The dump at `path`, read once. Raises DumpError."""
        if path not in self._read_dumps:
            self._read_dumps[path] = Dump(path, self._data_dirs)
        return self._read_dumps[path]

    def folder(self, path: Path) -> Sequence[Path | Problem] | None:
        """Children of a folder that is collected by the suite's own rules; None for any other."""
        return None

    @abstractmethod
    def groups(self, file: Path) -> Iterable[Group]:
        """The groups of records of `file`. Raises SuiteError or DumpError when it cannot be read."""

    @abstractmethod
    def judge(self, record: ItemRecord) -> Verdict:
        """The verdict on `record`."""

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any] | None:
        """The attachment of a record that was not judged: skipped by a mark, lost with its process, or faulty."""
        return None

    def read_ahead(self, record: ItemRecord) -> None:  # noqa: B027  # most suites read little
        """Have the files of a record read while the one before it is judged."""

    def release(self, group: Group) -> None:  # noqa: B027  # most suites keep nothing
        """Free what was kept for the group."""

    def close(self) -> None:  # noqa: B027  # most suites start nothing
        """End what outlives the records, such as child processes."""

    def headline(self, record: ItemRecord) -> str:
        """What the record is, for the headline of a failure: `Mint.matmul.2, forward`."""
        return f"{record.call}, {record.part}"

    def api(self, record: ItemRecord) -> ApiName | None:
        """The record's name as hooks get it; None for what no hook chooses, which is always judged."""
        name, _, number = record.call.rpartition(".")
        if not number.isdecimal():
            name, number = record.call, "0"
        kind, _, rest = name.partition(".")
        return ApiName(kind, rest or name, int(number))

    def marks(self, record: ItemRecord) -> tuple[str, ...]:
        """Markers of its item: direction and API type."""
        return (record.part, record.call.partition(".")[0])

    def place(self, record: ItemRecord) -> StepPosition:
        """Where the record stands in its training step. Must not raise for a record of `groups`."""
        name = f"{record.call}.{record.part}" if record.part in DIRECTIONS else record.call
        return place_in(self.dump(record.file), name, f"{record.call}.forward")

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        """Call stack of the record, innermost first, for the HTML page; by default that of the forward."""
        return self.dump(record.file).stacks.frames(f"{record.call}.forward")

    def cost(self, file: Path, group: Group) -> float:
        """Estimated cost of a group, in elements computed: what goes out first to workers, and how shards are even."""
        return 1.0

    def placement(self) -> WorkerPlacement:
        """What the suite wants of workers."""
        return WorkerPlacement()

    def assign(self, devices: tuple[str, ...]) -> None:  # noqa: B027  # most suites judge each record once
        """Learn which devices the workers of the run have, each once, before groups are asked for; () for a CPU."""

    def device_of(self, record: ItemRecord) -> str | None:
        """The device that must judge a record; None for any."""
        return None

    def header(self) -> list[str]:
        """Lines above a run: what is judged, on what, against what."""
        return [f"msprobe: {self._shown_files()}: {self.title}"]

    def limits(self) -> Mapping[str, float]:
        """The limits of the standard, by figure, where passes are within these; asked on the process that writes."""
        return {}

    def _shown_files(self, noun: str = "dumps") -> str:
        """The only file of the run, or how many there are."""
        files = self.files
        return file_id(files[0], self._context.config.rootpath) if len(files) == 1 else f"{len(files)} {noun}"

    def dumps(self) -> Iterator[Dump]:
        """The dumps that can be read, of either side: what they lack makes the run no success."""
        for path in self.files:
            with suppress(DumpError):
                yield self.dump(path)

    def warnings(self) -> Iterator[str]:
        """What the user may have meant otherwise; asked once, on the process that writes."""
        return iter(())

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """The object that sums up; asked once, on the process that writes.

        `continued` is a CSV pair to append to, precheck's.
        """
        return SuiteReport()

    def plugins(self) -> Iterable[tuple[str, object]]:
        """(name, pytest plugin) to register on the process that writes."""
        return ()

    def advice_when_empty(self) -> str:
        """What to do when nothing was judged; "" where the reasons say it."""
        return ""


class Context(NamedTuple):
    """What a suite is made from.

    Attributes:
        config: pytest's, for the hooks of conftest.py files and for options of other plugins.
        values: parsed values of all options by name; a suite reads its own.
        dumps: dump.json files that were named, absolute.
        out: folder of the results.
        is_writer: whether this process writes the reports.
        has_other_hosts: whether workers run on other machines, which may have what this one lacks.
        sharers: how many processes share this machine's memory.
        evidence: folders that the writing process has reserved, by what they hold, in a worker.
    """

    config: pytest.Config
    values: Mapping[str, Any]
    dumps: tuple[Path, ...]
    out: Path
    is_writer: bool
    has_other_hosts: bool
    sharers: int
    evidence: Mapping[str, str]

    @property
    def shows_pictures(self) -> bool:
        """Whether a page or a file of rows will hold pictures of failures."""
        has_rows = any(self.values.get(name) is not None for name in ("page", "jsonl", "resume"))
        return has_rows or bool(self.config.getoption("htmlpath", None))


def refuse_unused(context: Context, names: Iterable[str], why: str) -> None:
    """Refuse options on the command line that have no effect in this run; ini and YAML may serve other runs.

    Raises:
        SuiteError: the first of `names` that is given, and `why` it has no effect.
    """
    for name in names:
        if context.is_writer and context.config.getoption(f"msprobe_{name}") is not None:
            raise SuiteError(f"--msprobe-{name.replace('_', '-')}: {why}")


_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")


def escape(name: str) -> str:
    """`name` in characters that a node id can hold: `::`, `[`, `@`, spaces and others become %XX."""
    return _UNSAFE.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass")), name
    )


def file_id(path: Path, root: Path) -> str:
    """Id of a file or folder: relative to rootdir inside it, else absolute; pytest's own would be empty outside.

    Bytes of a name that are no UTF-8 are written as hexadecimal numbers: pytest's cache and JUnit can write no others.
    """
    text = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class CallNames:
    """Names in the reports of a run over some files; no two groups share one."""

    def __init__(self, files: Sequence[Path], *, tell_files: bool = False) -> None:
        """Names for the groups in `files`; `tell_files`: calls of files in one folder have different names anyway."""
        different = dict.fromkeys(files)
        folders = [path.parent for path in different]
        self._common = os.path.commonpath(folders) if len(folders) > 1 else None
        #: Folders that the run takes more than one file of: their names are not enough.
        counts = Counter(folders)
        self._shared = {folder for folder, count in counts.items() if count > 1 and not tell_files}

    def of(self, file: str, call: str) -> str:
        """The name of `call` of the file at path `file`: `rank0/Mint.add.0`, or `Mint.add.0` in a run of one file.

        It is safe to show.
        """
        if self._common is None:
            return printable(call)
        path = Path(file)
        place = path.parent.relative_to(self._common)
        if path.parent in self._shared:
            place /= path.name if path.name == "dump.json" else path.stem
        return printable((place / call).as_posix())


def place_in(
    dump: Dump,
    record: str,
    forward: str = "",
    *,
    side: HeldBy = "both",
    partner: str = "",
    partner_cells: tuple[str, ...] = (),
) -> StepPosition:
    """Where `record` stands in its step. What a backward does not say is taken from its `forward`.

    What stands beside it is as in `StepPosition`.
    """
    slot = Slot.of(dump.path)
    frame = dump.stacks.user_frame(record) or dump.stacks.user_frame(forward)
    return StepPosition(
        order=dump.orders.get(record, -1),
        cells=cells_of(dump, record, forward),
        rank=slot.rank,
        step=slot.step,
        source="" if frame is None else str(frame),
        side=side,
        partner=partner,
        partner_cells=partner_cells,
    )


def cells_of(dump: Dump, record: str, forward: str = "") -> tuple[str, ...]:
    """The Cells that `record` ran in, outermost first, without the word `Cell` and their call numbers."""
    operation = Operation.of(record, 0)
    placed = record if record in dump.parents else forward
    # Gradients of parameters are written when the step ends, outside of any Cell.
    if operation.phase == GRADIENTS and dump.parents.get(record) is None:
        placed = f"{operation.name}.forward.{operation.number or 0}"
    cells = list(dump.ancestors(placed))
    if operation.is_cell:
        cells.append(record)
    return tuple(printable(Operation.of(cell, 0).name.partition(".")[2] or cell) for cell in cells)


def of_step(place: StepPosition) -> StepPosition:
    """The place of something that is about the whole step of `place`: behind its last record."""
    return replace(place, order=-1, cells=(), source="")
