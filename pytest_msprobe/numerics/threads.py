"""Work on parts of large arrays, in as many threads as this process may use; NumPy lets go of Python's lock meanwhile.

Which part a thread gets must not matter: parts and their results are the same for every number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")

#: More threads than these wait for memory.
_MOST_THREADS = 8


def thread_count() -> int:
    """OMP_NUM_THREADS, which workers that share a machine get, else the cores that this process may use; 8 at most."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdecimal() and int(given):
        return min(int(given), _MOST_THREADS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


def in_threads(action: Callable[[_Part], _Result], parts: Sequence[_Part]) -> list[_Result]:
    """What `action` gives for each of `parts`, in their order. NumPy's error state is that of a new thread."""
    threads = min(thread_count(), len(parts))
    if threads < 2:
        return [action(part) for part in parts]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(action, parts))
