"""What runs now in each thread: whether the collector looks away, and which Cells are open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
