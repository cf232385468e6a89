"""What laws see of a MindSpore training around its steps: gradients, Cells, dropout, data, scales, clipping.

Functions and methods are replaced while laws are watched; each replacement calls the original with what it was given.
Where a graph is compiled the originals are back in place (`JitCalls`), since a compiler reads what the names hold.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe_collector.mindspore.discovery import JitCalls, is_searched
from msprobe_collector.mindspore.mindspore_internals import graph_executors, is_graph_mode
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import ApiTarget, Installation, MethodSwaps
from msprobe_laws.law import Checked, Step, Unchecked, Violation
from msprobe_laws.mindspore import models
from msprobe_laws.mindspore.gradients import Gradients
from msprobe_laws.mindspore.tensors import fingerprint_of, first_elements, tensors_in, tokens_of
from msprobe_laws.models import Freezing, ModelLaws, Owners, Running
from msprobe_laws.observation import Batch, DropoutMask, Labels, leaves
from msprobe_laws.replacing import Replacing, argument
from msprobe_laws.session import LawSession
from msprobe_laws.signals import width_of_targets
from msprobe_laws.training import EACH_IN_ONE, IN_AN_OPTIMIZER, RESUME, STAYS_TRAINABLE
from msprobe_laws.updates import StorageKept


class MindSporeSignals:
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
        self._running = Running()
        self._models = ModelLaws(session, models, self._running)
        self._owners, self._freezing = Owners(self._models), Freezing(session, self._models)
        self._gradients = Gradients(session, guard, self._is_away)
        #: Dtype of each parameter at the last step on it, of whatever optimizer.
        self._dtypes: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._iteration = 0
        #: Names of what was loaded from checkpoints, and whether that was since the last step.
        self._loaded: set[str] = set()
        self._is_resumed = False
        #: Laws whose findings of this step another law explains.
        self.explained: set[str] = set()
        self.on_load: Callable[[], None] = lambda: None

    # What is replaced

    def install(self) -> None:
        """See from now on."""
        from mindspore.dataset.engine import iterators

        self._data.put(iterators.Iterator, "__next__", self._replacing.after("a batch is loaded", self._batch_loaded))
        functions = mint.nn.functional
        targets = [(ops, "clip_by_global_norm"), (mindspore, "load_param_into_net")]
        targets += [(owner, name) for owner in (ops, functions) for name in ("dropout", "cross_entropy")]
        targets = [target for target in targets if hasattr(*target)]
        self._functions.add([ApiTarget(owner, name, getattr(owner, name), name) for owner, name in targets])
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
        put, replacing, gradients = self._swaps.put, self._replacing, self._gradients
        put(graph_executors()._PyNativeExecutor, "grad", gradients.seen_grad)
        put(nn.Cell, "__call__", self._seen_cell)
        for scaler in (mindspore.amp.StaticLossScaler, mindspore.amp.DynamicLossScaler):
            put(scaler, "scale", replacing.after("a loss is scaled", gradients.note_scaled))
            put(scaler, "unscale", replacing.before("gradients are unscaled", gradients.note_unscaled))
        self._functions.install()

    def _take_out(self) -> None:
        self._functions.uninstall()
        self._swaps.uninstall()

    @contextmanager
    def _originals_in_place(self) -> Iterator[None]:
        """Replace nothing inside, where a compiler reads what the names hold."""
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
        look = {
            "dropout": self._dropout_called,
            "cross_entropy": self._cross_entropy_called,
            "clip_by_global_norm": self._gradients.clipped,
            "load_param_into_net": self._load_called,
        }[call]

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self._is_away():
                self._guard.enter(f"laws: {call}", look, args, kwargs, result)
            return result

        return replaced

    # Steps

    def optimizer_made(self, optimizer: Any) -> None:
        """Note that an optimizer was made."""
        self._freezing.made(getattr(optimizer, "parameters", ()))

    def step_begins(self, step: Step, gradients: Sequence[Any]) -> None:
        """Check what an optimizer's step finds, and the gradients that it gets."""
        say = functools.partial(self._session.say, source=step.source, step=step.number)
        self.explained.clear()
        say(EACH_IN_ONE, step.name, self._owners.step_begins(step))
        say(STAYS_TRAINABLE, step.name, self._freezing.step_begins(step))
        if self._freezing.explains_no_update:
            self.explained.add("something-updated")
        for law, about, result in self._gradients.step_begins(step, gradients):
            say(law, about, result)
        if step.number:
            candidates = self._gradients.candidates()
            say(IN_AN_OPTIMIZER, "models", self._owners.in_no_optimizer(candidates, at_once=False))
        say(StorageKept.name, f"{step.name} between steps", self._dtypes_kept(step))
        if self._is_resumed:
            self._is_resumed = False
            say(RESUME, step.name, self._states_loaded(step))
        self._models.step_begins(step)

    def step_ended(self, step: Step) -> None:
        """Note that the step is over."""
        self._owners.step_ended(step.name)
        self._gradients.step_ended(step)
        self._models.step_ended(step)
        self._running.tokens = None

    def _dtypes_kept(self, step: Step) -> list[Violation]:
        """Return the parameters whose dtype has changed since the last step on them."""
        findings = []
        for key, item in step.parameters.items():
            now = str(item.dtype)
            reference, before = self._dtypes.get(key, (None, now))
            if reference is not None and reference() is item and before != now:
                message = f"its dtype is {now}, and was {before} in the step before"
                findings.append(Violation(StorageKept.name, step.names[key], message))
            self._dtypes[key] = weakref.ref(item), now
        return findings

    # Cells

    def _seen_cell(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._is_away() or isinstance(cell, models.OPTIMIZERS):
                return original(cell, *args, **kwargs)
            cells = self._running.parts
            if not any(self._is_model(other) for other in cells):
                self._guard.enter("laws: a Cell is called", self._cell_begins, cell, args, kwargs)
            cells.append(cell)
            try:
                result = original(cell, *args, **kwargs)
            finally:
                cells.pop()
            if isinstance(cell, models.DROPOUTS):
                self._guard.enter("laws: dropout", self._dropped, args, result, models.rate_of(cell), cell)
            return result

        return __call__

    def _is_model(self, cell: Any) -> bool:
        model = self._running.models.get(id(cell))
        return model is not None and model.root() is cell

    def _cell_begins(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = list(tensors_in((args, kwargs)))
        self._running.tokens = tokens_of(tensors, self._running.tokens)
        if not graph_executors()._pynative_executor.requires_grad():
            return
        model = self._models.called(cell, is_training=bool(cell.training))
        if tensors and model.takes_batches:
            fingerprint, model.is_poor = fingerprint_of(tensors)
            model.batches.append(fingerprint)

    # Dropout and labels

    def _dropout_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        cells = self._running.parts
        if cells and isinstance(cells[-1], models.DROPOUTS):
            return
        rate = argument(args, kwargs, 1, "p", 0.5)
        self._dropped(args or tuple(kwargs.values()), result, float(rate), cells[-1] if cells else None)

    def _dropped(self, args: tuple[Any, ...], result: Any, rate: float, cell: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(result, Tensor) or not 0 < rate < 1:
            return
        telling = first_elements(args[0]) != 0
        dropped = (first_elements(result) == 0) & telling
        place, source = self._running.place_of_dropout(cell, sys._getframe(3))
        is_training = cell is None or bool(cell.training)
        self._session.mask(DropoutMask(place, dropped, telling, rate, is_training, False, source))

    def _cross_entropy_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        target = argument(args, kwargs, 1, "target")
        tokens = self._running.tokens
        if tokens is None or not isinstance(target, Tensor) or target.is_floating_point():
            return
        if not width_of_targets(tokens.shape, target.size):
            return
        ignored = int(kwargs.get("ignore_index", -100))
        targets = mindspore_values().read(target).array.reshape(-1)
        # A model that repeats all of its input at the same places learns nothing; one that fills in words ignores most.
        is_causal = bool(np.all(targets != ignored))
        self._session.labels(Labels(tokens, np.array(targets), ignored, is_causal))

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
        self._loaded.update(argument(args, kwargs, 1, "parameter_dict", {}))
        self._is_resumed = True
        self.on_load()

    def _states_loaded(self, step: Step) -> Checked:
        """Look whether a checkpoint that the network was loaded from held the optimizer's moments too."""
        updated = set(step.names.values())
        if not updated & self._loaded:
            return Unchecked("no parameter of the optimizer was loaded")
        states = []
        for value in vars(step.optimizer).values():
            if isinstance(value, (tuple, list)) and len(value) == len(step.order):
                states += [str(item.name) for item in value if isinstance(item, Parameter)]
        states = [name for name in states if name not in updated]
        missing = [name for name in states if name not in self._loaded]
        if not states:
            return Unchecked("the optimizer keeps no moments")
        message = (
            "the network was loaded from a checkpoint that does not hold it: the optimizer's moments begin at zero"
        )
        return [Violation.of(RESUME, missing, message)] if missing else []
