"""Functions that torch.compile has compiled: the mode is off while they run.

The compiler would trace into the mode, guard on it, and compile anew whenever collecting begins or ends. So compiled
code runs, and is compiled, as without the collector; what it computes inside leaves no records of calls.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from msprobe_collector.pytorch.watching import mode_stack
from msprobe_collector.recording.method_swaps import MethodSwaps

_COMPILER = "torch._dynamo.eval_frame"
#: Called with the compiler's callback when compiled code is entered, and with that of outside when it is left.
_SWITCH = "_maybe_set_eval_frame"


class _State(threading.local):
    is_suspended = False


class CompiledRegions:
    """Takes a mode off the stack while compiled code runs in a thread."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._swaps = MethodSwaps()
        self._state = _State()

    def put_in(self) -> None:
        """Watch from now on; a compiler that is not loaded yet has compiled nothing."""
        module = sys.modules.get(_COMPILER)
        if module is not None and hasattr(module, _SWITCH) and not self._swaps.are_in:
            self._swaps.put(module, _SWITCH, self._switched)

    def take_out(self) -> None:
        """Watch no more."""
        self._swaps.take_out()
        self._state.is_suspended = False

    def _switched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def switched(callback: Any) -> Any:
            result = original(callback)
            if callable(callback):
                self._state.is_suspended = mode_stack.remove(self._mode) or self._state.is_suspended
            elif self._state.is_suspended:
                self._state.is_suspended = False
                mode_stack.push(self._mode)
            return result

        return switched
