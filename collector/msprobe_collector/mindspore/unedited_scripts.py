"""Collecting from a MindSpore script that does not know of the collector: where its steps begin and end.

A step begins with the first call of a Cell that has parameters and stands in no other call, and ends when an optimizer
has run. As long as no optimizer is there, each such call is a step by itself.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import nn

from msprobe_collector import logger
from msprobe_collector.configuration import ConfigurationError
from msprobe_collector.debugger import DebuggerError
from msprobe_collector.mindspore.framework import PrecisionDebugger
from msprobe_collector.recording import process
from msprobe_collector.recording.manifest import ProcessObjects
from msprobe_collector.recording.swaps import MethodSwaps


def run_script(
    script: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    ends_after_steps: bool,
    is_exact: bool = False,
    is_agreed: bool = False,
    **settings: Any,
) -> int:
    """Run a script, or a module, as the main one of this process, and collect its steps.

    Takes and returns what `msprobe_collector.pytorch.unedited_scripts.run_script` does.

    Raises:
        ConfigurationError: a setting is wrong, or the exact run was asked for.
    """
    if is_exact:
        raise ConfigurationError("the exact run is that of a script of PyTorch", place="collect", field="--dtype")
    debugger = PrecisionDebugger(**settings)
    steps = MindSporeStepFinder(debugger, ends_after_steps=ends_after_steps)
    process.run_watched(debugger, steps, script, arguments, is_module=is_module)
    return int(not steps.has_begun)


class MindSporeStepFinder:
    """Starts and ends the steps of a script that does not do so itself.

    Attributes:
        has_begun: whether a step was found.
    """

    def __init__(self, debugger: PrecisionDebugger, *, ends_after_steps: bool = False) -> None:
        """Look for nothing yet."""
        self._debugger, self._ends_after_steps = debugger, ends_after_steps
        self._guard = debugger._guard
        self._calls = MethodSwaps()
        self._objects = ProcessObjects({"optimizers": nn.Optimizer})
        self._depth = self._number = 0
        self._is_open = self._has_updated = self._trains = self.has_begun = False

    def install(self) -> None:
        """Wait for a step to begin."""
        self._calls.put(nn.Cell, "__call__", self._awaiting)

    def uninstall(self) -> None:
        """Wait no more. What a step has collected so far is kept."""
        self._end()
        self._calls.uninstall()

    def _awaiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(cell: nn.Cell, *args: Any, **kwargs: Any) -> Any:
            is_optimizer = isinstance(cell, nn.Optimizer)
            if self._depth and not is_optimizer:
                return original(cell, *args, **kwargs)
            is_step = not is_optimizer and self._guard.enter("looking for a step", self._look, cell)
            # What sees the calls of the step may stand in the way by now.
            call = nn.Cell.__call__ if is_step and nn.Cell.__call__ is not called else original
            self._depth += 1
            try:
                return call(cell, *args, **kwargs)
            finally:
                self._depth -= 1
                self._has_updated |= is_optimizer
                if self._is_open and not self._depth and self._guard.enter("the end of a step", self._is_over):
                    self._guard.enter("the end of a step", self._end)
                    self._leave_if_done()

        return called

    def _look(self, cell: nn.Cell) -> bool:
        """Begin a step if none is open, and this is no evaluation beside a training; whether one has begun."""
        if self._is_open or not list(cell.get_parameters()) or (self._trains and not cell.training):
            return False
        self._trains |= bool(cell.training)
        try:
            self._debugger.start(cell)
        except DebuggerError as error:
            logger.warning("nothing is collected: %s", error)
            self._calls.uninstall()
            return False
        self._is_open = self.has_begun = True
        return True

    def _is_over(self) -> bool:
        return self._has_updated or not self._objects.now()["optimizers"]

    def _end(self) -> None:
        if self._is_open:
            self._is_open = self._has_updated = False
            self._debugger.stop()
            self._debugger.step()
            self._number += 1

    def _leave_if_done(self) -> None:
        last = self._debugger.configuration.steps.last
        if self._ends_after_steps and last is not None and self._number > last:
            sys.exit(0)
