"""What other packages add to the collector: entry points of the group `msprobe_collector.extensions`.

The object of such an entry point, a module for instance, has the functions of `Extension`. One that is called `name` is
started by the variable MSPROBE_<NAME>, unless that is "0", as soon as the training imports the debugger of a framework.
Where no variable begins with MSPROBE_, no package is looked for before the first record of an optimizer's step.

Of the collector, beside the public names of its packages and `dump_format`, an extension may use:

- recording.guard (Activity, FaultLog, Guard), recording.process.run and recording.swaps (ApiTarget, Installation,
  MethodSwaps);
- pytorch: calls.is_searched, checkpoints.RUN_BACKWARD, optimizers (clipping_functions, gradient_of, group_settings,
  is_inside), parameter_names.parameter_names, threads_and_graphs.outside;
- mindspore: discovery (JitCalls, is_searched), mindspore_internals (communication_rank, graph_executors,
  is_graph_mode), optimizers (steps_done, update_groups), tensor_values.mindspore_values;
- loading.loader_of of msprobe_collector.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "msprobe_collector.extensions"
_VARIABLES = "MSPROBE_"


class Extension(Protocol):
    """What an extension does. `framework` is "pytorch" or "mindspore"."""

    def start(self, framework: str) -> None:
        """Watch the training of this process from now on."""

    def optimizer_leaves(self, framework: str, optimizer: Any, frame: FrameType | None) -> Mapping[str, object]:
        """Return further leaves of the record of an optimizer's step, by name.

        Args:
            framework: which one the optimizer is of.
            optimizer: before its step.
            frame: of PyTorch that runs the step; None for MindSpore.
        """


def start(framework: str) -> None:
    """Start the extensions that the environment asks for."""
    asked = {name for name, value in os.environ.items() if name.startswith(_VARIABLES) and value not in ("", "0")}
    if not asked:
        return
    for name, point in list(_installed().items()):
        if _VARIABLES + name.upper() in asked:
            _call(point, "start", framework)


def optimizer_leaves(framework: str, optimizer: Any, frame: FrameType | None = None) -> dict[str, object]:
    """Return what all extensions say of an optimizer before its step."""
    leaves: dict[str, object] = {}
    for point in list(_installed().values()):
        leaves.update(_call(point, "optimizer_leaves", framework, optimizer, frame) or {})
    return leaves


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    """Return the extensions of the environment by name, without those that have failed."""
    from importlib.metadata import entry_points  # where nobody asks, it need not load

    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in points:
            _leave_out(point, f"the package {_package(points[point.name])} has one of this name")
        else:
            points[point.name] = point
    return points


def _call(point: EntryPoint, function: str, *arguments: Any) -> Any:
    """Call a function of an extension; one that fails is not called again, and the training goes on."""
    try:
        return getattr(point.load(), function)(*arguments)
    except Exception as error:
        _installed().pop(point.name, None)
        _leave_out(point, f"{type(error).__name__}: {error}")
        return None


def _leave_out(point: EntryPoint, reason: str) -> None:
    line = f"msprobe: the extension {point.name} of the package {_package(point)} is left out: {reason}"
    sys.stderr.write(" ".join(line.split()) + "\n")


def _package(point: EntryPoint) -> str:
    return point.value if point.dist is None else point.dist.name
