"""The records of a step, from the first value of a call to its line in dump.json.

- A record from its first value to its end.
- Which records are kept: scope, list and data_mode, asked once per record, so that one is kept whole or not at all.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, Protocol

import numpy as np

from msprobe_collector.configuration import Configuration, Part, RecordSelection
from msprobe_collector.dump_format import Direction, is_cell_record
from msprobe_collector.dump_format.records import api_of
from msprobe_collector.dump_format.values import DIFFERS, MICROBATCH, RECOMPUTED, counted
from msprobe_collector.dump_format.writing.encoding import (
    FrameworkValues,
    Origins,
    PendingStatistics,
    RecordText,
    Sketched,
    TensorValues,
    ValueEncoder,
    sketched,
    without_files,
)
from msprobe_collector.dump_format.writing.files import quoted, quoted_key
from msprobe_collector.dump_format.writing.statistics import Statistics, filled, statistics_texts
from msprobe_collector.recording.earlier_dump import EarlierDump
from msprobe_collector.recording.folders import FolderLocks, remove_earlier_dump
from msprobe_collector.recording.guard import FaultLog
from msprobe_collector.recording.step_files import StackRecorder, StepFiles, WritingQueue


class OpenRecord(RecordText):
    """A record that has begun: its parts as text (or, when another thread writes it, as copied values).

    Attributes:
        direction: forward or backward.
        is_kept: whether it is written.
        parts: key, path, value and, of one of several values under the key, its name there.
        stack: where the script made the call.
        fault: what went wrong while it was taken; its reader learns that parts may be missing.
        is_ended: whether it has been handed over.
        microbatch: part of the batch in a pipeline.
        lists_of_one: whether each part is written as a list that holds it.
        is_value: whether the only part is written in its place.
        differs: see `Recorder.backward`.
    """

    stack = fault = ""
    is_ended = lists_of_one = is_value = False
    microbatch: int | None = None
    differs: Callable[[], bool] | None = None

    def __init__(self, name: str, direction: Direction, *, is_kept: bool, saves: bool) -> None:
        """Begin a record; `saves` is whether its values go to files."""
        super().__init__(name, saves=saves)
        self.direction = direction
        self.is_kept = is_kept
        self.parts: list[tuple[str, str, str, str | None]] = []

    def line(self) -> str:
        """The record as an entry of dump.json; slots stand for statistics that are not there yet."""
        if self.is_value:
            return f"{quoted(self.name)}: {self.parts[0][2]}"
        fields: list[str] = []
        entries: dict[str, list[str]] = {}
        for key, _, text, name in self.parts:
            if name is not None:
                entries.setdefault(key, []).append(f"{quoted(name)}: {text}")
            elif self.lists_of_one:
                fields.append(f"{quoted_key(key)}: [{text}]")
            else:
                fields.append(f"{quoted_key(key)}: {text}")
        for key, texts in entries.items():
            form = "{}: [{{{}}}]" if key == "output" else "{}: {{{}}}"
            fields.append(form.format(quoted(key), ", ".join(texts)))
        if self.microbatch is not None:
            fields.append(f'"{MICROBATCH}": {self.microbatch}')
        if self.fault:
            fields.append(f'"fault": {json.dumps(self.fault)}')
        return f"{quoted(self.name)}: {{{', '.join(fields)}}}"


def held_bytes(value: Any) -> int:
    """What copied values take in memory, about."""
    if isinstance(value, TensorValues):
        return value.held_bytes
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(held_bytes(item) for item in value) + 64
    if isinstance(value, dict):
        return sum(held_bytes(item) for item in value.values()) + 64
    return 64


class RecordFilter:
    """Follows the records of a step as they begin and end.

    `scope` opens when its first record begins and closes when its last one ends. `list` keeps what it names; where it
    names a Cell and APIs are collected too, everything that runs before that Cell ends is kept.
    """

    def __init__(self, selection: RecordSelection, *, opens_windows: bool) -> None:
        """Filter by `selection`.

        Args:
            selection: what the configuration asks for.
            opens_windows: whether a listed Cell keeps what runs inside it (level mix).
        """
        self._selection = selection
        self._opens_windows = opens_windows
        self._windows: list[str] = []
        self._is_in_scope = selection.scope is None
        #: Whether the direction alone decides.
        self._is_trivial = selection.scope is None and not selection.names
        #: Names that have been met, of those that the configuration spells out.
        self.met: set[str] = set()
        #: What ran, without numbers, to point to near names.
        self._seen: set[str] = set()

    def begin(self, record: str, direction: Direction) -> bool:
        """Whether the record that begins now is kept."""
        wanted = direction in self._selection.directions
        if self._is_trivial:
            return wanted
        scope = self._selection.scope
        if scope is not None and record == scope[0]:
            self._is_in_scope = True
            self.met.add(record)
        is_listed = self._selection.lists(record)
        if is_listed and self._opens_windows and is_cell_record(record):
            self._windows.append(record)
        if is_listed:
            self.met.update(self._selection.matches(record))
        self._seen.add(api_of(record))
        return wanted and self._is_in_scope and (is_listed or bool(self._windows))

    def end(self, record: str) -> None:
        """The record has ended."""
        if self._is_trivial:
            return
        scope = self._selection.scope
        if scope is not None and record == scope[1]:
            self._is_in_scope = False
            self.met.add(record)
        if record in self._windows:
            self._windows.remove(record)

    def never_met(self) -> list[str]:
        """Names in `scope` and `list` that no record had."""
        named = (*(self._selection.scope or ()), *self._selection.names)
        return [name for name in named if name not in self.met]

    def near(self, name: str) -> list[str]:
        """Names of what ran that come near `name`, which nothing had."""
        lower: dict[str, str] = {}
        for api in sorted(self._seen):
            lower[api.lower()] = lower[api.rpartition(".")[2].lower()] = api
        wanted = name.lower()
        inside = [api for last, api in lower.items() if last in wanted]
        close = [lower[last] for last in get_close_matches(wanted, lower, n=3, cutoff=0.6)]
        return list(dict.fromkeys(close + inside))[:3]


class Provenances(Protocol):
    """Follows where the tensors of a step come from; raises nothing."""

    def record(self, name: str) -> Origins | None:
        """Follows the tensors of the forward record `name`."""

    def passed(self, name: str, arguments: Sequence[Any]) -> None:
        """The call `name` with these arguments is about to run, and is not recorded."""

    def clear(self) -> None:
        """The step is over: names of records begin anew."""


def view_text(offset: int, lengths: Sequence[int], strides: Sequence[int]) -> str:
    """Return where a view lies in the value that it shows, in elements: `4,3x2 2x1`."""
    steps = " ".join(f"{length}x{stride}" for length, stride in zip(lengths, strides))
    return f"{offset},{steps}"


_DIFFERS = json.dumps({"type": "str", "value": DIFFERS})
#: Stands between entries of dump.json; the JSON text of an entry holds no line break.
_BETWEEN = ",\n"
_PACKAGE = str(Path(__file__).parents[1])


class RecordWriter:
    """Writes the records of a step that have ended, as soon as their statistics are there.

    Attributes:
        is_exhausted: overflow_nums records with NaN or Inf have been written; nothing more is collected.
        lost, written: numbers of records that the disk refused, and that it took.
        lock: held while something of a step is written: several threads may end records.
    """

    def __init__(
        self, configuration: Configuration, faults: FaultLog, stacks: StackRecorder, pending: PendingStatistics | None
    ) -> None:
        """Write nothing yet; `pending` computes the statistics that come after the records."""
        self._faults = faults
        self._stacks = stacks
        self._pending = pending
        self._only_overflows = configuration.task == "overflow_check"
        self._limit = configuration.overflow_limit
        self._overflows = 0
        self.is_exhausted = False
        self.lost = self.written = 0
        self.lock = RLock()
        #: Texts by the numbers of values, and numbers of those that are nothing but zeros.
        self._late: dict[str, str] = {}
        self._zeros: set[str] = set()
        self._waiting: list[tuple[OpenRecord, str]] = []

    def add_stack(self, record: OpenRecord, files: StepFiles) -> None:
        """Note where the call of a record was made."""
        if record.stack and files.stacks is not None:
            with self.lock:
                self._stacks.add(record.name, record.stack, files.stacks)

    def write(self, record: OpenRecord, files: StepFiles) -> None:
        """Write a record that has ended, now or with those that follow."""
        with self.lock:
            if self._only_overflows and not self._counts_as_overflow(record, files):
                return
            if record.arrays:
                self.save_tensors(record, files)
            self._waiting.append((record, record.line()))
            if self._pending is None or self._pending.is_full:
                self._write_waiting(files)

    def save_tensors(self, record: OpenRecord, files: StepFiles) -> None:
        """Write the files of the parts so far; what the disk refuses the record does not name."""
        refused = files.save(record.arrays)
        record.arrays = []
        if refused:
            for at, (key, prefix, text, name) in enumerate(record.parts):
                record.parts[at] = key, prefix, without_files(text, refused), name
            error = next(iter(refused.values()))
            record.fault = f"{counted(len(refused), 'tensor files')} could not be written: {error.strerror}"
            self._faults.note(record.name, error)

    def flush(self, files: StepFiles) -> None:
        """Bring everything that waits onto the disk; the files are whole then, whatever the disk refused.

        Raises:
            ComputationFailed: an error of the script's computation came up only now; the files are whole all the same.
        """
        with self.lock:
            try:
                self._write_waiting(files)
            finally:
                if (stacks := files.stacks) is not None:
                    self._faults.guarded(str(stacks.path), self._stacks.flush, stacks)
                self._faults.guarded(str(files.folder), files.flush)

    def close(self, files: StepFiles | None) -> None:
        """End the files of a step."""
        self._late.clear()
        self._zeros.clear()
        self._stacks.restart()
        if files is not None:
            self._faults.guarded(str(files.folder), files.close)

    def _write_waiting(self, files: StepFiles) -> None:
        """Write the records that wait for their statistics."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            if self._pending is not None:
                self._faults.guarded("fetching statistics", self._fetch, self._pending, files)
        finally:
            self._write_records(waiting, files)

    def _write_records(self, waiting: Sequence[tuple[OpenRecord, str]], files: StepFiles) -> None:
        lines: list[str] = []
        for record, line in waiting:
            if record.differs is not None and self._faults.guarded(record.name, record.differs, otherwise=False):
                lines.append(f'{line[:-1]}{"" if line.endswith("{}") else ", "}"{RECOMPUTED}": {_DIFFERS}}}')
            else:
                lines.append(line)
        text = _BETWEEN.join(lines)
        if self._pending is not None:
            text = filled(text, self._late, self._zeros)
        self._faults.guarded(waiting[0][0].name, self._write_lines, text, len(lines), files)

    def _fetch(self, pending: PendingStatistics, files: StepFiles) -> None:
        fetched: list[tuple[int, Statistics, Sketched]] = []
        try:
            fetched.extend(pending.fetch())
        finally:  # what came before an error counts
            statistics = [values for _, values, _ in fetched]
            keys, texts = [str(number) for number, _, _ in fetched], statistics_texts(statistics)
            if files.sketches is not None:
                rows = [sketched(values, of_these, files.sketches) for _, of_these, values in fetched]
                texts = map(str.__add__, texts, rows)
            self._late.update(zip(keys, texts))
            self._zeros.update([key for key, values in zip(keys, statistics) if values[0] == 0 == values[1]])
            self._late.update({str(number): text for number, text in pending.texts().items()})

    def _write_lines(self, text: str, count: int, files: StepFiles) -> None:
        """Write `count` records, at once if the disk takes them."""
        try:
            files.dump.add(text)
            self.written += count
        except OSError:
            if count == 1:
                self.lost += 1
                raise
            for line in text.split(_BETWEEN):
                self._faults.guarded(f"record {line[: line.find(':')]}", self._write_lines, line, 1, files)

    def _counts_as_overflow(self, record: OpenRecord, files: StepFiles) -> bool:
        if self.is_exhausted or not record.has_nonfinite:
            return False
        self._overflows += 1
        self.is_exhausted = self._limit is not None and self._overflows >= self._limit
        self.add_stack(record, files)
        return True


