"""Laws of a MindSpore training, checked while it runs: what is seen of optimizers, and the watch as a whole.

Steps are seen at the `__call__` of the optimizers' base classes. What happens around a step is seen by `law_signals.py`.
Nothing is seen of a step that runs inside a graph (`jit`, GRAPH_MODE).
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental import optim

from msprobe_collector.laws.formulas import FORMULAS
from msprobe_collector.laws.journal import Journal
from msprobe_collector.laws.observation import Array, Place, Update, UpdatedParameter
from msprobe_collector.laws.session import LawSession
from msprobe_collector.laws.start import ENVIRONMENT, folder_of, left_out
from msprobe_collector.mindspore.hyperparameters import group_parameters, group_settings
from msprobe_collector.mindspore.law_signals import TrainingSignals, source_of
from msprobe_collector.mindspore.mindspore_internals import communication_rank, is_graph_mode
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Activity, FaultLog, Guard
from msprobe_collector.recording.swaps import MethodSwaps

#: Elements of a large parameter that are looked at; all of a smaller one.
_SAMPLE, _WHOLE = 128, 1 << 14
_EMPTY: Array = np.empty(0)
_COUNTER = "step"
#: Names in PyTorch of states, by the attribute that holds one for each parameter; "" for what is no moment.
_STATES = {
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moments1": "exp_avg",
    "moments2": "exp_avg_sq",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "vhat": "max_exp_avg_sq",
    "max_exp_avg_sq": "max_exp_avg_sq",
    "moments": "momentum_buffer",
    "accum": "momentum_buffer",
    "ms": "square_avg",
    "mg": "grad_avg",
    "moment": "momentum_buffer",
    "stat": "",
}
#: Attributes of nn.Optimizer with one Parameter for each that is updated which are hyper-parameters, and one for many.
_NO_STATES = frozenset(("learning_rate", "group_lr", "weight_decay", "group_weight_decay", "parameters", "_parameters"))
#: Names in PyTorch of hyper-parameters.
_SETTINGS = {"use_nesterov": "nesterov", "use_amsgrad": "amsgrad", "decay": "alpha", "epsilon": "eps"}


class _Half:
    """What was read before a step."""

    def __init__(self, parameters: Sequence[Any], gradients: Sequence[Any], scale: float) -> None:
        self.before = [_read(item) for item in parameters]
        padded = [*gradients, *([None] * (len(parameters) - len(gradients)))]
        self.gradients = [_read(item) if isinstance(item, Tensor) else None for item in padded]
        if scale != 1:
            self.gradients = [None if item is None else item / scale for item in self.gradients]
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
        #: Name and number of the next step by the optimizer's id; the optimizers are kept, so that ids are theirs.
        self._seen: dict[int, tuple[Any, str, int]] = {}
        self._counts: dict[str, int] = {}

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
        if id(optimizer) not in self._seen:
            kind = type(optimizer).__name__
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._seen[id(optimizer)] = optimizer, f"{kind}.{count - 1}" if count > 1 else kind, 0
        _, name, number = self._seen[id(optimizer)]
        self._signals.step_begins(optimizer, name, parameters, given, number, source)
        scale = getattr(optimizer, "loss_scale", 1.0)
        half = _Half(parameters, given, float(scale) if isinstance(scale, (int, float)) else 1.0)
        half.states = _states(optimizer, parameters)
        half.settings, half.groups = _groups(optimizer, parameters)
        half.counter = _counted(optimizer)
        return half

    def _end(self, optimizer: Any, half: _Half, source: str) -> None:
        _, name, number = self._seen[id(optimizer)]
        self._seen[id(optimizer)] = optimizer, name, number + 1
        parameters = list(optimizer.parameters)
        formula, unknown, is_own = _formula_of(optimizer)
        states, counter = _states(optimizer, parameters), _counted(optimizer)
        seen = []
        for at, item in enumerate(parameters):
            before, after = half.before[at], _read(item)
            gradient = half.gradients[at]
            is_whole = before.size == after.size == int(item.size)
            before_state, after_state = dict(half.states[at]), dict(states[at])
            if half.counter is not None and counter is not None and gradient is not None:
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
                )
            )
        update = Update(name, formula, half.settings, seen, number, source, unknown, is_own, hyper_precision=2.0**-24)
        self._session.update(update)
        self._signals.step_ended(optimizer, parameters)


def _formula_of(optimizer: Any) -> tuple[str, str, bool]:
    """(name of the formula or "", why there is none, whether the class is the user's own)."""
    kind = type(optimizer)
    for base in kind.__mro__:
        prefix = "nn." if base.__module__.startswith("mindspore.nn.") else ""
        name = f"{prefix}{base.__name__}"
        if base.__module__.startswith("mindspore.") and name in FORMULAS:
            is_own = base is not kind
            if is_own and _more_states(optimizer):
                return "", f"{kind.__name__} is derived from {base.__name__} and keeps states of its own", True
            return name, "", is_own
    return "", f"no formula of {kind.__name__} is known", not kind.__module__.startswith("mindspore.")


def _held(optimizer: Any, count: int) -> Iterable[tuple[str, Sequence[Any]]]:
    """(attribute, one Parameter for each that the optimizer updates) of what is not these parameters themselves."""
    own = {id(item) for item in optimizer.parameters}
    for key, value in vars(optimizer).items():
        is_of_each = key not in _NO_STATES and isinstance(value, (tuple, list)) and len(value) == count
        if is_of_each and all(isinstance(item, Parameter) and id(item) not in own for item in value):
            yield key, value


def _more_states(optimizer: Any) -> bool:
    return any(key not in _STATES for key, _ in _held(optimizer, len(optimizer.parameters)))


def _name_of_state(optimizer: Any, key: str) -> str:
    return "sum" if key == "accum" and isinstance(optimizer, nn.Adagrad) else _STATES.get(key, key)


def _states(optimizer: Any, parameters: Sequence[Any]) -> list[dict[str, Array]]:
    """Elements of the states of each parameter, under PyTorch's names."""
    found: list[dict[str, Array]] = [{} for _ in parameters]
    held = dict(_held(optimizer, len(parameters)))
    is_first = [bool(np.all(_read(item) == 1)) for item in held.get("stat", ())]
    for key, values in held.items():
        name = _name_of_state(optimizer, key)
        for at, item in enumerate(values):
            # SGD's first step takes the gradient itself, as PyTorch's does where there is no buffer yet.
            if name and not (key == "accum" and is_first and is_first[at]):
                found[at][name] = _read(item)
    return found


def _state_places(optimizer: Any, parameters: Sequence[Any], at: int) -> dict[str, Place]:
    places = {}
    for key, values in _held(optimizer, len(parameters)):
        if name := _name_of_state(optimizer, key):
            places[name] = _place(values[at])
    return places


def _counted(optimizer: Any) -> int | None:
    """How many steps the optimizer says that it has done."""
    for key in ("state_step", "global_step"):
        value = getattr(optimizer, key, None)
        if isinstance(value, Tensor) and value.size == 1:
            return int(value.asnumpy().reshape(()))
    return None


def _groups(optimizer: Any, parameters: Sequence[Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """(settings of each group, under PyTorch's names; number of the group of each parameter).

    Parameters that a filter keeps from decay have a group of their own.
    """
    numbers = {id(item): at for at, group in enumerate(group_parameters(optimizer)) for item in group}
    groups = [_settings_of(group) for group in group_settings(optimizer)]
    flags = getattr(optimizer, "decay_flags", None)
    found: list[dict[str, Any]] = []
    places: dict[tuple[int, bool], int] = {}
    chosen = []
    for at, item in enumerate(parameters):
        number = numbers.get(id(item), 0)
        is_decayed = not isinstance(flags, (tuple, list)) or at >= len(flags) or bool(flags[at])
        key = (number, is_decayed)
        if key not in places:
            settings = groups[number] if number < len(groups) else {}
            found.append(settings if is_decayed else {**settings, "weight_decay": 0.0})
            places[key] = len(found) - 1
        chosen.append(places[key])
    return found, chosen


def _settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {_SETTINGS.get(name, name): value for name, value in group.items()}
    if "betas" not in settings and "beta1" in settings and "beta2" in settings:
        settings["betas"] = (settings["beta1"], settings["beta2"])
    return settings


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


class Watch:
    """The laws of this process."""

    def __init__(self, folder: Path, skip: Iterable[str]) -> None:
        faults = FaultLog()
        self.guard = Guard(Activity(), faults)
        self.journal = Journal(folder, _described, _rank)
        self.journal.on_open = faults.write_to
        self.session = LawSession(self.journal, skip)
        self.signals = TrainingSignals(self.session, self.guard)
        self.optimizers = OptimizerLaws(self.session, self.guard, self.signals)
        self.signals.on_load = self.session.state_continues.forget

    def install(self) -> None:
        """Watch from now on."""
        self.optimizers.install()
        self.signals.install()
        atexit.register(self.close)

    def close(self) -> None:
        """Write the closing line, and watch no more."""
        atexit.unregister(self.close)
        self.optimizers.uninstall()
        self.signals.uninstall()
        self.guard.enter("laws: the end", self.session.close)


def _rank() -> int | None:
    rank = communication_rank()
    if rank is not None:
        return rank
    text = os.environ.get("RANK_ID", "")
    return int(text) if text.isdecimal() else None


def _described() -> dict[str, Any]:
    import mindspore

    return {
        "framework": "mindspore",
        "version": mindspore.__version__,
        "script": Path(sys.argv[0]).name if sys.argv else "",
    }


_lock = threading.Lock()
_watches: list[Watch] = []


def watch_laws(folder: str | os.PathLike[str] | None = None, *, skip: Iterable[str] = ()) -> Watch:
    """Check the laws of training in this process from now on.

    Args:
        folder: where findings go, `msprobe_laws` by default; one file for each rank is written below it.
        skip: names of laws to leave out, beside those of MSPROBE_LAWS_SKIP.

    Returns:
        The watch, the same one for every call; its `close()` ends it, which the end of the process does as well.
    """
    with _lock:
        if not _watches:
            chosen = folder_of(os.environ.get(ENVIRONMENT, "")) if folder is None else Path(folder)
            watch = Watch(chosen, (*skip, *left_out()))
            watch.install()
            _watches.append(watch)
        return _watches[0]
