"""Files of tensors that a script saves by hand, from anywhere: `{folder}/step{n}/rank{r}/{name}_{dtype}_{id}.npy`."""

from __future__ import annotations

import atexit
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from msprobe_collector.mindspore.mindspore_internals import communication_rank
from msprobe_collector.mindspore.mindspore_internals import wait_for_graphs
from msprobe_collector.mindspore.static_graph.layouts import Description, copied, whole_tensors
from msprobe_collector.mindspore.static_graph.staged_records import is_flag, wait_for_files

logger = logging.getLogger("msprobe_collector")

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
        """Whether files can have this name in this folder; a warning says why not."""
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
    """What went wrong, without the file's name, which differs each time."""
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
