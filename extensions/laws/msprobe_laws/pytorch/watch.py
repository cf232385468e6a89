"""Laws of a PyTorch training, checked while it runs: what is seen of optimizers, and where the parts of it stand.

Steps are seen by the hooks that `torch.optim` calls around every `step`. What happens around a step is seen by
`signals.py`. Nothing that the training computes is changed, and nothing of it is kept alive.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from msprobe_collector.pytorch.optimizers import group_settings, is_inside
from msprobe_collector.pytorch.parameter_names import parameter_names
from msprobe_collector.pytorch.threads_and_graphs import outside
from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Step
from msprobe_laws.observation import Array, UpdatedParameter
from msprobe_laws.optimizers import OpenStep, Optimizers, WatchedOptimizer
from msprobe_laws.pytorch.formulas import formula_of, precision_of
from msprobe_laws.pytorch.models import is_away, parameters_of
from msprobe_laws.pytorch.ranks import world_size
from msprobe_laws.pytorch.reading import Reader
from msprobe_laws.pytorch.signals import TorchSignals
from msprobe_laws.replacing import argument
from msprobe_laws.session import LawSession, LawWatch
from msprobe_laws.sources import source_of
from pytest_msprobe.numerics.expected import Relative

#: Steps after which other elements are looked at.
_ANEW = 16


@dataclass(slots=True)
class _OpenStep(OpenStep):
    """A step that runs.

    Attributes:
        frame: of PyTorch that runs it.
        reader: of its parameters.
    """

    frame: FrameType = field(kw_only=True)
    reader: Reader = field(kw_only=True)


class TorchOptimizerLaws(Optimizers):
    """Hands every step of every optimizer to a `LawSession`."""

    def __init__(self, session: LawSession, guard: Guard, signals: TorchSignals) -> None:
        """See nothing yet."""
        super().__init__(session)
        self._guard, self._signals = guard, signals
        #: Steps that run, by the optimizer's id.
        self._open: dict[int, _OpenStep] = {}
        self._handles: list[Any] = []
        self._names = parameter_names()
        self._reduced = signals.reduced
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
        """Note that its state was loaded."""
        if (watched := self._watched.get(id(optimizer))) is not None:
            self._session.state_continues.loaded(watched.name)

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_away(self._guard):
            where = "laws: a step begins"
            if not self._guard.enter(where, self._goes_last, optimizer, otherwise=False):
                self._guard.enter(where, self._begin, optimizer, args, kwargs, sys._getframe(1))

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_away(self._guard):
            self._guard.enter("laws: a step ends", self._end, optimizer, sys._getframe(1))

    def _begins_inside(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_away(self._guard):
            self._guard.enter("laws: a step begins", self._begin, optimizer, args, kwargs, sys._getframe(1))

    def _goes_last(self, optimizer: Any) -> bool:
        """Return whether the optimizer has its own hooks, which may change gradients: ours are the innermost then."""
        before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        if not (before or after):
            return False
        handles = self._innermost.get(id(optimizer))
        if handles is None:
            handles = self._innermost[id(optimizer)] = (
                optimizer.register_step_pre_hook(self._begins_inside),
                optimizer.register_step_post_hook(self._ended),
            )
        before.move_to_end(handles[0].id)
        after.move_to_end(handles[1].id, last=False)
        return True

    def _begin(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        if not self._session.journal.is_ours:
            return
        watched = self.watched(optimizer)
        outer = self._open.get(id(optimizer))
        if outer is not None and outer.watched is not watched:
            outer = None
        is_inner = outer is not None and frame is not outer.frame and is_inside(outer.frame, frame)
        formula = formula_of(optimizer, frame)
        if is_inner and not formula[0]:
            return
        self._name_parameters(optimizer, watched)
        parameters = parameters_of(optimizer)
        step = Step(optimizer, watched.name, parameters, watched.names, watched.number, source_of(frame))
        if not is_inner:
            if watched.number % _ANEW == 0:
                watched.samples.clear()
                self._session.state_continues.forget(watched.name)
            self._guard.enter("laws: a step begins", self._signals.step_begins, step)
        closure = argument(args, kwargs, 1, "closure")
        reader = Reader(optimizer, list(step.parameters.values()), watched, formula)
        before, gradients = reader.before(_number(getattr(optimizer, "grad_scale", None), 1.0))
        groups, settings = _groups_of(optimizer), group_settings(optimizer)
        numbers = [groups[key] for key in step.parameters]
        inner = self._open[id(optimizer)] = _OpenStep(
            watched, step, numbers, settings, before, gradients, callable(closure), frame=frame, reader=reader
        )
        if outer is not None and is_inner:
            self._decayed_before(outer, inner)

    def _decayed_before(self, outer: _OpenStep, inner: _OpenStep) -> None:
        """Check a class that decays parameters itself before it calls the step of its base class, which does so too."""
        twice = []
        for at, key in enumerate(inner.step.parameters):
            before, now, settings = outer.before[at].values, inner.before[at].values, inner.settings[inner.groups[at]]
            decay = _plain(settings.get("lr")) * _plain(settings.get("weight_decay"))
            if not decay or not before.size or outer.reader.samples[at] is not inner.reader.samples[at]:
                continue
            changed = np.abs(now - before * (1 - decay)) <= Relative.DECAY * decay * np.abs(before)
            if np.all(changed) and np.any(before):
                twice.append(key)
        message = "weight decay is applied twice: by the class before it calls the step of its base class, and there"
        if findings := inner.step.findings("decay-as-declared", twice, message):
            self._session.say(
                "decay-as-declared", inner.step.name, findings, source=inner.step.source, step=inner.step.number
            )

    def _end(self, optimizer: Any, frame: FrameType) -> None:
        opened = self._open.get(id(optimizer))
        if opened is None or opened.frame is not frame:
            return
        del self._open[id(optimizer)]
        if _number(getattr(optimizer, "found_inf", None), 0.0):
            return  # the kernel leaves everything as it is
        after, formula = opened.reader.after(opened.gradients), opened.reader.formula
        update = self.take(opened, after, formula, precision_of(optimizer), self._signals.explained)
        self._note_replicas(opened, update.parameters)
        self._reduced.forget()
        self._guard.enter("laws: a step ends", self._signals.step_ended, opened.step)

    def _note_replicas(self, opened: _OpenStep, parameters: Sequence[UpdatedParameter]) -> None:
        """Write digests of what ranks must have alike, after steps 1, 2, 4, 8, ..."""
        count = opened.watched.number
        if count & (count - 1) or world_size() == 1:
            return
        items = opened.reader.items
        all_ranks = self._reduced.replicas_of(items)
        ranks = all_ranks or self._reduced.ranks_of(items)
        if not ranks:
            return
        before = {item.name: item.before.values for item in parameters if item.before.values.size}
        after = {item.name: item.after.values for item in parameters if item.after.values.size}
        self._session.journal.note(
            {
                "kind": "replicas",
                "step": count - 1,
                "about": opened.watched.name,
                "ranks": ranks,
                "parameters": _digests(after),
                "begins": _digests(before) if count == 1 else {},
                "are_all": bool(all_ranks),
                "reduced": self._reduced.names(items, opened.watched.names),
                "constant": [name for name, value in before.items() if count == 1 and np.ptp(value) == 0],
            }
        )

    def _name_parameters(self, optimizer: Any, watched: WatchedOptimizer) -> None:
        groups = [list(group["params"]) for group in optimizer.param_groups]
        items = list(chain.from_iterable(groups))
        if set(map(id, items)) != watched.names.keys():
            watched.names = {}
            for item, name in zip(items, self._names.of(groups, "param_groups")):
                watched.names.setdefault(id(item), name)  # what is in it twice is named by its first place


def _groups_of(optimizer: Any) -> dict[int, int]:
    """Return the number of the group of each parameter by id; the first of what an optimizer has twice."""
    groups: dict[int, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        for item in group["params"]:
            groups.setdefault(id(item), number)
    return groups


def _digests(values: Mapping[str, Array]) -> dict[str, str]:
    return {name: xxhash.xxh32(array.tobytes()).hexdigest() for name, array in values.items()}


def _plain(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else otherwise


@contextmanager
def _quietly() -> Iterator[None]:
    """Run what is inside outside of the script's modes, without a graph."""
    with outside(), torch.no_grad():
        yield


class TorchWatch(LawWatch):
    """The laws of a process with PyTorch."""

    signals: TorchSignals
    optimizers: TorchOptimizerLaws

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, skip, laws_meant)
        self.guard.outside = _quietly
        self.signals = TorchSignals(self.session, self.guard, self.rank)
        self.optimizers = TorchOptimizerLaws(self.session, self.guard, self.signals)
        self.signals.on_load = self.optimizers.forget_state

    @staticmethod
    def describe() -> dict[str, Any]:
        """See `LawWatch`."""
        return {"framework": "pytorch", "version": torch.__version__, "world": world_size(), **LawWatch.describe()}

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


watch_laws = TorchWatch.start
