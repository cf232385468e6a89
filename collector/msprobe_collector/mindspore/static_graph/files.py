"""From the files that TensorDump leaves on Ascend to records. Not run so far on an Ascend device.

TensorDump appends the dtype and a number that grows with every file of the process: `Cell.net.Dense.forward.input.0`
becomes `Cell.net.Dense.forward.input.0_float32_17.npy`, with `_in` before the dtype if requested (MindSpore's
documentation of ops.TensorDump). bfloat16 is stored as float32.

Files of tensors that a script saves by hand, from anywhere: `{folder}/step{n}/rank{r}/{name}_{dtype}_{id}.npy`.
"""

from __future__ import annotations

import atexit
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from msprobe_collector import logger
from msprobe_collector.dump_format import find_dtype
from msprobe_collector.dump_format.writing.encoding import TensorValues
from msprobe_collector.mindspore.mindspore_internals import TENSOR, communication_rank, wait_for_graphs
from msprobe_collector.mindspore.static_graph.layouts import Description, copied, whole_tensors
from msprobe_collector.recording.guard import FaultLog
from msprobe_collector.recording.observing import backward_of_layer
from msprobe_collector.recording.recorder import Recorder

_STAGED = re.compile(
    r"(?P<label>Cell\..+)\.(?P<direction>forward|backward)\.(?P<part>input|output)\.(?P<index>\d+)"
    r"(?:_in)?_(?P<dtype>[a-z]+\d*(?:_?[a-z0-9]+)?)_(?P<id>\d+)\.npy"
)
#: Written after everything else of a step; when it is there, so is the rest.
_FLAG = "step_is_over"
_LONGEST_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of one value.

    Attributes:
        id: TensorDump's number; files of one process grow in it.
        index: position among the arguments or outputs; among their tensors, for gradients.
    """

    path: Path
    id: int
    label: str
    direction: str
    part: str
    index: int
    dtype_name: str


@dataclass(slots=True)
class _CallFiles:
    """Files of one call and direction: (part, index) -> file."""

    label: str
    direction: str
    number: int
    files: dict[tuple[str, int], StagedFile]


def staged_name(label: str, direction: str, part: str, index: int) -> str:
    """Return what TensorDump is given as a file's name."""
    return f"{label}.{direction}.{part}.{index}"


def parse_staged_name(path: Path) -> StagedFile | None:
    """Return what the name of a file says, or None when it is none of ours."""
    match = _STAGED.fullmatch(path.name)
    if match is None or (dtype := find_dtype(match["dtype"])) is None:
        return None
    return StagedFile(
        path, int(match["id"]), match["label"], match["direction"], match["part"], int(match["index"]), dtype.name
    )


def group_calls(files: list[StagedFile]) -> Iterator[_CallFiles]:
    """Yield the calls that `files` belong to, in the order of their last files.

    The k-th file of one name belongs to the k-th call, for gradients to the k-th call from the end.
    """
    counts: dict[tuple[str, str, str, int], int] = defaultdict(int)
    calls: dict[tuple[str, str, int], _CallFiles] = {}
    for file in sorted(files, key=lambda file: file.id):
        name = (file.label, file.direction, file.part, file.index)
        key = (file.label, file.direction, counts[name])
        counts[name] += 1
        # Taken out and put back, so that the order becomes that of the last files.
        call = calls.pop(key, None) or _CallFiles(file.label, file.direction, key[2], {})
        call.files[file.part, file.index] = file
        calls[key] = call
    forwards: dict[str, int] = defaultdict(int)
    for label, direction, _ in calls:
        forwards[label] += direction == "forward"
    for call in calls.values():
        if call.direction == "backward" and forwards[call.label]:
            call.number = max(forwards[call.label] - 1 - call.number, 0)
        yield call


