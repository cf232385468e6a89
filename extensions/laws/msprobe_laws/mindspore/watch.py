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
from mindspore import Tensor, nn
from mindspore.experimental import optim

from msprobe_collector.mindspore.hyperparameters import steps_done, update_groups
from msprobe_collector.mindspore.mindspore_internals import communication_rank, is_graph_mode
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.mindspore.formulas import PRECISION, formula_of, name_of_state, states_held
from msprobe_laws.mindspore.signals import TrainingSignals
from msprobe_laws.observation import Array, Place, Update, UpdatedParameter
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.watch import LawWatch

#: Elements of a large parameter that are looked at; all of a smaller one.
_SAMPLE, _WHOLE = 128, 1 << 14
_EMPTY: Array = np.empty(0)
_COUNTER = "step"


class _Half:
    """What was read before a step."""

    def __init__(self, parameters: Sequence[Any], gradients: Sequence[Any], scale: float) -> None:
        self.before = [_read(item) for item in parameters]
        padded = [*gradients, *([None] * (len(parameters) - len(gradients)))]
        self.gradients = [_read(item) if isinstance(item, Tensor) else None for item in padded]
        if scale != 1:
            self.gradients = [None if item is None else item / scale for item in self.gradients]
        self.identities = [weakref.ref(item) if isinstance(item, Tensor) else None for item in padded]
        self.gradient_dtypes = [_dtype(item) if isinstance(item, Tensor) else "" for item in padded]
        self.places = [_place(item) for item in parameters]
        self.states: list[dict[str, Array]] = []
        self.settings: list[dict[str, Any]] = []
        self.groups: list[int] = []
        self.counter: int | None = None


class OptimizerLaws:
    """Hands every call of every optimizer to a `LawSession`."""

    def __init__(self, session: LawSession, guard: Guard, signals: TrainingSignals) -> None:
        """See nothing yet."""
        self._session, self._guard, self._signals = session, guard, signals
        self._swaps = MethodSwaps()
        #: The optimizer, its name and the number of its next step, by its id.
        self._seen: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._counts: dict[str, int] = {}
        #: Gradients that the last step of an optimizer has used, with elements of them, by its name.
        self._used: dict[str, list[tuple[Any, Array | None]]] = {}

    def install(self) -> None:
        """See calls from now on."""
        for owner in (nn.Optimizer, optim.Optimizer):
            self._swaps.put(owner, "__call__", self._call)
            self._swaps.put(owner, "__init__", self._made)

    def uninstall(self) -> None:
        """See no more."""
        self._swaps.uninstall()
        self._seen.clear()

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(optimizer, *args, **kwargs)
            if not self._guard.activity.is_inside:
                self._guard.enter("laws: an optimizer is made", self._signals.optimizer_made, optimizer)

        return __init__

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._guard.activity.is_inside or is_graph_mode():
                return original(optimizer, *args, **kwargs)
            gradients = args[0] if args else kwargs.get("gradients", ())
            source = source_of(sys._getframe(1))
            half = self._guard.enter("laws: a step begins", self._begin, optimizer, gradients, source)
            result = original(optimizer, *args, **kwargs)
            if half is not None:
                self._guard.enter("laws: a step ends", self._end, optimizer, half, source)
            return result

        return __call__

    def _begin(self, optimizer: Any, gradients: Any, source: str) -> _Half | None:
        if not self._session.journal.is_ours:
            return None
        given = list(gradients) if isinstance(gradients, (tuple, list)) else [gradients]
        parameters = list(optimizer.parameters)
        known = self._seen.get(id(optimizer))
        if known is None or known[0]() is not optimizer:  # its number was that of one that is gone
            kind = type(optimizer).__name__
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            known = weakref.ref(optimizer), f"{kind}.{count - 1}" if count > 1 else kind, 0
            self._seen[id(optimizer)] = known
        _, name, number = known
        self._signals.step_begins(optimizer, name, parameters, given, number, source)
        scale = getattr(optimizer, "loss_scale", 1.0)
        half = _Half(parameters, given, float(scale) if isinstance(scale, (int, float)) else 1.0)
        half.states = _states(optimizer, parameters)
        half.settings, half.groups = update_groups(optimizer, parameters)
        half.counter = steps_done(optimizer)
        return half

    def _end(self, optimizer: Any, half: _Half, source: str) -> None:
        _, name, number = self._seen[id(optimizer)]
        self._seen[id(optimizer)] = weakref.ref(optimizer), name, number + 1
        parameters = list(optimizer.parameters)
        formula, unknown, is_own = formula_of(optimizer)
        states, counter = _states(optimizer, parameters), steps_done(optimizer)
        seen = []
        used, self._used[name] = self._used.get(name, []), [*zip(half.identities, half.gradients)]
        for at, item in enumerate(parameters):
            before, after = half.before[at], _read(item)
            gradient = half.gradients[at]
            is_whole = before.size == after.size == int(item.size)
            before_state, after_state = dict(half.states[at]), dict(states[at])
            # A class of the script's own need not count steps where the base class keeps a counter.
            counts = half.counter is not None and counter is not None and bool(formula or counter != half.counter)
            if counts and gradient is not None:
                before_state[_COUNTER], after_state[_COUNTER] = np.array([half.counter]), np.array([counter])
            seen.append(
                UpdatedParameter(
                    str(item.name),
                    half.groups[at],
                    tuple(item.shape),
                    before,
                    after,
                    gradient if gradient is None or gradient.size == before.size else _EMPTY,
                    before_state,
                    after_state,
                    is_whole,
                    half.places[at],
                    _place(item),
                    half.gradient_dtypes[at],
                    _state_places(optimizer, parameters, at),
                    bool(item.requires_grad),
                    int(item.size),
                    is_used_again=at < len(used) and _is_same(used[at], (half.identities[at], gradient)),
                )
            )
        update = Update(name, formula, half.settings, seen, number, source, unknown, is_own, hyper_precision=PRECISION)
        self._session.update(update)
        self._signals.step_ended(optimizer, parameters)


