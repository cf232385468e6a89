"""From the files that TensorDump leaves on Ascend to records. Not run so far on an Ascend device.

TensorDump appends the dtype and a number that grows with every file of the process: `Cell.net.Dense.forward.input.0`
becomes `Cell.net.Dense.forward.input.0_float32_17.npy`, with `_in` before the dtype if requested (MindSpore's
documentation of ops.TensorDump). bfloat16 is stored as float32.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msprobe_collector.dump_format import find_dtype
from msprobe_collector.dump_format.writing.framework_values import TensorValues
from msprobe_collector.mindspore.tensor_values import TENSOR
from msprobe_collector.recording.activity import backward_parent
from msprobe_collector.recording.faults import FaultLog
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
class _Call:
    """Files of one call and direction: (part, index) -> file."""

    label: str
    direction: str
    number: int
    files: dict[tuple[str, int], StagedFile]


def staged_name(label: str, direction: str, part: str, index: int) -> str:
    """What TensorDump is given as a file's name."""
    return f"{label}.{direction}.{part}.{index}"


def parse_staged_name(path: Path) -> StagedFile | None:
    """What the name of a file says, or None when it is none of ours."""
    match = _STAGED.fullmatch(path.name)
    dtype = None if match is None else find_dtype(match["dtype"])
    if match is None or dtype is None:
        return None
    return StagedFile(
        path, int(match["id"]), match["label"], match["direction"], match["part"], int(match["index"]), dtype.name
    )


def group_calls(files: list[StagedFile]) -> Iterator[_Call]:
    """The calls that `files` belong to, in the order of their last files.

    The k-th file of one name belongs to the k-th call, for gradients to the k-th call from the end.
    """
    counts: dict[tuple[str, str, str, int], int] = defaultdict(int)
    calls: dict[tuple[str, str, int], _Call] = {}
    for file in sorted(files, key=lambda file: file.id):
        name = (file.label, file.direction, file.part, file.index)
        key = (file.label, file.direction, counts[name])
        counts[name] += 1
        # Taken out and put back, so that the order becomes that of the last files.
        call = calls.pop(key, None) or _Call(file.label, file.direction, key[2], {})
        call.files[file.part, file.index] = file
        calls[key] = call
    forwards: dict[str, int] = defaultdict(int)
    for label, direction, _ in calls:
        forwards[label] += direction == "forward"
    for call in calls.values():
        if call.direction == "backward":
            call.number = max(forwards[call.label] - 1 - call.number, 0) if forwards[call.label] else call.number
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
        files: list[StagedFile] = []
        try:
            wait_for_files(self.folder)
            files = [file for path in self.folder.iterdir() if (file := parse_staged_name(path)) is not None]
            if self._recorder.folder is not None:
                for call in group_calls(files):
                    self._write(call)
        except Exception as error:  # the border between the collector and the user's training
            self._faults.note("reading what TensorDump wrote", error)
        for path in self.folder.iterdir():
            path.unlink()
        return bool(files)

    def _write(self, call: _Call) -> None:
        inputs, outputs = ([_loaded(file) for file in _in_order(call, part)] for part in ("input", "output"))
        parent = self._parents.get(call.label)
        outer = f"{parent}.forward.0" if parent else self.outer
        if call.direction == "forward":
            self._recorder.number(call.label)
            record = self._recorder.begin(f"{call.label}.forward.{call.number}", "forward", outer)
            record.stack = "[]" if record.stack else ""
            self._recorder.inputs(record, inputs, {})
            self._recorder.outputs(record, outputs)
            self._recorder.end(record)
        else:
            name = f"{call.label}.backward.{call.number}"
            mark = self._recorder.step_mark
            self._recorder.backward(name, backward_parent(outer), inputs, outputs, step_mark=mark)


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
    """Whether `wait_for_files` made this file, for itself."""
    return path.name.startswith(f"{_FLAG}_")


def _in_order(call: _Call, part: str) -> list[StagedFile | None]:
    """The files of one part by position, None where a position has no file."""
    positions = [index for of, index in call.files if of == part]
    return [call.files.get((part, index)) for index in range(max(positions, default=-1) + 1)]


def _loaded(file: StagedFile | None) -> TensorValues | None:
    return None if file is None else TensorValues(np.load(file.path, allow_pickle=False), file.dtype_name, TENSOR)
