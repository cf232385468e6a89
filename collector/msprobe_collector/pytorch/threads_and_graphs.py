"""What runs beside the calls of one thread: threads that the script starts, compiled code, and captured graphs."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import _python_dispatch

from msprobe_collector import logger
from msprobe_collector.pytorch.parameter_names import inside_compiled
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps


class ThreadSwaps:
    """Watches what the script runs in threads that it starts, and in pools of threads.

    A mode belongs to one thread, so that each of them needs it on a stack of its own. The threads
    of PyTorch's own engine have the modes of the thread that called `backward`.

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
    """Has `suspend` called before compiled code runs, forward or backward, and what it returns afterwards.

    The compiler would trace into the mode, guard on it, and compile anew whenever collecting
    begins or ends. So compiled code runs, and is compiled, as without the collector; what it
    computes inside leaves no records of calls. Which code that was is noted.
    """

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


#: Some of its functions have no types.
_C: Any = torch._C
_dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
_tracer: Callable[[], Any] = _C._get_tracing_state
_without_functions: Callable[[], AbstractContextManager[object]] = _C.DisableTorchFunction


def outside() -> AbstractContextManager[object]:
    """A context in which no mode and no tracer of the script sees what this thread does.

    Gradient mode stays. What the collector asks of a tensor (`detach`, a sum) is an operator like
    those of the script: a TorchDispatchMode would count it, a TorchFunctionMode could change it,
    and `torch.jit.trace`, `make_fx` and `torch.export` would put it into the graph.
    """
    if _dispatch_modes() or _tracer() is not None:
        return _outside_of_all()
    return _without_functions()


@contextmanager
def _outside_of_all() -> Iterator[None]:
    tracer = _tracer()
    if tracer is not None:
        _C._set_tracing_state(None)
    try:
        with _without_functions(), _python_dispatch._disable_current_modes():
            yield
    finally:
        if tracer is not None:
            _C._set_tracing_state(tracer)


_UTILITIES = "torch._dynamo.utils"
#: Global names of graphs; what stands behind the number is chosen at random.
_GRAPH = "__compiled_fn_"
#: Code that goes on behind what could not be compiled: `torch_dynamo_resume_in_forward_at_12`.
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<name>.*)_at_\d+$")

_Observe = Callable[[Callable[..., Any], str, tuple[Any, ...], dict[str, Any]], Any]


class CompiledGraphs:
    """Has each call of a compiled graph observed: what goes in, comes out, and its gradients.

    The code that the compiler writes calls each graph by a global name. While a step is collected,
    that name holds a function that records the call; nothing is compiled anew for it, since no
    guard looks at these names.
    """

    def __init__(self, guard: Guard, observe: _Observe) -> None:
        """Watch nothing yet; `observe(graph, name, args, kwargs)` calls the graph and returns what it returns."""
        self._guard = guard
        self._observe = observe
        self._swaps = MethodSwaps()
        #: What stands in each scope, by the name of a graph: the scope, ours, and the graph itself.
        self._watched: dict[str, tuple[dict[str, Any], Any, Any]] = {}

    def install(self) -> None:
        """Watch the graphs that there are, and those that are made from now on."""
        utilities = sys.modules.get(_UTILITIES)
        hook, manager = getattr(utilities, "CleanupHook", None), getattr(utilities, "CleanupManager", None)
        if hook is None or manager is None or self._swaps.are_in:
            return
        self._swaps.put(hook, "create", lambda original: staticmethod(self._created(original)))
        for hooks in list(manager.instance.values.values()):
            for graph_hook in hooks:
                if hasattr(graph_hook, "scope"):
                    self._watch(graph_hook.scope, graph_hook.name)

    def uninstall(self) -> None:
        """Put the graphs back, but for those that are gone."""
        self._swaps.uninstall()
        watched, self._watched = self._watched, {}
        for name, (scope, recording, graph) in watched.items():
            if scope.get(name) is recording:
                scope[name] = graph

    def _created(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create(scope: dict[str, Any], name: str, val: Any) -> Any:
            result = original(scope, name, val)
            self._guard.enter("watching a compiled graph", self._watch, scope, name)
            return result

        return create

    def _watch(self, scope: dict[str, Any], name: str) -> None:
        if not name.startswith(_GRAPH) or name in self._watched or not callable(graph := scope.get(name)):
            return
        import torch

        def recording(*args: Any, **kwargs: Any) -> Any:
            caller = self._guard.enter("a compiled graph", name_of_caller, sys._getframe(1), otherwise="graph")
            return self._observe(graph, f"Compiled.{caller}", args, kwargs)

        # The compiler would compile what the code that it wrote calls.
        scope[name] = disabled = torch.compiler.disable(recording)  # type: ignore[no-untyped-call]
        self._watched[name] = scope, disabled, graph


def name_of_caller(frame: FrameType) -> str:
    """Return the name of the function that was compiled: `loss_fn`; of a Module's forward the class."""
    # Frames between a recording function and the code that calls it: those of the compiler's own
    # wrapper.
    for caller, _ in islice(walk_stack(frame), 8):
        if not caller.f_globals.get("__name__", "").startswith(("torch._dynamo", "msprobe_collector")):
            return _name_of(caller)
    return "graph"


def _name_of(frame: FrameType) -> str:
    parts = list(_parts_of(frame.f_code))
    if parts[-1] not in ("forward", "_call_impl", "__call__"):
        return parts[-1]
    owner = inside_compiled(frame.f_locals.get("self"))
    return parts[-2:][0] if owner is None else type(owner).__name__


def _parts_of(code: CodeType) -> Iterator[str]:
    for part in getattr(code, "co_qualname", code.co_name).split("."):
        if part != "<locals>":
            yield re.sub(r"\W", "", _RESUMED.sub(r"\g<name>", part)) or "function"
