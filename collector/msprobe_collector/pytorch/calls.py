"""What PyTorch's calls look like: Modules and their parameters, and API calls, with what sees them."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import autograd, overrides

from msprobe_collector import logger
from msprobe_collector.configuration import ApiList, ApiPlace
from msprobe_collector.dump_format.values import AUTOCAST
from msprobe_collector.pytorch.api_names import ApiNames, as_called, caller_of, changes_first_argument, is_machinery
from msprobe_collector.pytorch.checkpoints import RUN_BACKWARD
from msprobe_collector.pytorch.communication import (
    PeerFunctions,
    PeerOperations,
    communication_functions,
    described,
    is_functional,
)
from msprobe_collector.pytorch.gradients import autocast_of, is_any_on
from msprobe_collector.pytorch.parameter_names import uncompiled
from msprobe_collector.recording.observing import CallObserver, ObservedCall, Waits, named_layers
from msprobe_collector.recording.swaps import Installation, MethodSwaps

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


#: Its functions have no types.
_overrides: Any = torch.overrides


def push(mode: Any) -> None:
    """Put `mode` below all others, unless it is there: a `with` of the script takes the topmost off when it ends."""
    if not is_on(mode):
        _rearrange(None, [mode])


def remove(mode: Any) -> bool:
    """Take `mode` off; modes of the script stay. False when it was not there."""
    if not is_on(mode):
        return False
    _rearrange(mode, [])
    return True


def is_on(mode: Any) -> bool:
    """Whether `mode` is on the stack of this thread."""
    return any(other is mode for other in _overrides._get_current_function_mode_stack())


def _rearrange(mode: Any, instead: list[Any]) -> None:
    """Put `instead` in the place of `mode`, or below all when it is None. The modes above stay, whatever goes wrong."""
    above: list[Any] = []
    try:
        while _overrides._len_torch_function_stack() and (top := _overrides._pop_mode()) is not mode:
            above.append(top)
    finally:
        for other in (*instead, *reversed(above)):
            _overrides._push_mode(other)


class ApiInstallation:
    """Puts in and takes out what sees calls: the mode, and recording functions for what modes do not see."""

    def __init__(self, calls: ApiCalls, listed: ApiList) -> None:
        left_out = [getattr(owner, name) for _, owner, name in _resolved(listed.remove)]
        self._guard = calls.guard
        self._mode = CallMode(calls, ApiNames(left_out))
        self._functions = MethodSwaps()
        self._peers = PeerFunctions(calls.wrapped)
        self._swapped = Installation(calls.wrapped, is_searched=is_searched)
        self._listed = listed
        self._are_found = False

    def install(self) -> None:
        """See calls of this thread from now on."""
        functions = [(owner, name, f"Distributed.{name}") for owner, name in communication_functions()]
        if not self._are_found:
            self._are_found = True
            for place, owner, name in _resolved(self._listed.add):
                functions.append((owner, name, f"{place.module.rpartition('.')[2]}.{name}"))
        self._swapped.add_new(functions)
        self._swapped.install()
        self._peers.install()
        if not self._functions.are_in:
            self._functions.put(overrides, "has_torch_function", self._without_mode)
            if hasattr(autograd, RUN_BACKWARD):
                self._functions.put(autograd, RUN_BACKWARD, self._mode.on_again)
        push(self._mode)

    def uninstall(self) -> None:
        """See no more calls."""
        remove(self._mode)
        self._functions.uninstall()
        self._peers.uninstall()
        self._swapped.uninstall()

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """See the calls of a thread other than the one that called `install`."""
        enter = self._guard.enter
        was_on = enter("a thread begins", is_on, self._mode, otherwise=True)
        enter("a thread begins", push, self._mode)
        try:
            yield
        finally:
            if not was_on:
                enter("a thread ends", remove, self._mode)

    def suspend(self) -> bool:
        """Take the mode of this thread out; whether it was in."""
        return remove(self._mode)

    def resume(self) -> None:
        """Put the mode of this thread back."""
        push(self._mode)

    def _without_mode(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """The layers of nn that have a fast path ask; the mode must not keep them from it."""

        @functools.wraps(original)
        def has_torch_function(relevant_args: Any) -> bool:
            was_on = self._guard.enter("a fast path", remove, self._mode)
            try:
                return original(relevant_args)
            finally:
                if was_on:
                    self._guard.enter("a fast path", push, self._mode)

        return has_torch_function

    def add(self, owner: Any, name: str, call: str) -> None:
        """Record calls of `owner.name` as `call`."""
        self._swapped.register(owner, name, call)

    def remove(self, owner: Any, name: str) -> bool:
        """Record them no more; False when they were not added."""
        return self._swapped.remove(owner, name)


def _resolved(places: Iterable[ApiPlace]) -> Iterator[tuple[ApiPlace, Any, str]]:
    for place in places:
        try:
            owner: Any = importlib.import_module(place.module)
        except ImportError:
            module, _, name = place.module.rpartition(".")
            try:
                owner = getattr(importlib.import_module(module), name, None)
            except (ImportError, ValueError):
                owner = None
        if callable(getattr(owner, place.name, None)):
            yield place, owner, place.name
        else:
            logger.warning("api_list: %s has no callable %s; it is passed over", place.module, place.name)


def is_searched(module: str) -> bool:
    """Whether names in `module` are replaced that hold a function to record."""
    return module.split(".")[0] not in ("torch", "torchgen", "functorch", "msprobe_collector")
