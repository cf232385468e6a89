"""Backward passes of a PyTorch training: whether a step gets what they have given since the step before, once."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Step, Violation
from msprobe_laws.pytorch.clipping import ClippingSignals, UsedGradient
from msprobe_laws.pytorch.models import TorchRunning, is_away, parameters_of
from msprobe_laws.pytorch.ranks import SummedGradients
from msprobe_laws.pytorch.scaling import Dividing, LossScaling
from msprobe_laws.pytorch.tensors import address_of, is_zero, version_of
from msprobe_laws.replacing import argument
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import FRESH


class Backward:
    """Follows gradients from a backward pass to the step that uses them."""

    def __init__(
        self,
        session: LawSession,
        guard: Guard,
        running: TorchRunning,
        scaling: LossScaling,
        dividing: Dividing,
        summed: SummedGradients,
    ) -> None:
        """See nothing yet."""
        self._session, self._guard, self._running = session, guard, running
        self._scaling, self._dividing = scaling, dividing
        #: Gradients that steps have used, by the ids of their parameters.
        self._used: dict[int, UsedGradient] = {}
        self.clipping = ClippingSignals(session, guard, running, scaling, self._used, summed)
        #: Number of backward passes: all of them, when gradients were set to zero last, and at the last step of an
        #: optimizer by its id.
        self._passes = self._zeroed = 0
        self._passes_before: dict[int, int] = {}
        #: The optimizer or Module whose gradients were set to zero last.
        self._zeroed_of: weakref.ref[Any] | None = None
        #: Losses of which a backward pass was taken since the last step.
        self._losses: Any = WeakIdKeyDictionary()
        #: Whether the gradients of the step that runs were set to zero too late, so that it updates nothing.
        self.explains_no_update = False

    # What is replaced

    def run_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in the place of autograd's function that runs a backward pass."""

        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if is_away(self._guard):
                return original(*args, **kwargs)
            self._guard.enter("laws: a backward pass begins", self._begins, args, kwargs)
            self._running.backward += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._running.backward -= 1
            if not self._running.backward and kwargs.get("accumulate_grad", True):
                self._guard.enter("laws: a backward pass ends", self._ended)
            return result

        return run_backward

    def note_zeroing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that `zero_grad` of an optimizer or a Module is called."""
        self._zeroed = self._passes
        self._zeroed_of = weakref.ref(args[0])
        self.clipping.clear()
        self._losses.clear()

    def _begins(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._running.backward or not kwargs.get("accumulate_grad", True):
            return
        roots = args[0] if args and isinstance(args[0], (tuple, list)) else ()
        self._passes += 1
        self._scaling.backward_begins(roots)
        self._dividing.backward_begins(roots)
        if not argument(args, kwargs, 4, "inputs", ()):
            self._loss_once(roots)
        for key, used in list(self._used.items()):
            item = used.parameter()
            gradient = None if item is None else item.grad
            if gradient is None or address_of(gradient) != used.address or is_zero(gradient):
                del self._used[key]
            else:
                used.has_begun = True

    def _ended(self) -> None:
        self._dividing.backward_ended(self._running, is_scaled=self._scaling.scale() != 1)

    def _loss_once(self, roots: Any) -> None:
        """Look whether a backward pass of the same loss was taken since the last step."""
        for root in roots:
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                if root in self._losses:
                    message = "a backward pass of one loss was taken twice before the step: its gradient counts twice"
                    finding = Violation(FRESH, "loss", message)
                    self._session.say(FRESH, "losses", [finding], source=source_of(sys._getframe()))
                self._losses[root] = True

    # Steps

    def step_begins(self, step: Step) -> list[Violation]:
        """Return what is wrong with the gradients that a step gets."""
        passes = self._passes_before.get(id(step.optimizer), 0)
        self._passes_before[id(step.optimizer)] = self._passes
        self._losses.clear()
        added = self._added_to(step)
        late = [] if added else self._zeroed_late(passes, step)
        self.explains_no_update = bool(late)
        return added or late or self._in_parts(passes, step)

    def step_ended(self, parameters: list[Any]) -> None:
        """Note which gradients a step has used."""
        for item in parameters:
            if item.grad is not None:
                self._used[id(item)] = UsedGradient(weakref.ref(item), address_of(item.grad), version_of(item.grad))
            else:
                self._used.pop(id(item), None)

    def _added_to(self, step: Step) -> list[Violation]:
        keys = []
        for key, item in step.parameters.items():
            used = self._used.get(key)
            if used is not None and used.has_begun and used.is_of(item):
                keys.append(key)
        message = (
            "its gradient still holds that of the step before: it was not set to zero, and the backward added to it"
        )
        return step.findings(FRESH, keys, message)

    def _zeroed_late(self, before: int, step: Step) -> list[Violation]:
        """Return the finding where gradients were set to zero between the last backward pass and the step.

        `before` is the number of passes at the step before.
        """
        gradients = [item.grad for item in step.parameters.values() if item.grad is not None]
        if not before < self._passes == self._zeroed or not all(map(is_zero, gradients)):
            return []
        message = "gradients are set to zero between the backward pass and the step, which gets none"
        return step.findings(FRESH, step.names, message)

    def _in_parts(self, before: int, step: Step) -> list[Violation]:
        """Return the finding where a batch in parts, of the passes after `before`, is lost in part or divided twice."""
        owner = None if self._zeroed_of is None else self._zeroed_of()
        zeroed: list[Any] = []
        if owner is not None:
            zeroed = list(owner.parameters()) if isinstance(owner, nn.Module) else parameters_of(owner)
        is_lost = before < self._zeroed < self._passes and any(id(item) in step.parameters for item in zeroed)
        return self._dividing.of_parts(self._passes - before, step.parameters, is_lost=is_lost)
