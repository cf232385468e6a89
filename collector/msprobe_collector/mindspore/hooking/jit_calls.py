"""Functions under `mindspore.jit`: recorded from outside, with the originals in place while they compile and run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.recording.method_swaps import MethodSwaps

logger = logging.getLogger("msprobe_collector")


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
        #: Regions of captured bytecode that are open, one in another.
        self._depth = 0
        self._open: list[AbstractContextManager[None]] = []
        self._has_warned = False
        self._swaps = MethodSwaps()

    def put_in(self) -> None:
        """See jit calls from now on."""
        if not self._swaps.are_in:
            api = graph_executors()
            self._swaps.put(api._JitExecutor, "__call__", self._executor_call)
            self._swaps.put(api.PIJitCaptureContext, "__call__", self._capture)
            self._swaps.put(api.PIJitCaptureContext, "__enter__", self._enter)
            self._swaps.put(api.PIJitCaptureContext, "__exit__", self._exit)

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

    @contextmanager
    def _region(self) -> Iterator[None]:
        """A region whose bytecode is captured: nothing is hooked in it, nor in regions inside it."""
        self._depth += 1
        try:
            with self._originals_in_place() if self._depth == 1 else nullcontext():
                yield
        finally:
            self._depth -= 1

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(context: Any) -> Any:
            if self._depth == 0 and self._records and not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s was made by jit(capture_mode='bytecode') before start(): its calls are not collected",
                    getattr(context.fn, "__qualname__", "a function"),
                )
            region = self._region()
            region.__enter__()
            self._open.append(region)
            return original(context)

        return enter

    def _exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leave(context: Any, *error: Any) -> Any:
            result = original(context, *error)
            if self._open:  # not after a start() inside
                self._open.pop().__exit__(None, None, None)
            return result

        return leave

    def _capture(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture(context: Any, function: Any) -> Any:
            captured = original(context, function)

            def run(*args: Any, **kwargs: Any) -> Any:
                with self._region():
                    return captured(*args, **kwargs)

            @functools.wraps(captured)
            def called(*args: Any, **kwargs: Any) -> Any:
                if not (self._records and self._swaps.are_in):
                    return run(*args, **kwargs)
                if function.__name__ != "construct":
                    return self._wrap(run, f"Jit.{function.__name__}")(*args, **kwargs)
                # A method gets its object first, which is not an argument of the record.
                bound = functools.partial(run, args[0])
                return self._wrap(bound, f"Jit.{type(args[0]).__name__}")(*args[1:], **kwargs)

            return called

        return capture
