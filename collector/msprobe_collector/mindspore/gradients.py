"""Backward values seen on MindSpore's own backward nodes, so that the graph, and with it every bit of training, stays.

The gradient of an argument is its contribution through one call: what the nodes that the call made hand to the edges
that lead to the argument. Nothing is inserted: an identity in front of a call would change the order in which
gradients of a shared tensor are added up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msprobe_collector import logger
from msprobe_collector.mindspore.mindspore_internals import errors_of_the_script
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.gradients import BackwardCall, Completed, Outputs, leave_out_shared
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import inner_tensors

_LEAF_SEQUENCE = (1 << 64) - 1
#: How the text of the node begins that copies a view for a kernel.
_COPY = "<Contiguous,"
#: How the names of dtypes begin that take gradients.
_FLOATING = ("Float", "BFloat", "Complex", "HiFloat")


class MindSporeSources(NamedTuple):
    """Where the gradients of a call's arguments go.

    Attributes:
        nodes: backward node of each top-level tensor argument, None where none is; behind them those of the tensors in
            lists, tuples, dicts and keywords.
        places: which output of its node each tensor is; None where MindSpore does not say (2.7.1).
        listed: how many gradients the backward record lists by position, as `BackwardCall` takes it.
        paths: of the tensors in lists and keywords, as `BackwardCall` takes them.
    """

    nodes: list[Any]
    places: list[int | None]
    listed: int
    paths: tuple[str, ...]


class MindSporeTap:
    """Attaches to the backward nodes of calls; a `GradientTap` of observing."""

    def __init__(self, guard: Guard) -> None:
        from mindspore import Tensor

        self._tensor = Tensor
        self._guard = guard
        self._values = mindspore_values()
        #: Of hooks on tensors, which may be Parameters and outlive the step.
        self._handles: list[Any] = []
        #: Calls that returned their arguments, by the node of the tensor.
        self._passed: dict[Hashable, list[BackwardCall]] = {}
        self.is_supported = hasattr(Tensor, "_grad_node")
        if not self.is_supported:
            logger.warning(
                "this MindSpore shows no backward nodes (2.7.1 and newer do): backward records are not collected"
            )

    def end_step(self) -> None:
        """Take the hooks off tensors: the gradients of the step have come."""
        while self._handles:
            self._handles.pop().remove()
        self._passed.clear()

    def before(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_in_place: bool = False
    ) -> MindSporeSources | None:
        """Where the gradients of the arguments go; a call may change one of them in place."""
        if not self.is_supported:
            return None
        tensors = [value for value in args if isinstance(value, self._tensor)]
        inner = dict(inner_tensors(args, kwargs, self._values.parts))
        every = (*tensors, *inner.values())
        with errors_of_the_script(tensors):
            nodes = [tensor._grad_node for tensor in every]
            has_floating = any(node is not None for node in nodes[: len(tensors)])
            has_floating = has_floating or any(str(tensor.dtype).startswith(_FLOATING) for tensor in tensors)
        places = [getattr(tensor, "_output_index", None) for tensor in every]
        return MindSporeSources(nodes, places, len(tensors) if has_floating else 0, tuple(inner))

    def attach(
        self,
        before: MindSporeSources,
        result: Any,
        *,
        on_complete: Completed,
        on_begin: Callable[[], None] | None = None,
    ) -> BackwardCall | None:
        """See `GradientTap`. With `on_begin`, outputs are watched before their node runs."""
        returned = Outputs.of(result, self._values.parts)
        with errors_of_the_script(returned.tensors):
            outputs = _by_node(returned.tensors)
        if not outputs:
            return None
        targets: dict[Hashable, list[int]] = {}
        for position, node in enumerate(before.nodes):
            if node is not None:
                targets.setdefault(_identity(node), []).append(position)
        listed, paths = before.listed, before.paths
        call = BackwardCall(returned, len(before.nodes), listed, paths, self._values, on_complete, on_begin)
        if outputs.keys() <= targets.keys():
            self._watch_tensors(call, returned.tensors, outputs, targets)
            return call
        outputs = {identity: of_node for identity, of_node in outputs.items() if identity not in targets}
        edges = _edges_between(targets, before.places, outputs, _floor(before.nodes))
        call.expect(self._watch(call, outputs, edges, before_node=on_begin is not None))
        return call

    def _watch_tensors(
        self, call: BackwardCall, results: Sequence[Any], outputs: _Outputs, targets: dict[Hashable, list[int]]
    ) -> None:
        """Watch a call that made no node, since it returned its arguments: what it passes on is what it gets.

        A tensor that passed several calls shows what came through all of them, and nothing of each: no record then.
        """
        call.expect(len(outputs))
        for identity, (_, places) in outputs.items():
            at, to = next(iter(places.values())), targets[identity][0]
            calls = self._passed.setdefault(identity, [])
            calls.append(call)

            def take(gradient: Any, at: int = at, to: int = to, calls: list[BackwardCall] = calls) -> None:
                if sum(not other.is_complete for other in calls) == 1:
                    call.arrived(incoming=[(at, gradient)], outgoing=[(to, gradient)])

            self._handles.append(results[at].register_hook(self._passing_on(take)))

    def _passing_on(self, take: Callable[[Any], None]) -> Callable[[Any], Any]:
        safely = self._safely(take)

        def passed_on(gradient: Any) -> Any:
            safely(gradient)
            return gradient

        return passed_on

    def _watch(self, call: BackwardCall, outputs: _Outputs, edges: dict[Hashable, _Edges], *, before_node: bool) -> int:
        """Register the hooks; returns how many calls of them to expect."""
        hooks = 0
        for identity, (node, places) in outputs.items():
            if before_node:
                hooks += 1
                node.register_prehook(
                    self._safely(lambda grads, at=places: call.arrived(incoming=_sent(grads, at.items())))
                )
            elif identity not in edges:
                edges[identity] = _Edges(node, [], [])
        for identity, (node, to, inner) in edges.items():
            hooks += 1
            at = {} if before_node or identity not in outputs else outputs[identity][1]
            node.register_hook(
                self._safely(
                    lambda sent, grads, at=at, to=to, inner=inner: call.arrived(
                        incoming=_sent(grads, at.items()), outgoing=_sent(sent, to), inner=_sent(sent, inner)
                    )
                )
            )
        return hooks

    def _safely(self, hook: Callable[..., None]) -> Callable[..., None]:
        # A function: MindSpore 2.7 takes no other callable.
        def run(*gradients: Any) -> None:
            self._guard.enter("taking gradients", hook, *gradients)

        return run


def _identity(node: Any) -> Hashable:
    """What two Python objects for one backward node share: MindSpore makes a new object at each look."""
    if hasattr(node, "_unique_id"):
        unique: Hashable = node._unique_id()
        return unique
    return node._sequence_nr(), str(node)  # MindSpore 2.7.1 and 2.8


def _sent(gradients: Sequence[Any], to: Iterable[tuple[int, int]]) -> list[tuple[int, Any]]:
    """What a node gets for its outputs or sends along its edges `to` positions, as (position, gradient).

    A node may send fewer gradients than it has edges (seen on 2.10); the rest is not known then.
    """
    return [(position, gradients[number]) for number, position in to if number < len(gradients)]


#: Nodes of outputs by their identity, with the position of each of their outputs that the call returned.
_Outputs = dict[Hashable, tuple[Any, dict[int, int]]]


class _Edges(NamedTuple):
    """A node of a call, and its edges.

    Attributes:
        to_arguments: (edge, argument position).
        to_outputs: (edge, output position) of those that lead from one output of the call to another.
    """

    node: Any
    to_arguments: list[tuple[int, int]]
    to_outputs: list[tuple[int, int]]


def _by_node(tensors: Sequence[Any]) -> _Outputs:
    """The nodes of `tensors`; one that stands there twice counts once, at its first place."""
    nodes: _Outputs = {}
    for position, tensor in enumerate(tensors):
        if (node := tensor._grad_node) is not None:
            places = nodes.setdefault(_identity(node), (node, {}))[1]
            # MindSpore 2.7.1 does not say which output of its node a tensor is: they are taken to stand in order.
            places.setdefault(getattr(tensor, "_output_index", len(places)), position)
    return nodes


def _floor(sources: Sequence[Any]) -> int:
    """Nodes that the call made have a higher sequence number than every node of its arguments."""
    numbers = {node._sequence_nr() for node in sources if node is not None}
    return max(numbers - {_LEAF_SEQUENCE}, default=-1)


def _edges_between(
    targets: dict[Hashable, list[int]], places: list[int | None], outputs: _Outputs, floor: int
) -> dict[Hashable, _Edges]:
    """The edges of the call's nodes that lead to arguments, and from one output to another, by node.

    Where several arguments come from one node (the parts of a chunk), an edge says to which of its outputs it leads;
    where MindSpore does not say that of a tensor (2.7.1), edges are assigned in order.
    """
    edges: dict[Hashable, _Edges] = {}
    is_of_several = sum(len(places) for _, places in outputs.values()) > 1
    if not targets and not is_of_several:
        return edges
    hits: Counter[tuple[Hashable, int]] = Counter()
    visited = {identity: node for identity, (node, _) in outputs.items()}
    waiting = deque(visited.values())
    while waiting:
        node = waiting.popleft()  # operands of one call stand in their order
        for edge, (following, index) in enumerate(node.next_functions):
            if following is None:
                continue
            identity = _identity(following)
            if identity in targets:
                of_node = targets[identity]
                positions = [at for at in of_node if places[at] in (None, index)] or of_node
                position = positions[min(hits[identity, index], len(positions) - 1)]
                hits[identity, index] += 1
                edges.setdefault(_identity(node), _Edges(node, [], [])).to_arguments.append((edge, position))
            elif identity not in visited and floor < following._sequence_nr() != _LEAF_SEQUENCE:
                visited[identity] = following
                waiting.append(following)
            elif is_of_several and identity in outputs and index in outputs[identity][1]:
                to_output = edge, outputs[identity][1][index]
                edges.setdefault(_identity(node), _Edges(node, [], [])).to_outputs.append(to_output)
    keys = {at: (identity, places[at]) for identity, of_node in targets.items() for at in of_node}
    if len(visited) > len(outputs) and len(set(keys.values())) < len(keys):
        counts = Counter(keys.values())
        inner = list(visited.values())[len(outputs) :]
        if not all(str(node).startswith(_COPY) for node in inner):  # in front of an operand, which keeps its place
            leave_out_shared(edges.values(), {at for at, key in keys.items() if counts[key] > 1})
    return edges