class StagedRecords:
    """Reads the staged files at the end of each step, writes their records and deletes them.

    Attributes:
        folder: where the files wait; created by `watch`, which is called before a graph is compiled.
        outer: forward record of the dynamic Cell that ran the graph, or None.
    """

    def __init__(self, recorder: Recorder, faults: FaultLog, *, folder: Path) -> None:
        self.folder = folder
        self.outer: str | None = None
        self._recorder = recorder
        self._faults = faults
        self._parents: Mapping[str, str] = {}
        #: What could not be deleted at the end of an earlier step.
        self._kept: set[Path] = set()

    def watch(self, parents: Mapping[str, str], always_inside: Set[str]) -> None:
        """Take Cells with these labels; see `GraphRecords.watch`. Files tell no time, so all seem to run inside."""
        self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._parents = parents

    def remove(self) -> None:
        """Delete the folder, unless something else stands in it."""
        with suppress(OSError):
            self.folder.rmdir()

    def close_step(self) -> bool:
        """Write the records of the step, if one is open, and delete the files. Whether there were any."""
        where = "reading what TensorDump wrote"
        files: list[StagedFile] = self._faults.guarded(where, self._staged_files) or []
        if self._recorder.folder is not None:
            for call in group_calls(files):
                self._faults.guarded(where, self._write, call)
        self._faults.guarded("deleting what TensorDump wrote", self._delete)
        return bool(files)

    def _staged_files(self) -> list[StagedFile]:
        wait_for_files(self.folder)
        return list(filter(None, map(parse_staged_name, set(self.folder.iterdir()) - self._kept)))

    def _delete(self) -> None:
        """Delete every file; what cannot be deleted is no file of the steps that follow."""
        for path in self.folder.iterdir():
            self._faults.guarded("deleting what TensorDump wrote", path.unlink)
        self._kept = set(self.folder.iterdir())

    def _write(self, call: _CallFiles) -> None:
        inputs, outputs = _values(call, "input"), _values(call, "output")
        parent = self._parents.get(call.label)
        outer = f"{parent}.forward.0" if parent else self.outer
        if call.direction == "forward":
            self._recorder.number(call.label)
            record = self._recorder.begin(f"{call.label}.forward.{call.number}", "forward", outer)
            record.stack = record.stack and "[]"
            self._recorder.inputs(record, inputs, {})
            self._recorder.outputs(record, outputs)
            self._recorder.end(record)
        else:
            name = f"{call.label}.backward.{call.number}"
            mark = self._recorder.step_mark
            self._recorder.backward(name, outer and backward_of_layer(outer), inputs, outputs, step_mark=mark)


def wait_for_files(folder: Path) -> None:
    """Wait until TensorDump, which writes beside training and in order, has written what was asked before.

    Raises:
        TimeoutError: it has not finished within a minute.
    """
    import mindspore
    from mindspore import Tensor, ops

    mindspore.runtime.synchronize()
    ops.TensorDump()(str(folder / _FLAG), Tensor([0], mindspore.int32))
    until = time.monotonic() + _LONGEST_WAIT_SECONDS
    while not any(folder.glob(f"{_FLAG}_*.npy")):
        if time.monotonic() > until:
            raise TimeoutError(f"TensorDump has not finished {folder} in {_LONGEST_WAIT_SECONDS:.0f} seconds")
        time.sleep(0.01)


def is_flag(path: Path) -> bool:
    """Return whether `wait_for_files` made this file, for itself."""
    return path.name.startswith(f"{_FLAG}_")


def _values(call: _CallFiles, part: str) -> list[TensorValues | None]:
    """Return the values of one part by position, None where a position has no file."""
    last = max((index for of, index in call.files if of == part), default=-1)
    values: list[TensorValues | None] = [None] * (last + 1)
    for (of, index), file in call.files.items():
        if of == part:
            values[index] = TensorValues(np.load(file.path, allow_pickle=False), file.dtype_name, TENSOR)
    return values


