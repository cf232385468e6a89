"""The border between the collector and the training: what goes wrong in the collector ends here.

- What runs now in each thread: whether the collector looks away, and which layers are open.
- What went wrong while collecting: written once per kind to dump_error_info.log, never raised into training.
- Where the training comes into the collector: outside of the script's modes, and with every fault caught.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from msprobe_collector import logger
from msprobe_collector.configuration import Refusal
from msprobe_collector.dump_format.values import counted


class GuardedCall(Protocol):
    """A call whose `record` is told what went wrong; None while it has none."""

    @property
    def record(self) -> Any:
        """Return an `OpenRecord`."""


class Activity(threading.local):
    """State of one thread.

    Attributes:
        is_inside: an API call that is being recorded runs, or the collector works; calls inside are not recorded.
        is_closed: a communication runs, or the collector works; not even communication inside is recorded.
        cells: forward records of the Cells that run, outermost first.
        microbatch: number of the part of the batch that a pipeline works on; None outside of pipelines.
    """

    def __init__(self) -> None:
        self.is_inside = False
        self.is_closed = False
        self.microbatch: int | None = None
        self.cells: list[str] = []

    @property
    def cell(self) -> str | None:
        """The innermost Cell record that runs, or None."""
        return self.cells[-1] if self.cells else None


class ComputationFailed(BaseException):
    """Reading a tensor brought up the error of the script's own computation, which must go on to the script.

    No Exception, so that it passes what keeps faults of the collector away from training. `Guard.enter` raises `error`
    in its place.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


ERROR_LOG = "dump_error_info.log"


class FaultLog:
    """The dump_error_info.log of a run. Each kind of fault is written once with its stack and counted afterwards."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = Lock()
        self._folder: Path | None = None
        self._undescribed = 0

    def write_to(self, folder: Path) -> None:
        """Write to `folder`, that of the current step, from now on."""
        self._folder = folder

    def guarded(
        self,
        where: str,
        action: Callable[..., Any],
        *args: Any,
        call: GuardedCall | None = None,
        otherwise: Any = None,
    ) -> Any:
        """What `action(*args)` returns; `otherwise` after its exception went to the log and into the record of `call`.

        This is the border between the collector and the training, which must not see faults of ours. What belongs to
        the script passes it: errors of its own computation (`ComputationFailed`), what it asks for in vain (`Refusal`),
        and what ends a process (KeyboardInterrupt, SystemExit).
        """
        try:
            return action(*args)
        except Refusal:
            raise
        except Exception as error:
            self.note_in(where, error, call)
            return otherwise

    def note_in(self, where: str, error: Exception, call: GuardedCall | None) -> None:
        """As `note`, and write it into the record of `call`."""
        self.note(where, error)
        if call is not None and call.record is not None:
            call.record.fault = _text_of(error)

    def note(self, where: str, error: BaseException) -> None:
        """Write `error`, which happened at `where` (a record or an activity), unless its kind is known already.

        Raises nothing, whatever is left of memory and stack, and whatever the script's handlers of logging do.
        """
        try:
            self._note(where, error)
        except Exception:
            self._undescribed += 1

    def _note(self, where: str, error: BaseException) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        kind = f"{type(error).__name__} at {frame[0].filename}:{frame[0].lineno}" if frame else type(error).__name__
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        message = f"{where}: {_text_of(error)}"
        self._write(kind, message, f"Call stack (most recent call last):\n{stack}")

    def note_value(self, where: str, value: object) -> None:
        """Write that `value` has no form in a dump, so that null is written instead; once per type."""
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        self._write(
            f"value {name}", f"{where}: a value of type {name} has no form in a dump; null is written instead", ""
        )

    def _write(self, kind: str, message: str, stack: str) -> None:
        with self._lock:
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count > 1:
            return
        if self._folder is not None:
            _append(self._folder / ERROR_LOG, message, stack)
        # Not under the lock: a handler of the script may compute, and have a fault of its own noted.
        logger.warning("%s; training continues, see %s", message, ERROR_LOG)

    @property
    def has_any(self) -> bool:
        """Whether anything went wrong so far."""
        return bool(self._counts or self._undescribed)

    def summary(self) -> list[str]:
        """One line per kind that occurred more than once, and one for faults that could not be written."""
        lines = [f"{kind}: {count} times" for kind, count in self._counts.items() if count > 1]
        if self._undescribed:
            lines.append(f"{counted(self._undescribed, 'faults')} could not be written, for want of memory or stack")
        return lines

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = Lock()


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its own text cannot be made
        return type(error).__name__


def _append(path: Path, message: str, stack: str) -> None:
    text = f"[{time.strftime('%Y-%m-%d %H:%M:%S %z')}] {message}\n{stack}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


class Guard:
    """Where the training comes into the collector: at a call, a hook, a wait.

    Attributes:
        activity: what runs in this thread.
        faults: where the collector's own faults go.
        outside: makes the context in which the collector works; see `Framework.outside`.
        is_away: nothing is to be done: a device only notes down what it is told.
    """

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        self.activity = activity
        self.faults = faults
        self.outside: Callable[[], AbstractContextManager[object]] = nullcontext
        self.is_away = False

    def enter(
        self,
        where: str,
        action: Callable[..., Any],
        *args: Any,
        call: GuardedCall | None = None,
        otherwise: Any = None,
    ) -> Any:
        """As `FaultLog.guarded`, for work of the collector: nothing of the script sees it, and it leaves no records.

        Raises:
            Exception: the error of the script's own computation, where reading a value brought it up, or a `Refusal`.
        """
        if self.is_away:
            return otherwise
        activity = self.activity
        before, activity.is_inside, activity.is_closed = (activity.is_inside, activity.is_closed), True, True
        try:
            with self.outside():
                return action(*args)
        except Refusal:
            raise
        except ComputationFailed as failure:
            raise failure.error from None
        except Exception as error:
            self.faults.note_in(where, error, call)
            return otherwise
        finally:
            activity.is_inside, activity.is_closed = before
