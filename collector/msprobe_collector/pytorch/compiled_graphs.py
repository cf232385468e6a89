"""Records at the border of what torch.compile has compiled: what goes into each graph, comes out, and its gradients.

The code that the compiler writes calls each graph by a global name. While a step is collected, that name holds a
function that records the call; nothing is compiled anew for it, since no guard looks at these names.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

from msprobe_collector.pytorch.parameter_names import inside_compiled
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps

_UTILITIES = "torch._dynamo.utils"
#: Global names of graphs; what stands behind the number is chosen at random.
_GRAPH = "__compiled_fn_"
#: Code that goes on behind what could not be compiled: `torch_dynamo_resume_in_forward_at_12`.
_RESUMED = re.compile(r"^torch_dynamo_resume_in_(?P<name>.*)_at_\d+$")

_Observe = Callable[[Callable[..., Any], str, tuple[Any, ...], dict[str, Any]], Any]


class CompiledGraphs:
    """Has each call of a compiled graph observed."""

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
