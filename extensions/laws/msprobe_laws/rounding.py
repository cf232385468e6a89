"""Numbers with a bound on what rounding may have done to them (a running error analysis).

Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.3. A formula that is
written once with these numbers gives its value in float64 and, beside it, how far the same formula in the training's
own arithmetic may be off, whatever the order in which a kernel fuses its products and sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe_laws.observation import Array
from pytest_msprobe.numerics.expected import Roundoffs

Operand = Any


class Rounded:
    """An array of float64 values and of bounds on their absolute errors.

    Attributes:
        value: as computed in float64.
        error: how far the tested arithmetic may be from it.
        unit: unit roundoff of the tested arithmetic.
        tiny: absolute error of each operation near zero (underflow).
    """

    __slots__ = ("error", "tiny", "unit", "value")
    #: NumPy must ask this class for `array * Rounded`.
    __array_priority__ = 1000

    def __init__(self, value: Any, error: Any = 0.0, *, unit: float, tiny: float = 0.0) -> None:
        self.value = np.asarray(value, np.float64)
        self.error = np.asarray(error, np.float64)
        self.unit, self.tiny = unit, tiny

    def _result(self, value: Array, error: Array, other: Rounded | None = None) -> Rounded:
        """`value` after one more rounding. Two units: a kernel may round a constant first, too."""
        other = other or self
        unit, tiny = max(self.unit, other.unit), max(self.tiny, other.tiny)
        return Rounded(value, error + 2 * unit * np.abs(value) + tiny, unit=unit, tiny=tiny)

    def _of(self, other: Operand) -> Rounded:
        return other if isinstance(other, Rounded) else Rounded(other, 0.0, unit=self.unit, tiny=self.tiny)

    def __add__(self, other: Operand) -> Rounded:
        right = self._of(other)
        return self._result(self.value + right.value, self.error + right.error, right)

    __radd__ = __add__

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error, unit=self.unit, tiny=self.tiny)

    def __sub__(self, other: Operand) -> Rounded:
        return self + (-self._of(other))

    def __rsub__(self, other: Operand) -> Rounded:
        return self._of(other) + (-self)

    def __mul__(self, other: Operand) -> Rounded:
        right = self._of(other)
        error = np.abs(self.value) * right.error + np.abs(right.value) * self.error + self.error * right.error
        return self._result(self.value * right.value, error, right)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Rounded:
        right = self._of(other)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = self.value / right.value
            room = np.abs(right.value) - right.error
            error = np.where(room > 0, (self.error + np.abs(value) * right.error) / room, np.inf)
        return self._result(value, error, right)

    def __rtruediv__(self, other: Operand) -> Rounded:
        return self._of(other) / self

    def sqrt(self) -> Rounded:
        """Return the square root; of a value that rounding may have made negative, that of zero."""
        value = np.sqrt(np.maximum(self.value, 0.0))
        low = np.sqrt(np.maximum(self.value - self.error, 0.0))
        return self._result(value, np.maximum(np.sqrt(np.maximum(self.value + self.error, 0.0)) - value, value - low))

    def power(self, exponent: Any) -> Rounded:
        """Return the power with exact exponents, of a positive number; a kernel's `pow` may be off by some units."""
        value = np.power(self.value, exponent)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(self.value != 0, self.error / np.abs(self.value), 0.0)
        error = np.abs(value) * (np.abs(exponent) * relative + Roundoffs.ELEMENTARY * self.unit)
        return self._result(value, error)

    def absolute(self) -> Rounded:
        """Return the magnitude."""
        return Rounded(np.abs(self.value), self.error, unit=self.unit, tiny=self.tiny)

    def at_least(self, least: Operand) -> Rounded:
        """Return the larger of the two."""
        right = self._of(least)
        value = np.maximum(self.value, right.value)
        return Rounded(value, np.maximum(self.error, right.error), unit=self.unit, tiny=self.tiny)

    def mean(self, axis: int | None = None) -> Rounded:
        """Return the mean over an axis (kept), of all elements without one."""
        keep = axis is not None
        size = self.value.size if axis is None else self.value.shape[axis]
        value = np.mean(self.value, axis=axis, keepdims=keep)
        total = np.mean(np.abs(self.value), axis=axis, keepdims=keep)
        # Blocked sums: the square root of their length, and a margin, is far above what is seen.
        error = np.mean(np.broadcast_to(self.error, self.value.shape), axis=axis, keepdims=keep)
        return self._result(value, error + (Roundoffs.MEAN + 2 * np.sqrt(size)) * self.unit * total)


def joined(choice: Array, yes: Rounded, no: Rounded) -> Rounded:
    """`yes` where `choice` is true, else `no`."""
    return Rounded(
        np.where(choice, yes.value, no.value), np.where(choice, yes.error, no.error), unit=yes.unit, tiny=yes.tiny
    )
