"""Gradients of calls, seen on PyTorch's own backward nodes, so that the graph, and every bit of training, stays.

The gradient of an argument is its contribution through one call: what the nodes that the call made hand to the edges
that lead to the argument. Hooks on nodes look and return nothing; no identity is inserted, no view is made anew.

- Where gradients of tensors go: their edges in PyTorch's graph of backward nodes.
- Gradients of parameters that FSDP2 shards: reduced over the ranks, and set without a hook of
  autograd.
- The autocast under which a call runs: it casts operands inside the call, where no argument shows
  it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from msprobe_collector.dump_format.writing.encoding import FrameworkValues, TensorValues
from msprobe_collector.pytorch.tensor_values import torch_values
from msprobe_collector.recording.gradients import (
    BackwardCall,
    Completed,
    Outputs,
    ParameterGradients,
    combined,
    leave_out_shared,
)
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import inner_tensors

if TYPE_CHECKING:
    from msprobe_collector.pytorch.threads_and_graphs import ThreadSwaps


#: Whether autocast is on for any type of device; asked for at every call, so it has to be cheap.
is_any_on: Callable[[], bool] = torch._C._is_any_autocast_enabled


def autocast_of(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """`{"device_type": "cpu", "dtype": torch.bfloat16}` where the autocast that `is_any_on` is for a call, else {}."""
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    tensors = tensors or [tensor for _, tensor in inner_tensors(arguments, keywords, torch_values().parts)]
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


#: Makes an `Edge` of four values, without the cost of its own `__new__`.
_edge: Callable[[tuple[Any, int, Any, Part | None]], Edge] = partial(tuple.__new__, Edge)


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of `tensor` goes; None where none flows."""
    if not tensor.requires_grad:
        return None
    if (node := tensor.grad_fn) is None:
        return _edge((None, 0, tensor, None))
    return _edge((node, tensor.output_nr, None, None))


def edge_of_base(view: Any) -> Edge | None:
    """Where the gradient of a tensor goes that is changed in place; for a view, through its base."""
    base = view._base
    if base is None:
        return edge_of(view)
    if not base.requires_grad or base.grad_fn is None:
        return None
    offset = view.storage_offset() - base.storage_offset()
    part = (tuple(base.shape), base.stride(), tuple(view.shape), (view.stride(), offset))
    return Edge(base.grad_fn, base.output_nr, None, part)


def edge_behind_view(tensor: Any) -> Edge | None:
    """The edge of the base of a view that shows all of it, in another shape or order; None for what is no such view.

    `linear` of three dimensions returns one. A later change in place takes the node of the view out of the graph: the
    gradient then comes to the node of the base alone.
    """
    base = tensor._base
    if base is None or base.numel() != tensor.numel() or not base.is_contiguous() or not _is_dense(tensor):
        return None
    return edge_of_base(tensor)


def _is_dense(tensor: Any) -> bool:
    """Whether each element of the memory of `tensor` is one of its elements, once."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def of_view(gradient: Any, part: Part | None) -> Any:
    """The part of a base's gradient that belongs to a view of it."""
    if part is None or gradient is None:
        return gradient
    base_shape, base_strides, shape, (strides, offset) = part
    if gradient.stride() == base_strides:
        return gradient.detach().as_strided(shape, strides, gradient.storage_offset() + offset)
    whole = torch.empty_strided(base_shape, base_strides, dtype=gradient.dtype, device=gradient.device)
    return whole.copy_(gradient.detach()).as_strided(shape, strides, offset)


sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
#: Number of the backward pass that runs in this thread, -1 outside.
graph_task: Callable[[], int] = torch._C._current_graph_task_id


class TorchSources(NamedTuple):
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


#: Position of an output of a call, which output of its node it is, and its part of that.
_Received = tuple[int, int, "Part | None"]
#: Number of an edge of a node, position of the argument or output that it leads to, and the part of its gradient.
_Sent = tuple[int, int, "Part | None"]
#: Of an edge: its node (by id) and which output of the node; for a leaf the tensor (by id) and -1.
_Key = tuple[int, int]
#: Position and edge of the outputs that a call made.
_Made = dict[_Key, tuple[int, Edge]]
#: Positions and edges of the arguments: several where one tensor stands for several.
_Targets = dict[_Key, list[tuple[int, Edge]]]


