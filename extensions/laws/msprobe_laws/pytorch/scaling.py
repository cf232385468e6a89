"""Loss scalers: whether the scale that a loss was multiplied by is taken off its gradients, once."""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.recording.guard import Guard
from msprobe_laws.law import Checked, Step, Unchecked, Violation
from msprobe_laws.models import Running
from msprobe_laws.observation import Array
from msprobe_laws.pytorch.models import is_away, parameters_of
from msprobe_laws.pytorch.tensors import dtype_of, first, tensors_in
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import FRESH, SCALE_REMOVED
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import Relative, Roundoffs

_ELEMENTS = 32


class Dividing:
    """Follows one parameter of each model from a backward pass to the step."""

    def __init__(self) -> None:
        """See nothing yet."""
        #: What the losses of the last backward passes were divided by; 1.0 for nothing.
        self._divisors: deque[float] = deque(maxlen=256)
        #: Parameters with their names, and elements of their gradients after the last backward pass.
        self._left: list[tuple[weakref.ref[Any], str, Array]] = []

    def backward_begins(self, roots: Iterable[Any]) -> None:
        """Note that a backward pass of these losses begins."""
        self._divisors.append(max((_divisor_of(root) for root in roots if isinstance(root, torch.Tensor)), default=1.0))

    def backward_ended(self, running: Running, *, is_scaled: bool) -> None:
        """Note what it has left."""
        self._left.clear()
        if not is_scaled and self._divisors[-1] == 1:
            return
        for _, root in running.roots():
            for name, item in root.named_parameters():
                if item.grad is not None and not item.grad.is_sparse:
                    self._left.append((weakref.ref(item), name, _elements(item.grad)))
                    break

    def of_parts(self, passes: int, parameters: Mapping[int, Any], *, is_lost: bool) -> list[Violation]:
        """Return what is wrong where the losses of so many passes, parts of a batch, were each divided by their number.

        `is_lost` is whether gradients of these parameters were set to zero in between.
        """
        if passes < 2 or list(self._divisors)[-passes:] != [float(passes)] * passes:
            return []
        message = f"losses of {passes} backward passes are each divided by {passes}, and "
        message += "gradients are set to zero in between" if is_lost else f"their gradients by {passes} once more"
        return [
            Violation(FRESH, name, message)
            for name, factor in self.factors(parameters).items()
            if is_lost or abs(factor * passes - 1) < Relative.DIVIDED
        ]

    def factors(self, parameters: Mapping[int, Any]) -> dict[str, float]:
        """Return the number that gradients of these parameters were multiplied with since the last backward pass."""
        factors = {}
        for reference, name, before in self._left:
            item = reference()
            if item is None or id(item) not in parameters or item.grad is None:
                continue
            now, clear = _elements(item.grad), before != 0
            if now.size != before.size or not clear.any():
                continue
            ratios = now[clear] / before[clear]
            if float(ratios.max() - ratios.min()) <= Roundoffs.SAME_DIVISOR * unit_roundoff(dtype_of(item.grad)) * abs(
                float(ratios[0])
            ):
                factors[name] = float(ratios[0])
        return factors


def _elements(gradient: Any) -> Array:
    return first(gradient, _ELEMENTS).astype(np.float64)


def _divisor_of(loss: torch.Tensor) -> float:
    """Return the last number that a loss was divided by; 1.0 for none."""
    node: Any = loss.grad_fn
    for _ in range(2):  # a scaler may have multiplied it since
        if node is None:
            break
        divisor = getattr(node, "_saved_other", None) if node.name() == "DivBackward0" else None
        if isinstance(divisor, torch.Tensor) and divisor.numel() == 1:
            return float(divisor)
        node = next((inner for inner, _ in node.next_functions if inner is not None), None)
    return 1.0


#: Scales up to which gradients may be divided by the same number for another reason, such as the number of ranks.
_CLEAR = 64


