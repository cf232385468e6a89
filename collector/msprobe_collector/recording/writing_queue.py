"""Work that waits for a thread of its own, bounded in memory: when it is full, training waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread


class WritingQueue:
    """Runs jobs in order in one background thread.

    Jobs that wait hold at most `most_bytes` of copied values, save that one larger job is taken alone.
    """

    def __init__(self, on_fault: Callable[[str, BaseException], None], *, most_bytes: int = 1 << 29) -> None:
        """Start nothing yet; the thread starts with the first job.

        Args:
            on_fault: called for a job that raised.
            most_bytes: limit of the values that wait.
        """
        self._on_fault = on_fault
        self._most_bytes = most_bytes
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._held_bytes = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    def put(self, job: Callable[[], None], *, held_bytes: int) -> None:
        """Add `job`, which keeps `held_bytes` of memory until it has run; waits while the queue is full."""
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="msprobe-writer", daemon=True)
                self._thread.start()
            while self._held_bytes and self._held_bytes + held_bytes > self._most_bytes:
                self._changed.wait()
            self._jobs.append((held_bytes, job))
            self._held_bytes += held_bytes
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until every job has run."""
        with self._changed:
            while self._jobs:
                self._changed.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                held_bytes, job = self._jobs[0]
            try:
                job()
            except Exception as error:  # the writer's fault must not end the writer
                self._on_fault("writing a record", error)
            del job
            with self._changed:
                # Taken off only now, so that `drain` waits for it too.
                self._jobs.popleft()
                self._held_bytes -= held_bytes
                self._changed.notify_all()
