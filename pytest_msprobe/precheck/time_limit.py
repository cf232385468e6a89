"""A limit on how long one check may hang."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: What every check may take at least, and what each element of its estimated cost adds: a thousandth of what a slow
#: core needs would be 1e-9, so that only what really hangs meets the limit.
_BASE_SECONDS = 60.0
_SECONDS_PER_ELEMENT = 1e-6


def time_limit_seconds(chosen: float | None, cost: float) -> float | None:
    """The limit for a check of estimated `cost` in elements: as chosen, 0 for none; else it grows with the cost."""
    if chosen is None:
        return _BASE_SECONDS + _SECONDS_PER_ELEMENT * cost
    return chosen or None


@contextmanager
def ending_after(seconds: float | None) -> Iterator[None]:
    """End this process, with a traceback of all threads, when what is inside takes longer than `seconds`.

    The watch is a thread of C that needs no GIL: it ends a kernel that never gives it back. Only for worker processes,
    which xdist replaces.
    """
    if seconds is None:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
