"""Whether an output was rounded to one side, as by truncation, where a device rounds to nearest.

A truncated element is within one ULP of the exact result, so that no bound on single elements can see it. All of them
together can: of the elements that rounding to nearest moves up, truncation moves every one down. Both rounding to
nearest with an error below half an ULP before it and unbiased stochastic rounding move at most half of these elements
the other way, each independently of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS
from pytest_msprobe.numerics.rounding import round_once
from pytest_msprobe.numerics.ulp import float_format, in_spacings

Side = Literal["towards zero", "away from zero", "down", "up"]

#: The order in which they are reported: a truncated output of positive numbers is also rounded down.
_SIDES: tuple[Side, ...] = ("towards zero", "down", "away from zero", "up")
#: How many of the elements that should have gone the other way have to be on the suspected side.
NEARLY_ALL = 0.9
#: Chance of that many under fair rounding, by Hoeffding's inequality: exp(-2 n (share - 1/2)**2).
_CHANCE = 1e-9
#: Elements of one significand are rounded alike, so that they count as one; more than this many are not distinguished.
_ENOUGH = 128
_LOOKED_AT = 4096
#: Devices flush subnormals of wide exponent ranges only; float16 needs its own.
_FLUSHED_BELOW = 2.0**-126


@dataclass(frozen=True, slots=True)
class OneSided:
    """What was found.

    Attributes:
        side: where the elements went.
        count, total: how many of the elements that rounding to nearest moves to the other side.
    """

    side: Side
    count: int
    total: int


def find_one_sided(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> OneSided | None:
    """The side to which `tested` was rounded, or None where its rounding may be fair.

    Args:
        tested: floats of a format narrower than float32; None for all others, where a factor that all elements share
            may be off by half an ULP itself, which looks the same.
        reference: the exact result in float64, of the same shape.

    Only finite elements within one ULP count, and of bfloat16 only normal ones. What equals the rounded benchmark
    is never one-sided.
    """
    if tested.dtype.kind not in "fV" or tested.dtype.itemsize >= 4:
        return None
    counts = _Counts()
    flat, exact = tested.reshape(-1), reference.reshape(-1)
    for start in range(0, flat.size, CHUNK_ELEMENTS):
        counts.add(flat[start : start + CHUNK_ELEMENTS], exact[start : start + CHUNK_ELEMENTS])
    return next((found for side in _SIDES if (found := counts.found(side)) is not None), None)


class _Counts:
    """Per side: elements that nearest rounding moves to the other one, and how many of them went to this one."""

    def __init__(self) -> None:
        self._total = dict.fromkeys(_SIDES, 0)
        self._count = dict.fromkeys(_SIDES, 0)
        self._agreeing = dict.fromkeys(_SIDES, 0)
        self._significands: dict[Side, npt.NDArray[Any]] = dict.fromkeys(_SIDES, np.empty(0))

    def add(self, tested: npt.NDArray[Any], exact: npt.NDArray[Any]) -> None:
        """Take a chunk into account."""
        exact = exact.astype(np.float64, copy=False)  # the benchmark of a cast has the dtype of the cast
        wide, nearest = tested.astype(np.float64), round_once(exact, tested.dtype).astype(np.float64)
        moved = _comparable(wide, exact, tested.dtype) & (nearest != exact)
        wide, nearest, exact = wide[moved], nearest[moved], exact[moved]
        upwards, is_up, is_negative = nearest > exact, wide > exact, exact < 0
        wanted_up = (is_negative, np.zeros_like(is_up), ~is_negative, np.ones_like(is_up))
        for side, wanted in zip(_SIDES, wanted_up):
            self._add_side(side, exact, upwards != wanted, is_up == wanted)

    def _add_side(
        self, side: Side, exact: npt.NDArray[Any], is_other: npt.NDArray[Any], is_here: npt.NDArray[Any]
    ) -> None:
        self._total[side] += int(np.count_nonzero(is_other))
        self._count[side] += int(np.count_nonzero(is_other & is_here))
        self._agreeing[side] += int(np.count_nonzero(~is_other & ~is_here))
        if self._significands[side].size < _ENOUGH:
            seen = np.abs(np.frexp(exact[is_other][:_LOOKED_AT])[0])
            self._significands[side] = np.unique(np.concatenate([self._significands[side], seen]))

    def found(self, side: Side) -> OneSided | None:
        """The finding for one side."""
        count, total = self._count[side], self._total[side]
        if count <= NEARLY_ALL * total or self._agreeing[side] > (1 - NEARLY_ALL) * total:
            return None
        independent = min(total, self._significands[side].size)
        surprise = 2 * independent * (count / total - 0.5) ** 2
        return OneSided(side, count, total) if surprise > -math.log(_CHANCE) else None


def _comparable(wide: npt.NDArray[Any], exact: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Elements that are finite, within one ULP, and so large that no device flushes them to zero."""
    format_ = float_format(dtype)
    least = 4 * format_.smallest_normal
    if format_.smallest_normal > _FLUSHED_BELOW:
        least *= 2.0**-format_.mantissa_bits
    magnitude = np.abs(exact)
    with np.errstate(invalid="ignore"):
        error = np.abs(wide - exact)
    usable = np.isfinite(error) & (magnitude >= least) & (magnitude <= format_.largest)
    found: npt.NDArray[np.bool_] = usable.copy()
    found[usable] = in_spacings(error[usable], magnitude[usable], format_) <= 1
    return found
