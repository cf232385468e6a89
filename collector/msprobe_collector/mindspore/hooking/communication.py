"""Communication: calls that fill their arguments, and those whose results are there only after `wait`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from msprobe_collector.dump_format.writing.framework_values import ComputationFailed
from msprobe_collector.mindspore.hooking.method_swaps import MethodSwaps
from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.faults import FaultLog


class _Open(NamedTuple):
    """A call whose result is not there yet; it keeps its handle, so that the handle's id stays its own."""

    handle: Any
    take_outputs: Callable[[], None]
    give_up: Callable[[], None]


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


class Waits:
    """Sees the training wait on handles; nothing is waited for that the training does not wait for."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        self._activity = activity
        self._faults = faults
        self._open: dict[int, _Open] = {}
        self._swaps = MethodSwaps()

    def expect(self, handle: Any, *, take_outputs: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `take_outputs` after the training's `handle.wait()`, or `give_up` when the step ends before."""
        self._open[id(handle)] = _Open(handle, take_outputs, give_up)

    def give_up(self) -> None:
        """End what nobody has waited for; its values may still be on their way."""
        waiting, self._open = list(self._open.values()), {}
        for call in waiting:
            call.give_up()

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
                self._swaps.put(owner, "wait", self._seen_wait)
        for module in (distributed, newer):
            # It takes only the very functions isend and irecv, whose names hold recorded ones now.
            if (owner := getattr(module, "P2POp", None)) is not None:
                self._swaps.put(owner, "__new__", lambda new: staticmethod(_with_originals(new)))

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()

    def _seen_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(handle, *args, **kwargs)
            call = self._open.pop(id(handle), None)
            if call is not None:
                with self._activity.own_work():
                    try:
                        call.take_outputs()
                    except ComputationFailed as failure:
                        raise failure.error from None
                    except Exception as error:  # the border between the collector and the user's training
                        self._faults.note("taking what was waited for", error)
            return result

        return wait


def _with_originals(new: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new)
    def make(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return new(cls, getattr(op, "__wrapped__", op), *args, **kwargs)

    return make
