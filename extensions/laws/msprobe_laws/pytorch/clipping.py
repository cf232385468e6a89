"""Clipping of gradients: what it gets, and whether what it leaves reaches a step."""

from __future__ import annotations

import functools
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Step, Violation, few_digits
from msprobe_laws.observation import Clipping, coarsest_roundoff
from msprobe_laws.pytorch.models import TorchRunning, ids_in_optimizers, is_away
from msprobe_laws.pytorch.ranks import SummedGradients
from msprobe_laws.pytorch.scaling import LossScaling
from msprobe_laws.pytorch.tensors import address_of, dtype_of, norm_of, version_of
from msprobe_laws.replacing import argument
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import CLIP_NORM
from pytest_msprobe.numerics.expected import Times

#: What clipping gets: parameters with gradients, others, the norm or why it is not known, and `Clipped.is_used`.
_Before = tuple[list[Any], list[Any], float | None, str, bool]

#: Clippings of which the norm is taken again afterwards; of later ones every sixteenth.
_CLIPPINGS = 4
#: Calls without gradients after which that is no accident.
_MANY = 5


@dataclass(slots=True)
class UsedGradient:
    """A gradient that a step has used.

    Attributes:
        parameter: whose it is.
        address, version: of its memory, and how often that was written.
        has_begun: whether a backward pass has begun since, with the gradient as it was.
    """

    parameter: weakref.ref[Any]
    address: int
    version: int
    has_begun: bool = False

    def is_of(self, parameter: Any) -> bool:
        """Return whether it is the gradient that `parameter` has now."""
        owner: Any = self.parameter()
        if owner is None or owner is not parameter or owner.grad is None:
            return False
        return address_of(owner.grad) == self.address


@dataclass(slots=True)
class Clipped:
    """What one call of clipping has left.

    Attributes:
        names: of the parameters.
        gradients: parameters, with address and version of their gradients.
        limit: of the norm.
        others: what it got without a gradient.
        is_used: whether a step has used the gradients, and no backward pass has written them since.
    """

    names: list[str]
    gradients: list[tuple[weakref.ref[Any], int, int]]
    limit: float
    others: list[weakref.ref[Any]]
    is_used: bool

    def is_of(self, parameters: Mapping[int, Any]) -> bool:
        """Return whether an optimizer of these parameters is to use it."""
        return any(id(reference()) in parameters for reference, _, _ in self.gradients)

    @property
    def held(self) -> list[tuple[Any, int, int]]:
        """The parameters that are left, with address and version of their gradients then."""
        return [(item, *rest) for reference, *rest in self.gradients if (item := reference()) is not None]

    def is_written(self) -> bool:
        """Return whether gradients were written since, and are there."""
        held = self.held
        if any(item.grad is None for item, *_ in held):
            return False
        return any(address_of(item.grad) == place and item.grad._version > version for item, place, version in held)

    def changed(self) -> str:
        """Return what was added to the gradients since; "" for nothing that makes their norm larger than the limit."""
        if not self.is_written():
            return ""
        norm, _ = norm_of([item.grad for item, *_ in self.held])
        if norm is None or not norm > Times.CLIPPED * self.limit:
            return ""
        return (
            f"the step gets gradients of norm {few_digits(norm)}, which were clipped to {self.limit:g}: they were "
            "changed after clipping (did another backward pass add to them?)"
        )


