"""What the last backward passes have given, and by what it was divided until a step gets it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from msprobe_laws.law import Violation
from msprobe_laws.models import Running
from msprobe_laws.observation import Array
from msprobe_laws.pytorch.tensors import dtype_of, first
from msprobe_laws.training import FRESH
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
