"""Threads that the script starts: a mode belongs to one thread, so that each of them needs it on a stack of its own.

The threads of PyTorch's own engine have the modes of the thread that called `backward`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.method_swaps import MethodSwaps


class ThreadSwaps:
    """Watches what the script runs in threads that it starts, and in pools of threads.

    Attributes:
        count: how many pieces of work were watched so far.
    """

    def __init__(self, activity: Activity, seen: Callable[[], AbstractContextManager[None]]) -> None:
        """`seen()` is what sees the calls of the thread that enters it."""
        self._activity = activity
        self._seen = seen
        self._swaps = MethodSwaps()
        self.count = 0

    def put_in(self) -> None:
        """Watch threads that are started, and work that is given to pools, from now on."""
        if not self._swaps.are_in:
            self._swaps.put(threading.Thread, "start", self._started)
            self._swaps.put(ThreadPoolExecutor, "submit", self._submitted)

    def take_out(self) -> None:
        """Watch no new ones; what runs goes on as it is."""
        self._swaps.take_out()

    def _started(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if self._is_of_script(_work_of(thread)):
                run = self._watched(thread.run)

                def run_once() -> None:
                    vars(thread).pop("run", None)
                    run()

                thread.run = run_once  # type: ignore[method-assign]
            try:
                original(thread)
            except BaseException:  # no thread could be made
                vars(thread).pop("run", None)
                raise

        return start

    def _submitted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def submit(executor: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            return original(executor, self._watched(fn) if self._is_of_script(fn) else fn, *args, **kwargs)

        return submit

    def _watched(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, seen, as a part of the layer that runs now."""
        layers = list(self._activity.cells)
        self.count += 1

        def run(*args: Any, **kwargs: Any) -> Any:
            own, self._activity.cells = self._activity.cells, layers
            try:
                with self._seen():
                    return work(*args, **kwargs)
            finally:
                self._activity.cells = own

        return run

    def _is_of_script(self, work: Any) -> bool:
        """Whether what a thread runs is the script's, and no service of PyTorch or of Python (loaders, queues)."""
        module: str = getattr(getattr(work, "func", work), "__module__", None) or ""
        if module.startswith("torch.nn.parallel"):
            return not self._activity.is_inside
        root = module.partition(".")[0]
        is_service = root in ("torch", "msprobe_collector") or (root in sys.stdlib_module_names and root != "__main__")
        return not is_service and not self._activity.is_inside


def _work_of(thread: threading.Thread) -> Any:
    """The function that the thread was given, or the class that says itself what it runs."""
    is_given = type(thread).run is threading.Thread.run
    return getattr(thread, "_target", None) if is_given else type(thread)
