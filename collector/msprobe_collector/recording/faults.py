"""What went wrong while collecting: written once per kind to dump_error_info.log, never raised into training."""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

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
