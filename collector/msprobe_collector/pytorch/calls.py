"""What PyTorch's calls look like: Modules and their parameters, API calls as a function mode sees them."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import torch

from msprobe_collector.dump_format.values import AUTOCAST
from msprobe_collector.pytorch.api_names import (
    ApiNames,
    as_called,
    caller_of,
    changes_first_argument,
    is_machinery,
)
from msprobe_collector.pytorch.communication import PeerOperations, described, is_functional
from msprobe_collector.pytorch.gradients import autocast_of, is_any_on
from msprobe_collector.pytorch.parameter_names import uncompiled
from msprobe_collector.recording.observing import CallObserver, ObservedCall, Waits, named_layers

if TYPE_CHECKING:
    from msprobe_collector.pytorch.provenance import TorchOrigins
    from msprobe_collector.recording.observing import GradientTap, Number
    from msprobe_collector.recording.recorder import OpenRecord
    from msprobe_collector.recording.session import Session


def named_modules(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(path, Module) of every Module below the `models`, each once under its first path; the models have ""."""
    return uncompiled(named_layers(models, lambda model: model.named_modules()))


#: What starts backward passes.
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


#: Whose memory holds what was there before.
_FACTORIES = (
    *(torch.empty, torch.empty_like, torch.empty_permuted, torch.empty_strided),
    *(torch.Tensor.new_empty, torch.Tensor.new_empty_strided),
)


class _CallThread(threading.local):
    is_in_backward = False


class CallMode(torch.overrides.TorchFunctionMode):
    """Sees every call of PyTorch's API in the thread that entered it, by whatever name it was made."""

    def __init__(self, calls: ApiCalls, names: ApiNames) -> None:
        super().__init__()
        self._calls = calls
        self._names = names
        self._thread = _CallThread()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, recorded if it is to be; inside it the mode is off, so that only outermost calls are seen."""
        calls, form = self._calls, None
        if calls.recorder.is_collecting and not calls.activity.is_inside:
            form = calls.faults.guarded("naming a call", self._seen, func, args, kwargs or {}, sys._getframe(1))
        if form is None:
            if func not in _BACKWARD:
                result = func(*args, **(kwargs or {}))
                if func in _FACTORIES and calls.recorder.is_collecting and not calls.activity.is_inside:
                    calls.guard.enter("uninitialised memory", calls.on_empty, result)
                return result
            self._thread.is_in_backward = True
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._thread.is_in_backward = False
        return calls.observe(func, *form)

    def _seen(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
        """(name, arguments as the script wrote them, keywords) of a call made in `frame`; None for an internal one."""
        call = self._names.of(function)
        if call is None:
            return None
        caller = caller_of(frame)
        if is_machinery(call, caller[0]):
            return None
        if call.startswith("Tensor."):
            return self._names.as_written(call, caller[0]), args, kwargs
        return call, *as_called(function, caller, args, kwargs)

    def on_again(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        """The function that starts PyTorch's engine, with the mode on.

        A call of `backward` is one of PyTorch's API, but what runs inside is the script's: its own autograd functions,
        hooks, forwards that are recomputed.
        """

        @functools.wraps(run_backward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._thread.is_in_backward:
                return run_backward(*args, **kwargs)
            self._thread.is_in_backward = False
            with self:
                return run_backward(*args, **kwargs)

        return run


class ApiCalls(CallObserver):
    """Knows which calls change their first argument, and writes down the autocast under which they run.

    Attributes:
        on_empty: is shown each tensor that is made without values.
    """

    def __init__(
        self,
        session: Session,
        tap: GradientTap,
        waits: Waits,
        *,
        number: Number,
        on_empty: Callable[[Any], None],
        peers: PeerOperations,
    ) -> None:
        super().__init__(session, tap, waits, number=number)
        self.on_empty = on_empty
        self._peers = peers

    def observe_border(
        self, graph: Callable[..., Any], call: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a compiled graph, recorded where a call is recorded at all, at every level."""
        if not self.recorder.is_collecting or self.activity.is_inside:
            return graph(*args, **kwargs)
        return self.observe(graph, call, args, kwargs)

    def _begin(
        self,
        call: ObservedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None,
    ) -> None:
        if call.communicates:
            if call.microbatch is None:
                call.microbatch = self._peers.microbatch_of(args)
            args, kwargs = described(call.function, args, kwargs)
            args = self._peers.shown(args)
        super()._begin(call, args, kwargs, attributes)
        record = call.record
        if record is None:
            return
        if is_any_on() and (autocast := autocast_of(args, kwargs)):
            self.recorder.part(record, AUTOCAST, AUTOCAST, autocast)
        if record.origins is not None and not (call.communicates and is_functional(call.function)):
            cast("TorchOrigins", record.origins).expect(call.what, args, kwargs)

    def _take_outputs(self, record: OpenRecord, result: Any) -> None:
        """Of a call that returns nothing, the arguments into which it has written."""
        if result is None and record.origins is not None:
            result = cast("TorchOrigins", record.origins).changed() or None
        super()._take_outputs(record, result)

    def _shown(self, outputs: Any) -> Any:
        return self._peers.shown(outputs)

    def _sources(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_in_place = changes_first_argument(what) or kwargs.get("inplace") is True
        return self._tap.before(args, kwargs, is_in_place=is_in_place)
