"""Laws of a MindSpore training, checked while it runs: what is seen of optimizers, and the watch as a whole.

Steps are seen at the `__call__` of the base classes. What happens around a step is seen by `signals.py`.
Nothing is seen of a step that runs inside a graph (`jit`, GRAPH_MODE).
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from msprobe_collector.mindspore.mindspore_internals import communication_rank, is_graph_mode
from msprobe_collector.mindspore.optimizers import steps_done, update_groups
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.formula_check import COUNTER
from msprobe_laws.law import Step
from msprobe_laws.mindspore.formulas import PRECISION, formula_of, name_of_state, states_held
from msprobe_laws.mindspore.models import OPTIMIZERS
from msprobe_laws.mindspore.signals import MindSporeSignals
from msprobe_laws.mindspore.tensors import dtype_of
from msprobe_laws.observation import Array, Content, TensorPlace
from msprobe_laws.optimizers import EMPTY, SAMPLE, WHOLE, Gradient, OpenStep, Optimizers
from msprobe_laws.replacing import Replacing, argument
from msprobe_laws.session import LawSession, LawWatch
from msprobe_laws.sources import source_of


class _Identity:
    """Which tensor a gradient is: equal to that of the same tensor, as long as it is there."""

    def __init__(self, tensor: Any) -> None:
        self._reference = weakref.ref(tensor)

    def __eq__(self, other: object) -> bool:
        tensor = self._reference()
        return isinstance(other, _Identity) and tensor is not None and tensor is other._reference()

    __hash__ = None  # type: ignore[assignment]


class MindSporeOptimizerLaws(Optimizers):
    """Hands every call of every optimizer to a `LawSession`."""

    def __init__(self, session: LawSession, guard: Guard, signals: MindSporeSignals) -> None:
        """See nothing yet."""
        super().__init__(session)
        self._guard, self._signals = guard, signals
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See calls from now on."""
        replacing = Replacing(self._guard, lambda: self._guard.activity.is_inside)
        for owner in OPTIMIZERS:
            self._swaps.put(owner, "__call__", self._call)
            self._swaps.put(owner, "__init__", replacing.after("an optimizer is made", self._made))

    def uninstall(self) -> None:
        """See no more."""
        self._swaps.uninstall()
        self._watched.clear()

    def _made(self, result: None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._signals.optimizer_made(args[0])

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._guard.activity.is_inside or is_graph_mode():
                return original(optimizer, *args, **kwargs)
            gradients = argument(args, kwargs, 0, "gradients", ())
            source = source_of(sys._getframe(1))
            begun = self._guard.enter("laws: a step begins", self._begin, optimizer, gradients, source)
            result = original(optimizer, *args, **kwargs)
            if begun is not None:
                self._guard.enter("laws: a step ends", self._end, *begun)
            return result

        return __call__

    def _begin(self, optimizer: Any, gradients: Any, source: str) -> tuple[OpenStep, int | None] | None:
        """Return the step and how many the optimizer says that it has done before."""
        if not self._session.journal.is_ours:
            return None
        gradients = list(gradients) if isinstance(gradients, (tuple, list)) else [gradients]
        parameters = list(optimizer.parameters)
        gradients += [None] * (len(parameters) - len(gradients))
        watched = self.watched(optimizer)
        watched.names = {id(item): str(item.name) for item in parameters}
        step = Step(optimizer, watched.name, parameters, watched.names, watched.number, source)
        self._signals.step_begins(step, gradients)
        scale = getattr(optimizer, "loss_scale", 1.0)
        scale = float(scale) if isinstance(scale, (int, float)) else 1.0
        before = _contents(optimizer, parameters)
        taken = [_gradient_of(gradient, content, scale) for gradient, content in zip(gradients, before)]
        settings, groups = update_groups(optimizer, parameters)
        return OpenStep(watched, step, groups, settings, before, taken), steps_done(optimizer)

    def _end(self, opened: OpenStep, steps_before: int | None) -> None:
        optimizer = opened.step.optimizer
        formula = formula_of(optimizer)
        after, steps = _contents(optimizer, opened.step.order), steps_done(optimizer)
        # A class of the script's own need not count steps where the base class keeps a counter.
        if steps is not None and steps_before is not None and (formula[0] or steps != steps_before):
            for before, now, gradient in zip(opened.before, after, opened.gradients):
                if gradient.elements is not None:
                    before.states[COUNTER], now.states[COUNTER] = np.array([steps_before]), np.array([steps])
        self.take(opened, after, formula, PRECISION, self._signals.explained)
        self._signals.step_ended(opened.step)


def _contents(optimizer: Any, parameters: Sequence[Any]) -> list[Content]:
    """Return what parameters and states hold."""
    states = _states(optimizer, parameters)
    held = [(name_of_state(optimizer, key), values) for key, values in states_held(optimizer, len(parameters))]
    contents = []
    for at, item in enumerate(parameters):
        places = {name: _place(tensors[at]) for name, tensors in held if name}
        contents.append(Content(_read(item), _place(item), states[at], places))
    return contents


def _gradient_of(tensor: Any, content: Content, scale: float) -> Gradient:
    """Return the gradient that a step gets for a parameter, in which its loss is multiplied by `scale`."""
    if not isinstance(tensor, Tensor):
        return Gradient(None, "")
    elements = _read(tensor) / scale
    return Gradient(elements if elements.size == content.values.size else EMPTY, dtype_of(tensor), _Identity(tensor))


def _states(optimizer: Any, parameters: Sequence[Any]) -> list[dict[str, Array]]:
    """Return the elements of the states of each parameter, under PyTorch's names."""
    states: list[dict[str, Array]] = [{} for _ in parameters]
    held = dict(states_held(optimizer, len(parameters)))
    is_first = [bool(np.all(_read(item) == 1)) for item in held.get("stat", ())]
    is_begun = steps_done(optimizer) != 0 or "momentum_buf" not in held
    for key, values in held.items():
        name = name_of_state(optimizer, key)
        for at, item in enumerate(values):
            # SGD's first step takes the gradient itself, as PyTorch's does where there is no buffer yet.
            if name and is_begun and not (key == "accum" and is_first and is_first[at]):
                states[at][name] = _read(item)
    return states


def _read(tensor: Any) -> Array:
    """Return the elements of a tensor as float64: all of a small one, evenly spread ones of a large one."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return EMPTY
    if tensor.size > WHOLE:
        stride = -(-int(tensor.size) // SAMPLE)
        tensor = tensor.reshape(-1)[::stride]
    return np.array(mindspore_values().read(tensor).array.reshape(-1), np.float64)


def _place(tensor: Any) -> TensorPlace:
    storage = getattr(tensor, "untyped_storage", None)
    address = 0
    if storage is not None:
        try:
            address = int(storage().data_ptr())
        except (RuntimeError, TypeError, ValueError):
            address = 0  # it has no memory of its own yet
    return TensorPlace(address, dtype_of(tensor), "", tuple(tensor.shape))


class MindSporeWatch(LawWatch):
    """The laws of a process with MindSpore."""

    signals: MindSporeSignals
    optimizers: MindSporeOptimizerLaws

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, skip, laws_meant)
        self.signals = MindSporeSignals(self.session, self.guard)
        self.optimizers = MindSporeOptimizerLaws(self.session, self.guard, self.signals)
        self.signals.on_load = self.session.state_continues.forget

    @staticmethod
    def describe() -> dict[str, Any]:
        """See `LawWatch`."""
        return {"framework": "mindspore", "version": mindspore.__version__, **LawWatch.describe()}

    @staticmethod
    def rank() -> int | None:
        """See `LawWatch`."""
        rank = communication_rank()
        if rank is not None:
            return rank
        text = os.environ.get("RANK_ID", "")
        return int(text) if text.isdecimal() else None


watch_laws = MindSporeWatch.start
