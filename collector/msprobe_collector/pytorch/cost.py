"""What a step of tensors will cost, estimated from the first layers of its forward."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from torch import nn

from msprobe_collector.configuration.configuration import ConfigurationError
from msprobe_collector.dump_format.values import counted
from msprobe_collector.log import logger
from msprobe_collector.recording.guard import Guard

#: Layers without others inside that are looked at: at least so many, and one of so many.
_LEAST_LAYERS, _ONE_OF = 4, 10
#: A backward has the gradients of what goes in and comes out; an optimizer parameters, gradients and new parameters.
_WITH_BACKWARD, _OF_OPTIMIZER = 3, 3
#: Bytes of a step above which a terminal asks.
_MANY = 20 * 10**9


class StepCost:
    """Says what a step will cost, once, when the first layers have run."""

    def __init__(self, guard: Guard, saved: Callable[[], tuple[int, int]], *, is_agreed: bool) -> None:
        """Say nothing yet; `saved` gives number and bytes of the tensors that were saved so far."""
        self._guard, self._saved, self._is_agreed = guard, saved, is_agreed
        #: Ids of the layers without others inside; of none while nothing is waited for.
        self._layers: set[int] = set()
        self._seen = self._enough = 0
        self._say_it: Callable[[], None] = lambda: None

    def watch(self, models: Iterable[nn.Module], *, trains: bool) -> None:
        """Wait for the first layers of `models`."""
        layers = {id(layer) for model in models for layer in model.modules() if next(layer.children(), None) is None}
        parameters = {id(parameter): parameter for model in models for parameter in model.parameters()}
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        enough = max(_LEAST_LAYERS, len(layers) // _ONE_OF)
        if len(layers) < 2 * enough:  # it is over before anybody has read about it
            return
        began, before = time.monotonic(), self._saved()
        passes, updates = (_WITH_BACKWARD, _OF_OPTIMIZER) if trains else (1, 0)
        times = len(layers) / enough * passes

        def say() -> None:
            values, bytes_ = (now - then for now, then in zip(self._saved(), before))
            self._say(
                round(values * times) + updates * len(parameters),
                bytes_ * times + updates * size,
                (time.monotonic() - began) * times,
            )

        self._layers, self._enough, self._say_it = layers, enough, say

    def called(self, layer: nn.Module) -> None:
        """Count a call of a layer, and say the cost before the first one behind those that are enough."""
        if id(layer) not in self._layers:
            return
        if self._seen == self._enough:
            self._layers = set()
            self._guard.enter("the cost of a step", self._say_it)
        self._seen += 1

    def _say(self, values: int, size: float, seconds: float) -> None:
        text = f"about {counted(values, 'values')}, {size / 1e9:.2g} GB, {seconds:.0f} s"
        if size > _MANY and not self._is_agreed and sys.stdin is not None and sys.stdin.isatty():
            raise ConfigurationError(
                f"the step holds {text}; --yes collects it, --task=statistics or --task=statistics with "
                "summary_mode sketch takes a thousandth",
                place="collect",
            )
        logger.info("the step holds %s", text)


def uses_compiler() -> bool:
    """Return whether the script has something compiled, whose layers are not called one by one."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in backends.values())