def _is_same(one: tuple[Any, Array | None], other: tuple[Any, Array | None]) -> bool:
    """Whether two gradients are one tensor with the same elements, not all 0."""
    if one[0] is None or other[0] is None or one[0]() is not other[0]() or one[1] is None or other[1] is None:
        return False
    return one[0]() is not None and bool(np.any(one[1])) and np.array_equal(one[1], other[1])


def _states(optimizer: Any, parameters: Sequence[Any]) -> list[dict[str, Array]]:
    """Elements of the states of each parameter, under PyTorch's names."""
    found: list[dict[str, Array]] = [{} for _ in parameters]
    held = dict(states_held(optimizer, len(parameters)))
    is_first = [bool(np.all(_read(item) == 1)) for item in held.get("stat", ())]
    is_begun = steps_done(optimizer) != 0 or "momentum_buf" not in held
    for key, values in held.items():
        name = name_of_state(optimizer, key)
        for at, item in enumerate(values):
            # SGD's first step takes the gradient itself, as PyTorch's does where there is no buffer yet.
            if name and is_begun and not (key == "accum" and is_first and is_first[at]):
                found[at][name] = _read(item)
    return found


def _state_places(optimizer: Any, parameters: Sequence[Any], at: int) -> dict[str, Place]:
    places = {}
    for key, values in states_held(optimizer, len(parameters)):
        if name := name_of_state(optimizer, key):
            places[name] = _place(values[at])
    return places


def _read(tensor: Any) -> Array:
    """Elements of a tensor as float64: all of a small one, evenly spread ones of a large one."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return _EMPTY
    if tensor.size > _WHOLE:
        stride = -(-int(tensor.size) // _SAMPLE)
        tensor = tensor.reshape(-1)[::stride]
    return np.array(mindspore_values().read(tensor).array.reshape(-1), np.float64)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).lower()


def _place(tensor: Any) -> Place:
    storage = getattr(tensor, "untyped_storage", None)
    address = 0
    if storage is not None:
        try:
            address = int(storage().data_ptr())
        except (RuntimeError, TypeError, ValueError):
            address = 0  # it has no memory of its own yet
    return Place(address, _dtype(tensor), "", tuple(tensor.shape))


class Watch(LawWatch):
    """The laws of a process with MindSpore."""

    signals: TrainingSignals
    optimizers: OptimizerLaws

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, skip, laws_meant)
        self.signals = TrainingSignals(self.session, self.guard)
        self.optimizers = OptimizerLaws(self.session, self.guard, self.signals)
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


watch_laws = Watch.start
