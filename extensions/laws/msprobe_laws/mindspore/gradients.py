"""Gradients of a MindSpore training, from where they are computed to the step: added up, scaled, clipped."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Checked, Step, Unchecked, Violation
from msprobe_laws.mindspore.tensors import dtype_of, factors_of, norm_of, some_elements, tensors_in
from msprobe_laws.observation import Array, Clipping, coarsest_roundoff
from msprobe_laws.replacing import argument
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import CLIP_NORM, FRESH, SCALE_REMOVED
from pytest_msprobe.numerics.expected import Relative

#: Elements of the gradient of one parameter.
_GRADIENT = 32
#: Elements that gradients of two parameters do not share by chance.
_TELLING = 8


@dataclass(slots=True)
class _GradientSum:
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


class _GradientTensors:
    """A set of tensors, by identity, which keeps none of them alive."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, tensor: Any) -> bool:
        reference = self._references.get(id(tensor))
        return reference is not None and reference() is tensor

    def add(self, tensor: Any) -> None:
        self._references[id(tensor)] = weakref.ref(tensor)

    def forget_dead(self) -> None:
        self._references = {key: item for key, item in self._references.items() if item() is not None}


class Gradients:
    """Follows gradients."""

    def __init__(self, session: LawSession, guard: Guard, is_away: Callable[[], bool]) -> None:
        """See nothing yet."""
        self._session, self._guard, self._is_away = session, guard, is_away
        self._sums: dict[int, _GradientSum] = {}
        #: Gradients that hold the scale of a loss scaler.
        self._scaled = _GradientTensors()
        self._scale = 1.0
        self._is_scaling = False
        #: Whether a loss was scaled since gradients were last unscaled; None as long as no loss was.
        self._is_scale_due: bool | None = None
        #: Gradients that were clipped, by id; they are kept until the step.
        self._clipped: dict[int, Any] = {}

    # What is replaced

    def seen_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in the place of the method that computes gradients."""

        @functools.wraps(original)
        def grad(executor: Any, fn: Any, operation: Any, weights: Any, *args: Any) -> Any:
            result = original(executor, fn, operation, weights, *args)
            if not self._is_away() and weights is not None:
                self._guard.enter("laws: gradients", self._add, weights, result)
            return result

        return grad

    def _add(self, weights: Any, result: Any) -> None:
        chosen = list(weights) if isinstance(weights, (tuple, list)) else [weights]
        gradients = list(tensors_in(result))[-len(chosen) :]
        if len(gradients) != len(chosen):
            return
        for item, gradient in zip(chosen, gradients):
            if not isinstance(item, Parameter):
                continue
            total = self._sum_of(item)
            if total is None:
                total = self._sums[id(item)] = _GradientSum(weakref.ref(item))
            some = some_elements(gradient, _GRADIENT)
            total.now = some if total.now is None or total.now.size != some.size else total.now + some
            if self._is_scaling:
                self._scaled.add(gradient)
        self._is_scaling = False

    def note_scaled(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a loss is multiplied by the scale of a scaler."""
        scale = args[0].scale_value
        self._scale = float(scale.asnumpy()) if isinstance(scale, Tensor) else 1.0
        self._is_scaling = self._scale != 1
        self._is_scale_due = True

    def note_unscaled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that gradients are divided by the scale, which a loss must have been multiplied by."""
        was_due, self._is_scale_due = self._is_scale_due, False
        if was_due is False and not any(item in self._scaled for item in tensors_in((args[1:], kwargs))):
            message = "the loss scaler divides by its scale, and no loss was multiplied with it since it last did"
            finding = Violation(SCALE_REMOVED, "gradients", message)
            self._session.say(SCALE_REMOVED, "scaler", [finding], source=source_of(sys._getframe()))

    def clipped(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note that gradients are clipped by their norm."""
        gradients = list(tensors_in(argument(args, kwargs, 0, "x", ())))
        results = list(tensors_in(result))
        limit = argument(args, kwargs, 1, "clip_norm", 1.0)
        if not gradients or len(gradients) != len(results):
            return
        self._clipped.update((id(item), item) for item in gradients)
        is_scaled = any(item in self._scaled for item in gradients)
        uses_norm = argument(args, kwargs, 2, "use_norm") is not None
        limit = float(limit) if isinstance(limit, (int, float)) else 0.0
        size, unit = sum(int(item.size) for item in gradients), coarsest_roundoff(map(dtype_of, gradients))
        names, scale, source = self._names_of(gradients), self._scale if is_scaled else 1.0, source_of(sys._getframe(3))
        unknown = "the norm is given by the script" if uses_norm else ""
        before, after = (None, None) if uses_norm else (norm_of(gradients), norm_of(results))
        self._session.clipping(Clipping(names, before, after, None, limit, size, unit, scale, source, unknown))

    def _names_of(self, gradients: Sequence[Any]) -> list[str]:
        names = [name for name, _ in self.candidates()]
        if len(names) != len(gradients):
            names = [f"gradients.{at}" for at in range(len(gradients))]
        return names

    # Steps

    def candidates(self) -> Iterator[tuple[str, Any]]:
        """Return (name, parameter) of the parameters of which gradients were computed since their last step."""
        for total in self._sums.values():
            item = total.parameter()
            if item is not None and total.now is not None:
                yield str(item.name), item

    def step_begins(self, step: Step, gradients: Sequence[Any]) -> Iterator[tuple[str, str, Checked]]:
        """Return (law, of what, what it says) of the gradients that a step gets."""
        pairs = list(zip(step.order, gradients))
        yield SCALE_REMOVED, step.name, self._scale_removed(step, pairs)
        yield FRESH, step.name, self._fresh(step, pairs)
        unclipped = [id(item) for item, gradient in pairs if id(gradient) in self._clipped]
        message = "the step gets the gradient as it was before clipping: what clipping has left reaches no step"
        if unclipped:
            yield CLIP_NORM, "clipping", step.findings(CLIP_NORM, unclipped, message)

    def step_ended(self, step: Step) -> None:
        """Note that a step has used the gradients of its parameters."""
        for item in step.order:
            total = self._sum_of(item)
            if total is not None and total.now is not None:
                total.last = total.now
                total.all_before = total.now if total.all_before is None else total.all_before + total.now
                total.now = None
        self._scaled.forget_dead()
        self._clipped.clear()

    def _scale_removed(self, step: Step, pairs: Sequence[tuple[Any, Any]]) -> Checked:
        if self._scale == 1:
            return Unchecked("no loss scaler is used", is_moot=True)
        scaled = [id(item) for item, gradient in pairs if gradient in self._scaled]
        message = f"the step gets gradients that still hold the scale {self._scale:g} of the loss scaler"
        return step.findings(SCALE_REMOVED, scaled, message)

    def _fresh(self, step: Step, pairs: Sequence[tuple[Any, Any]]) -> Checked:
        """Look whether the gradients are a multiple of those of this step, or of these and of those of steps before."""
        rows: list[tuple[Array, Array, Array, Array]] = []
        computed: dict[bytes, Any] = {}
        taken: dict[bytes, Any] = {}
        for item, gradient in pairs:
            total = self._sum_of(item)
            if total is None or total.now is None or total.last is None or not isinstance(gradient, Tensor):
                continue
            some = some_elements(gradient, _GRADIENT)
            if np.any(some) and some.size >= _TELLING:
                computed[total.now.tobytes()], taken[some.tobytes()] = item, item
            if some.size == total.now.size == total.last.size and total.all_before is not None:
                rows.append((some, total.now, total.last, total.all_before))
        if not rows:
            return Unchecked("gradients of two steps one after another were not seen")
        if exchanged := [id(item) for key, item in taken.items() if computed.get(key, item) is not item]:
            return step.findings(FRESH, exchanged, "the step gets the gradient of another parameter for it")
        gradients, now, last, before = (np.concatenate(column) for column in zip(*rows))
        if factors_of(gradients, (now,)):
            return []
        for older, which in ((last, "the step before"), (before, "the steps before")):
            shares = factors_of(gradients, (now, older))
            if shares and abs(shares[1] - shares[0]) < Relative.SAME_SUM * abs(shares[0]):
                message = f"its gradient still holds that of {which}: what gradients are added to was not set to zero"
                return step.findings(FRESH, step.parameters, message)
        return Unchecked("the step gets other values than the gradients that were computed (reduced over ranks?)")

    def _sum_of(self, item: Any) -> _GradientSum | None:
        total = self._sums.get(id(item))
        return total if total is not None and total.parameter() is item else None
