"""What laws see of a MindSpore training around its steps: gradients, Cells, dropout, data, scales, clipping.

Functions and methods are replaced while laws are watched; each replacement calls the original with what it was given.
Where a graph is compiled the originals are back in place (`JitCalls`), since a compiler reads what the names hold.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mindspore
import numpy as np
import xxhash
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

from msprobe_collector.mindspore.discovery import JitCalls, is_searched
from msprobe_collector.mindspore.mindspore_internals import graph_executors, is_graph_mode
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import ApiTarget, Installation, MethodSwaps
from msprobe_laws.law import Checked, Finding, Unchecked
from msprobe_laws.mindspore.tensors import (
    coarseness,
    factors_of,
    fingerprint_of,
    first_elements,
    leaves,
    norm_of,
    some_elements,
    tensors_in,
)
from msprobe_laws.observation import Array, Batch, Clipping, DropoutMask, Labels
from msprobe_laws.replacing import Replacing
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import (
    CLIP_NORM,
    EACH_IN_ONE,
    FRESH,
    IN_AN_OPTIMIZER,
    RESUME,
    SCALE_REMOVED,
    STAYS_TRAINABLE,
    TIES_KEPT,
    TRAINING_MODE,
)
from msprobe_laws.updates import StorageKept

#: Elements of the gradient of one parameter.
_GRADIENT = 32
#: Elements that gradients of two parameters do not share by chance.
_TELLING = 8
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, mint.nn.Dropout)
_STORAGE = StorageKept.name


class _Thread(threading.local):
    """What runs in one thread: Cells, outermost first."""

    def __init__(self) -> None:
        self.cells: list[Any] = []


#: A Cell, and the attribute that holds a parameter of it.
_Held = tuple["weakref.ref[Any]", str]


@dataclass(slots=True)
class _Model:
    """A Cell that the script calls itself, with gradients.

    Attributes:
        root: itself.
        name: in findings.
        paths: names of its Cells by id.
        ties: names of parameters that are one, in pairs: (Cell, attribute) each.
        batches: fingerprints of what it got since the last step.
        is_poor: see `Batch`.
        modes: whether it was in training mode in its calls since then.
        trained: whether a step on it was taken in training mode.
    """

    root: weakref.ref[Any]
    name: str
    paths: dict[int, str] = field(default_factory=dict)
    ties: list[tuple[_Held, _Held]] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    is_poor: bool = False
    modes: list[bool] = field(default_factory=list)
    trained: bool = False


@dataclass(slots=True)
class _Sum:
    """Gradients of one parameter, some elements of them.

    Attributes:
        parameter: whose they are.
        now: their sum since the last step; None without one.
        last: that of the step before.
        all_before: that of all steps before.
    """

    parameter: weakref.ref[Any]
    now: Array | None = None
    last: Array | None = None
    all_before: Array | None = None


class TrainingSignals:
    """Sees what happens around steps, and tells the session."""

    def __init__(self, session: LawSession, guard: Guard) -> None:
        """See nothing yet."""
        self._session, self._guard = session, guard
        self._swaps, self._data = MethodSwaps(), MethodSwaps()
        self._functions = Installation(self._wrapped, is_searched=is_searched)
        self._jits = JitCalls(
            lambda call, name: call, guard, originals_in_place=self._originals_in_place, records=False
        )
        self._replacing = Replacing(guard, self._is_away)
        self._thread = _Thread()
        self._models: dict[int, _Model] = {}
        self._sums: dict[int, _Sum] = {}
        #: Tensors that hold the scale of a loss scaler, by id; they are kept until the step.
        self._scaled: dict[int, Any] = {}
        self._scale = 1.0
        self._is_scaling = False
        #: Whether a loss was scaled since gradients were last unscaled; None as long as no loss was.
        self._is_scale_due: bool | None = None
        #: Gradients that were clipped, by id, with what the message names; they are kept until the step.
        self._clipped: dict[int, Any] = {}
        self._owners: dict[str, dict[int, weakref.ref[Any]]] = {}
        self._order: dict[str, list[int]] = {}
        self._ticks = 0
        self._trainable: dict[int, weakref.ref[Any]] = {}
        self._dtypes: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._tokens: Array | None = None
        self._iterations: dict[int, int] = {}
        self._iteration = 0
        self._loaded: set[str] = set()
        self._is_resumed = False
        self._states: set[str] = set()
        self.on_load: Callable[[], None] = lambda: None

    # What is replaced

    def install(self) -> None:
        """See from now on."""
        from mindspore.dataset.engine import iterators

        self._data.put(iterators.Iterator, "__next__", self._replacing.after("a batch is loaded", self._batch_loaded))
        self._functions.add(
            [
                ApiTarget(owner, name, getattr(owner, name), call)
                for owner, name, call in (
                    (ops, "dropout", "dropout"),
                    (mint.nn.functional, "dropout", "dropout"),
                    (ops, "cross_entropy", "cross_entropy"),
                    (mint.nn.functional, "cross_entropy", "cross_entropy"),
                    (ops, "clip_by_global_norm", "clip"),
                    (mindspore, "load_param_into_net", "load"),
                )
                if hasattr(owner, name)
            ]
        )
        self._put_in()
        self._jits.install()

    def uninstall(self) -> None:
        """See no more."""
        self._take_out()
        self._jits.uninstall()
        self._data.uninstall()

    def _put_in(self) -> None:
        if self._swaps.are_in:
            return
        executor = graph_executors()._PyNativeExecutor
        self._swaps.put(executor, "grad", self._seen_grad)
        self._swaps.put(nn.Cell, "__call__", self._seen_cell)
        for scaler in (mindspore.amp.StaticLossScaler, mindspore.amp.DynamicLossScaler):
            self._swaps.put(scaler, "scale", self._replacing.after("a loss is scaled", self._note_scale))
            self._swaps.put(scaler, "unscale", self._replacing.before("gradients are unscaled", self._note_unscaled))
        self._functions.install()

    def _take_out(self) -> None:
        self._functions.uninstall()
        self._swaps.uninstall()

    @contextmanager
    def _originals_in_place(self) -> Iterator[None]:
        """Nothing is replaced inside, where a compiler reads what the names hold."""
        was_in = self._swaps.are_in
        self._guard.enter("laws: a jit function", self._take_out)
        try:
            yield
        finally:
            if was_in:
                self._guard.enter("laws: a jit function", self._put_in)

    def _is_away(self) -> bool:
        return self._guard.activity.is_inside or is_graph_mode()

    def _wrapped(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        seen = {
            "dropout": self._dropout_called,
            "cross_entropy": self._cross_entropy_called,
            "clip": self._clip_called,
            "load": self._load_called,
        }[call]

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self._is_away():
                self._guard.enter(f"laws: {call}", seen, args, kwargs, result)
            return result

        return replaced

    # Steps

    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer was made; what it is to train is what can be trained now."""
        for item in getattr(optimizer, "parameters", ()):
            if item.requires_grad:
                self._trainable[id(item)] = weakref.ref(item)

    def step_begins(
        self, optimizer: Any, name: str, parameters: Sequence[Any], gradients: Sequence[Any], number: int, source: str
    ) -> None:
        """An optimizer is called."""
        say = functools.partial(self._session.say, source=source, step=number)
        self._ticks += 1
        say(EACH_IN_ONE, name, self._in_two(name, parameters))
        say(STAYS_TRAINABLE, name, self._stays_trainable(name, parameters))
        say(SCALE_REMOVED, name, self._scale_at_step(parameters, gradients))
        say(FRESH, name, self._fresh(parameters, gradients))
        if unclipped := [item for item, grad in zip(parameters, gradients) if id(grad) in self._clipped]:
            message = "the step gets the gradient as it was before clipping: what clipping has left reaches no step"
            say(CLIP_NORM, "clipping", [_of_many(CLIP_NORM, unclipped, message)])
        if number:
            say(IN_AN_OPTIMIZER, "models", self._in_an_optimizer())
        say(_STORAGE, f"{name} between steps", self._dtypes_kept(parameters))
        if self._is_resumed:
            self._is_resumed = False
            say(RESUME, name, self._states_loaded(optimizer, parameters))
        for model in self._models.values():
            self._of_model(model, say)

    def step_ended(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        """The step is over."""
        for item in parameters:
            total = self._sum_of(item)
            if total is not None and total.now is not None:
                total.last = total.now
                total.all_before = total.now if total.all_before is None else total.all_before + total.now
                total.now = None
        self._scaled.clear()
        self._clipped.clear()
        for model in self._models.values():
            model.batches.clear()
            model.modes.clear()
        self._tokens = None

    def _in_two(self, name: str, parameters: Sequence[Any]) -> list[Finding]:
        own = {id(item): item for item in parameters}
        self._owners[name] = {key: weakref.ref(item) for key, item in own.items()}
        steps = self._order.setdefault(name, [])
        found = []
        for other, held in self._owners.items():
            shared = [item for key, item in own.items() if key in held and held[key]() is item]
            is_between = steps and self._order.get(other) and self._order[other][-1] > steps[-1]
            if other != name and shared and is_between:
                message = f"{name} and {other} both update it, in turn"
                found.append(_of_many(EACH_IN_ONE, shared, message))
        steps.append(self._ticks)
        del steps[:-2]
        return found

    def _stays_trainable(self, name: str, parameters: Sequence[Any]) -> list[Finding]:
        known = self._trainable
        frozen = [item for item in parameters if not item.requires_grad and _is_of(known.get(id(item)), item)]
        for item in frozen:
            del self._trainable[id(item)]
        if not frozen:
            return []
        message = f"requires_grad is False, and it was True when {name} was made: it is not trained"
        return [_of_many(STAYS_TRAINABLE, frozen, message)]

    def _scale_at_step(self, parameters: Sequence[Any], gradients: Sequence[Any]) -> Checked:
        if self._scale == 1:
            return Unchecked("no loss scaler is used", is_moot=True)
        held = [item for item, grad in zip(parameters, gradients) if id(grad) in self._scaled]
        if not held:
            return []
        message = f"the step gets gradients that still hold the scale {self._scale:g} of the loss scaler"
        return [_of_many(SCALE_REMOVED, held, message)]

    def _fresh(self, parameters: Sequence[Any], gradients: Sequence[Any]) -> Checked:
        """Whether the gradients are a multiple of those of this step, or of these and of those of steps before."""
        rows: list[tuple[Array, Array, Array, Array]] = []
        computed: dict[bytes, Any] = {}
        got: dict[bytes, Any] = {}
        for item, grad in zip(parameters, gradients):
            total = self._sum_of(item)
            if total is None or total.now is None or total.last is None or not isinstance(grad, Tensor):
                continue
            given = some_elements(grad, _GRADIENT)
            if np.any(given) and given.size >= _TELLING:
                computed[total.now.tobytes()], got[given.tobytes()] = item, item
            if given.size == total.now.size == total.last.size and total.all_before is not None:
                rows.append((given, total.now, total.last, total.all_before))
        if not rows:
            return Unchecked("gradients of two steps one after another were not seen")
        if exchanged := [item for key, item in got.items() if computed.get(key, item) is not item]:
            return [_of_many(FRESH, exchanged, "the step gets the gradient of another parameter for it")]
        given, now, last, before = (np.concatenate([row[at] for row in rows]) for at in range(4))
        if factors_of(given, (now,)):
            return []
        for older, which in ((last, "the step before"), (before, "the steps before")):
            shares = factors_of(given, (now, older))
            if shares and abs(shares[1] - shares[0]) < 0.05 * abs(shares[0]):
                message = f"its gradient still holds that of {which}: what gradients are added to was not set to zero"
                return [_of_many(FRESH, list(parameters), message)]
        return Unchecked("the step gets other values than the gradients that were computed (reduced over ranks?)")

    def _in_an_optimizer(self) -> Checked:
        known = set().union(*self._owners.values())
        missing = [
            item
            for key, total in self._sums.items()
            if total.now is not None and key not in known and (item := total.parameter()) is not None
        ]
        if missing:
            known |= _in_optimizers()
            missing = [item for item in missing if id(item) not in known]
        if not missing:
            return []
        for item in missing:
            self._sums[id(item)].now = None
        return [_of_many(IN_AN_OPTIMIZER, missing, "it has a gradient and is in no optimizer: it is never updated")]

    def _dtypes_kept(self, parameters: Sequence[Any]) -> list[Finding]:
        """Dtypes of parameters since the last step on them."""
        found = []
        for item in parameters:
            name, now = str(item.name), str(item.dtype)
            before = self._dtypes.get(id(item))
            if before is not None and before[0]() is item and before[1] != now:
                message = f"its dtype is {now}, and was {before[1]} in the step before"
                found.append(Finding(_STORAGE, name, message))
            self._dtypes[id(item)] = weakref.ref(item), now
        return found

    # Cells

    def _of_model(self, model: _Model, say: Callable[..., None]) -> None:
        root = model.root()
        if root is None:
            return
        if model.modes:
            is_trained = any(model.modes)
            if model.trained and not is_trained and _has_modes(root):
                message = "it is trained in evaluation mode, after steps in training mode (set_train() is missing?)"
                say(TRAINING_MODE, model.name, [Finding(TRAINING_MODE, model.name, message)])
            else:
                say(TRAINING_MODE, model.name, [])
            model.trained |= is_trained
            say(TIES_KEPT, model.name, _ties_kept(model))
        if model.batches:
            fingerprint = xxhash.xxh64(" ".join(sorted(set(model.batches))).encode()).hexdigest()
            self._session.batch(Batch(model.name, fingerprint, is_poor=model.is_poor))

    def _seen_cell(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._is_away() or isinstance(cell, (nn.Optimizer, optim.Optimizer)):
                return original(cell, *args, **kwargs)
            cells = self._thread.cells
            if not any(self._is_model(other) for other in cells):
                self._guard.enter("laws: a Cell is called", self._cell_begins, cell, args, kwargs)
            cells.append(cell)
            try:
                result = original(cell, *args, **kwargs)
            finally:
                cells.pop()
            if isinstance(cell, _DROPOUTS):
                self._guard.enter("laws: dropout", self._dropped, args, result, _rate_of(cell), cell)
            return result

        return __call__

    def _is_model(self, cell: Any) -> bool:
        model = self._models.get(id(cell))
        return model is not None and model.root() is cell

    def _cell_begins(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = list(tensors_in((args, kwargs)))
        self._tokens = _tokens_of(tensors, self._tokens)
        if not graph_executors()._pynative_executor.requires_grad():
            return
        model = self._models.get(id(cell))
        if model is None or model.root() is not cell:
            self._models = {key: other for key, other in self._models.items() if other.root() is not None}
            model = self._models[id(cell)] = _model_of(cell, self._models)
        model.modes.append(bool(cell.training))
        if tensors and len(model.batches) < 64:
            fingerprint, model.is_poor = fingerprint_of(tensors)
            model.batches.append(fingerprint)

    def _path_of(self, cell: Any) -> str:
        for model in self._models.values():
            if id(cell) in model.paths:
                return model.paths[id(cell)]
        return type(cell).__name__

    # Dropout and labels

    def _dropout_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        cells = self._thread.cells
        if cells and isinstance(cells[-1], _DROPOUTS):
            return
        rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        self._dropped(args or tuple(kwargs.values()), result, float(rate), cells[-1] if cells else None)

    def _dropped(self, args: tuple[Any, ...], result: Any, rate: float, cell: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(result, Tensor) or not 0 < rate < 1:
            return
        known = first_elements(args[0]) != 0
        dropped = (first_elements(result) == 0) & known
        source = "" if cell is not None else source_of(sys._getframe(3))
        place = self._path_of(cell) if cell is not None else source.partition(":")[0] + ":dropout"
        is_training = bool(cell.training) if cell is not None else True
        self._session.mask(DropoutMask(place, dropped, known, rate, is_training, False, source))

    def _cross_entropy_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        tokens = self._tokens
        if tokens is None or not isinstance(target, Tensor) or target.is_floating_point() or tokens.ndim != 2:
            return
        rows, length = tokens.shape
        width = target.size // rows if rows and target.size % rows == 0 else 0
        if width not in (length, length - 1):
            return
        ignored = int(kwargs.get("ignore_index", -100))
        targets = mindspore_values().read(target).array.reshape(-1)
        # A model that repeats all of its input at the same places learns nothing; one that fills in words ignores most.
        is_causal = bool(np.all(targets != ignored))
        self._session.labels(Labels(tokens, np.array(targets), ignored, is_causal))

    # Gradients, scales and clipping

    def _seen_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(executor: Any, fn: Any, operation: Any, weights: Any, *args: Any) -> Any:
            result = original(executor, fn, operation, weights, *args)
            if not self._is_away() and weights is not None:
                self._guard.enter("laws: gradients", self._gradients, weights, result)
            return result

        return grad

    def _gradients(self, weights: Any, result: Any) -> None:
        chosen = list(weights) if isinstance(weights, (tuple, list)) else [weights]
        found = list(tensors_in(result))[-len(chosen) :]
        if len(found) != len(chosen):
            return
        for item, grad in zip(chosen, found):
            if not isinstance(item, Parameter):
                continue
            total = self._sum_of(item)
            if total is None:
                total = self._sums[id(item)] = _Sum(weakref.ref(item))
            some = some_elements(grad, _GRADIENT)
            total.now = some if total.now is None or total.now.size != some.size else total.now + some
            if self._is_scaling:
                self._scaled[id(grad)] = grad
        self._is_scaling = False

    def _sum_of(self, item: Any) -> _Sum | None:
        total = self._sums.get(id(item))
        return total if total is not None and total.parameter() is item else None

    def _note_unscaled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        was_due, self._is_scale_due = self._is_scale_due, False
        if was_due is False:
            message = "the loss scaler divides by its scale, and no loss was multiplied with it since it last did"
            source = source_of(sys._getframe())
            self._session.say(SCALE_REMOVED, "scaler", [Finding(SCALE_REMOVED, "gradients", message)], source=source)

    def _note_scale(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        scaler = args[0]
        self._scale = float(scaler.scale_value.asnumpy()) if isinstance(scaler.scale_value, Tensor) else 1.0
        self._is_scaling = self._scale != 1
        self._is_scale_due = True

    def _clip_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        given = list(tensors_in(args[0] if args else kwargs.get("x", ())))
        clipped = list(tensors_in(result))
        limit = kwargs.get("clip_norm", args[1] if len(args) > 1 else 1.0)
        if not given or len(given) != len(clipped):
            return
        names = self._names_of(given)
        self._clipped.update((id(item), item) for item in given)
        is_scaled = any(id(item) in self._scaled for item in given)
        dtype = max((str(item.dtype).lower() for item in given), key=coarseness)
        uses_norm = kwargs.get("use_norm", args[2] if len(args) > 2 else None) is not None
        self._session.clipping(
            Clipping(
                names,
                None if uses_norm else norm_of(given),
                None if uses_norm else norm_of(clipped),
                None,
                float(limit) if isinstance(limit, (int, float)) else 0.0,
                2.0,
                sum(int(item.size) for item in given),
                dtype,
                self._scale if is_scaled else 1.0,
                source_of(sys._getframe(3)),
                "the norm is given by the script" if uses_norm else "",
            )
        )

    def _names_of(self, gradients: Sequence[Any]) -> list[str]:
        recent = [total.parameter() for total in self._sums.values() if total.now is not None]
        if len(recent) == len(gradients):
            return [str(getattr(item, "name", "")) for item in recent]
        return [f"gradients.{at}" for at in range(len(gradients))]

    # Data and checkpoints

    def _batch_loaded(self, batch: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        iterator = args[0]
        number = getattr(iterator, "_msprobe_iteration", None)
        if number is None:
            self._iteration += 1
            number = iterator._msprobe_iteration = self._iteration
        dataset = getattr(iterator, "ori_dataset", getattr(iterator, "dataset", None))
        arrays = [item for item in leaves(batch) if isinstance(item, (Tensor, np.ndarray))]
        if not arrays:
            return
        fingerprint, is_poor = fingerprint_of(arrays)
        count = getattr(dataset, "dataset_size", None)
        name = f"dataset {type(dataset).__name__}"
        self._session.batch(Batch(name, fingerprint, True, count if isinstance(count, int) else 0, number, is_poor))

    def _load_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        given = kwargs.get("parameter_dict", args[1] if len(args) > 1 else {})
        self._loaded |= set(given)
        self._is_resumed = True
        self.on_load()

    def _states_loaded(self, optimizer: Any, parameters: Sequence[Any]) -> Checked:
        """Whether a checkpoint that the network was loaded from held the optimizer's moments too."""
        own = {str(item.name) for item in parameters}
        if not own & self._loaded:
            return Unchecked("no parameter of the optimizer was loaded")
        states = [
            str(item.name)
            for value in vars(optimizer).values()
            if isinstance(value, (tuple, list)) and len(value) == len(parameters)
            for item in value
            if isinstance(item, Parameter) and str(item.name) not in own
        ]
        missing = [name for name in states if name not in self._loaded]
        if not states or not missing:
            return [] if states else Unchecked("the optimizer keeps no moments")
        message = (
            "the network was loaded from a checkpoint that does not hold it: the optimizer's moments begin at zero"
        )
        return [Finding(RESUME, missing[0], message, None, tuple(missing[1:]))]


def _of_many(law: str, parameters: Sequence[Any], message: str) -> Finding:
    names = [str(item.name) for item in parameters]
    return Finding(law, names[0], message, None, tuple(names[1:]))


def _tokens_of(tensors: Sequence[Any], otherwise: Array | None) -> Array | None:
    for item in tensors:
        if item.ndim == 2 and item.dtype in (mindspore.int32, mindspore.int64) and item.size:
            return np.array(mindspore_values().read(item).array)
    return otherwise


def _rate_of(cell: Any) -> float:
    """Probability to drop of a dropout Cell."""
    rate = getattr(cell, "p", None)
    if isinstance(rate, (int, float)):
        return float(rate)
    kept = getattr(cell, "keep_prob", None)
    return 1 - float(kept) if isinstance(kept, (int, float)) else 0.5


def _has_modes(root: Any) -> bool:
    """Whether training mode makes a difference."""
    return any(
        (isinstance(cell, _DROPOUTS) and _rate_of(cell) > 0) or "BatchNorm" in type(cell).__name__
        for _, cell in root.cells_and_names()
    )


def _model_of(cell: Any, known: Mapping[int, _Model]) -> _Model:
    kind = type(cell).__name__
    count = sum(model.name.partition(".")[0] == kind for model in known.values())
    model = _Model(weakref.ref(cell), f"{kind}.{count}" if count else kind)
    first: dict[int, _Held] = {}
    for path, inner in cell.cells_and_names():
        model.paths[id(inner)] = path or kind
        for name, item in inner._params.items():
            if item is None:
                continue
            if id(item) in first:
                model.ties.append((first[id(item)], (weakref.ref(inner), name)))
            first.setdefault(id(item), (weakref.ref(inner), name))
    return model


def _ties_kept(model: _Model) -> Checked:
    if not model.ties:
        return Unchecked("the model has no tied parameters", is_moot=True)
    found = []
    for (one, name), (other, other_name) in model.ties:
        first, second = _parameter_at(one(), name), _parameter_at(other(), other_name)
        if first is not None and second is not None and first is not second:
            message = f"it is no longer the same parameter as {first.name}"
            found.append(Finding(TIES_KEPT, str(second.name), message))
    return found


def _parameter_at(cell: Any, name: str) -> Any:
    return None if cell is None else cell._params.get(name)


def _is_of(reference: weakref.ref[Any] | None, item: Any) -> bool:
    return reference is not None and reference() is item


def _in_optimizers() -> set[int]:
    """Ids of the parameters of all optimizers that there are."""
    return {
        id(parameter)
        for item in gc.get_objects()
        if issubclass(type(item), (nn.Optimizer, optim.Optimizer))
        for parameter in getattr(item, "parameters", ())
    }
