"""Activation checkpointing: a forward that runs again inside the backward is not a new call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import autograd

from msprobe_collector.pytorch.watching.gradients import graph_task
from msprobe_collector.recording.method_swaps import MethodSwaps

#: What `torch.autograd.backward` and `grad` call to run a backward pass.
RUN_BACKWARD = "_engine_run_backward"


class Call(NamedTuple):
    """A call inside a checkpoint.

    Attributes:
        call: `Torch.relu`, `Module.layer.Linear`.
        name: of its record, without direction.
        parent: record of the Module that ran it.
    """

    call: str
    name: str
    parent: str | None


_NO_CALL = Call("", "", None)


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

    def note(self, call: str, name: str, parent: str | None) -> None:
        """A call runs; it may be inside a checkpoint that is repeated later."""
        for calls in self._noting:
            calls.append(Call(call, name, parent))

    def next_call(self, call: str) -> Call:
        """The call that the present one repeats; one without a name when that is not known."""
        if self._repeated and self._repeated[-1].call == call:
            return self._repeated.pop()
        self._repeated = []
        return _NO_CALL


class CheckpointSwaps:
    """Watches the checkpoints of torch.utils.checkpoint."""

    def __init__(self, state: Recomputation) -> None:
        self._state = state
        self._swaps = MethodSwaps()
        self._passes = state._passes

    def put_in(self) -> None:
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

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()

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
