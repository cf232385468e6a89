"""Communication: calls that fill their arguments, and those whose results are there only after `wait`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.method_swaps import MethodSwaps
from msprobe_collector.recording.waits import WaitedCalls


def outputs_of(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a communication call put out: its result, or, where it fills its arguments, these as they are now."""
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    if all(part is None or is_handle(part) for part in parts):
        return [*args, *kwargs.values()]
    return [None if is_handle(part) else part for part in parts]


def handles_of(result: Any) -> list[Any]:
    """Handles in `result` on which someone must still wait."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part for part in parts if is_handle(part) and getattr(part, "handle", None) is not None]


def is_handle(value: Any) -> bool:
    """Whether `value` is what an asynchronous communication returns to wait on."""
    return type(value).__name__ in ("CommHandle", "CommHandle_")


class Waits(WaitedCalls):
    """Sees the training wait on handles."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        super().__init__(activity, faults)
        self._swaps = MethodSwaps()

    def put_in(self) -> None:
        """See waits from now on, and let operations of a batch be named by recorded functions."""
        if self._swaps.are_in:
            return
        from mindspore.communication import comm_func
        from mindspore.mint import distributed
        from mindspore.ops import function

        newer = getattr(function, "comm_func", None)  # MindSpore 2.7.1
        for owner in dict.fromkeys(getattr(module, "CommHandle", None) for module in (comm_func, newer)):
            if owner is not None and "wait" in vars(owner):
                self._swaps.put(owner, "wait", self.seen_wait)
        for module in (distributed, newer):
            # It takes only the very functions isend and irecv, whose names hold recorded ones now.
            if (owner := getattr(module, "P2POp", None)) is not None:
                self._swaps.put(owner, "__new__", lambda new: staticmethod(_with_originals(new)))

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()


def _with_originals(new: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new)
    def make(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return new(cls, getattr(op, "__wrapped__", op), *args, **kwargs)

    return make
