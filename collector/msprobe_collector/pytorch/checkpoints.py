"""Activation checkpointing: a forward that runs again inside the backward is not a new call.

What it computes is compared with the first time: gradients are made of it, and not of what the records hold.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import chain
from typing import Any

import torch
from torch import autograd
from torch.multiprocessing.reductions import StorageWeakRef

from msprobe_collector.pytorch.device import taken_from
from msprobe_collector.pytorch.gradients import ReducedGradients, graph_task
from msprobe_collector.pytorch.provenance import place_of
from msprobe_collector.pytorch.tensor_values import content_of, torch_values
from msprobe_collector.recording.gradients import Outputs
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import inner_tensors
from msprobe_collector.recording.swaps import MethodSwaps

#: What `torch.autograd.backward` and `grad` call to run a backward pass.
RUN_BACKWARD = "_engine_run_backward"
#: The calls of a checkpoint's forward, as an attribute of what PyTorch keeps of it.
_CALLS = "_msprobe_calls"


@dataclass(slots=True, eq=False)
class CheckpointCall:
    """A call inside a checkpoint; a `Repeatable` of observing.

    Attributes:
        call: `Torch.relu`, `Module.layer.Linear`.
        name: of its forward record.
        parent: record of the Module that ran it.
        is_other: whether a repetition of it got or gave other values, as far as is known yet.
        repetition: the one that runs, or ran last.
    """

    call: str
    name: str
    parent: str | None
    is_other: bool = False
    repetition: Repetition | None = None
    #: Of the first time, one for each tensor that it returned.
    _contents: list[Any] | None = None
    #: Of the arguments, by their numbers, while it runs.
    _storages: dict[int, Any] = field(default_factory=dict)

    def began(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """See `Repeatable`."""
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        tensors += [tensor for _, tensor in inner_tensors(args, kwargs, torch_values().parts)]
        self._storages = {place[0]._cdata: place[0] for place in map(place_of, tensors) if place is not None}
        if self.repetition is not None:
            self.repetition.began(self, self._storages)

    def returned(self, result: Any) -> None:
        """See `Repeatable`."""
        storages, self._storages = self._storages, {}
        tensors = Outputs.of(result, torch_values().parts).tensors
        contents = [None if _is_view_of(tensor, storages) else content_of(tensor) for tensor in tensors]
        if self._contents is None:
            self._contents = contents
        elif self.repetition is not None:
            made = [place[0] for place in map(place_of, tensors) if place is not None]
            if result is None:  # it has written to its first argument
                made = list(storages.values())[:1]
            self.repetition.returned(self, made, list(zip(self._contents, contents)))

    def settling(self) -> Callable[[], bool]:
        """See `Repeatable`."""
        repetition = self.repetition

        def differs() -> bool:
            if repetition is not None:
                repetition.settle()
            return self.is_other

        return differs


def _is_view_of(tensor: Any, storages: Mapping[int, Any]) -> bool:
    """Whether a tensor shows what the arguments hold, into which nobody has written."""
    place = place_of(tensor)
    return place is not None and place[0]._cdata in storages and place[1] == 0


class Repetition:
    """A forward that a checkpoint computes again.

    Contents are compared on the device, and read together when someone asks.
    """

    def __init__(self, calls: Sequence[CheckpointCall], *, has_graph: bool) -> None:
        """It will make `calls`; `has_graph`: gradients go through it, and not through the graph of the first time."""
        self.has_graph = has_graph
        #: Last first.
        self._expected = list(reversed(calls))
        #: Who made what lies in a storage, by its number, which belongs to it as long as it is referred to.
        self._makers: dict[int, tuple[Any, CheckpointCall]] = {}
        #: Calls, what made their arguments, and their contents of both times that are not compared yet.
        self._open: deque[tuple[CheckpointCall, list[CheckpointCall], list[tuple[Any, Any]]]] = deque()

    def next(self, call: str) -> CheckpointCall | None:
        """The call that is repeated; None where another one was to come, and for all after that."""
        if self._expected and self._expected[-1].call == call:
            repeated = self._expected.pop()
            repeated.repetition = self
            return repeated
        self._expected = []
        return None

    def began(self, call: CheckpointCall, storages: Mapping[int, Any]) -> None:
        """`call` gets what lies there."""
        makers = [self._makers[number][1] for number in storages if number in self._makers]
        self._open.append((call, makers, []))

    def returned(self, call: CheckpointCall, made: Sequence[Any], contents: Sequence[tuple[Any, Any]]) -> None:
        """`call` has made what lies in these storages, of these contents the first time and now."""
        comparable = [pair for pair in contents if pair[0] is not None and type(pair[0]) is type(pair[1])]
        self._open.append((call, [], comparable))
        for storage in made:
            self._makers[storage._cdata] = StorageWeakRef(storage), call  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """No call follows."""
        self._makers = {}

    def settle(self) -> None:
        """Tell the calls whether they differ; waits for the device once."""
        waiting = taken_from(self._open)
        pairs = chain(*(contents for _, _, contents in waiting))
        on_device = [before != now for before, now in pairs if not isinstance(before, str)]
        stacked = [difference.to(on_device[0].device) for difference in on_device]
        differences = iter(torch.stack(stacked).tolist() if stacked else ())
        for call, makers, contents in waiting:
            differ = [before != now if isinstance(before, str) else next(differences) for before, now in contents]
            call.is_other |= any(differ) or any(maker.is_other for maker in makers)


class Recomputation(threading.local):
    """Knows in each thread whether a checkpoint computes its forward again, and which calls it repeats.

    The reentrant kind computes gradients in the repeated forward only: the k-th call there takes the name of the k-th
    call of the first run, and its gradients go to that record. The other kind keeps the first graph.
    """

    def __init__(self, passes: list[bool]) -> None:
        """`passes` says of each backward pass that runs, in any thread, whether it builds a graph (create_graph)."""
        self._passes = passes
        #: Lists of the checkpoints whose forward runs, outermost first.
        self._noting: list[list[CheckpointCall]] = []
        self._repetition: Repetition | None = None
        #: The same two of what each repetition that runs has interrupted.
        self._interrupted: list[tuple[list[list[CheckpointCall]], Repetition | None]] = []

    def open(self, calls: list[CheckpointCall]) -> None:
        """The forward of a checkpoint begins; `calls` takes those that it makes."""
        self._noting.append(calls)

    def close(self, calls: list[CheckpointCall]) -> None:
        """It ends."""
        if self._noting and self._noting[-1] is calls:
            self._noting.pop()

    def forget(self) -> None:
        """Nobody will see it end."""
        self._noting = []

    def begin(self, calls: Sequence[CheckpointCall] = (), *, has_graph: bool = False) -> None:
        """A checkpoint begins to compute its forward again, which made `calls`; for `has_graph` see `Repetition`."""
        self._interrupted.append((self._noting, self._repetition))
        self._noting, self._repetition = [], Repetition(calls, has_graph=has_graph)

    def end(self) -> None:
        """It ends; one that began before anyone watched is not known."""
        if self._interrupted:
            if self._repetition is not None:
                self._repetition.end()
            self._noting, self._repetition = self._interrupted.pop()

    def is_running(self) -> bool:
        """Whether calls of this thread repeat others.

        Besides the checkpoints of torch.utils.checkpoint, which say so, those of other libraries are known by their
        gradient mode, which backward passes switch off, unless they build a graph, and a repeated forward switches on.
        """
        if self._interrupted:
            return True
        return graph_task() != -1 and torch.is_grad_enabled() and not (self._passes and self._passes[-1])

    def number(
        self, call: str, parent: str | None, make_name: Callable[[str], str]
    ) -> tuple[str, str | None, bool, CheckpointCall | None]:
        """See `Number` of observing. A repetition of a call that is not known, or without a graph, has no name."""
        if self.is_running():
            repeated = self._repetition.next(call) if self._repetition is not None else None
            if repeated is None or self._repetition is None or not self._repetition.has_graph:
                return "", None, True, repeated
            self._note(repeated)
            return repeated.name, repeated.parent, True, repeated
        name = make_name(call)
        if not self._noting:
            return name, parent, False, None
        made = CheckpointCall(call, name, parent)
        self._note(made)
        return name, parent, False, made

    def _note(self, call: CheckpointCall) -> None:
        """`call` may be inside checkpoints that are repeated later, which may stand in one that is repeated now."""
        for calls in self._noting:
            calls.append(call)


class CheckpointSwaps:
    """Watches the checkpoints of torch.utils.checkpoint.

    Attributes:
        backward_passes: how many have ended so far.
    """

    def __init__(self, state: Recomputation, guard: Guard, reduced: ReducedGradients) -> None:
        self._state = state
        self._guard = guard
        self._reduced = reduced
        self._swaps = MethodSwaps()
        self._passes = state._passes
        self.backward_passes = 0

    def install(self) -> None:
        """Watch from now on."""
        if self._swaps.are_in:
            return
        from torch.utils import checkpoint

        self._swaps.put(checkpoint.CheckpointFunction, "forward", self._noted_forward)
        self._swaps.put(checkpoint.CheckpointFunction, "backward", self._repeating_backward)
        if hasattr(autograd, RUN_BACKWARD):
            self._swaps.put(autograd, RUN_BACKWARD, self._noted_pass)
        for name, made, entered, leave in (
            ("_checkpoint_hook", _hold_calls, self._open, self._close),
            ("_recomputation_hook", _take_calls, self._begin, self._end),
        ):
            if (owner := getattr(checkpoint, name, None)) is not None:
                self._swaps.put(owner, "__init__", partial(_with, self._guarded(made)))
                self._swaps.put(owner, "__enter__", partial(_with, self._guarded(entered)))
                self._swaps.put(owner, "__exit__", partial(_with, self._guarded(leave)))

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()
        self._state.forget()

    def _guarded(self, action: Callable[..., None]) -> Callable[..., None]:
        return partial(self._guard.enter, "a checkpoint", action)

    def _open(self, hook: Any, *_: Any) -> None:
        if _CALLS in vars(hook):
            self._state.open(vars(hook)[_CALLS])

    def _close(self, hook: Any, *_: Any) -> None:
        self._state.close(vars(hook).get(_CALLS))

    def _begin(self, hook: Any, *_: Any) -> None:
        self._state.begin(vars(hook).get(_CALLS, ()))

    def _end(self, *_: Any) -> None:
        self._state.end()

    def _noted_pass(self, original: Callable[..., Any]) -> Callable[..., Any]:
        passes = self._passes

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Positions: outputs, gradients, retain_graph, create_graph.
            passes.append(len(args) > 3 and args[3] is True)
            self._guard.enter("the beginning of a backward pass", self._reduced.begin_pass)
            try:
                return original(*args, **kwargs)
            finally:
                passes.pop()
                self.backward_passes += 1
                if not passes:
                    self._guard.enter("the end of a backward pass", self._reduced.end_pass)

        return run

    def _noted_forward(self, original: Any) -> Any:
        @wraps(original.__func__)
        def forward(context: Any, *args: Any) -> Any:
            enter, calls = self._guard.enter, list[CheckpointCall]()
            enter("a checkpoint", self._state.open, calls)
            try:
                return original.__func__(context, *args)
            finally:
                enter("a checkpoint", self._state.close, calls)
                setattr(context, _CALLS, calls)

        return staticmethod(forward)

    def _repeating_backward(self, original: Any) -> Any:
        @wraps(original.__func__)
        def backward(context: Any, *args: Any) -> Any:
            # Once: a graph that is kept runs again for another backward pass, whose gradients have no record.
            enter, calls = self._guard.enter, vars(context).pop(_CALLS, ())
            enter("a checkpoint", partial(self._state.begin, calls, has_graph=True))
            try:
                return original.__func__(context, *args)
            finally:
                enter("a checkpoint", self._state.end)

        return staticmethod(backward)


def _hold_calls(hook: Any, frame: Any, *_: Any) -> None:
    """The hook of a first forward, and what PyTorch keeps of it for the repetitions, get a list of its calls."""
    setattr(frame, _CALLS, [])
    setattr(hook, _CALLS, getattr(frame, _CALLS))


def _take_calls(hook: Any, frame: Any, *_: Any) -> None:
    """The hook of a repetition gets those of the first forward; it is given a weak reference."""
    setattr(hook, _CALLS, getattr(frame(), _CALLS, ()))


def _with(action: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        action(*args, **kwargs)
        return original(*args, **kwargs)

    return run
