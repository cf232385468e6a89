"""Which microbatch a stage of `torch.distributed.pipelining` works on, as its schedule says."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from msprobe_collector.pytorch.communication import PeerOperations
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps

#: Methods that work on one microbatch, with the parameter that says on which, by module and class.
_METHODS = {
    ("stage", "_PipelineStageBase"): {
        "forward_one_chunk": "fwd_chunk_id",
        "backward_one_chunk": "bwd_chunk_id",
        "backward_weight_one_chunk": "bwd_chunk_id",
        "get_fwd_recv_ops": "fwd_chunk_id",
        "get_fwd_send_ops": "fwd_chunk_id",
        "get_bwd_recv_ops": "bwd_chunk_id",
        "get_bwd_send_ops": "bwd_chunk_id",
    },
    ("schedules", "_PipelineSchedule"): {"_maybe_compute_loss": "mb_index"},
}


class PipelineStages:
    """Follows the microbatches of the stages of this process."""

    def __init__(self, guard: Guard, peers: PeerOperations) -> None:
        self._activity = guard.activity
        self._peers = peers
        self._guard = guard
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """Follow them from now on, where the script has pipelines."""
        if self._swaps.are_in:
            return
        for (module, owner), methods in _METHODS.items():
            kind = getattr(sys.modules.get(f"torch.distributed.pipelining.{module}"), owner, None)
            for name, parameter in methods.items():
                if callable(method := getattr(kind, name, None)) and parameter in inspect.signature(method).parameters:
                    self._swaps.put(kind, name, functools.partial(self._seen, parameter=parameter))

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _seen(self, original: Callable[..., Any], parameter: str) -> Callable[..., Any]:
        activity = self._activity
        place = list(inspect.signature(original).parameters).index(parameter)

        @functools.wraps(original)
        def work(*args: Any, **kwargs: Any) -> Any:
            before = activity.microbatch
            activity.microbatch = kwargs.get(parameter, *args[place : place + 1])
            try:
                result = original(*args, **kwargs)
                if isinstance(result, list) and activity.microbatch is not None:
                    self._guard.enter("operations of a pipeline", self._expect, result, activity.microbatch)
                return result
            finally:
                activity.microbatch = before

        return work

    def _expect(self, result: list[Any], microbatch: int) -> None:
        self._peers.expect([item for item in result if hasattr(item, "peer") and hasattr(item, "tensor")], microbatch)
