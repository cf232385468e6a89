"""Backward values seen on MindSpore's own backward nodes, so that the graph, and with it every bit of training, stays.

The gradient of an argument is its contribution through one call: what the nodes that the call made hand to the edges
that lead to the argument. Nothing is inserted: an identity in front of a call would change the order in which
gradients of a shared tensor are added up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from msprobe_collector.mindspore.tensor_values import errors_of_the_script, mindspore_values
from msprobe_collector.recording.gradients import BackwardCall, Completed
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import inner_tensors

logger = logging.getLogger("msprobe_collector")

_LEAF_SEQUENCE = (1 << 64) - 1


class Sources(NamedTuple):
    """Where the gradients of a call's arguments go.

    Attributes:
        nodes: backward node of each top-level tensor argument, None where none is; behind them those of the tensors in
            lists, tuples, dicts and keywords.
        listed: how many gradients the backward record lists by position, as `BackwardCall` takes it.
        paths: of the tensors in lists and keywords, as `BackwardCall` takes them.
    """

    nodes: list[Any]
    listed: int
    paths: tuple[str, ...]


class GradientTap:
    """Attaches to the backward nodes of calls; a `GradientTap` of observing."""

    def __init__(self, guard: Guard) -> None:
        from mindspore import Tensor

        self._tensor = Tensor
        self._guard = guard
        self._values = mindspore_values()
        #: Of hooks on tensors, which may be Parameters and outlive the step.
        self._handles: list[Any] = []
        self.is_supported = hasattr(Tensor, "_grad_node")
        if not self.is_supported:
            logger.warning(
                "this MindSpore shows no backward nodes (2.7.1 and newer do): backward records are not collected"
            )

    def end_step(self) -> None:
        """Take the hooks off tensors: the gradients of the step have come."""
        while self._handles:
            self._handles.pop().remove()

    def before(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_in_place: bool = False) -> Sources | None:
        """Where the gradients of the arguments go; a call may change one of them in place."""
        if not self.is_supported:
            return None
        tensors = self._tensors(args)
        inner = dict(inner_tensors(args, kwargs, self._tensor))
        with errors_of_the_script(tensors):
            nodes = [tensor._grad_node for tensor in tensors]
            has_floating = any(node is not None for node in nodes) or any(
                str(tensor.dtype).startswith(("Float", "BFloat", "Complex", "HiFloat")) for tensor in tensors
            )
            inner_nodes = [tensor._grad_node for tensor in inner.values()]
        return Sources(nodes + inner_nodes, len(nodes) if has_floating else 0, tuple(inner))

    def attach(
        self,
        before: Sources,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        on_complete: Completed,
        on_begin: Callable[[], None] | None = None,
    ) -> BackwardCall | None:
        """See `GradientTap`. With `on_begin`, outputs are watched before their node runs."""
        results = self._tensors(result if isinstance(result, (tuple, list)) else (result,))
        with errors_of_the_script(results):
            outputs = _grouped([tensor._grad_node for tensor in results])
        if not outputs:
            return None
        targets: dict[Hashable, list[int]] = {}
        for position, node in enumerate(before.nodes):
            if node is not None:
                targets.setdefault(_identity(node), []).append(position)
        call = BackwardCall(
            len(results),
            len(before.nodes),
            listed=before.listed,
            paths=before.paths,
            values=self._values,
            on_begin=on_begin,
            on_complete=on_complete,
        )
        if all(_identity(node) in targets for node, _ in outputs):
            self._watch_tensors(call, results, targets)
            return call
        outputs = [(node, positions) for node, positions in outputs if _identity(node) not in targets]
        edges = _edges_to(targets, [node for node, _ in outputs], _floor(before.nodes))
        call.expect(self._watch(call, outputs, edges, before_node=on_begin is not None))
        return call

    def _tensors(self, values: Sequence[Any]) -> list[Any]:
        """The top-level tensors among `values`: those whose gradients a backward record lists."""
        return [value for value in values if isinstance(value, self._tensor)]

    def _watch_tensors(self, call: BackwardCall, results: Sequence[Any], targets: dict[Hashable, list[int]]) -> None:
        """Watch a call that made no node, since it returned its arguments: what it passes on is what it gets."""
        hooked = [(at, result) for at, result in enumerate(results) if result._grad_node is not None]
        call.expect(len(hooked))
        for at, result in hooked:
            position = targets[_identity(result._grad_node)][0]
            take = self._safely(
                lambda gradient, at=at, to=position: call.arrived(incoming=[(at, gradient)], outgoing=[(to, gradient)])
            )

            def passed_on(gradient: Any, take: Callable[..., None] = take) -> Any:
                take(gradient)
                return gradient

            self._handles.append(result.register_hook(passed_on))

    def _watch(
        self,
        call: BackwardCall,
        outputs: list[tuple[Any, list[int]]],
        edges: dict[Hashable, tuple[Any, list[tuple[int, int]]]],
        *,
        before_node: bool,
    ) -> int:
        """Register the hooks; returns how many calls of them to expect."""
        hooks = 0
        for node, positions in outputs:
            joint = None if before_node else edges.pop(_identity(node), None)
            hooks += 1
            if before_node:
                node.register_prehook(self._safely(lambda grads, at=positions: call.arrived(incoming=_at(at, grads))))
            else:
                to = joint[1] if joint else []
                node.register_hook(
                    self._safely(
                        lambda sent, grads, at=positions, to=to: call.arrived(
                            incoming=_at(at, grads), outgoing=_sent(sent, to)
                        )
                    )
                )
        for node, to in edges.values():
            hooks += 1
            node.register_hook(self._safely(lambda sent, _, to=to: call.arrived(outgoing=_sent(sent, to))))
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


def _at(positions: list[int], gradients: Any) -> list[tuple[int, Any]]:
    """Gradients of a node's outputs, in order, for the call's outputs at `positions`."""
    return list(zip(positions, gradients))


def _sent(gradients: Sequence[Any], to: list[tuple[int, int]]) -> list[tuple[int, Any]]:
    """What a node has sent along its edges to arguments, as (argument position, gradient).

    A node may send fewer gradients than it has edges (seen on 2.10); the rest is not known then.
    """
    return [(position, gradients[edge]) for edge, position in to if edge < len(gradients)]


def _grouped(nodes: list[Any]) -> list[tuple[Any, list[int]]]:
    """Distinct nodes, each with the positions at which it stands."""
    groups: dict[Hashable, tuple[Any, list[int]]] = {}
    for position, node in enumerate(nodes):
        if node is not None:
            groups.setdefault(_identity(node), (node, []))[1].append(position)
    return list(groups.values())


def _floor(sources: Sequence[Any]) -> int:
    """Nodes that the call made have a higher sequence number than every node of its arguments."""
    numbers = (node._sequence_nr() for node in sources if node is not None)
    return max((number for number in numbers if number != _LEAF_SEQUENCE), default=-1)


def _edges_to(
    targets: dict[Hashable, list[int]], outputs: list[Any], floor: int
) -> dict[Hashable, tuple[Any, list[tuple[int, int]]]]:
    """(node, its edges that lead to arguments as (edge, argument position)) by node of the call.

    Where several arguments come from one node (the parts of a chunk), its edges are assigned to them in order.
    """
    found: dict[Hashable, tuple[Any, list[tuple[int, int]]]] = {}
    if not targets:
        return found
    hits = dict.fromkeys(targets, 0)
    waiting, seen = list(outputs), {_identity(node) for node in outputs}
    while waiting:
        node = waiting.pop()
        for edge, (following, _) in enumerate(node.next_functions):
            if following is None:
                continue
            identity = _identity(following)
            if identity in targets:
                positions = targets[identity]
                position = positions[min(hits[identity], len(positions) - 1)]
                hits[identity] += 1
                found.setdefault(_identity(node), (node, []))[1].append((edge, position))
            elif identity not in seen and floor < following._sequence_nr() != _LEAF_SEQUENCE:
                seen.add(identity)
                waiting.append(following)
    return found
