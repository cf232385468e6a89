"""What sees calls of APIs: the mode, and recording functions for what modes do not see.

The stack of modes of this thread: one mode is put on it, and taken off it wherever it is by then.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import autograd, overrides

from msprobe_collector.configuration.configuration import ApiList, ApiPlace
from msprobe_collector.log import logger
from msprobe_collector.pytorch.api_names import ApiNames
from msprobe_collector.pytorch.calls import ApiCalls, CallMode
from msprobe_collector.pytorch.checkpoints import RUN_BACKWARD
from msprobe_collector.pytorch.communication import PeerFunctions, communication_functions
from msprobe_collector.recording.swaps import Installation, MethodSwaps

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
    """Puts in and takes out what sees calls."""

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