class ClippingSignals:
    """Follows calls that clip gradients."""

    def __init__(
        self,
        session: LawSession,
        guard: Guard,
        running: TorchRunning,
        scaling: LossScaling,
        used: Mapping[int, UsedGradient],
        summed: SummedGradients,
    ) -> None:
        """See nothing yet; `used` are the gradients that steps have used, by the ids of their parameters."""
        self._session, self._guard, self._running, self._scaling, self._stale = session, guard, running, scaling, used
        self._summed = summed
        self._clips = False
        self._clippings = self._empty_clippings = 0
        #: What clipping has left since the last step.
        self._left: list[Clipped] = []

    def step_begins(self, step: Step) -> list[Violation]:
        """Return what was done to clipped gradients that a step is to use."""
        taken = [clipped for clipped in self._left if clipped.is_of(step.parameters)]
        changed = [(clipped.names, clipped.changed()) for clipped in taken]
        findings = [Violation.of(CLIP_NORM, names, message) for names, message in changed if message]
        used = [clipped for clipped in self._left if clipped.is_used]
        if used and not taken:
            message = "gradients are clipped that a step has used before, and the next step gets others"
            findings.append(Violation.of(CLIP_NORM, used[0].names, message))
        if taken and self._clippings <= _CLIPPINGS:
            findings += self._outdated(taken, step)
        self._left = [clipped for clipped in self._left if clipped not in taken and not clipped.is_used]
        return findings

    def _outdated(self, taken: list[Clipped], step: Step) -> list[Violation]:
        """Return what is not clipped, where clipping gets parameters in place of which it may have come."""
        in_models = {key for model in self._running.models.values() for key in model.parameters}
        clipped: set[int] = set()
        gone: set[int] = set()
        for entry in taken:
            clipped.update(id(reference()) for reference, *_ in entry.gradients)
            gone.update(id(item) for reference in entry.others if (item := reference()) is not None)
        gone -= in_models
        without = [key for key, item in step.parameters.items() if item.grad is not None and key not in clipped]
        if not without or not gone or not gone - ids_in_optimizers():
            return []
        message = "it is not clipped, and clipping gets parameters that no model and no optimizer has (any more?)"
        return step.findings(CLIP_NORM, without, message)

    def clear(self) -> None:
        """Forget clipped gradients, which were set to zero."""
        self._left.clear()

    def seen(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        """Return what stands in the place of a function that clips."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            if is_away(self._guard) or self._clips:
                return original(*args, **kwargs)
            parameters = argument(args, kwargs, 0, "parameters")
            if isinstance(parameters, Iterator):  # it can be looked through once
                parameters = list(parameters)
                args, kwargs = (
                    ((parameters, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": parameters})
                )
            source = sys._getframe(1)
            before = self._guard.enter("laws: clipping begins", self._norm_before, parameters, source)
            self._clips = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._clips = False
            if before is not None:
                frame = sys._getframe(1)
                self._guard.enter("laws: clipping ends", self._clipped, before, result, signature, args, kwargs, frame)
            return result

        return clip

    def _norm_before(self, tensors: Any, frame: FrameType) -> _Before | None:
        if isinstance(tensors, (torch.Tensor, nn.Module)):
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors.parameters()
        tensors = [item for item in tensors if isinstance(item, torch.Tensor)]
        if not tensors:
            message = "clipping gets no parameters (an iterator that was looked through before?), and clips nothing"
            self._session.say(CLIP_NORM, "clipping", [Violation(CLIP_NORM, "gradients", message)])
            return None
        parameters = [item for item in tensors if item.grad is not None]
        norm, unknown = norm_of([item.grad for item in parameters])
        self._empty_clippings = 0 if norm != 0 else self._empty_clippings + 1
        if self._empty_clippings == _MANY:
            message = f"clipping gets no gradients, or zeros, in {_MANY} calls (does it come before the backward?)"
            self._session.say(
                CLIP_NORM, "clipping", [Violation(CLIP_NORM, "gradients", message)], source=source_of(frame)
            )
        if not parameters:
            return None
        used = [self._stale.get(id(item)) for item in parameters]
        is_used = all(
            old is not None and old.is_of(item) and old.version == version_of(item.grad)
            for old, item in zip(used, parameters)
        )
        return parameters, [item for item in tensors if item.grad is None], norm, unknown, is_used

    def _clipped(
        self,
        before: _Before,
        result: Any,
        signature: inspect.Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
    ) -> None:
        parameters, others, norm, unknown, is_used = before
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        norm_type = float(bound.arguments.get("norm_type", 2.0))
        if norm_type != 2.0:
            unknown, norm = f"gradients are clipped by the norm {norm_type:g}", None
        total_norm = bound.arguments.get("total_norm")
        reported = result if total_norm is None else total_norm
        if isinstance(reported, torch.Tensor):
            reported = getattr(reported, "_local_tensor", reported)
        after, limit = None, float(bound.arguments.get("max_norm", math.inf))
        self._clippings += 1
        is_turn = self._clippings <= _CLIPPINGS or self._clippings % 16 == 0
        if is_turn and norm is not None and norm > limit:
            after, _ = norm_of([item.grad for item in parameters])
        names = {key: path for model in self._running.models.values() for key, path in model.parameters.items()}
        scale = 1.0 if self._scaling.is_unscaled() else self._scaling.scale()
        paths = [names.get(id(item), f"parameters.{at}") for at, item in enumerate(parameters)]
        if norm and limit < math.inf:
            earlier = [entry for entry in self._left if entry.names == paths and entry.is_written()]
            self._left = [entry for entry in self._left if entry.names != paths]
            message = ""
            if is_used and not any(self._stale[id(item)].has_begun for item in parameters):
                scale = 1.0
                message = (
                    "gradients are clipped after the step that has used them: what clipping leaves reaches no step"
                )
            else:
                gradients = [(weakref.ref(item), address_of(item.grad), item.grad._version) for item in parameters]
                is_used = is_used and norm > limit / 2
                self._left.append(Clipped(paths, gradients, limit, list(map(weakref.ref, others)), is_used))
                if earlier and norm > limit:
                    message = "gradients are clipped once more after a further backward: before the batch is added up"
            if message:
                finding = Violation.of(CLIP_NORM, paths, message)
                self._session.say(CLIP_NORM, "clipping", [finding], source=source_of(frame))
        reported = float(reported) if isinstance(reported, (torch.Tensor, float, int)) else None
        size = sum(map(torch.numel, parameters))
        unit = coarsest_roundoff(dtype_of(item.grad) for item in parameters)
        has_others, source = not self._summed.are_whole(parameters), source_of(frame)
        self._session.clipping(
            Clipping(paths, norm, after, reported, limit, size, unit, scale, source, unknown, has_others)
        )
