"""Backward values seen on PyTorch's own backward nodes, so that the graph, and with it every bit of training, stays.

The gradient of an argument is its contribution through one call: what the nodes that the call made hand to the edges
that lead to the argument. Hooks on nodes look and return nothing; no identity is inserted, no view is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from msprobe_collector.dump_format.writing.framework_values import FrameworkValues
from msprobe_collector.pytorch.watching.autocast import is_any_on
from msprobe_collector.pytorch.watching.edges import Edge, Part, edge_of, edge_of_base, of_view
from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.backward_call import BackwardCall, Completed
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.inner_tensors import inner_tensors

sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
#: Number of the backward pass that runs in this thread, -1 outside.
graph_task: Callable[[], int] = torch._C._current_graph_task_id


class Sources(NamedTuple):
    """Where the gradients of a call's arguments go.

    Attributes:
        edges: of each top-level tensor argument, None where no gradient flows; behind them those of the tensors in
            lists, tuples, dicts and keywords.
        listed: how many gradients the backward record lists by position: as many as there are top-level tensors, or 0
            when none of them is floating.
        paths: of the tensors in lists and keywords: `input.0.1`, `kwargs.weight`.
        floor: sequence number of the first node that the call may make.
        has_casts: whether autocast may have cast parameters inside the call.
    """

    edges: list[Edge | None]
    listed: int
    paths: tuple[str, ...]
    floor: int
    has_casts: bool = False

    def parted_by(self) -> Callable[[list[Any]], tuple[list[Any], dict[str, Any]]]:
        """What gives (gradients by position, those of tensors in lists and keywords that came, by path).

        It holds no node: hooks on nodes keep it.
        """
        listed, paths = self.listed, self.paths

        def parted(gradients: list[Any]) -> tuple[list[Any], dict[str, Any]]:
            others = {path: item for path, item in zip(paths, gradients[listed:]) if item is not None}
            return gradients[:listed], others

        return parted


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


class GradientTap:
    """Attaches to the backward nodes of calls."""

    def __init__(self, activity: Activity, faults: FaultLog, values: FrameworkValues) -> None:
        self._activity = activity
        self._faults = faults
        self._values = values
        # Type of the nodes that hold leaves.
        leaf = torch.zeros((), requires_grad=True)
        self._leaf_node = type(leaf.view(()).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
        self._cast_node: Any = type(leaf.to(torch.float64).grad_fn)

    def sources(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], floor: int, *, is_in_place: bool = False
    ) -> Sources:
        """Where the gradients of the arguments go.

        To be asked after the call: a view that was changed through another one has its node made when someone looks at
        it, and nodes run in the order in which they are made. Of a call that changes its first argument, before.
        """
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        inner = dict(inner_tensors(arguments, keywords, torch.Tensor))
        edges = [edge_of(tensor) for tensor in (*tensors, *inner.values())]
        if is_in_place and tensors and tensors[0] is arguments[0]:
            edges[0] = edge_of_base(tensors[0])
        has_floating = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
        listed = len(tensors) if has_floating else 0
        return Sources(edges if has_floating else edges[len(tensors) :], listed, tuple(inner), floor, is_any_on())

    def attach(
        self,
        sources: Sources,
        results: Sequence[Any],
        *,
        on_complete: Completed,
        on_begin: Callable[[], None] | None = None,
        is_in_place: bool = False,
    ) -> BackwardCall | None:
        """Watch the backward of a call whose arguments had the `sources` and that returned `results`.

        Args:
            sources: of its arguments.
            results: top-level values that the call returned.
            on_complete: called with the gradients when all have arrived.
            on_begin: called when the first output's gradient arrives, ahead of all that happens inside.
            is_in_place: the result is the first argument, changed.

        Returns:
            The watched backward, or None when none will come.
        """
        tensors = [value for value in results if isinstance(value, torch.Tensor)]
        edges = [edge_of_base(tensor) if is_in_place else edge_of(tensor) for tensor in tensors]
        outputs: dict[int, tuple[Any, list[tuple[int, Edge]]]] = {}
        for position, edge in enumerate(edges):
            if edge is None or edge.node is None or _is_one_of(edge, sources.edges):  # returned as it came
                continue
            if edge.node._sequence_nr() >= sources.floor:
                outputs.setdefault(id(edge.node), (edge.node, []))[1].append((position, edge))
        if not outputs:
            return None
        call = BackwardCall(
            len(tensors), len(sources.edges), values=self._values, on_begin=on_begin, on_complete=on_complete
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
        activity, faults = self._activity, self._faults

        def run(*gradients: Any) -> None:
            was_inside, activity.is_inside = activity.is_inside, True
            try:
                with torch.no_grad():
                    if in_first_pass():
                        hook(*gradients)
            except Exception as error:  # the border between the collector and the user's training
                faults.note("taking gradients", error)
            finally:
                activity.is_inside = was_inside

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


def _is_one_of(edge: Edge, known: list[Edge | None]) -> bool:
    """Nodes of several threads are numbered apart: a number says nothing of another thread's node."""
    return any(other is not None and other.node is edge.node and other.output == edge.output for other in known)


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
