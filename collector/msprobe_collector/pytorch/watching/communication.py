"""Communication of torch.distributed: functions that modes do not see, that fill arguments or end later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.method_swaps import MethodSwaps
from msprobe_collector.recording.waits import WaitedCalls

#: Functions of torch.distributed that move values.
_FUNCTIONS = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "batch_isend_irecv"),
    *("broadcast", "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
    *("send", "_all_gather_base", "_reduce_scatter_base"),
)


def functions() -> Iterator[tuple[Any, str]]:
    """(module, name) of each function to record; none where PyTorch was built without torch.distributed."""
    from torch import distributed

    if distributed.is_available():
        for name in _FUNCTIONS:
            if hasattr(distributed, name):
                yield distributed, name


def outputs_of(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a communication call put out: its result, or, where it fills its arguments, these as they are now."""
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    if all(part is None or isinstance(part, int) or _is_handle(part) for part in parts):
        return [*args, *kwargs.values()]
    return [None if _is_handle(part) else part for part in parts]


def handles_of(result: Any) -> list[Any]:
    """Handles in `result` on which someone must still wait."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part for part in parts if _is_handle(part)]


def _is_handle(value: Any) -> bool:
    from torch import distributed

    work = getattr(distributed, "Work", None)
    return work is not None and isinstance(value, work)


class Waits(WaitedCalls):
    """Sees the training wait on the handles of asynchronous communication."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        super().__init__(activity, faults)
        self._swaps = MethodSwaps()

    def put_in(self) -> None:
        """See waits from now on."""
        from torch import distributed

        if distributed.is_available() and not self._swaps.are_in:
            self._swaps.put(distributed.Work, "wait", self.seen_wait)

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()
