"""Which recorded call runs, seen apart from its dump; the places of a script where a cause can be planted."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msprobe_collector.recording.observing import CallObserver, Observer


class Watch:
    """Follows the recorded calls of one step.

    Attributes:
        planted: place of the script where this run goes wrong; "" for none.
        calls: forward records of calls, in order.
        marked: calls that were made at each place.
        is_open: whether a recorded call runs.
        current: its forward record; "" where it repeats another one.
    """

    def __init__(self, planted: str = "") -> None:
        self.planted = planted
        self.calls: list[str] = []
        self.marked: dict[str, list[str]] = {}
        self.is_open = False
        self.current = ""
        self._places: list[str] = []
        self._starts: list[int] = []
        self._names: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Follow the calls, and be what `spot` asks."""
        global _the_one
        before, observe = Observer._before, CallObserver.observe

        def named(observer: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
            found = before(observer, call, *args, **kwargs)
            if isinstance(observer, CallObserver):
                self._begin(call.name)
            return found

        def observed(observer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return observe(observer, *args, **kwargs)
            finally:
                self.is_open = False
                self._note_nodes("")

        with mock.patch.object(Observer, "_before", named), mock.patch.object(CallObserver, "observe", observed):
            _the_one = self
            try:
                yield self
            finally:
                _the_one = None

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Calls in here are made at `place`."""
        self._places.append(place)
        self.marked.setdefault(place, [])
        try:
            yield
        finally:
            self._places.remove(place)

    def note(self, place: str, name: str) -> None:
        """The call with the record `name` is one of `place`."""
        names = self.marked.setdefault(place, [])
        if name and name not in names:
            names.append(name)

    def next_at(self, place: str) -> None:
        """The next call that begins is one of `place`."""
        self._places.append(f"next {place}")

    def call_of(self, node: Any) -> str:
        """Forward record of the call that made a backward node of PyTorch; "" for none."""
        if node is None:
            return ""
        at = bisect.bisect_right(self._starts, node._sequence_nr()) - 1
        return self._names[at] if at >= 0 else ""

    def _begin(self, name: str) -> None:
        self.is_open, self.current = True, name
        self._note_nodes(name)
        if not name:
            return
        self.calls.append(name)
        for place in self._places:
            self.note(place.removeprefix("next "), name)
        self._places = [place for place in self._places if not place.startswith("next ")]

    def _note_nodes(self, name: str) -> None:
        """Nodes of PyTorch that are made from now on belong to the call `name`."""
        number = _next_node()
        while self._starts and self._starts[-1] >= number:
            self._starts.pop()
            self._names.pop()
        self._starts.append(number)
        self._names.append(name)


_the_one: Watch | None = None


def _next_node() -> int:
    import sys

    torch = sys.modules.get("torch")
    return int(torch._C._autograd._get_sequence_nr()) if torch is not None else 0


@contextmanager
def spot(place: str) -> Iterator[bool]:
    """Whether the run goes wrong here; calls inside are those that may be named for it."""
    if _the_one is None:
        yield False
        return
    with _the_one.at(place):
        yield _the_one.planted == place


def is_wrong(place: str, tensor: Any = None) -> bool:
    """Whether the run goes wrong at `place`; what may be named for it is the call that made the `tensor`."""
    if _the_one is None:
        return False
    if tensor is not None:
        _the_one.note(place, _the_one.call_of(tensor.grad_fn))
    return _the_one.planted == place
