"""A limit on how long one check may hang."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: What every check may take at least, and what each element of its estimated cost adds: a slow
#: core needs a thousandth of that, so that only what really hangs meets the limit.
_BASE_SECONDS = 60.0
_SECONDS_PER_ELEMENT = 1e-6
#: Of a process that met its limit; faulthandler's.
EXIT_CODE = 1


def time_limit_seconds(chosen: float | None, cost: float) -> float | None:
    """The limit for a check of estimated `cost` in elements: as chosen, 0 for none; else it grows with the cost."""
    if chosen is None:
        return _BASE_SECONDS + _SECONDS_PER_ELEMENT * cost
    return chosen or None


#: The limit that is running in this process; None for none. faulthandler has one watch per process, too.
_running: float | None = None


@contextmanager
def ending_after(seconds: float | None) -> Iterator[None]:
    """End this process, with a traceback of all threads, when what is inside takes longer than `seconds`.

    The watch is a thread of C that needs no GIL: it also ends a kernel that never releases it. Only for worker
    processes, which xdist replaces. Its exit code is `EXIT_CODE`.
    """
    global _running  # noqa: PLW0603  # one per process, as the watch is
    if seconds is None:
        yield
        return
    _running = seconds
    _start(seconds)
    try:
        yield
    finally:
        _running = None
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def not_counted() -> Iterator[None]:
    """Leave what is inside, such as the import of a framework, out of the limit, which then starts again."""
    faulthandler.cancel_dump_traceback_later()
    try:
        yield
    finally:
        if _running is not None:
            _start(_running)


def _start(seconds: float) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