class _Watched:
    """A node of a call, and what its hooks hand on.

    Attributes:
        node: of PyTorch's graph.
        received: outputs whose gradients come to it.
        late: outputs whose gradients come to it where the nodes of views do not run.
        to_arguments: edges that lead to arguments.
        to_outputs: edges from one output, or what it was made of, to another.
    """

    __slots__ = ("late", "node", "received", "to_arguments", "to_outputs")

    def __init__(self, node: Any) -> None:
        self.node = node
        self.received: list[_Received] = []
        self.late: list[_Received] = []
        self.to_arguments: list[_Sent] = []
        self.to_outputs: list[_Sent] = []


class _Nodes(dict[int, _Watched]):
    """The nodes of a call that are watched, by their ids."""

    def of(self, node: Any) -> _Watched:
        """What is watched of `node`, which is nothing yet for a new one."""
        if (watched := self.get(id(node))) is None:
            watched = self[id(node)] = _Watched(node)
        return watched


def _targets(edges: Sequence[Edge | None]) -> _Targets:
    """Where the gradients of the arguments, of which these are the edges, go."""
    targets: _Targets = {}
    for position, edge in enumerate(edges):
        if edge is not None:
            key = (id(edge.leaf), -1) if edge.node is None else (id(edge.node), edge.output)
            targets.setdefault(key, []).append((position, edge))
    return targets


def _made_by_call(edges: Sequence[Edge | None], targets: _Targets, floor: int) -> _Made:
    """The outputs, of which `edges` are, that a call made; one that it returns twice counts once, at its first place.

    Nodes of several threads are numbered apart: a number says nothing of another thread's node.
    """
    made: _Made = {}
    for position, edge in enumerate(edges):
        if edge is None or edge.node is None or (key := (id(edge.node), edge.output)) in targets:
            continue
        if edge.node._sequence_nr() >= floor:
            made.setdefault(key, (position, edge))
    return made


class Before(NamedTuple):
    """What is known of a call before it runs.

    Attributes:
        floor: sequence number of the first node that it may make.
        threads: how many pieces of work threads were given so far.
        tensors: the top-level tensor arguments.
        inner: those in lists, tuples, dicts, objects and keywords, by path; the call may change what they stand in.
        sources: of a call that changes its first argument; of others they are looked for after it.
        changed: that argument.
    """

    floor: int
    threads: int
    tensors: list[Any]
    inner: dict[str, Any]
    sources: TorchSources | None = None
    changed: Any = None