#: Behind the name of a gradient.
GRADIENT = "_grad"
#: A file name holds 255 bytes; the dtype, the number and `.npy` come behind the name.
_LONGEST_NAME_BYTES = 200
#: TensorDump's files on Ascend wait here, in the folder that the script named, until the step ends.
_WAITING = "waiting"
#: TensorDump may name the side of a gradient that it saw; the files of a CPU do not.
_SIDE = re.compile(r"(?<=_grad)_(?:in|out)(?=_)")
_REFUSED = -1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a compiled graph saves: the tensors of one value under these names."""

    folder: Path
    names: tuple[str, ...]
    tensors: tuple[Description, ...]


class SavedFiles:
    """Numbers and writes the files of a process. Raises nothing: what goes wrong is a warning, once per kind."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._step = 0
        self._next_id = 0
        self._places: list[_Place] = []
        self._waiting: set[Path] = set()
        self._warned: set[str] = set()

    def accepts(self, what: str, folder: Any, name: Any) -> bool:
        """Return whether files can have this name in this folder; a warning says why not."""
        problem = _problem(folder, name)
        if problem:
            self.warn(f"{what}(): {problem}; nothing is saved")
        return not problem

    def write(self, folder: str | Path, name: str, value: np.ndarray[Any, Any]) -> None:
        """Write one tensor; bfloat16 as float32, which NumPy can read without help."""
        if not self.accepts("save", folder, name):
            return
        try:
            with self._lock:
                number = self._next_id
                self._next_id += 1
            value = value if value.dtype.isbuiltin == 1 else value.astype(np.float32)
            target = self._step_folder(Path(folder)) / f"{name}_{value.dtype.name}_{number}.npy"
            target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            _write_whole(target, value)
        except Exception as error:  # the border between the collector and the user's training
            self.warn(f"{name!r} cannot be saved in {str(folder)!r}: {_reason(error)}")

    def note(self, folder: Any, name: Any, description: Description) -> int:
        """Note a place in a graph; its number, -1 when nothing can be saved there. Called by the compiler."""
        if not self.accepts("save", folder, name):
            return _REFUSED
        tensors = tuple(whole_tensors(description))
        names = tuple(tensor_names(name, description))
        if unseen := sorted(set(_names_of(name, description, ("moving",))) - set(names)):
            self.warn(f"{', '.join(unseen)}: a tensor whose shape changes from run to run is not saved in a graph")
        self._places.append(_Place(Path(folder), names, tensors))
        return len(self._places) - 1

    def arrive(self, place: int, position: int, value: np.ndarray[Any, Any]) -> None:
        """Write the `position`-th tensor of a place. Called by the running graph, whose array it is."""
        at = self._places[place]
        self.write(at.folder, at.names[position], copied(value, at.tensors[position]))

    def waiting_path(self, folder: Any, name: Any) -> str:
        """The file that TensorDump is given on Ascend; "" when nothing can be saved. Called by the compiler."""
        if not self.accepts("save", folder, name):
            return ""
        waiting = Path(folder).absolute() / _WAITING / f"proc{os.getpid()}"
        try:
            waiting.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            self.warn(f"{name!r} cannot be saved in {folder!r}: {_reason(error)}")
            return ""
        if not self._waiting:
            atexit.register(self._finish)
        self._waiting.add(waiting)
        return str(waiting / name)

    def end_step(self) -> None:
        """Give files that wait their place, and begin the next step."""
        for waiting in sorted(self._waiting):
            try:
                wait_for_files(waiting)
                self._move(waiting)
            except Exception as error:  # the border between the collector and the user's training
                self.warn(f"files in {str(waiting)!r} stay there: {_reason(error)}")
        self._step += 1

    def _finish(self) -> None:
        self.end_step()
        for waiting in self._waiting:
            with suppress(OSError):  # something stands in it
                waiting.rmdir()
                waiting.parent.rmdir()

    def _move(self, waiting: Path) -> None:
        target = self._step_folder(waiting.parent.parent)
        target.mkdir(mode=0o750, parents=True, exist_ok=True)
        for path in list(waiting.glob("*.npy")):
            if is_flag(path):
                path.unlink()
            else:
                os.replace(path, target / _SIDE.sub("", path.name))

    def _step_folder(self, folder: Path) -> Path:
        return folder / f"step{self._step}" / f"rank{communication_rank() or 0}"

    def warn(self, message: str) -> None:
        """Say `message`, unless it was said before."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning("%s", message)


def tensor_names(name: str, description: Description) -> Iterator[str]:
    """Names of the tensors that arrive, in order: `name`, and inside tuples, lists and dicts `name.1.key`."""
    return _names_of(name, description, ("tensor",))


def step() -> None:
    """End the step of `save` and `save_grad`: later files go to the folder of the next one.

    Waits for graphs that still run. Call it outside of graphs, once per training step.
    """
    try:
        wait_for_graphs()
    finally:
        SAVED.end_step()


SAVED = SavedFiles()


def _names_of(name: str, description: Description, kinds: tuple[str, ...]) -> Iterator[str]:
    kind = description[0]
    if kind in kinds:
        if kind != "tensor" or 0 not in description[2]:
            yield name
    elif kind == "items":
        for index, item in enumerate(description[1]):
            yield from _names_of(f"{name}.{index}", item, kinds)
    elif kind == "keys":
        for key, item in zip(description[1], description[2]):
            yield from _names_of(f"{name}.{key}", item, kinds)


def _reason(error: Exception) -> str:
    """Return what went wrong, without the file's name, which differs each time."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _problem(folder: Any, name: Any) -> str:
    if not isinstance(folder, (str, Path)) or not str(folder):
        return f"the folder {folder!r} is not text"
    if not isinstance(name, str) or not name:
        return f"the name {name!r} is not text"
    if "/" in name or "\0" in name or len(name.encode()) > _LONGEST_NAME_BYTES:
        return f"{name[:80]!r} cannot be a file name: it has '/' or more than {_LONGEST_NAME_BYTES} bytes"
    return ""


def _write_whole(path: Path, value: np.ndarray[Any, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        np.save(file, value, allow_pickle=False)
    os.replace(partial, path)