class LossScaling:
    """Follows the loss scaler of a training."""

    def __init__(self, session: LawSession, guard: Guard, tries: Callable[[], None], dividing: Dividing) -> None:
        """See nothing yet; `tries` is called where a scaler is about to let an optimizer step, or not."""
        self._session, self._guard, self._tries, self._dividing = session, guard, tries, dividing
        #: Whether the last backward pass was one of a scaled loss, and what was scaled.
        self._is_scaled = False
        self._scaled: Any = WeakIdKeyDictionary()
        self._scaler: Any = None
        #: Whether a loss was scaled since the gradients of an optimizer were last divided by the scale, by its id.
        self._unscaled: dict[int, bool] = {}
        self._is_unscaling = False

    def backward_begins(self, roots: Iterable[Any]) -> None:
        """Note that a backward pass of these tensors begins."""
        self._is_scaled = any(isinstance(root, torch.Tensor) and root in self._scaled for root in roots)

    def is_unscaled(self) -> bool:
        """Return whether the scaler has divided the gradients of an optimizer since its last step."""
        return self._scaler is not None and any(
            getattr(state.get("stage"), "name", "") == "UNSCALED" for state in _stages(self._scaler).values()
        )

    def seen_unscaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in the place of a method of a scaler that divides gradients by the scale."""

        @functools.wraps(original)
        def unscale(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_away(self._guard) or self._is_unscaling:
                return original(scaler, optimizer, *args, **kwargs)
            self._guard.enter("laws: gradients are unscaled", self._note_unscaled, scaler, optimizer)
            self._is_unscaling = True  # a step may call unscale_ itself
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                self._is_unscaling = False

        return unscale

    def _note_unscaled(self, scaler: Any, optimizer: Any) -> None:
        """Check that a scaler divides gradients once a step, by a scale that a loss must have been multiplied with."""
        stage = getattr(_stages(scaler).get(id(optimizer), {}).get("stage"), "name", "READY")
        if not scaler.is_enabled() or stage != "READY":
            return
        self._tries()
        was_scaled, self._unscaled[id(optimizer)] = self._unscaled.get(id(optimizer), True), False
        kind, scale = type(optimizer).__name__, self.scale()
        if not (self._scaler is scaler and was_scaled):
            message = "no loss was multiplied with it since the last step"
            names = [kind]
        else:
            parameters = {id(item): item for item in parameters_of(optimizer)}
            factors = self._dividing.factors(parameters) if scale > _CLEAR else {}
            message = "they were divided by it after the backward pass"
            names = [name for name, factor in factors.items() if abs(factor * scale - 1) < Relative.DIVIDED]
        if names:
            finding = Violation(
                SCALE_REMOVED, names[0], f"the loss scaler divides gradients by its scale, and {message}"
            )
            self._session.say(SCALE_REMOVED, kind, [finding], source=source_of(sys._getframe()))

    def held_scale(self) -> float | None:
        """Return the scale of the scaler that was used last; None without one."""
        scale = getattr(self._scaler, "_scale", None)
        return None if scale is None else float(scale)

    def note_scaled(self, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a loss, or several tensors, were multiplied by the scale."""
        self._scaler = args[0]
        self._unscaled = dict.fromkeys(self._unscaled, True)
        for item in tensors_in(result):
            self._scaled[item] = True

    def scale(self) -> float:
        """Return what the gradients of the last backward pass hold; 1.0 for nothing."""
        scale = self.held_scale()
        return scale if self._is_scaled and scale is not None and self._scaler.is_enabled() else 1.0

    def at_step(self, step: Step) -> Checked:
        """Return whether the gradients that a step gets hold no scale."""
        if self._scaler is None:
            return Unchecked("no loss scaler is used", is_moot=True)
        scale = self.scale()
        state = _stages(self._scaler).get(id(step.optimizer), {})
        stage = getattr(state.get("stage"), "name", "READY")
        if scale == 1 or stage != "READY" or getattr(step.optimizer, "grad_scale", None) is not None:
            return []
        message = f"the step gets gradients that still hold the scale {scale:g} of the loss scaler"
        return step.findings(SCALE_REMOVED, step.names, message)


def _stages(scaler: Any) -> Mapping[int, Any]:
    """Return what a loss scaler keeps of each optimizer by its id; one that is not enabled keeps nothing."""
    found: Mapping[int, Any] = getattr(scaler, "_per_optimizer_states", {})
    return found