class TorchTap:
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
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        is_all = len(tensors) == len(args) and not kwargs
        inner = {} if is_all else dict(inner_tensors(args, kwargs, self._values.parts))
        before = Before(floor, self._threads.count, tensors, inner)
        if is_in_place:
            is_first = bool(tensors) and tensors[0] is args[0]
            sources = self._sources(before, floor, changes_first=is_first)
            return before._replace(sources=sources, changed=args[0] if args else None)
        return before

    def _sources(self, before: Before, floor: int, *, changes_first: bool = False) -> TorchSources:
        """Where the gradients of the arguments go.

        To be asked after the call: a view that was changed through another one has its node made when someone looks at
        it, and nodes run in the order in which they are made. Of a call that changes its first argument, before.
        """
        tensors, inner = before.tensors, before.inner
        edges = [edge_of(tensor) for tensor in (*tensors, *inner.values())]
        if changes_first:
            edges[0] = edge_of_base(tensors[0])
        if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
            del edges[: len(tensors)]
        return TorchSources(edges, len(edges) - len(inner), tuple(inner), floor, is_any_on())

    def attach(
        self, before: Before, result: Any, *, on_complete: Completed, on_begin: Callable[[], None] | None = None
    ) -> BackwardCall | None:
        """See `GradientTap`."""
        is_in_place = before.sources is not None
        if result is None and is_in_place:
            result = before.changed
        returned = Outputs.of(result, self._values.parts)
        tensors = returned.tensors
        if not any(tensor.requires_grad for tensor in tensors):
            return None
        # Nodes of another thread, in which a part of a layer ran, have numbers of their own.
        is_split = on_begin is not None and self._threads.count > before.threads
        sources = before.sources or self._sources(before, 0 if is_split else before.floor)
        targets = _targets(sources.edges)
        edge_of_output = edge_of_base if is_in_place else edge_of
        made = _made_by_call([edge_of_output(tensor) for tensor in tensors], targets, sources.floor)
        if not made:
            return None
        call = BackwardCall(
            returned, len(sources.edges), sources.listed, sources.paths, self._values, on_complete, on_begin
        )
        nodes = _Nodes()
        for (_, output), (position, edge) in made.items():
            nodes.of(edge.node).received.append((position, output, edge.part))
        self._add_edges(nodes, sources, targets, made)
        if not is_in_place:
            _add_behind_views(nodes, tensors, made, sources.floor)
        call.expect(self._watch(call, nodes, before_node=on_begin is not None))
        return call

    def _watch(self, call: BackwardCall, nodes: _Nodes, *, before_node: bool) -> int:
        """Register the hooks; returns how many calls of them to expect."""
        hooks = 0
        first_pass, enter = _FirstPass(call), self._guard.enter
        for watched in nodes.values():
            received = watched.received
            if received and before_node:
                hooks += 1
                watched.node.register_prehook(partial(enter, _WHERE, _arrived_before, first_pass, received))
                received = []
            to_arguments, to_outputs, late = watched.to_arguments, watched.to_outputs, watched.late
            if received or to_arguments or to_outputs or late:
                hooks += 1
                hook = partial(enter, _WHERE, _arrived, first_pass, received, late, to_arguments, to_outputs)
                watched.node.register_hook(hook)
        return hooks

    def _add_edges(self, nodes: _Nodes, sources: TorchSources, targets: _Targets, made: _Made) -> None:
        """Add the edges of the call's nodes that lead to arguments, and from one output to another."""
        if len(made) < 2:
            made = {}
        if not targets and not made:
            return
        hits: dict[_Key, int] = {}
        waiting = [watched.node for watched in nodes.values()]
        outputs = len(waiting)
        # Kept: a wrapper of a node that dies leaves its id to another.
        visited = {id(node): node for node in waiting}
        while waiting:
            node = waiting.pop()
            for number, (next_node, index) in enumerate(node.next_functions):
                if next_node is None:
                    continue
                following = self._behind_cast(next_node) if sources.has_casts else next_node
                is_leaf = isinstance(following, self._leaf_node)
                key = (id(following.variable), -1) if is_leaf else (id(following), index)
                if (arguments := targets.get(key)) is not None:
                    hits[key] = hit = hits.get(key, -1) + 1
                    position, edge = arguments[min(hit, len(arguments) - 1)]
                    nodes.of(node).to_arguments.append((number, position, edge.part))
                    continue
                if (output := made.get(key)) is not None:
                    nodes.of(node).to_outputs.append((number, output[0], output[1].part))
                if not is_leaf and id(following) not in visited and following._sequence_nr() >= sources.floor:
                    visited[id(following)] = following
                    waiting.append(following)
        if len(visited) > outputs:
            unclear = {position for edges in targets.values() if len(edges) > 1 for position, _ in edges}
            leave_out_shared(nodes.values(), unclear)

    def _behind_cast(self, node: Any) -> Any:
        """The leaf behind a cast of it, else `node`.

        Autocast casts a parameter once for all calls, so that only what enters the cast belongs to one of them.
        """
        if isinstance(node, self._cast_node) and isinstance(behind := node.next_functions[0][0], self._leaf_node):
            return behind
        return node


def _add_behind_views(nodes: _Nodes, tensors: Sequence[Any], made: _Made, floor: int) -> None:
    """Add where gradients of outputs that are views arrive if the nodes of the views do not run.

    Of two views of one base nobody can tell the gradients apart.
    """
    behind: dict[int, list[tuple[Any, _Received]]] = {}
    for position, _ in made.values():
        edge = edge_behind_view(tensors[position])
        if edge is not None and edge.node is not None and edge.node._sequence_nr() >= floor:
            behind.setdefault(id(edge.node), []).append((edge.node, (position, edge.output, edge.part)))
    for places in behind.values():
        if len(places) == 1:
            node, place = places[0]
            nodes.of(node).late.append(place)


