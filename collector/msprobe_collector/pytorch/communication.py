"""What a script does with torch.distributed: functions that modes do not see, process groups, and stages of pipelines.

- Collectives and point-to-point calls of the script, and of PyTorch's own parallelism (FSDP, pipelines).
- Functional collectives, by which DTensor communicates.
- Operations of a batch, which must stay the very functions that PyTorch knows.
- Which microbatch a stage of `torch.distributed.pipelining` works on, as its schedule says.
- The process groups that this process is in, and what they are called.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from types import FunctionType
from typing import Any

from torch import distributed

from msprobe_collector.pytorch.tensor_values import GroupRanks
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import Waits
from msprobe_collector.recording.process import ranks_of
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


#: Getters of Megatron's `parallel_state`, by the names of its groups.
_MEGATRON = {
    "tp": "get_tensor_model_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "dp": "get_data_parallel_group",
    "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group",
}
_OF_MESH = "mesh_"


def ranks_of_this_process() -> dict[str, object]:
    """See `Framework.ranks`; communication is initialised."""
    groups = ((name, distributed.get_process_group_ranks(group)) for name, group in _named_groups())
    return ranks_of(distributed.get_rank(), distributed.get_world_size(), groups)


def _named_groups() -> Iterator[tuple[str, Any]]:
    """(name, group) of what `parallel_state` and meshes name, then of all that there are, with "" for no name.

    Left out are groups that were destroyed, and those of a mesh that is gone, unless somebody holds them besides.
    """
    abandoned = _abandoned_groups()
    groups = distributed.distributed_c10d._world.pg_map
    yield from ((name, group) for name, group in _megatron_groups() if group in groups)
    for mesh in _meshes():
        for index, name in enumerate(mesh.mesh_dim_names or ()):
            with suppress(Exception):  # it was destroyed, with all others perhaps
                if mesh.get_coordinate() is not None and (group := mesh.get_group(index)) in groups:
                    yield name, group
    for group in list(groups):
        description = getattr(group, "group_desc", "")
        if not description.startswith(_OF_MESH):
            yield "", group
        elif id(group) not in abandoned:
            yield description[len(_OF_MESH) :], group


def _abandoned_groups() -> set[int]:
    """Ids of the groups that nothing but the tables of torch.distributed holds."""
    world = distributed.distributed_c10d._world
    by_group = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state")
    tables = [*(getattr(world, name, ()) for name in by_group), *world.tags_to_pg.values()]
    in_tables = Counter(map(id, chain(*tables)))
    numbers, (of_nobody,) = list(map(id, world.pg_map)), _references([object()])
    counts = zip(numbers, _references(list(world.pg_map)))
    return {number for number, count in counts if count - of_nobody <= in_tables[number]}


def _references(values: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, values))


def _megatron_groups() -> Iterator[tuple[str, Any]]:
    state = sys.modules.get("megatron.core.parallel_state")
    for name, getter in _MEGATRON.items():
        try:
            group = getattr(state, getter)()
        except (AttributeError, AssertionError, TypeError):  # not imported, or not initialised
            continue
        if group is not None:
            yield name, group


def _meshes() -> list[Any]:
    """The meshes of the script, the largest first: parts of one have the names that it has."""
    kind = distributed.device_mesh.DeviceMesh
    meshes = [value for value in gc.get_objects() if type(value) is kind]
    return sorted(meshes, key=lambda mesh: -mesh.ndim)
