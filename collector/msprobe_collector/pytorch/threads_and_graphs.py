"""Threads that the script starts: a mode belongs to one thread, so that each of them needs it on a stack of its own.

The threads of PyTorch's own engine have the modes of the thread that called `backward`.

Functions that torch.compile has compiled: nothing of the collector is in place while they run.

The compiler would trace into the mode, guard on it, and compile anew whenever collecting begins or ends. So compiled
code runs, and is compiled, as without the collector; what it computes inside leaves no records of calls. Which code
that was is noted.

Captures of graphs of a device.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from traceback import walk_stack
from typing import Any

import torch
from torch import nn

from msprobe_collector.log import logger
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps


class ThreadSwaps:
    """Watches what the script runs in threads that it starts, and in pools of threads.

    Attributes:
        count: how many pieces of work were watched so far.
    """

    def __init__(self, guard: Guard, watch: Callable[[], AbstractContextManager[None]]) -> None:
        """`watch()` is what sees the calls of the thread that enters it; entering it raises nothing."""
        self._guard = guard
        self._activity = guard.activity
        self._watch = watch
        self._swaps = MethodSwaps()
        self.count = 0

    def install(self) -> None:
        """Watch threads that are started, and work that is given to pools, from now on."""
        if not self._swaps.are_in:
            self._swaps.put(threading.Thread, "start", self._started)
            self._swaps.put(ThreadPoolExecutor, "submit", self._submitted)

    def uninstall(self) -> None:
        """Watch no new ones; what runs goes on as it is."""
        self._swaps.uninstall()

    def _started(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def start(thread: threading.Thread) -> None:
            if not self._activity.is_inside:
                self._guard.enter("starting a thread", self._watch_thread, thread)
            try:
                original(thread)
            except BaseException:  # no thread could be made
                vars(thread).pop("run", None)
                raise

        return start

    def _submitted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def submit(executor: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if not self._activity.is_inside:
                fn = self._guard.enter("work for a thread", self._watched_of_script, fn, otherwise=fn)
            return original(executor, fn, *args, **kwargs)

        return submit

    def _watch_thread(self, thread: threading.Thread) -> None:
        # The function that it was given, or the class that says itself what it runs.
        is_given = type(thread).run is threading.Thread.run
        if not self._is_of_script(getattr(thread, "_target", None) if is_given else type(thread)):
            return
        run = self._watched(thread.run)

        def run_once() -> None:
            vars(thread).pop("run", None)
            run()

        thread.run = run_once  # type: ignore[method-assign]

    def _watched_of_script(self, work: Callable[..., Any]) -> Callable[..., Any]:
        return self._watched(work) if self._is_of_script(work) else work

    def _watched(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, seen, as a part of the layer that runs now."""
        layers = list(self._activity.cells)
        self.count += 1

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._activity.cells = self._activity.cells, layers
            watching = self._guard.enter("a thread begins", self._watch, otherwise=nullcontext())
            try:
                with watching:
                    return work(*args, **kwargs)
            finally:
                self._activity.cells = before

        return run

    def _is_of_script(self, work: Any) -> bool:
        """Whether what a thread runs is the script's, and no service of PyTorch or of Python (loaders, queues)."""
        module: str = getattr(getattr(work, "func", work), "__module__", None) or ""
        if module.startswith("torch.nn.parallel"):
            return True
        root = module.partition(".")[0]
        is_service = root in ("torch", "msprobe_collector") or (root in sys.stdlib_module_names and root != "__main__")
        return not is_service


#: Types of devices and the classes of their graphs.
_GRAPHS = (("cuda", "CUDAGraph"), ("npu", "NPUGraph"), ("xpu", "XPUGraph"))


