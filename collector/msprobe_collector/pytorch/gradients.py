"""The autocast under which a call runs: it casts operands inside the call, where no argument shows it.

Backward values seen on PyTorch's own backward nodes, so that the graph, and with it every bit of training, stays.

The gradient of an argument is its contribution through one call: what the nodes that the call made hand to the edges
that lead to the argument. Hooks on nodes look and return nothing; no identity is inserted, no view is made anew.

Where gradients of tensors go: their edges in PyTorch's graph of backward nodes.

Activation checkpointing: a forward that runs again inside the backward is not a new call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import autograd

from msprobe_collector.dump_format.writing.encoding import FrameworkValues
from msprobe_collector.recording.gradients import BackwardCall, Completed
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import inner_tensors
from msprobe_collector.recording.swaps import MethodSwaps

if TYPE_CHECKING:
    from msprobe_collector.pytorch.threads_and_graphs import ThreadSwaps

#: Whether autocast is on for any type of device; asked for at every call, so it has to be cheap.
is_any_on: Callable[[], bool] = torch._C._is_any_autocast_enabled


def autocast_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """`{"device_type": "cpu", "dtype": torch.bfloat16}` where autocast is on for the tensors of a call, else {}."""
    if not is_any_on():
        return {}
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    tensors = tensors or [tensor for _, tensor in inner_tensors(arguments, keywords, torch.Tensor)]
    device_type = tensors[0].device.type if tensors else ""
    if not tensors or not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return {}
    return {"device_type": device_type, "dtype": torch.get_autocast_dtype(device_type)}


#: Shape and strides of a base, shape of a view of it, and the view's strides and offset in the base.
Part = tuple[Any, Any, Any, Any]


class Edge(NamedTuple):
    """Where the gradient of a tensor goes.

    Attributes:
        node: backward node, None for a leaf.
        output: which output of the node the tensor is.
        leaf: the tensor itself when it is a leaf.
        part: for a view whose base is changed through it: shape and strides of the base, shape of the view, and its
            strides and offset in the base.
    """

    node: Any
    output: int
    leaf: Any
    part: Part | None = None


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of `tensor` goes; None where none flows."""
    if not tensor.requires_grad:
        return None
    node = tensor.grad_fn
    return Edge(node, tensor.output_nr, tensor if node is None else None)


def edge_of_base(view: Any) -> Edge | None:
    """Where the gradient of a tensor goes that is changed in place; for a view, through its base."""
    base = view._base if view._is_view() else None
    if base is None:
        return edge_of(view)
    if not base.requires_grad or base.grad_fn is None:
        return None
    offset = view.storage_offset() - base.storage_offset()
    part = (tuple(base.shape), base.stride(), tuple(view.shape), (view.stride(), offset))
    return Edge(base.grad_fn, base.output_nr, None, part)


def of_view(gradient: Any, part: Part | None) -> Any:
    """The part of a base's gradient that belongs to a view of it."""
    if part is None or gradient is None:
        return gradient
    base_shape, base_strides, shape, (strides, offset) = part
    whole = torch.empty_strided(base_shape, base_strides, dtype=gradient.dtype, device=gradient.device)
    return whole.copy_(gradient.detach()).as_strided(shape, strides, offset)


sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
#: Number of the backward pass that runs in this thread, -1 outside.
graph_task: Callable[[], int] = torch._C._current_graph_task_id


class Sources(NamedTuple):
    """Where the gradients of a call's arguments go.

    Attributes:
        edges: of each top-level tensor argument, None where no gradient flows; behind them those of the tensors in
            lists, tuples, dicts and keywords.
        listed: how many gradients the backward record lists by position, as `BackwardCall` takes it.
        paths: of the tensors in lists and keywords, likewise.
        floor: sequence number of the first node that the call may make.
        has_casts: whether autocast may have cast parameters inside the call.
    """

    edges: list[Edge | None]
    listed: int
    paths: tuple[str, ...]
    floor: int
    has_casts: bool = False


def _leave_out_shared(
    found: dict[int, tuple[Any, list[tuple[int, int, Edge]]]], targets: dict[Any, list[tuple[int, Edge]]]
) -> None:
    """Leave out the edges of tensors that stand for several arguments behind several nodes.

    The nodes do not say which edge belongs to which argument.
    """
    unclear = {position for known in targets.values() if len(known) > 1 for position, _ in known}
    for key, (_, to) in list(found.items()):
        to[:] = [item for item in to if item[1] not in unclear]
        if not to:
            del found[key]


