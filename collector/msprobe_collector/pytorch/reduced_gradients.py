"""Gradients of parameters that FSDP2 shards: reduced over the ranks, and set without a hook of autograd.

FSDP2 calls the hooks that autograd would call after accumulating. They show what is in `.grad` by then: where gradients
are accumulated, that is the sum so far, of which the part that came now is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from msprobe_collector.dump_format.writing.encoding import FrameworkValues, TensorValues
from msprobe_collector.recording.gradients import ParameterGradients, combined
from msprobe_collector.recording.guard import Guard


class ReducedGradients:
    """Shows `ParameterGradients` what FSDP2 adds to the gradients of its parameters."""

    def __init__(self, parameters: ParameterGradients, guard: Guard, values: FrameworkValues) -> None:
        """Watch nothing yet."""
        self._parameters, self._guard, self._values = parameters, guard, values
        #: What is in the gradient already, by the parameter's id.
        self._before: dict[int, TensorValues] = {}
        #: Parameter and hook by the parameter's id: one of several layers is watched once.
        self._watched: dict[int, tuple[Any, Any]] = {}

    def watch(self, parameters: Iterable[Any]) -> None:
        """Watch those of `parameters` that are DTensors; those of tensor parallelism have hooks of autograd besides."""
        for parameter in parameters:
            is_new = id(parameter) not in self._watched
            if is_new and parameter.requires_grad and hasattr(parameter, "placements"):
                hook = partial(self._guard.enter, "taking the gradient of a sharded parameter", self._accumulated)
                handle = parameter.register_post_accumulate_grad_hook(hook)
                self._watched[id(parameter)] = parameter, handle

    def begin_pass(self) -> None:
        """A backward pass begins: copy the gradients that it will add to. They may have been set to zero before."""
        self._before.clear()
        for parameter, _ in self._watched.values():
            if parameter.grad is not None and not self._parameters.shows(parameter):
                self._keep(parameter)

    def end_pass(self) -> None:
        """A backward pass is over: nothing is kept between two."""
        self._before.clear()

    def remove(self) -> None:
        """The step is over."""
        while self._watched:
            self._watched.popitem()[1][1].remove()
        self._before.clear()

    def _accumulated(self, parameter: Any) -> None:
        if self._parameters.shows(parameter):
            return
        gradient, before = parameter.grad, self._before.get(id(parameter))
        added = gradient
        if before is not None:
            now = self._values.read(gradient)
            added = now.plus(before, factor=-1) or combined(np.subtract, now, before.array)
        self._parameters.take(parameter, added)
        self._keep(parameter)  # a layer that is called several times reduces as often

    def _keep(self, parameter: Any) -> None:
        self._before[id(parameter)] = self._values.frozen(parameter.grad)
