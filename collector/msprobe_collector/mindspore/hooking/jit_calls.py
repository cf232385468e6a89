"""Functions under `mindspore.jit`: recorded from outside, with the originals in place while they compile and run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.recording.method_swaps import MethodSwaps


class JitCalls:
    """Records calls of jit functions as `Jit.{function}`, and keeps the compiler away from recorded callables."""

    def __init__(
        self,
        wrap: Callable[[Callable[..., Any], str], Callable[..., Any]],
        *,
        originals_in_place: Callable[[], AbstractContextManager[None]],
        records: bool,
    ) -> None:
        """Prepare.

        Args:
            wrap: makes a recorded callable.
            originals_in_place: a context in which nothing is hooked.
            records: whether calls become records (level L1, mix).
        """
        self._wrap = wrap
        self._originals_in_place = originals_in_place
        self._records = records
        self._swaps = MethodSwaps()

    def put_in(self) -> None:
        """See jit calls from now on."""
        if not self._swaps.are_in:
            api = graph_executors()
            self._swaps.put(api._JitExecutor, "__call__", self._executor_call)
            self._swaps.put(api.PIJitCaptureContext, "__call__", self._capture)

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()

    def _executor_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            # A method gets its object first, which is not an argument of the record.
            bound, arguments = (args[:1], args[1:]) if executor.obj is not None else ((), args)
            name = type(executor.obj).__name__ if executor.fn.__name__ == "construct" else executor.fn.__name__

            def run(*arguments: Any, **kwargs: Any) -> Any:
                with self._originals_in_place():
                    return original(executor, *bound, *arguments, **kwargs)

            run_recorded = self._wrap(run, f"Jit.{name}") if self._records else run
            return run_recorded(*arguments, **kwargs)

        return call

    def _capture(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture(context: Any, function: Any) -> Any:
            captured = original(context, function)

            @functools.wraps(captured)
            def run(*args: Any, **kwargs: Any) -> Any:
                with self._originals_in_place():
                    return captured(*args, **kwargs)

            return run

        return capture