class Before(NamedTuple):
    """What is known of a call before it runs.

    Attributes:
        floor: sequence number of the first node that it may make.
        threads: how many pieces of work threads were given so far.
        sources: of a call that changes its first argument; of others they are looked for after it.
    """

    floor: int
    threads: int
    sources: Sources | None


class GradientTap:
    """Attaches to the backward nodes of calls; a `GradientTap` of observing."""

    def __init__(self, guard: Guard, values: FrameworkValues, threads: ThreadSwaps) -> None:
        self._guard = guard
        self._values = values
        self._threads = threads
        # Type of the nodes that hold leaves.
        with torch.inference_mode(False), torch.enable_grad():
            leaf = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
            self._leaf_node = type(leaf.view(()).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
            self._cast_node: Any = type(leaf.to(torch.float64).grad_fn)

    def before(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_in_place: bool = False) -> Before | None:
        """See `GradientTap`."""
        if not torch.is_grad_enabled():
            return None
        floor = sequence_number()
        sources = self._sources(args, kwargs, floor, is_in_place=True) if is_in_place else None
        return Before(floor, self._threads.count, sources)

    def _sources(self, args: Sequence[Any], kwargs: Mapping[str, Any], floor: int, *, is_in_place: bool) -> Sources:
        """Where the gradients of the arguments go.

        To be asked after the call: a view that was changed through another one has its node made when someone looks at
        it, and nodes run in the order in which they are made. Of a call that changes its first argument, before.
        """
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        inner = dict(inner_tensors(args, kwargs, torch.Tensor))
        edges = [edge_of(tensor) for tensor in (*tensors, *inner.values())]
        if is_in_place and tensors and tensors[0] is args[0]:
            edges[0] = edge_of_base(tensors[0])
        has_floating = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
        listed = len(tensors) if has_floating else 0
        return Sources(edges if has_floating else edges[len(tensors) :], listed, tuple(inner), floor, is_any_on())

    def attach(
        self,
        before: Before,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        on_complete: Completed,
        on_begin: Callable[[], None] | None = None,
    ) -> BackwardCall | None:
        """See `GradientTap`."""
        is_in_place = before.sources is not None
        if result is None and is_in_place:
            result = args[0]
        results = result if isinstance(result, (tuple, list)) else (result,)
        tensors = [value for value in results if isinstance(value, torch.Tensor)]
        if not any(tensor.requires_grad for tensor in tensors):
            return None
        # Nodes of another thread, in which a part of a layer ran, have numbers of their own.
        is_split = on_begin is not None and self._threads.count > before.threads
        sources = before.sources or self._sources(args, kwargs, 0 if is_split else before.floor, is_in_place=False)
        edges = [edge_of_base(tensor) if is_in_place else edge_of(tensor) for tensor in tensors]
        outputs: dict[int, tuple[Any, list[tuple[int, Edge]]]] = {}
        for position, edge in enumerate(edges):
            if edge is None or edge.node is None:
                continue
            # Nodes of several threads are numbered apart: a number says nothing of another thread's node.
            node, output = edge.node, edge.output
            is_argument = any(other and other.node is node and other.output == output for other in sources.edges)
            if not is_argument and node._sequence_nr() >= sources.floor:
                outputs.setdefault(id(edge.node), (edge.node, []))[1].append((position, edge))
        if not outputs:
            return None
        call = BackwardCall(
            len(tensors),
            len(sources.edges),
            listed=sources.listed,
            paths=sources.paths,
            values=self._values,
            on_begin=on_begin,
            on_complete=on_complete,
        )
        ends = self._edges_to(sources, [node for node, _ in outputs.values()])
        hooks = 0
        in_first_pass = _first_pass_of(call)
        for key, (node, at) in outputs.items():
            to = ends.pop(key, None)
            hooks += 1
            if on_begin is not None:
                node.register_prehook(self._safely(_incoming(call, at), in_first_pass))
                if to is not None:
                    hooks += 1
                    node.register_hook(self._safely(_outgoing(call, to[1]), in_first_pass))
            else:
                node.register_hook(self._safely(_both(call, at, to[1] if to else []), in_first_pass))
        for node, to_arguments in ends.values():
            hooks += 1
            node.register_hook(self._safely(_outgoing(call, to_arguments), in_first_pass))
        call.expect(hooks)
        return call

    def _edges_to(self, sources: Sources, outputs: list[Any]) -> dict[int, tuple[Any, list[tuple[int, int, Edge]]]]:
        """(node, its edges that lead to arguments as (edge, argument position, edge)) by node of the call."""
        targets: dict[tuple[int, int], list[tuple[int, Edge]]] = {}
        for position, edge in enumerate(sources.edges):
            if edge is not None:
                key = (id(edge.leaf), -1) if edge.node is None else (id(edge.node), edge.output)
                targets.setdefault(key, []).append((position, edge))
        found: dict[int, tuple[Any, list[tuple[int, int, Edge]]]] = {}
        if not targets:
            return found
        hits = dict.fromkeys(targets, 0)
        waiting, seen = list(outputs), {id(node): node for node in outputs}
        while waiting:
            node = waiting.pop()
            for number, (next_node, index) in enumerate(node.next_functions):
                if next_node is None:
                    continue
                following = self._behind_cast(next_node) if sources.has_casts else next_node
                is_leaf = isinstance(following, self._leaf_node)
                key = (id(following.variable), -1) if is_leaf else (id(following), index)
                known = targets.get(key)
                if known is not None:
                    position, edge = known[min(hits[key], len(known) - 1)]
                    hits[key] += 1
                    found.setdefault(id(node), (node, []))[1].append((number, position, edge))
                elif not is_leaf and id(following) not in seen and following._sequence_nr() >= sources.floor:
                    # Kept: a wrapper of a node that dies leaves its id to another.
                    seen[id(following)] = following
                    waiting.append(following)
        if len(seen) > len(outputs):
            _leave_out_shared(found, targets)
        return found

    def _behind_cast(self, node: Any) -> Any:
        """The leaf behind a cast of it, else `node`.

        Autocast casts a parameter once for all calls, so that only what enters the cast belongs to one of them.
        """
        behind = node.next_functions[0][0] if isinstance(node, self._cast_node) else None
        return behind if isinstance(behind, self._leaf_node) else node

    def _safely(self, hook: Callable[..., None], in_first_pass: Callable[[], bool]) -> Callable[..., None]:
        enter = self._guard.enter

        def take(*gradients: Any) -> None:
            if in_first_pass():
                hook(*gradients)

        def run(*gradients: Any) -> None:
            enter("taking gradients", take, *gradients)

        return run


def _first_pass_of(call: BackwardCall) -> Callable[[], bool]:
    """Whether a hook runs in the backward pass that ran the call's first one.

    A pass may leave out nodes (`torch.autograd.grad` for some inputs), and another may run the graph again: gradients
    of two passes do not belong into one record.
    """
    first: list[int] = []

    def in_first_pass() -> bool:
        task = graph_task()
        if not first:
            first.append(task)
        elif first[0] != task:
            call.complete()
        return first[0] == task

    return in_first_pass


# Closures of hooks hold neither nodes nor tensors: a node would live as long as itself.


def _incoming(call: BackwardCall, at: list[tuple[int, Edge]]) -> Callable[..., None]:
    places = [(position, edge.output, edge.part) for position, edge in at]

    def hook(gradients: Sequence[Any]) -> None:
        call.arrived(incoming=_received(places, gradients))

    return hook


def _outgoing(call: BackwardCall, to: list[tuple[int, int, Edge]]) -> Callable[..., None]:
    places = [(number, position, edge.part) for number, position, edge in to]

    def hook(sent: Sequence[Any], _: Sequence[Any]) -> None:
        call.arrived(outgoing=_sent(places, sent))

    return hook


def _both(call: BackwardCall, at: list[tuple[int, Edge]], to: list[tuple[int, int, Edge]]) -> Callable[..., None]:
    received = [(position, edge.output, edge.part) for position, edge in at]
    places = [(number, position, edge.part) for number, position, edge in to]

    def hook(sent: Sequence[Any], gradients: Sequence[Any]) -> None:
        call.arrived(incoming=_received(received, gradients), outgoing=_sent(places, sent))

    return hook


def _received(places: list[tuple[int, int, Part | None]], gradients: Sequence[Any]) -> list[tuple[int, Any]]:
    return [(position, of_view(gradients[index], part)) for position, index, part in places]


def _sent(places: list[tuple[int, int, Part | None]], sent: Sequence[Any]) -> list[tuple[int, Any]]:
    return [(position, of_view(sent[number], part)) for number, position, part in places]


#: What `torch.autograd.backward` and `grad` call to run a backward pass.
RUN_BACKWARD = "_engine_run_backward"


class Call(NamedTuple):
    """A call inside a checkpoint.

    Attributes:
        call: `Torch.relu`, `Module.layer.Linear`.
        name: of its forward record.
        parent: record of the Module that ran it.
    """

    call: str
    name: str
    parent: str | None


class Recomputation(threading.local):
    """Knows in each thread whether a checkpoint computes its forward again, and which calls it repeats.

    The reentrant kind computes gradients in the repeated forward only: the k-th call there takes the name of the k-th
    call of the first run, and its gradients go to that record. The other kind keeps the first graph.
    """

    def __init__(self, passes: list[bool]) -> None:
        """`passes` says of each backward pass that runs, in any thread, whether it builds a graph (create_graph)."""
        self._passes = passes
        self._depth = 0
        #: Lists of the checkpoints whose first forward runs, outermost first.
        self._noting: list[list[Call]] = []
        #: Calls that the running repetition will make, last first.
        self._repeated: list[Call] = []

    def is_running(self) -> bool:
        """Whether calls of this thread repeat others.

        Besides the checkpoints of torch.utils.checkpoint, which say so, those of other libraries are known by their
        gradient mode, which backward passes switch off, unless they build a graph, and a repeated forward switches on.
        """
        if self._depth:
            return True
        return graph_task() != -1 and torch.is_grad_enabled() and not (self._passes and self._passes[-1])

    def number(self, call: str, parent: str | None, make_name: Callable[[str], str]) -> tuple[str, str | None, bool]:
        """See `Number` of observing. A call that repeats one that is not known has no name."""
        if self.is_running():
            if self._repeated and self._repeated[-1].call == call:
                repeated = self._repeated.pop()
                return repeated.name, repeated.parent, True
            self._repeated = []
            return "", None, True
        name = make_name(call)
        for calls in self._noting:  # it may be inside a checkpoint that is repeated later
            calls.append(Call(call, name, parent))
        return name, parent, False


class CheckpointSwaps:
    """Watches the checkpoints of torch.utils.checkpoint."""

    def __init__(self, state: Recomputation) -> None:
        self._state = state
        self._swaps = MethodSwaps()
        self._passes = state._passes

    def install(self) -> None:
        """Watch from now on."""
        if self._swaps.are_in:
            return
        from torch.utils import checkpoint

        self._swaps.put(checkpoint.CheckpointFunction, "forward", self._noted_forward)
        self._swaps.put(checkpoint.CheckpointFunction, "backward", self._repeating_backward)
        if hasattr(autograd, RUN_BACKWARD):
            self._swaps.put(autograd, RUN_BACKWARD, self._noted_pass)
        if (owner := getattr(checkpoint, "_recomputation_hook", None)) is not None:
            self._swaps.put(owner, "__enter__", functools.partial(self._counted, change=1))
            self._swaps.put(owner, "__exit__", functools.partial(self._counted, change=-1))

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _noted_pass(self, original: Callable[..., Any]) -> Callable[..., Any]:
        passes = self._passes

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Positions: outputs, gradients, retain_graph, create_graph.
            passes.append(len(args) > 3 and args[3] is True)
            try:
                return original(*args, **kwargs)
            finally:
                passes.pop()

        return run

    def _noted_forward(self, original: Any) -> Any:
        @functools.wraps(original.__func__)
        def forward(context: Any, *args: Any) -> Any:
            state = self._state
            calls: list[Call] = []
            state._noting.append(calls)
            try:
                return original.__func__(context, *args)
            finally:
                state._noting.pop()
                context._msprobe_calls = calls

        return staticmethod(forward)

    def _repeating_backward(self, original: Any) -> Any:
        @functools.wraps(original.__func__)
        def backward(context: Any, *args: Any) -> Any:
            state = self._state
            outer, state._repeated = state._repeated, list(reversed(getattr(context, "_msprobe_calls", ())))
            state._depth += 1
            try:
                return original.__func__(context, *args)
            finally:
                state._depth -= 1
                state._repeated = outer

        return staticmethod(backward)

    def _counted(self, original: Callable[..., Any], *, change: int) -> Callable[..., Any]:
        state = self._state

        @functools.wraps(original)
        def counted(*args: Any) -> Any:
            state._depth += change
            return original(*args)

        return counted
