"""Communication of torch.distributed: functions that modes do not see, that fill arguments or end later.

- Collectives and point-to-point calls of the script, and of PyTorch's own parallelism (FSDP, pipelines).
- Functional collectives, by which DTensor communicates.
- Operations of a batch, which must stay the very functions that PyTorch knows.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

from torch import distributed

from msprobe_collector.pytorch.tensor_values import GroupRanks
from msprobe_collector.recording.observing import Waits
from msprobe_collector.recording.swaps import MethodSwaps

#: Functions of torch.distributed that move values.
_FUNCTIONS = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "batch_isend_irecv"),
    *("broadcast", "gather", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
    *("_all_gather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single"),
    *("all_gather_coalesced", "all_reduce_coalesced"),
)
#: Functions that return what they receive, and that DTensor calls.
_FUNCTIONAL = (
    *("all_reduce", "all_reduce_coalesced", "broadcast", "permute_tensor", "all_to_all_single"),
    *("all_gather_single", "all_gather_tensor", "all_gather_single_coalesced", "all_gather_into_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_tensor", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "all_gather_single_autograd", "all_gather_tensor_autograd"),
    *("reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd", "all_to_all_single_autograd"),
)
#: What operations of a batch name, and PyTorch compares by identity.
_PEER_FUNCTIONS = ("isend", "irecv")


def communication_functions() -> Iterator[tuple[Any, str]]:
    """(module, name) of each function to record; none where PyTorch was built without torch.distributed.

    Functional collectives are among them as soon as something has loaded them.
    """
    if distributed.is_available():
        functional = sys.modules.get("torch.distributed._functional_collectives")
        for owner, names in ((distributed, _FUNCTIONS), (functional, _FUNCTIONAL)):
            for name in names:
                if hasattr(owner, name):
                    yield owner, name


class PeerFunctions:
    """Records `isend` and `irecv` by other code in the same functions: whoever compares them finds them as they are."""

    def __init__(self, wrap: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> None:
        """`wrap` makes a recorded callable."""
        self._wrap = wrap
        self._originals: list[tuple[Any, Any]] = []

    def install(self) -> None:
        """Record them from now on."""
        if self._originals or not distributed.is_available():
            return
        for name in _PEER_FUNCTIONS:
            function = getattr(distributed, name)
            if not isinstance(function, FunctionType) or function.__code__.co_freevars:
                continue
            original = _copy_of(function)
            hidden = f"_msprobe_collector_{name}"
            function.__globals__[hidden] = self._wrap(original, f"Distributed.{name}")
            self._originals.append((function, function.__code__))
            code = _call_recorded.__code__
            renamed = {_recorded.__name__: hidden}
            names = tuple(renamed.get(name, name) for name in code.co_names)
            function.__code__ = code.replace(co_names=names, co_name=name)

    def uninstall(self) -> None:
        """Give them their own code back."""
        while self._originals:
            function, code = self._originals.pop()
            function.__code__ = code


def _copy_of(function: FunctionType) -> FunctionType:
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _recorded(*_: Any, **__: Any) -> Any:
    """In the code of `_call_recorded` the name of another global stands in the place of this one."""


def _call_recorded(*args: Any, **kwargs: Any) -> Any:
    return _recorded(*args, **kwargs)


def is_functional(function: Any) -> bool:
    """Whether a communication returns what it receives, in other memory than its arguments'."""
    return bool(getattr(function, "__module__", "") == "torch.distributed._functional_collectives")


def described(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a communication as a record has them: with the group, and the peer by its global rank."""
    names = _parameters(function)
    if "group" not in names:
        return args, kwargs
    values = {**dict(zip(names, args)), **kwargs}
    group = _group_of(values.get("group"))
    place = names.index("group")
    if place < len(args):
        args = (*args[:place], group, *args[place + 1 :])
    else:
        kwargs = {**kwargs, "group": group}
    for name in ("dst", "src"):
        if values.get(peer := f"group_{name}") is not None and values.get(name) is None:
            kwargs = {**kwargs, name: distributed.get_global_rank(group, values[peer])}
    return args, kwargs


@lru_cache(maxsize=256)
def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def _group_of(group: Any) -> Any:
    """The process group that is meant by the argument `group`; that of all for none."""
    c10d: Any = distributed.distributed_c10d
    if group is None:
        return c10d._get_default_group()
    if isinstance(group, distributed.ProcessGroup):
        return group
    if isinstance(group, list):
        return GroupRanks(group)
    if hasattr(group, "get_group"):
        return group.get_group(0)
    if isinstance(group, tuple) and len(group) == 2:
        return group[0].get_group(group[1])
    return c10d._resolve_process_group(group) if isinstance(group, str) else group


class PeerOperations:
    """The operations of a batch, and which microbatch of a pipeline each of them is for."""

    def __init__(self) -> None:
        #: By the id of the tensor that moves, which lives as long as the operation.
        self._microbatches: dict[int, tuple[Any, int]] = {}

    def expect(self, operations: Sequence[Any], microbatch: int) -> None:
        """These operations move values of `microbatch`."""
        for operation in operations:
            self._microbatches[id(operation.tensor)] = weakref.ref(operation.tensor), microbatch

    def microbatch_of(self, args: Sequence[Any]) -> int | None:
        """The microbatch of the tensor that a call moves; None where it is not known, or the call moves several."""
        entry = self._microbatches.get(id(args[0])) if args else None
        return entry[1] if entry is not None and entry[0]() is args[0] else None

    def shown(self, values: Any) -> Any:
        """`values` with what stands in operations in their place."""
        if isinstance(values, (list, tuple)):
            return type(values)(map(self.shown, values))
        return self._fields(values) if isinstance(values, distributed.P2POp) else values

    def clear(self) -> None:
        """The step is over."""
        self._microbatches.clear()

    def _fields(self, operation: Any) -> dict[str, Any]:
        fields = {"op": operation.op.__name__, "tensor": operation.tensor, "peer": operation.peer}
        fields |= {"tag": operation.tag, "group": _group_of(operation.group)}
        if (microbatch := self.microbatch_of([operation.tensor])) is not None:
            fields["microbatch"] = microbatch
        return fields


class TorchWaits(Waits):
    """Sees the training wait on the handles of asynchronous communication."""

    def _is_handle(self, value: Any) -> bool:
        work = getattr(distributed, "Work", None)
        return work is not None and isinstance(value, work)

    def _is_no_value(self, part: Any) -> bool:
        return isinstance(part, int) or self._is_handle(part)

    def _put(self, swaps: MethodSwaps) -> None:
        if distributed.is_available():
            swaps.put(distributed.Work, "wait", self.seen_wait)