class _FirstPass:
    """The backward pass that ran a call's first hook.

    A pass may leave out nodes (`torch.autograd.grad` for some inputs), and another may run the graph again: gradients
    of two passes do not belong into one record.
    """

    __slots__ = ("_task", "call")

    def __init__(self, call: BackwardCall) -> None:
        self.call = call
        self._task: int | None = None

    def runs(self) -> bool:
        """Whether it is the one that runs; the call has ended when it is not."""
        task = graph_task()
        if self._task is None:
            self._task = task
        elif self._task != task:
            self.call.complete()
        return self._task == task


#: Where a fault in a hook happened.
_WHERE = "taking gradients"


# What hooks hold are neither nodes nor tensors: a node would live as long as itself. They are partial calls, which are
# fewer objects than closures: each call leaves some, and the more there are the more often Python looks for garbage.


def _arrived_before(first_pass: _FirstPass, places: Sequence[_Received], gradients: Sequence[Any]) -> None:
    if first_pass.runs():
        first_pass.call.arrived(incoming=_received(places, gradients))


def _arrived(
    first_pass: _FirstPass,
    places: Sequence[_Received],
    late: Sequence[_Received],
    to_arguments: Sequence[_Sent],
    to_outputs: Sequence[_Sent],
    sent: Sequence[Any],
    gradients: Sequence[Any],
) -> None:
    if not first_pass.runs():
        return
    call = first_pass.call
    if late:
        places = [*places, *(place for place in late if call.lacks(place[0]))]
    inner = _sent(to_outputs, sent) if to_outputs else ()
    call.arrived(incoming=_received(places, gradients), outgoing=_sent(to_arguments, sent), inner=inner)


def _received(places: Sequence[_Received], gradients: Sequence[Any]) -> list[tuple[int, Any]]:
    return [
        (position, gradients[output] if part is None else of_view(gradients[output], part))
        for position, output, part in places
    ]


def _sent(places: Sequence[_Sent], sent: Sequence[Any]) -> list[tuple[int, Any]]:
    return [
        (position, sent[number] if part is None else of_view(sent[number], part)) for number, position, part in places
    ]


class ReducedGradients:
    """Shows `ParameterGradients` what FSDP2 adds to the gradients of its parameters.

    FSDP2 calls the hooks that autograd would call after accumulating. They show what is in `.grad`
    by then: where gradients are accumulated, that is the sum so far, of which the part that came
    now is taken.
    """

    def __init__(self, parameters: ParameterGradients, guard: Guard, values: FrameworkValues) -> None:
        """Watch nothing yet."""
        self._parameters, self._guard, self._values = parameters, guard, values
        #: What is in the gradient already, by the parameter's id.
        self._before: dict[int, TensorValues] = {}
        #: Parameter and hook by the parameter's id: one of several layers is watched once.
        self._watched: dict[int, tuple[Any, Any]] = {}

    def watch(self, parameters: Iterable[Any]) -> None:
        """Watch those of `parameters` that are DTensors; those of tensor parallelism have hooks of autograd besides."""
        for parameter in parameters:
            is_new = id(parameter) not in self._watched
            if is_new and parameter.requires_grad and hasattr(parameter, "placements"):
                hook = partial(self._guard.enter, "taking the gradient of a sharded parameter", self._accumulated)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._watched[id(parameter)] = parameter, handle

    def begin_pass(self) -> None:
        """A backward pass begins: copy the gradients that it will add to. They may have been set to zero before."""
        self._before.clear()
        for parameter, _ in self._watched.values():
            if parameter.grad is not None and not self._parameters.shows(parameter):
                self._keep(parameter)

    def end_pass(self) -> None:
        """A backward pass is over: nothing is kept between two."""
        self._before.clear()

    def remove(self) -> None:
        """The step is over."""
        while self._watched:
            self._watched.popitem()[1][1].remove()
        self._before.clear()

    def _accumulated(self, parameter: Any) -> None:
        if self._parameters.shows(parameter):
            return
        gradient, before = parameter.grad, self._before.get(id(parameter))
        added = gradient
        if before is not None:
            now = self._values.read(gradient)
            added = now.plus(before, factor=-1) or combined(np.subtract, now, before.array)
        self._parameters.take(parameter, added)
        self._keep(parameter)  # a layer that is called several times reduces as often

    def _keep(self, parameter: Any) -> None:
        self._before[id(parameter)] = self._values.frozen(parameter.grad)