class Recorder:
    """Begins and ends records, and streams those that are kept.

    Attributes:
        is_collecting: between start and stop.
        encoder: makes text of values; knows which parts of them are written, and how many went to files.
        writer: writes the records that have ended.
        records_before: records that the disk took before the step that is open.
        replaced: folders in which an earlier dump stood.
        provenances: follows where tensors come from; None where nobody does.
        step_mark: changes with every step, so that gradients of a step that is over are known.
    """

    def __init__(self, configuration: Configuration, framework: str, values: FrameworkValues, faults: FaultLog) -> None:
        """Record values that `values` reads, for dumps whose framework is `framework`."""
        self._configuration = configuration
        self._framework = framework
        self._faults = faults
        self.encoder = ValueEncoder(values, summary=configuration.summary, on_unknown=faults.note_value)
        self._earlier: EarlierDump | None = None
        if configuration.bench_path is not None and configuration.task == "tensor":
            self._earlier = EarlierDump(configuration.bench_path, configuration.most_differences)
            self.encoder.keeps = self._earlier.keeps
        self._selection = selection = configuration.selection
        self.filter = RecordFilter(selection, opens_windows=configuration.level == "mix")
        self._saves_all = configuration.task in ("tensor", "overflow_check")
        self._only_overflows = configuration.task == "overflow_check"
        self._needs_elements = configuration.summary in ("md5", "fingerprint")
        has_records = configuration.task != "structure"
        self._keeps_inputs = has_records and "input" in selection.parts
        self._keeps_outputs = has_records and "output" in selection.parts
        self._has_records = has_records
        pending = values.pending(has_sketches=configuration.summary == "sketch")
        needs_elements = self._needs_elements or self._saves_all or bool(selection.tensor_names)
        is_apart = configuration.async_dump or (needs_elements and pending is not None and pending.has_device)
        self._queue = WritingQueue(faults.note) if is_apart else None
        is_late = not self._only_overflows and configuration.summary != "fingerprint"
        self._pending = pending if is_late else None
        self._stacks = StackRecorder(_PACKAGE, values.hidden_lines)
        self.writer = RecordWriter(configuration, faults, self._stacks, self._pending)
        self._counters: defaultdict[str, count[int]] = defaultdict(count)  # several threads ask
        self._files: StepFiles | None = None
        self.is_collecting = False
        self.records_before = self.step_mark = 0
        self.replaced: list[Path] = []
        self.provenances: Provenances | None = None
        self._locks = FolderLocks()

    @property
    def folder(self) -> Path | None:
        """Folder of the step that is open, or None."""
        return None if self._files is None else self._files.folder

    def open_step(self, folder: Path, *, is_shared: bool = False, ranks: Mapping[str, object] | None = None) -> None:
        """Begin the files of a step, if they are not open already; `ranks` is `Framework.ranks`.

        Raises:
            FolderInUseError: another process writes there; of a folder that `is_shared`, that several processes would
                take, also where locks cannot tell.
            OSError: it cannot be written.
        """
        if self._files is None or self._files.folder != folder:
            self.close_step()
            self.records_before = self.writer.written
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._locks.take(folder, is_shared=is_shared)
            self._files = StepFiles(folder, self._configuration, self._framework, ranks)
            self._faults.write_to(folder)
            if self._earlier is not None:
                self._earlier.open(folder)
            if self._files.has_replaced:
                self.replaced.append(folder)

    def rename_step(self, folder: Path, target: Path) -> None:
        """Give the folder of a step of this process another name; the open step goes on in it. Raises OSError."""
        if self._queue is not None:
            self._queue.drain()
        with self.writer.lock:
            if target.is_dir():
                self._locks.take(target)
                if remove_earlier_dump(target):
                    self.replaced.append(target)
            if self._files is not None and self._files.folder == folder:
                self._files.move(target)
                self._faults.write_to(target)
            else:
                folder.rename(target)

    def learn_ranks(self, ranks: Mapping[str, object] | None) -> None:
        """Write into the open step which ranks there are by now. Raises OSError."""
        if self._queue is not None:
            self._queue.drain()
        with self.writer.lock:
            if self._files is not None:
                self._files.learn_ranks(ranks)

    def flush(self) -> None:
        """See `RecordWriter`."""
        try:
            if self._queue is not None:
                self._queue.drain()
        finally:
            if self._files is not None:
                self.writer.flush(self._files)

    def close_step(self) -> None:
        """End the files of the step: what comes later for it is dropped, and call numbers begin anew."""
        try:
            self.flush()
        finally:
            with self.writer.lock:
                files, self._files = self._files, None
                self.step_mark += 1
                self._counters.clear()
                if self.provenances is not None:
                    self.provenances.clear()
                self.writer.close(files)
                self._locks.release(but_first=True)

    def wants(self, direction: Direction) -> bool:
        """Whether records of `direction` are collected at all."""
        return direction in self._configuration.selection.directions

    def number(self, call: str) -> int:
        """The number of the next call of `call` (`Mint.add`) in this step, from 0."""
        return next(self._counters[call])

    def begin(self, name: str, direction: Direction, parent: str | None, *, follows_tensors: bool = True) -> OpenRecord:
        """Begin the record `name`, which runs inside the Cell record `parent`.

        `follows_tensors`: whether it says where its tensors come from.
        """
        files, pending = self._files, self._pending
        is_kept = files is not None and self.filter.begin(name, direction)
        is_listed = bool(self._selection.tensor_names) and self._selection.lists_tensors(name)
        saves = is_kept and (self._saves_all or is_listed)
        record = OpenRecord(name, direction, is_kept=is_kept and not self.writer.is_exhausted, saves=saves)
        record.pending = pending
        record.light = None if saves or self._needs_elements else pending
        if files is None:
            return record
        record.rows = files.sketches
        if files.construct is not None and self._configuration.level != "L1":
            with self.writer.lock:
                files.construct.add(f"{quoted(name)}: {'null' if parent is None else quoted_key(parent)}")
        if record.is_kept and direction == "forward":
            if files.stacks is not None:
                record.stack = self._stacks.capture()
            if follows_tensors and self._keeps_inputs and self.provenances is not None:
                record.origins = self.provenances.record(name)
        return record

    def inputs(self, record: OpenRecord, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Take the arguments of a forward call, before it runs."""
        if record.is_kept and self._keeps_inputs:
            self._take(record, "input_args", "input", list(arguments))
            self._take(record, "input_kwargs", "kwargs", keywords)
        elif self._keeps_inputs and self.provenances is not None:
            self.provenances.passed(record.name, arguments)

    def outputs(self, record: OpenRecord, result: Any) -> None:
        """Take what a forward call returned."""
        if record.is_kept and self._keeps_outputs:
            is_several = isinstance(result, (tuple, list))
            self._take(record, "output", "output", list(result) if is_several else [result])
            if record.origins is not None:
                record.origins.end()

    def part(self, record: OpenRecord, key: str, prefix: str, value: Any) -> None:
        """Take another part: `value` under `key`, its files named by `prefix`."""
        if record.is_kept and self._has_records:
            self._take(record, key, prefix, value)

    def entry(self, record: OpenRecord, part: Part, name: str, value: Any) -> None:
        """Take one of many values that stand by `name` in the keywords of a record, or in its only output.

        Values of a whole model are taken one by one, so that no more than one of them is in memory.
        """
        if not record.is_kept:
            return
        if part == "input" and self._keeps_inputs:
            self._take(record, "input_kwargs", f"kwargs.{name}", value, name)
        elif part == "output" and self._keeps_outputs:
            self._take(record, "output", f"output.0.{name}", value, name)

    def parameter_gradient(self, record: OpenRecord, name: str, gradient: Any) -> None:
        """Take the gradient of the parameter `name`: a list of one in the record, no number in its file's name."""
        if record.is_kept and self._has_records:
            self._take(record, name, name, gradient)
            record.lists_of_one = True

    def gradients(
        self,
        record: OpenRecord,
        incoming: list[Any],
        outgoing: list[Any],
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """Take both sides of a backward record; `others` are gradients of tensors in lists and keywords, by path."""
        if not record.is_kept:
            return
        if self._keeps_inputs:
            self._take(record, "input", "input", incoming)
        if self._keeps_outputs:
            self._take(record, "output", "output", outgoing)
            if others:
                self._take(record, "other_gradients", "other_gradients", others)

    def backward(
        self,
        name: str,
        parent: str | None,
        incoming: list[Any],
        outgoing: list[Any],
        *,
        others: Mapping[str, Any] | None = None,
        differs: Callable[[], bool] | None = None,
        microbatch: int | None = None,
        step_mark: int,
    ) -> None:
        """Write the backward record `name` whole, unless the step of its forward is over.

        `differs`, asked late: the forward got or gave other values when the backward computed it again.
        """
        if step_mark != self.step_mark:
            return
        record = self.begin(name, "backward", parent)
        record.microbatch = microbatch
        record.differs = differs
        self.gradients(record, incoming, outgoing, others)
        self.end(record)

    def write_value(self, name: str, value: Any) -> None:
        """Write `value` under `name`: an entry of debug.json."""
        if self._files is None:
            return
        record = OpenRecord(name, "forward", is_kept=True, saves=self._saves_all)
        record.is_value, record.rows, record.pending = True, self._files.sketches, self._pending
        self._take(record, "", "", value)
        self.end(record)

    def release(self) -> None:
        """Let other processes write to the folders of this one."""
        self._locks.release()

    def disown(self) -> None:
        """Forget the files without touching them: they belong to the process that this one was forked from.

        Locks that other threads of the parent held, and work that its writing thread would do, are not waited for.
        """
        self._files = None
        self.writer.lock = RLock()
        self._queue = None if self._queue is None else WritingQueue(self._faults.note)
        self._faults.renew_lock()
        self._locks.release()

    def end_quietly(self, record: OpenRecord) -> None:
        """End a record after a fault, with what was taken of it."""
        self._faults.guarded(record.name, self.end, record)

    def end(self, record: OpenRecord) -> None:
        """End the record and write it, once."""
        if record.is_ended:
            return
        record.is_ended = True
        record.origins = None  # it may hold arguments, and the record waits for the disk
        self.filter.end(record.name)
        files = self._files
        if not record.is_kept or files is None:
            return
        if record.stack and not self._only_overflows:
            self.writer.add_stack(record, files)
        if self._has_records and self._queue is None:
            self.writer.write(record, files)
        elif self._has_records and self._queue is not None:
            self._queue.put(lambda: self.writer.write(record, files), held_bytes=0)

    def _take(self, record: OpenRecord, key: str, prefix: str, value: Any, name: str | None = None) -> None:
        files = self._files
        if self._queue is not None and files is not None:
            held, at = self.encoder.freeze(value, record, prefix), len(record.parts)
            record.parts.append((key, prefix, "null", name))
            self._queue.put(lambda: self._encode(record, at, held, files), held_bytes=held_bytes(held))
            return
        record.parts.append((key, prefix, self.encoder.encode(value, record, prefix), name))
        if not record.arrays:
            return
        if self._only_overflows:
            # The call that follows may change its arguments in place, and who knows now whether they are wanted?
            record.arrays = [(name, array.copy()) for name, array in record.arrays]
        elif files is not None:
            self.writer.save_tensors(record, files)

    def _encode(self, record: OpenRecord, at: int, held: Any, files: StepFiles) -> None:
        """Put the text of what is `held` in its place, in the thread that writes."""
        key, prefix, _, name = record.parts[at]
        record.parts[at] = key, prefix, self.encoder.encode(held, record, prefix), name
        if not self._only_overflows:
            self.writer.save_tensors(record, files)
