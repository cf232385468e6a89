"""What MindSpore's calls look like: Cells and their parameters, and communication that ends after `wait`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msprobe_collector.recording.observing import Waits, named_layers
from msprobe_collector.recording.swaps import MethodSwaps


def named_cells(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(path, Cell) of every Cell below the `models`, each once under its first path; the models have the path ""."""
    return named_layers(models, lambda model: model.cells_and_names())


def own_parameters(cell: Any) -> dict[str, Any]:
    """Return the parameters that stand on `cell` itself, by the last segment of their names.

    Those whose names end alike are told apart by the attributes that hold them.
    """
    held = {name: parameter for name, parameter in cell._params.items() if parameter is not None}
    ends = [parameter.name.rpartition(".")[2] for parameter in held.values()]
    return {name if ends.count(end) > 1 else end: parameter for end, (name, parameter) in zip(ends, held.items())}


class MindSporeWaits(Waits):
    """Sees the training wait on handles, and lets operations of a batch be named by recorded functions."""

    def _is_handle(self, value: Any) -> bool:
        return type(value).__name__ in ("CommHandle", "CommHandle_")

    def _must_wait(self, handle: Any) -> bool:
        return getattr(handle, "handle", None) is not None

    def _put(self, swaps: MethodSwaps) -> None:
        from mindspore.communication import comm_func
        from mindspore.mint import distributed
        from mindspore.ops import function

        newer = getattr(function, "comm_func", None)  # MindSpore 2.7.1
        for owner in dict.fromkeys(getattr(module, "CommHandle", None) for module in (comm_func, newer)):
            if owner is not None and "wait" in vars(owner):
                swaps.put(owner, "wait", self.seen_wait)
        for module in (distributed, newer):
            # It takes only the very functions isend and irecv, whose names hold recorded ones now.
            if (owner := getattr(module, "P2POp", None)) is not None:
                swaps.put(owner, "__new__", lambda new: staticmethod(_with_originals(new)))


def _with_originals(new: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new)
    def make(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return new(cls, getattr(op, "__wrapped__", op), *args, **kwargs)

    return make
