"""What runs now in each thread: whether the collector looks away, and which Cells are open.

What went wrong while collecting: written once per kind to dump_error_info.log, never raised into training.

The layers of watched models by their paths.

Tensors of a call that are not top-level arguments, under the paths by which dumps name their gradients.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any


class Activity(threading.local):
    """State of one thread.

    Attributes:
        is_inside: an API call that is being recorded runs, or the collector works; calls inside are not recorded.
        cells: forward records of the Cells that run, outermost first.
    """

    def __init__(self) -> None:
        self.is_inside = False
        self.cells: list[str] = []

    @property
    def cell(self) -> str | None:
        """The innermost Cell record that runs, or None."""
        return self.cells[-1] if self.cells else None

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Calls inside are the collector's own and leave no records."""
        was_inside, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = was_inside


def backward_parent(cell: str | None) -> str | None:
    """The backward record of the Cell whose forward record is `cell`."""
    if cell is None:
        return None
    front, _, number = cell.rpartition(".")
    return f"{front.removesuffix('.forward')}.backward.{number}"


logger = logging.getLogger("msprobe_collector")

ERROR_LOG = "dump_error_info.log"


class FaultLog:
    """The dump_error_info.log of a run. Each kind of fault is written once with its stack and counted afterwards."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = Lock()
        self._folder: Path | None = None

    def write_to(self, folder: Path) -> None:
        """Write to `folder`, that of the current step, from now on."""
        self._folder = folder

    def note(self, where: str, error: BaseException) -> None:
        """Write `error`, which happened at `where` (a record or an activity), unless its kind is known already."""
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        kind = f"{type(error).__name__} at {frame[0].filename}:{frame[0].lineno}" if frame else type(error).__name__
        self._write(kind, f"{where}: {type(error).__name__}: {error}", _stack_of(error))

    def note_value(self, where: str, value: object) -> None:
        """Write that `value` has no form in a dump, so that null is written instead; once per type."""
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        self._write(
            f"value {name}", f"{where}: a value of type {name} has no form in a dump; null is written instead", ""
        )

    def _write(self, kind: str, message: str, stack: str) -> None:
        with self._lock:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if self._counts[kind] > 1:
                return
            logger.warning("%s; training continues, see %s", message, ERROR_LOG)
            if self._folder is not None:
                _append(self._folder / ERROR_LOG, message, stack)

    def summary(self) -> list[str]:
        """One line per kind that occurred more than once."""
        return [f"{kind}: {count} times" for kind, count in self._counts.items() if count > 1]


def guarded(faults: FaultLog, where: str, action: Callable[[], Any]) -> Any:
    """What `action` returns, or None after its exception went to the log: training must not see it."""
    try:
        return action()
    except Exception as error:  # the border between the collector and the user's training
        faults.note(where, error)
        return None


def _stack_of(error: BaseException) -> str:
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return f"Call stack (most recent call last):\n{''.join(lines)}"


def _append(path: Path, message: str, stack: str) -> None:
    text = f"[{time.strftime('%Y-%m-%d %H:%M:%S %z')}] {message}\n{stack}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def named_layers(models: Sequence[Any], walk: Callable[[Any], Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """(path, layer) of every layer below the `models`, each once under its first path; the models have the path "".

    `walk` gives (path, layer) of a model and of all layers below it. Of several models, paths begin with their number.
    """
    seen: set[int] = set()
    for index, model in enumerate(models):
        front = f"{index}." if len(models) > 1 else ""
        for path, layer in walk(model):
            if id(layer) not in seen:
                seen.add(id(layer))
                yield (f"{front}{path}" if path else ""), layer


_CONTAINERS = (list, tuple, dict)


def inner_tensors(
    arguments: Sequence[Any], keywords: Mapping[str, Any], tensor_type: type | tuple[type, ...]
) -> Iterator[tuple[str, Any]]:
    """(path, tensor) of those in lists, tuples, dicts and keywords: `input.0.1`, `kwargs.mask`."""
    waiting = [(f"kwargs.{name}", value) for name, value in keywords.items()]
    waiting += [(f"input.{at}", value) for at, value in enumerate(arguments) if type(value) in _CONTAINERS]
    while waiting:
        path, value = waiting.pop(0)
        if isinstance(value, tensor_type):
            yield path, value
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}.{index}", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            waiting += [(f"{path}.{key}", item) for key, item in value.items()]
