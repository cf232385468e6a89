"""The files of one step of one rank.

- Work that waits for a thread of its own, bounded in memory: when it is full, training waits.
- Where in the training script a call came from: taken in microseconds, put into words once per place.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from types import CodeType, FrameType
from typing import Any

import numpy as np

from msprobe_collector.configuration import Configuration
from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.dump_format.dump import Frame, frame_text
from msprobe_collector.dump_format.sketch_files import SKETCH_FILE, SketchRows
from msprobe_collector.dump_format.writing.files import GrowingFile, TensorFiles
from msprobe_collector.recording.folders import remove_earlier_dump
from msprobe_collector.recording.guard import ComputationFailed


class StepFiles:
    """dump.json, stack.json, construct.json, debug.json and the tensors in one folder, and nothing of an earlier dump.

    Attributes:
        folder: `{dump_path}/step{n}/rank{r}`, `proc0` or `proc{pid}`.
        has_replaced: whether an earlier dump stood there.
        dump: the records; for level debug the values that `save` was given.
        stacks, construct: None where the configuration has no extra_info.
        sketches: None where the configuration asks for none.
    """

    def __init__(
        self,
        folder: Path,
        configuration: Configuration,
        framework: str,
        ranks: Mapping[str, object] | None,
    ) -> None:
        """Create the files, empty, in place of those of an earlier dump. The folder exists. Raises OSError.

        `ranks` is `Framework.ranks` at this moment.
        """
        self.has_replaced = remove_earlier_dump(folder)
        self.folder = folder
        is_debug = configuration.level == "debug"
        self._configuration = configuration
        self._framework = framework
        self._ranks = ranks
        name = "debug.json" if is_debug else "dump.json"
        self.dump = GrowingFile(folder / name, head=self._head(), entries_key="data")
        self._tensors = TensorFiles(folder / TENSOR_FOLDER)
        self.stacks: GrowingFile | None = None
        self.construct: GrowingFile | None = None
        if configuration.extra_info and not is_debug:
            self.stacks = GrowingFile(folder / "stack.json")
            self.construct = GrowingFile(folder / "construct.json", entries_per_write=256)
        self.sketches: SketchRows | None = None
        if configuration.summary == "sketch":
            self.sketches = SketchRows(folder / SKETCH_FILE)
        try:
            for file in self._files():
                file.create()
        except BaseException:
            self._abandon()
            raise

    def save(self, arrays: Iterable[tuple[str, np.ndarray[Any, Any]]]) -> dict[str, OSError]:
        """Write `arrays` (file name, values) into dump_tensor_data; why some are not there, by file name."""
        refused = {}
        for name, array in arrays:
            try:
                self._tensors.save(name, array)
            except OSError as error:
                refused[name] = error
        return refused

    def move(self, folder: Path) -> None:
        """Give the folder another name. Raises OSError, also when something stands there."""
        self.folder.rename(folder)
        self.folder = folder
        self._tensors.folder = folder / TENSOR_FOLDER
        self.dump.change(folder / self.dump.path.name, self._head())

    def learn_ranks(self, ranks: Mapping[str, object] | None) -> None:
        """Write which ranks there are now, where that has changed. Raises OSError."""
        if ranks is not None and ranks != self._ranks:
            self._ranks = ranks
            self.dump.change(self.dump.path, self._head())

    def flush(self) -> None:
        """Write what waits. Raises OSError."""
        for file in self._files():
            file.flush()

    def close(self) -> None:
        """Write what waits and close the files, which stay whole. Raises OSError."""
        for file in self._files():
            file.close()

    def _abandon(self) -> None:
        """Leave nothing of a dump that could not be begun."""
        for file in self._files():
            with suppress(OSError):
                file.close()
                file.path.unlink(missing_ok=True)
        for folder in (self.folder, self.folder.parent):
            with suppress(OSError):
                folder.rmdir()

    def _head(self) -> dict[str, object]:
        configuration = self._configuration
        saves = configuration.task in ("tensor", "overflow_check") or bool(configuration.selection.tensor_names)
        head: dict[str, object] = {
            "task": configuration.task,
            "level": configuration.level,
            "framework": self._framework,
            "dump_data_dir": str(self.folder / TENSOR_FOLDER) if saves else None,
        }
        return head if self._ranks is None else {**head, "ranks": self._ranks}

    def _files(self) -> list[GrowingFile | SketchRows]:
        files = (self.dump, self.stacks, self.construct, self.sketches)
        return [file for file in files if file is not None]


class WritingQueue:
    """Runs jobs in order in one background thread.

    Jobs that wait hold at most `most_bytes` of copied values, save that one larger job is taken alone.
    """

    def __init__(self, on_fault: Callable[[str, BaseException], None], *, most_bytes: int = 1 << 29) -> None:
        """Start nothing yet; the thread starts with the first job.

        Args:
            on_fault: called for a job that raised.
            most_bytes: limit of the values that wait.
        """
        self._on_fault = on_fault
        self._most_bytes = most_bytes
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._held_bytes = 0
        self._changed = Condition()
        self._failure: ComputationFailed | None = None
        self._thread: Thread | None = None

    def put(self, job: Callable[[], None], *, held_bytes: int) -> None:
        """Add `job`, which keeps `held_bytes` of memory until it has run; waits while the queue is full.

        Raises:
            ComputationFailed: a job before has brought up an error of the script's computation.
        """
        with self._changed:
            while self._held_bytes and self._held_bytes + held_bytes > self._most_bytes:
                self._wait_for_thread()
            self._jobs.append((held_bytes, job))
            self._held_bytes += held_bytes
            if self._thread is None:
                self._start_thread()
            self._changed.notify_all()
        self._raise_failure()

    def drain(self) -> None:
        """Wait until every job has run.

        Raises:
            ComputationFailed: a job has brought up an error of the script's computation.
        """
        with self._changed:
            while self._jobs:
                self._wait_for_thread()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _wait_for_thread(self) -> None:
        """Wait for a change; training would wait forever for a thread that has died, or was never started."""
        if self._thread is None or not self._thread.is_alive():
            self._start_thread()
        self._changed.wait(1.0)

    def _start_thread(self) -> None:
        self._thread = thread = Thread(target=self._run, name="msprobe-writer", daemon=True)
        thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                held_bytes, job = self._jobs[0]
            try:
                job()
            except ComputationFailed as failure:
                self._failure = failure
            except BaseException as error:  # nothing may end the writer: training waits for it
                self._on_fault("writing a record", error)
            del job
            with self._changed:
                # Taken off only now, so that `drain` waits for it too.
                self._jobs.popleft()
                self._held_bytes -= held_bytes
                self._changed.notify_all()


#: Names of one stack that wait for their group: what stack.json can lack after a kill, and all that stays in memory.
_MOST_WAITING = 4096
_Place = tuple[int, int]


class StackRecorder:
    """Call stacks of forward records, grouped in stack.json by identical stack.

    A stack is recognised by its code objects and their current instructions, so that a loop costs no formatting.
    Records of one stack form a group when `flush` is called or too many wait: one stack may have several groups.
    """

    def __init__(self, own_package: str, hidden: tuple[str, ...] = ()) -> None:
        """Leave out the frames of files below `own_package`, and those whose source line has one of `hidden`."""
        self._own_package = own_package
        self._hidden = hidden
        self._texts: dict[tuple[int, ...], str] = {}
        self._frames: dict[_Place, str | None] = {}
        # Places are ids of code objects, which stay theirs only while the objects live.
        self._kept: dict[int, CodeType] = {}
        self._waiting: dict[str, list[str]] = {}
        self._waiting_count = 0
        self._groups = 0

    def capture(self) -> str:
        """The caller's stack as JSON text, innermost frame first."""
        places: list[int] = []
        innermost = sys._getframe(1)
        frame: FrameType | None = innermost
        while frame is not None:
            places += id(frame.f_code), frame.f_lasti
            frame = frame.f_back
        key = tuple(places)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._written(innermost)
        return text

    def add(self, record: str, stack: str, file: GrowingFile) -> None:
        """Note that `record` has the captured `stack`; `file` is the stack.json of its step."""
        self._waiting.setdefault(stack, []).append(record)
        self._waiting_count += 1
        if self._waiting_count >= _MOST_WAITING:
            self.flush(file)

    def flush(self, file: GrowingFile) -> None:
        """Write the groups that wait. Raises OSError; they are given up then."""
        waiting, self._waiting, self._waiting_count = self._waiting, {}, 0
        for stack, names in waiting.items():
            file.add(f'"{self._groups}": [{json.dumps(names)}, {stack}]')
            self._groups += 1

    def restart(self) -> None:
        """Begin another step's file."""
        self._groups = 0

    def _written(self, innermost: FrameType | None) -> str:
        texts = []
        frame = innermost
        while frame is not None:
            place = (id(frame.f_code), frame.f_lasti)
            if place not in self._frames:
                self._kept[id(frame.f_code)] = frame.f_code
                self._frames[place] = self._frame_text(frame)
            if (text := self._frames[place]) is not None:
                texts.append(text)
            frame = frame.f_back
        return json.dumps(texts)

    def _frame_text(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        source = linecache.getline(path, frame.f_lineno).strip()
        if not source or path.startswith(self._own_package) or any(text in source for text in self._hidden):
            return None
        return frame_text(Frame(path, frame.f_lineno, frame.f_code.co_name, source))
