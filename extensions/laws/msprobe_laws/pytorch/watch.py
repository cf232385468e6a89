"""Laws of a PyTorch training, checked while it runs: what is seen of optimizers, and where the parts of it stand.

Steps are seen by the hooks that `torch.optim` calls around every `step`. What happens around a step is seen by
`signals.py`. Nothing that the training computes is changed, and nothing of it is kept alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import distributed
from torch.optim import optimizer as hooks

from msprobe_collector.pytorch.hyperparameters import group_settings
from msprobe_collector.pytorch.optimizers import gradient_of, is_inside
from msprobe_collector.pytorch.parameter_names import ParameterNames
from msprobe_collector.pytorch.script_state import outside
from msprobe_collector.recording.guard import Guard
from msprobe_laws.formulas import FORMULAS
from msprobe_laws.law import Finding
from msprobe_laws.observation import Array, Place, Update, UpdatedParameter
from msprobe_laws.pytorch.formulas import formula_of, names_of_states, precision_of
from msprobe_laws.pytorch.models import is_away
from msprobe_laws.pytorch.ranks import ReducedGradients, world_size
from msprobe_laws.pytorch.signals import TrainingSignals
from msprobe_laws.pytorch.tensors import arrays_of, dtype_of, local_part, place_of
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.watch import LawWatch

#: Elements of a large parameter that are looked at; all of a smaller one.
SAMPLE = 128
#: Elements of a parameter of which all are looked at, one parameter a step, where the formula takes sums over it.
_WHOLE = 1 << 14
#: Steps after which other elements are looked at.
_ANEW = 16
_EMPTY: Array = np.empty(0)


@dataclass(slots=True)
class _Seen:
    """One optimizer.

    Attributes:
        name: in findings.
        optimizer: itself, as long as the script has it.
        number: of its next step, from 0.
        parameters: with their groups.
        names: of the parameters.
        indices: sampled positions by the parameter's id.
        steps: of each parameter by its id: see `UpdatedParameter`; None where its state was there from the first.
        gradients: what the last step has used, by the parameter's id: address and version, and sampled elements.
    """

    name: str
    optimizer: weakref.ref[Any]
    number: int = 0
    names: dict[int, str] = field(default_factory=dict)
    indices: dict[int, torch.Tensor] = field(default_factory=dict)
    steps: dict[int, int | None] = field(default_factory=dict)
    gradients: dict[int, tuple[tuple[int, int], Array | None]] = field(default_factory=dict)


@dataclass(slots=True)
class _Half:
    """What was read before a step.

    Attributes:
        frame: of PyTorch that runs the step.
        formula, unknown, is_own: see `Update`.
        items: parameters, with their group and what was read.
    """

    frame: FrameType
    formula: str
    unknown: str
    is_own: bool
    settings: Sequence[Mapping[str, Any]]
    source: str
    is_given_closure: bool
    items: list[tuple[Any, int, torch.Tensor | None]] = field(default_factory=list)
    before: list[Array] = field(default_factory=list)
    gradients: list[Array | None] = field(default_factory=list)
    states: list[dict[str, Array]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    gradient_dtypes: list[str] = field(default_factory=list)
    state_names: Mapping[str, str] = field(default_factory=dict)
    used_again: list[bool] = field(default_factory=list)


class OptimizerLaws:
    """Hands every step of every optimizer to a `LawSession`."""

    def __init__(self, session: LawSession, guard: Guard, signals: TrainingSignals) -> None:
        """See nothing yet."""
        self._session, self._guard, self._signals = session, guard, signals
        self._seen: dict[int, _Seen] = {}
        self._halves: dict[int, _Half] = {}
        self._counts: dict[str, int] = {}
        self._handles: list[Any] = []
        self._names = ParameterNames()
        self._reduced = ReducedGradients(guard)
        #: Hooks of ours on optimizers that have hooks of the script, by the optimizer's id.
        self._innermost: dict[int, tuple[Any, Any]] = {}

    def install(self) -> None:
        """See steps from now on."""
        self._reduced.install()
        self._handles = [
            hooks.register_optimizer_step_pre_hook(self._begins),
            hooks.register_optimizer_step_post_hook(self._ended),
        ]

    def uninstall(self) -> None:
        """See no more."""
        while self._handles:
            self._handles.pop().remove()
        self._reduced.uninstall()
        while self._innermost:
            for handle in self._innermost.popitem()[1]:
                handle.remove()

    def forget_state(self, optimizer: Any) -> None:
        """Its state was loaded."""
        if (seen := self._seen.get(id(optimizer))) is not None:
            self._session.state_continues.loaded(seen.name)

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_away():
            where = "laws: a step begins"
            if not self._guard.enter(where, self._goes_last, optimizer, otherwise=False):
                self._guard.enter(where, self._begin, optimizer, args, kwargs, sys._getframe(1))

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_away() and id(optimizer) not in self._innermost:
            self._guard.enter("laws: a step ends", self._end, optimizer, sys._getframe(1))

    def _begins_inside(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_away():
            self._guard.enter("laws: a step begins", self._begin, optimizer, args, kwargs, sys._getframe(1))

    def _ended_inside(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_away():
            self._guard.enter("laws: a step ends", self._end, optimizer, sys._getframe(1))

    def _is_away(self) -> bool:
        return is_away(self._guard)

    def _goes_last(self, optimizer: Any) -> bool:
        """Whether the optimizer has hooks of its own, which may change gradients: ours are the innermost then."""
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        if not (before or after):
            return False
        handles = self._innermost.get(id(optimizer))
        if handles is None:
            handles = self._innermost[id(optimizer)] = (
                optimizer.register_step_pre_hook(self._begins_inside),
                optimizer.register_step_post_hook(self._ended_inside),
            )
        before.move_to_end(handles[0].id)
        after.move_to_end(handles[1].id, last=False)
        return True

    def _begin(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        if not self._session.journal.is_ours:
            return
        seen = self._seen.get(id(optimizer))
        if seen is not None and seen.optimizer() is not optimizer:  # its number was that of one that is gone
            seen = None
            self._halves.pop(id(optimizer), None)
        outer = self._halves.get(id(optimizer))
        is_inner = outer is not None and frame is not outer.frame and is_inside(outer.frame, frame)
        if seen is None:
            seen = self._seen[id(optimizer)] = _Seen(self._name_of(optimizer), weakref.ref(optimizer))
        if seen.number % _ANEW == 0 and not is_inner:
            seen.indices.clear()
            self._session.state_continues.forget(seen.name)
        formula, unknown, is_own = formula_of(optimizer, frame)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if is_inner and not formula:
            return
        if not is_inner:
            names = self._name_parameters(optimizer, seen)
            arguments = optimizer, seen.name, names, seen.number, source_of(frame)
            self._guard.enter("laws: a step begins", self._signals.step_begins, *arguments)
        half = self._read_before(optimizer, seen, frame, formula, unknown, is_own, callable(closure))
        self._halves[id(optimizer)] = half
        if outer is not None and is_inner:
            self._decayed_before(outer, half, seen)

    def _decayed_before(self, outer: _Half, inner: _Half, seen: _Seen) -> None:
        """A class may decay parameters itself before it calls the step of its base class, which does so as well."""
        found = []
        for at, (item, group, index) in enumerate(inner.items):
            one, other, settings = outer.before[at], inner.before[at], inner.settings[group]
            decay = _plain(settings.get("lr")) * _plain(settings.get("weight_decay"))
            if not decay or not one.size or outer.items[at][2] is not index:
                continue
            changed = np.abs(other - one * (1 - decay)) <= 2.0**-6 * decay * np.abs(one)
            if np.all(changed) and np.any(one):
                found.append(seen.names.get(id(item), ""))
        if found:
            message = (
                "weight decay is applied twice: by the class before it calls the step of its base class, and there"
            )
            finding = Finding("decay-as-declared", found[0], message, None, tuple(found[1:]))
            self._session.say("decay-as-declared", seen.name, [finding], source=inner.source, step=seen.number)

    def _read_before(
        self, optimizer: Any, seen: _Seen, frame: FrameType, formula: str, unknown: str, is_own: bool, closure: bool
    ) -> _Half:
        self._name_parameters(optimizer, seen)
        scale = _number(getattr(optimizer, "grad_scale", None), 1.0)
        half = _Half(frame, formula, unknown, is_own, group_settings(optimizer), source_of(frame), closure)
        values, gradients = [], []
        is_whole = bool(formula) and FORMULAS[formula].whole
        items = _each_once(optimizer)
        for at, (item, number) in enumerate(items):
            local = local_part(item)
            index = None
            is_turn = is_whole and (at + seen.number) % len(items) < 4
            if local is not None and local.numel() > (_WHOLE if is_turn else SAMPLE):
                index = self._index_of(seen, item, local)
            half.items.append((item, number, index))
            values.append(None if local is None else _taken(local, index))
            gradient = local_part(gradient_of(item))
            is_fitting = gradient is not None and local is not None and gradient.shape == local.shape
            gradients.append(_taken(gradient, index) if is_fitting and gradient is not None else None)
            half.gradient_dtypes.append("" if gradient is None else dtype_of(gradient))
            half.places.append(place_of(local, item))
        arrays = arrays_of([*values, *gradients])
        half.before = [array if array is not None else _EMPTY for array in arrays[: len(items)]]
        half.gradients = [
            None if gradient_of(item) is None else _EMPTY if array is None else array / scale if scale != 1 else array
            for (item, _, _), array in zip(half.items, arrays[len(items) :])
        ]
        for (item, _, _), array in zip(half.items, half.gradients):
            written, before = seen.gradients.get(id(item), (None, None))
            is_same = written is not None and before is not None and written == _written(item) and not closure
            half.used_again.append(is_same and array is not None and bool(np.any(array)) and _equal(array, before))
        half.state_names = names_of_states(optimizer, formula, is_own=is_own)
        half.states = self._states(optimizer, half)
        for (item, _, _), state in zip(half.items, half.states):
            if id(item) not in seen.steps or not any(map(np.any, state.values())):
                seen.steps[id(item)] = None if any(map(np.any, state.values())) else 0
        return half

    def _states(self, optimizer: Any, half: _Half) -> list[dict[str, Array]]:
        """Elements of the states of each parameter."""
        keys: list[tuple[int, str]] = []
        tensors: list[Any] = []
        found: list[dict[str, Array]] = [{} for _ in half.items]
        for at, (item, _, index) in enumerate(half.items):
            state = optimizer.state.get(item)
            if not state:
                continue
            for own_key, value in state.items():
                key = half.state_names.get(own_key, own_key)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    found[at][key] = np.array([float(value)])
                    continue
                local = local_part(value)
                if local is None:
                    continue
                own = local_part(item)
                is_like = own is not None and local.shape == own.shape
                if not is_like and local.numel() > _WHOLE:
                    continue
                keys.append((at, key))
                tensors.append(_taken(local, index if is_like else None))
        for (at, key), array in zip(keys, arrays_of(tensors)):
            if array is not None:
                found[at][key] = array
        return found

    def _end(self, optimizer: Any, frame: FrameType) -> None:
        half = self._halves.get(id(optimizer))
        if half is None or half.frame is not frame:
            return
        del self._halves[id(optimizer)]
        seen = self._seen[id(optimizer)]
        if _number(getattr(optimizer, "found_inf", None), 0.0):
            return  # the kernel leaves everything as it is
        after = arrays_of(
            [None if (local := local_part(item)) is None else _taken(local, index) for item, _, index in half.items]
        )
        half.state_names = names_of_states(optimizer, half.formula, is_own=half.is_own)
        states = self._states(optimizer, half)
        parameters = []
        is_given = half.is_given_closure
        for at, (item, group, index) in enumerate(half.items):
            local = local_part(item)
            places = {
                half.state_names.get(key, key): place_of(inner, value)
                for key, value in (optimizer.state.get(item) or {}).items()
                if (inner := local_part(value)) is not None
            }
            if (written := _written(item)) is not None:
                seen.gradients[id(item)] = written, half.gradients[at]
            before, left = half.before[at], after[at]
            is_same = left is not None and left.size == before.size
            count = seen.steps.get(id(item))
            if count is not None and half.gradients[at] is not None:
                seen.steps[id(item)] = count = count + 1
            parameters.append(
                UpdatedParameter(
                    seen.names.get(id(item), f"param_groups.{group}"),
                    group,
                    () if local is None else tuple(local.shape),
                    before if is_same and not is_given else _EMPTY,
                    left if is_same and left is not None and not is_given else _EMPTY,
                    _EMPTY if is_given else half.gradients[at],
                    half.states[at],
                    states[at],
                    index is None,
                    half.places[at],
                    place_of(local, item),
                    half.gradient_dtypes[at],
                    places,
                    bool(item.requires_grad),
                    0 if local is None else local.numel(),
                    count or 0,
                    half.used_again[at],
                )
            )
        update = Update(
            seen.name,
            "" if is_given else half.formula,
            half.settings,
            parameters,
            seen.number,
            half.source,
            "its step computes the gradients itself, in a closure" if is_given else half.unknown,
            half.is_own,
            precision_of(optimizer),
        )
        seen.number += 1
        self._session.update(update, self._signals.explained)
        self._note_replicas(half, parameters, seen)
        self._reduced.forget()
        self._guard.enter("laws: a step ends", self._signals.step_ended, optimizer, seen.name, seen.number - 1)

    def _note_replicas(self, half: _Half, parameters: Sequence[UpdatedParameter], seen: _Seen) -> None:
        """Write digests of what ranks must have alike, after steps 1, 2, 4, 8, ..."""
        count = seen.number
        if count & (count - 1) or world_size() == 1:
            return
        all_ranks = self._reduced.replicas_of(half.items)
        if ranks := all_ranks or self._reduced.ranks_of(half.items):
            digests = {
                item.name: xxhash.xxh32(item.after.tobytes()).hexdigest() for item in parameters if item.after.size
            }
            begins = {
                item.name: xxhash.xxh32(item.before.tobytes()).hexdigest() for item in parameters if item.before.size
            }
            constant = [item.name for item in parameters if item.before.size and np.ptp(item.before) == 0]
            self._session.journal.note(
                {
                    "kind": "replicas",
                    "step": count - 1,
                    "about": seen.name,
                    "ranks": ranks,
                    "parameters": digests,
                    "begins": begins if count == 1 else {},
                    "are_all": bool(all_ranks),
                    "reduced": self._reduced.names(half.items, seen.names),
                    "constant": constant if count == 1 else [],
                }
            )

    def _name_of(self, optimizer: Any) -> str:
        kind = type(optimizer).__name__
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}.{number}" if number else kind

    def _name_parameters(self, optimizer: Any, seen: _Seen) -> dict[int, str]:
        groups = [list(group["params"]) for group in optimizer.param_groups]
        ids = {id(item) for group in groups for item in group}
        if ids != seen.names.keys():
            seen.names = {}
            for item, name in zip(chain.from_iterable(groups), self._names.of(groups, "param_groups")):
                seen.names.setdefault(id(item), name)  # what is in it twice is named by its first place
        return seen.names

    def _index_of(self, seen: _Seen, item: Any, local: torch.Tensor) -> torch.Tensor:
        index = seen.indices.get(id(item))
        if index is None or index.device != local.device:
            generator = np.random.default_rng((local.numel(), seen.number, len(seen.indices)))
            chosen = np.sort(generator.integers(0, local.numel(), SAMPLE))
            index = seen.indices[id(item)] = torch.from_numpy(chosen).to(local.device)
        return index


def _each_once(optimizer: Any) -> list[tuple[Any, int]]:
    """Parameters with their groups; what an optimizer has twice, once."""
    found: dict[int, tuple[Any, int]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for item in group["params"]:
            found.setdefault(id(item), (item, number))
    return list(found.values())


def _written(parameter: Any) -> tuple[int, int] | None:
    """Where its gradient is, and how often it was written; None where that is not known."""
    gradient = local_part(parameter.grad)
    if gradient is None or gradient.is_inference():
        return None
    return gradient.data_ptr(), parameter.grad._version


def _equal(one: Array, other: Array | None) -> bool:
    return other is not None and np.array_equal(one, other)


def _plain(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _taken(local: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    return local.reshape(-1) if index is None else torch.take(local, index)


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else otherwise


class _Quietly:
    """Outside of the script's modes, without a graph."""

    def __enter__(self) -> None:
        self._modes = outside()
        self._modes.__enter__()
        self._gradients = torch.no_grad()
        self._gradients.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._gradients.__exit__(*error)
        self._modes.__exit__(*error)


class Watch(LawWatch):
    """The laws of a process with PyTorch."""

    signals: TrainingSignals
    optimizers: OptimizerLaws

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, skip, laws_meant)
        self.guard.outside = _Quietly
        self.signals = TrainingSignals(self.session, self.guard, self.rank)
        self.optimizers = OptimizerLaws(self.session, self.guard, self.signals)
        self.signals.on_load = self.optimizers.forget_state

    @staticmethod
    def describe() -> dict[str, Any]:
        """See `LawWatch`."""
        is_joined = distributed.is_available() and distributed.is_initialized()
        world = distributed.get_world_size() if is_joined else 1
        return {"framework": "pytorch", "version": torch.__version__, "world": world, **LawWatch.describe()}

    @staticmethod
    def rank() -> int | None:
        """See `LawWatch`."""
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
        rank = os.environ.get("RANK", "")
        return int(rank) if rank.isdecimal() else None

    def at_the_end(self) -> None:
        """See `LawWatch`."""
        self.signals.end()


watch_laws = Watch.start