class GraphCaptures:
    """Keeps the collector away while a graph of a device is captured: nothing that runs has values then."""

    def __init__(self, guard: Guard, finish: Callable[[], None]) -> None:
        """Watch nothing yet; `finish` brings to the host what is on its way: a capture forbids to wait for it."""
        self._guard = guard
        self._finish = finish
        self._swaps = MethodSwaps()
        self._has_warned = False

    def install(self) -> None:
        """Watch from now on."""
        if self._swaps.are_in:
            return
        for kind, name in _GRAPHS:
            if (graph := getattr(getattr(torch, kind, None), name, None)) is not None:
                self._swaps.put(graph, "capture_begin", self._begins)
                self._swaps.put(graph, "capture_end", self._ends)

    def uninstall(self) -> None:
        """Watch no more."""
        self._guard.is_away = False
        self._swaps.uninstall()

    def _begins(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            self._guard.enter("a capture begins", self._finish)
            if not self._has_warned:
                self._has_warned = True
                logger.warning("calls inside the capture of a graph are not collected, nor are its replays")
            result = original(*args, **kwargs)
            self._guard.is_away = True
            return result

        return capture_begin

    def _ends(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                self._guard.is_away = False

        return capture_end


_COMPILER = "torch._dynamo.eval_frame"
_CONTEXT = "_TorchDynamoContext"
#: Functions that each compiled function calls when it is entered; each returns what is called when it is left.
_HOOKS = "enter_exit_hooks"
#: What runs the backward of compiled code, inside a node of PyTorch's graph, where no hook is called.
_RUNTIME = "torch._functorch._aot_autograd.runtime_wrappers"
_RUN = "call_func_at_runtime_with_args"
#: In frames of the compiler, the name of what it has compiled.
_COMPILED = "fn"
#: Frames between a hook and that of the compiler: those of comprehensions and of ours.
_MOST_FRAMES = 8
_Enter = Callable[[], Callable[[], None]]


class CompiledRegions:
    """Has `suspend` called before compiled code runs, forward or backward, and what it returns afterwards."""

    def __init__(
        self,
        guard: Guard,
        suspend: _Enter,
        note: Callable[[dict[str, object]], None],
        on_compiler: Callable[[], None],
    ) -> None:
        """Watch nothing yet.

        `note` is called with what is known of a compiled function each time that it is called, `on_compiler` when the
        compiler is loaded.
        """
        self._on_compiler = on_compiler
        self._guard = guard
        self._suspend = suspend
        self._note = note
        self._swaps = MethodSwaps()
        self._has_warned = False
        #: Path of each Module in the models, by its id.
        self._paths: dict[int, str] = {}

    def watch(self, layers: Iterable[tuple[str, Any]]) -> None:
        """Learn the names of the `layers` of a model, given as (path, Module)."""
        self._paths = {id(module): path for path, module in layers}

    def install(self) -> None:
        """Watch from now on."""
        if self._swaps.are_in:
            return
        import torch

        # Without the compiler nothing has been compiled; it loads with the first use of torch.compile.
        self._swaps.put(torch, "compile", self._loading)
        self._install_hooks()

    def uninstall(self) -> None:
        """Watch no more."""
        self._swaps.uninstall()

    def _install_hooks(self) -> None:
        context = getattr(sys.modules.get(_COMPILER), _CONTEXT, None)
        if context is not None and _HOOKS not in vars(context):
            self._swaps.put(context, _HOOKS, lambda _: _hooks_with(self._entered))
            runtime = sys.modules.get(_RUNTIME)
            if hasattr(runtime, _RUN):
                self._swaps.put(runtime, _RUN, self._run)

    def _run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            leave = self._entered()
            try:
                return original(*args, **kwargs)
            finally:
                leave()

        return run

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._swaps.are_in:
                self._guard.enter("loading the compiler", self._install_hooks)
                self._guard.enter("loading the compiler", self._on_compiler)
            return result

        return compile

    def _entered(self) -> Callable[[], None]:
        resume = self._guard.enter("entering compiled code", self._looked_away)

        def leave() -> None:
            if resume is not None and self._swaps.are_in:  # no stop() inside
                self._guard.enter("leaving compiled code", resume)

        return leave

    def _looked_away(self) -> Callable[[], None]:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "torch.compile: of compiled code what goes in, comes out and its gradients is collected (Compiled.*), "
                "and no call inside"
            )
        for frame, _ in islice(walk_stack(sys._getframe(1)), _MOST_FRAMES):
            if frame.f_globals.get("__name__") == _COMPILER and _COMPILED in frame.f_locals:
                self._note(self._facts_of(frame.f_locals[_COMPILED]))
                break
        return self._suspend()

    def _facts_of(self, compiled: Any) -> dict[str, object]:
        """Name of a compiled function or Module, and the lines of its code."""
        # A method of a Module may be wrapped, as by us, and is no method without its wrapper.
        function = inspect.unwrap(compiled, stop=lambda wrapper: hasattr(wrapper, "__self__"))
        owner = getattr(function, "__self__", function)
        facts: dict[str, object] = {"name": getattr(function, "__name__", type(function).__name__)}
        if isinstance(owner, nn.Module):
            facts, function = {"name": type(owner).__name__, "path": self._paths.get(id(owner))}, type(owner).forward
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:  # it is written in Python
            facts |= {"file": code.co_filename, "line": code.co_firstlineno}
            if facts.get("path", "") is None:  # a Module that is in no model is known by its lines alone
                facts["last_line"] = max(line for _, _, line in code.co_lines() if line is not None)
        return facts


def _hooks_with(enter: _Enter) -> property:
    """Stands before the attribute of the instances, which keep their own hooks."""

    def get(context: Any) -> Any:
        return _Hooks(vars(context).setdefault(_HOOKS, []), enter)

    def put(context: Any, hooks: Any) -> None:
        vars(context)[_HOOKS] = hooks

    return property(get, put)


class _Hooks:
    """A context's own hooks, and one more when they are run."""

    def __init__(self, hooks: list[_Enter], enter: _Enter) -> None:
        self._hooks = hooks
        self._enter = enter
        self.append = hooks.append

    def __iter__(self) -> Iterator[_Enter]:
        yield from self._hooks
        yield self._enter
