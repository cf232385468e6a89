"""Random numbers in a range with a given mean and mean square: what the statistics of a tensor tell of its values.

A beta distribution over the range has any mean and variance that are possible there: from nearly constant (weights of a
norm), over bell-shaped and uniform, to nearly all at the ends (masks, attention probabilities). At the limit it is two
points, as in a one-hot tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Values that are drawn for a tensor; a larger one interpolates between neighbours of them.
_TABLE = 4096
#: From this share of the largest possible variance on, all values are at the ends.
_TWO_POINTS = 0.98
#: A block and what it is made of stay in the cache of one core.
_BLOCK = 1 << 15
#: Of 16 random bits the upper ones choose a value of the table.
_SHIFT = 4
assert _TABLE == 1 << 16 - _SHIFT


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and mean square of values between `low` and `high`."""

    low: float
    high: float
    mean: float
    square: float

    @classmethod
    def without(
        cls, pinned: tuple[float, ...], size: int, bounds: tuple[float, float], mean: float, norm: float
    ) -> Moments | None:
        """Moments of the elements besides `pinned` in a tensor of `size` with this mean and norm.

        None where they are unknown.
        """
        count = size - len(pinned)
        low, high = bounds
        if count < 1 or not all(map(math.isfinite, (low, high, mean, norm))) or not low < high:
            return None
        with np.errstate(all="ignore"):
            rest = (size * mean - sum(pinned)) / count
            square = (float(np.float64(norm) ** 2) - sum(float(np.float64(value) ** 2) for value in pinned)) / count
        if not (math.isfinite(rest) and math.isfinite(square)):
            return None
        return cls(low, high, min(max(rest, low), high), max(square, 0.0))

    @property
    def shape(self) -> tuple[float, float]:
        """(mean, variance) relative to the range: from 0 to 1, and from 0 to a quarter."""
        width = self.high - self.low
        return (self.mean - self.low) / width, max(0.0, self.square - self.mean**2) / width**2


def draw(moments: Moments, count: int, generator: np.random.Generator, out: npt.NDArray[np.generic]) -> None:
    """Fill the flat array `out` of `count` elements, rounding each value to its dtype."""
    place, variance = moments.shape
    most = place * (1 - place)
    if variance <= 1e-12 * max(most, 1e-300) or most <= 0:
        out[:] = moments.mean
    elif variance >= _TWO_POINTS * most:
        _draw_ends(moments, place, generator, out)
    else:
        _draw_between(moments, most / variance - 1, generator, out)


def _draw_ends(moments: Moments, place: float, generator: np.random.Generator, out: npt.NDArray[np.generic]) -> None:
    out[:] = moments.low
    chosen = generator.choice(out.size, size=min(out.size, round(place * out.size)), replace=False, shuffle=False)
    out[chosen] = moments.high


def _draw_between(
    moments: Moments, concentration: float, generator: np.random.Generator, out: npt.NDArray[np.generic]
) -> None:
    place = moments.shape[0]
    table = generator.beta(place * concentration, (1 - place) * concentration, min(out.size, _TABLE))
    table = _adjusted(moments.low + (moments.high - moments.low) * table, moments)
    if out.size <= _TABLE:
        out[:] = table
        return
    table.sort()
    # In the dtype of the tensor where it is short: float64 would be drawn and moved through memory only to be rounded.
    table = table.astype(np.float32 if out.dtype.itemsize <= 4 and out.dtype.kind != "i" else np.float64)
    steps = np.append(np.diff(table), 0).astype(table.dtype)
    # Shares of a step: each block takes them from another place on, which costs less than to draw new ones.
    shares = generator.random(min(out.size, 2 * _BLOCK), dtype=table.dtype.type)
    length = min(out.size, _BLOCK)
    chosen, step, rounded = np.empty(length, np.intp), *np.empty((2, length), table.dtype)
    for start in range(0, out.size, length):
        block = out[start : start + length]
        count = block.size
        drawn = generator.bit_generator.random_raw(count // 4 + 2)
        np.right_shift(drawn.view(np.uint16)[:count], _SHIFT, out=chosen[:count])
        found = block if out.dtype == table.dtype else rounded[:count]
        # "clip", as "raise" would go through a copy; no place is beyond the table.
        table.take(chosen[:count], out=found, mode="clip")
        steps.take(chosen[:count], out=step[:count], mode="clip")
        first = int(drawn[-1]) % (shares.size - count + 1)
        step[:count] *= shares[first : first + count]
        found += step[:count]
        if found is not block:
            block[:] = found


def _adjusted(values: Floats, moments: Moments) -> Floats:
    """The values with the mean and the variance that were asked for, where that keeps them in the range."""
    spread = float(values.std())
    wanted = math.sqrt(max(0.0, moments.square - moments.mean**2))
    if values.size < 2 or not spread > 0:
        return values
    found: Floats = (values - values.mean()) * (wanted / spread) + moments.mean
    is_inside = (found >= moments.low) & (found <= moments.high)
    return np.where(is_inside, found, values) if is_inside.mean() > 0.9 else values
