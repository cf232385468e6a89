"""Functions that torch.compile has compiled: nothing of the collector is in place while they run.

The compiler would trace into the mode, guard on it, and compile anew whenever collecting begins or ends. So compiled
code runs, and is compiled, as without the collector; what it computes inside leaves no records of calls.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from msprobe_collector.recording.method_swaps import MethodSwaps

logger = logging.getLogger("msprobe_collector")

_COMPILER = "torch._dynamo.eval_frame"
_CONTEXT = "_TorchDynamoContext"
#: Functions that each compiled function calls when it is entered; each returns what is called when it is left.
_HOOKS = "enter_exit_hooks"
_Enter = Callable[[], Callable[[], None]]


class CompiledRegions:
    """Has `suspend` called before compiled code runs, and what it returns afterwards."""

    def __init__(self, suspend: _Enter) -> None:
        self._suspend = suspend
        self._swaps = MethodSwaps()
        self._has_warned = False

    def put_in(self) -> None:
        """Watch from now on."""
        if self._swaps.are_in:
            return
        import torch

        # Without the compiler nothing has been compiled; it loads with the first use of torch.compile.
        self._swaps.put(torch, "compile", self._loading)
        self._put_in_hooks()

    def take_out(self) -> None:
        """Watch no more."""
        self._swaps.take_out()

    def _put_in_hooks(self) -> None:
        context = getattr(sys.modules.get(_COMPILER), _CONTEXT, None)
        if context is not None and _HOOKS not in vars(context):
            self._swaps.put_new(context, _HOOKS, _hooks_with(self._entered))

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._swaps.are_in:
                self._put_in_hooks()
            return result

        return compile

    def _entered(self) -> Callable[[], None]:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("torch.compile: calls inside compiled code are not collected, only those around it")
        resume = self._suspend()

        def leave() -> None:
            if self._swaps.are_in:  # no stop() inside
                resume()

        return leave


def _hooks_with(enter: _Enter) -> property:
    """Stands before the attribute of the instances, which keep their own hooks."""

    def get(context: Any) -> Any:
        return _Hooks(vars(context).setdefault(_HOOKS, []), enter)

    def put(context: Any, hooks: Any) -> None:
        vars(context)[_HOOKS] = hooks

    return property(get, put)


class _Hooks:
    """A context's own hooks, and one more when they are run."""

    def __init__(self, own: list[_Enter], enter: _Enter) -> None:
        self._own = own
        self._enter = enter
        self.append = own.append

    def __iter__(self) -> Iterator[_Enter]:
        yield from self._own
        yield self._enter
