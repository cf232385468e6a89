"""What laws see of a PyTorch training around its steps: backward passes, models, dropout, batches, scalers, clipping.

Functions and methods are replaced while laws are watched, and each replacement calls the original with what it got.
Nothing here runs inside compiled code: the first use of torch.compile takes out what such code would call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import autograd, nn
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.pytorch.calls import is_searched
from msprobe_collector.pytorch.checkpoints import RUN_BACKWARD
from msprobe_collector.pytorch.optimizers import clipping_functions
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import ApiTarget, Installation, MethodSwaps
from msprobe_laws import training
from msprobe_laws.law import Step, Unchecked
from msprobe_laws.models import Freezing, ModelLaws, Owners
from msprobe_laws.pytorch import models
from msprobe_laws.pytorch.averages import Averages
from msprobe_laws.pytorch.backward import Backward
from msprobe_laws.pytorch.draws import Draws
from msprobe_laws.pytorch.loading import Loading
from msprobe_laws.pytorch.models import TorchRunning, is_away
from msprobe_laws.pytorch.modules import Modules
from msprobe_laws.pytorch.ranks import SummedGradients, world_size
from msprobe_laws.pytorch.resume import ResumeLaw
from msprobe_laws.pytorch.scaling import Dividing, LossScaling
from msprobe_laws.pytorch.schedules import Schedules
from msprobe_laws.replacing import Replacing, argument
from msprobe_laws.session import LawSession

#: Steps whose first dropout mask is compared between ranks.
_DRAWS = 4


class TorchSignals:
    """Sees what happens around steps, and tells the session."""

    def __init__(self, session: LawSession, guard: Guard, rank: Callable[[], int | None]) -> None:
        """See nothing yet."""
        self._session = session
        self._swaps, self._calls = MethodSwaps(), MethodSwaps()
        self._replacing = Replacing(guard, functools.partial(is_away, guard))
        self._running = TorchRunning()
        self._models = ModelLaws(session, models, self._running)
        self._owners, self._freezing = Owners(self._models), Freezing(session, self._models)
        self._freezing.meant = self._meant_frozen = WeakIdKeyDictionary()
        self._draws = Draws(session, guard, self._running)
        self._loading = Loading(session, guard)
        self._averages = Averages(session)
        self._schedules = Schedules(session, self._replacing)
        dividing = Dividing()
        self._scaling = LossScaling(session, guard, self._schedules.tries, dividing)
        #: Gradients that are summed over ranks.
        self.reduced = SummedGradients(guard)
        self._backward = Backward(session, guard, self._running, self._scaling, dividing, self.reduced)
        self._resume = ResumeLaw(session, guard, rank, self._scaling.held_scale)
        self._modules = Modules(self._models, guard, self._running, self._resume.model_begins)
        self._clips = Installation(self._backward.clipping.seen, is_searched=is_searched)
        #: Laws whose findings of this step another law explains.
        self.explained: set[str] = set()
        self.on_load: Callable[[Any], None] = lambda optimizer: None

    # What is replaced

    def install(self) -> None:
        """See from now on."""
        put, replacing = self._swaps.put, self._replacing
        if hasattr(autograd, RUN_BACKWARD):
            put(autograd, RUN_BACKWARD, self._backward.run_backward)
        loaded = replacing.after("a state is loaded", lambda result, args, kwargs: self.on_load(args[0]))
        put(torch.optim.Optimizer, "load_state_dict", loaded)
        for name in ("scale", "get_scale"):
            put(torch.amp.GradScaler, name, replacing.after("a loss is scaled", self._scaling.note_scaled))
        for name in ("unscale_", "step"):
            put(torch.amp.GradScaler, name, self._scaling.seen_unscaling)
        self._modules.put(self._swaps)
        self._draws.put(self._swaps)
        self._loading.put(self._swaps)
        self._schedules.put(self._swaps)
        self._resume.install()
        put = self._calls.put
        put(torch.Tensor, "requires_grad_", replacing.before("requires_grad_", self._note_freezing))
        for owner in (torch.optim.Optimizer, nn.Module):
            put(owner, "zero_grad", replacing.before("zero_grad", self._backward.note_zeroing))
        put(torch, "compile", replacing.before("torch.compile", self._leave_calls))
        self._modules.put_calls(self._calls)
        self._draws.put_calls(self._calls)
        self._clips.add([ApiTarget(owner, name, getattr(owner, name), name) for owner, name in clipping_functions()])
        self._clips.install()

    def uninstall(self) -> None:
        """See no more."""
        self._resume.uninstall()
        self._clips.uninstall()
        self._calls.uninstall()
        self._swaps.uninstall()

    def _leave_calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._calls.uninstall()
        self._modules.forget()
        reason = Unchecked("the training uses torch.compile, inside which nothing is seen")
        for name in training.OF_MODELS:
            self._session.say(name, "model", reason)

    def _note_freezing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if type(args[0]) is nn.Parameter and not argument(args, kwargs, 1, "requires_grad", True):
            self._meant_frozen[args[0]] = True

    # Steps

    def step_begins(self, step: Step) -> None:
        """Check what an optimizer's step finds."""
        say = functools.partial(self._session.say, source=step.source, step=step.number)
        self.explained.clear()
        if self._draws.first_mask:
            self._resume.draws()
        self._resume.step_begins(step)
        self._averages.step_begins(step)
        say(training.EACH_IN_ONE, step.name, self._owners.step_begins(step))
        say(training.FRESH, step.name, self._backward.step_begins(step))
        self._schedules.step_begins(step)
        if changed := self._backward.clipping.step_begins(step):
            say(training.CLIP_NORM, "clipping", changed)
        say(training.SCALE_REMOVED, step.name, self._scaling.at_step(step))
        say(training.STAYS_TRAINABLE, step.name, self._freezing.step_begins(step))
        if self._backward.explains_no_update or self._freezing.explains_no_update:
            self.explained.add("something-updated")
        self._models.step_begins(step)
        if self._running.models:
            say(training.GRADIENTS_ARRIVE, step.name, self._modules.gradients_arrive(step))
            self._look_for_missing(step)

    def _look_for_missing(self, step: Step) -> None:
        """Check that an optimizer has each parameter; at once where this one updates none of its own."""
        is_idle = all(item.grad is None for item in step.parameters.values())
        if not step.number and not is_idle:
            return
        missing = self._owners.in_no_optimizer(self._modules.candidates(), at_once=is_idle)
        self._session.say(training.IN_AN_OPTIMIZER, "models", missing, source=step.source, step=step.number)
        if missing and is_idle:
            self.explained.add("something-updated")

    def step_ended(self, step: Step) -> None:
        """Note that the step is over, and check what it has left."""
        self._owners.step_ended(step.name)
        parameters = models.parameters_of(step.optimizer)
        self._backward.step_ended(parameters)
        if step.number < _DRAWS and self._draws.first_mask and world_size() > 1:
            self._note_draws(step)
        self._draws.first_mask = {}
        self._averages.step_ended(step.name, parameters)
        self._models.step_ended(step)
        self._modules.step_ended(set(map(id, parameters)))

    def _note_draws(self, step: Step) -> None:
        """Write the first mask since the last step, for the comparison of ranks."""
        batches = [model.batches[0] for model in self._running.models.values() if model.batches]
        entry = {"kind": "draws", "step": step.number, "about": step.name, **self._draws.first_mask}
        self._session.journal.note({**entry, "batch": batches[0] if batches else ""})

    def end(self) -> None:
        """Say what an optimizer had and never trained, and which schedules stood still: the training is over."""
        self._schedules.end(is_cut=self._loading.is_cut)
        self._freezing.end(self._owners)
