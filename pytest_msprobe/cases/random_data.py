"""Random tensors in the recorded range, for dumps that hold statistics only.

Each tensor has a generator of its own, seeded by the run's seed, the record's name and the tensor's place in it: the
same data whatever runs before, beside or without it, and different data for every tensor.

Random numbers in a range with a given mean and mean square: what the statistics of a tensor tell of its values.

A beta distribution over the range has any mean and variance that are possible there: from nearly constant (weights of a
norm), over bell-shaped and uniform, to nearly all at the ends (masks, attention probabilities). At the limit it is two
points, as in a one-hot tensor.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import Dtype, FieldPath, TensorValue, array_dtype
from pytest_msprobe.numerics.expected import Absolute, Relative, Share

Floats = npt.NDArray[np.float64]

#: Values that are drawn for a tensor; a larger one interpolates between neighbours of them.
_TABLE = 4096
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
    if variance <= Share.NO_SPREAD * max(most, Absolute.ZERO_OF_FLOAT64) or most <= 0:
        out[:] = moments.mean
    elif variance >= Share.TWO_POINTS * most:
        out[:] = moments.low
        chosen = generator.choice(out.size, size=min(out.size, round(place * out.size)), replace=False, shuffle=False)
        out[chosen] = moments.high
    else:
        _draw_between(moments, most / variance - 1, generator, out)


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
        values = block if out.dtype == table.dtype else rounded[:count]
        # "wrap", as "raise" would go through a copy, and "clip" takes longer; no place is beyond the table.
        table.take(chosen[:count], out=values, mode="wrap")
        steps.take(chosen[:count], out=step[:count], mode="wrap")
        first = int(drawn[-1]) % (shares.size - count + 1)
        step[:count] *= shares[first : first + count]
        values += step[:count]
        if values is not block:
            block[:] = values


def _adjusted(values: Floats, moments: Moments) -> Floats:
    """The values with the mean and the variance that were asked for, where that keeps them in the range."""
    spread = float(values.std())
    wanted = math.sqrt(max(0.0, moments.square - moments.mean**2))
    if values.size < 2 or not spread > 0:
        return values
    adjusted: Floats = (values - values.mean()) * (wanted / spread) + moments.mean
    is_inside = (adjusted >= moments.low) & (adjusted <= moments.high)
    return np.where(is_inside, adjusted, values) if is_inside.mean() > Share.ADJUSTED else values


#: Drawn from where the dump holds no range at all.
DEFAULT_RANGE = {"float": (-1.0, 1.0), "complex": (0.0, 1.0), "int": (0, 1), "bool": (0, 1)}

_EXACT_IN_FLOAT64 = 2**53


def generator_for(seed: int, place: FieldPath) -> np.random.Generator:
    """The random generator of one tensor, a function of `seed`, record name and field only."""
    digest = hashlib.blake2b(f"{seed}|{place.record}|{place.field}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64DXSM(int.from_bytes(digest, "little")))


def has_known_range(value: TensorValue) -> bool:
    """Whether the dump tells from where to draw: it holds Min and Max, or the tensor is empty."""
    return value.size == 0 or (value.maximum is not None and value.minimum is not None)


def random_array(value: TensorValue, generator: np.random.Generator, place: FieldPath) -> np.ndarray[Any, Any]:
    """Random values in the dtype and shape of `value`, between its Min and Max, both of which occur.

    Floats and integers have its Mean and Norm as well where the dump holds them (see `Moments`), else they are
    uniform. Rows of probabilities, whose mean is one over their length, sum to one. Integers include both ends. NaN and
    infinities occur where the statistics show them. Without Min and Max the range is -1 to 1 for floats, 0 to 1 for
    integers, both truth values for bools. Complex numbers get a uniform magnitude (their statistics are those of |z|)
    and any phase.

    Raises:
        DumpError: there is no array type for the dtype.
    """
    dtype = value.dtype
    if dtype is None or (target := array_dtype(dtype)) is None:
        raise (place / "dtype").fault(f"there is no array type for {dtype.name if dtype else 'this array'}")
    if value.size == 0:
        return np.zeros(value.shape, dtype=target)
    if dtype.kind == "bool":
        low, high = sorted(int(bool(end)) for end in _ends(value, "bool"))
        drawn = generator.integers(low, high, size=value.size, endpoint=True, dtype=np.int8)
        flat = _pin(drawn, (high, low), generator).astype(np.bool_)
    elif dtype.kind == "int":
        flat = _integers(value, dtype, target, generator)
    elif (moments := _moments(value, dtype)) is not None:
        return _resembling(value, dtype, target, moments, generator)
    elif dtype.kind == "complex":
        magnitude = _floats(value, dtype, generator)
        flat = magnitude * np.exp(2j * np.pi * generator.random(value.size))
    else:
        flat = _floats(value, dtype, generator)
    with np.errstate(over="ignore", invalid="ignore"):
        return flat.astype(target).reshape(value.shape)


def _moments(value: TensorValue, dtype: Dtype) -> Moments | None:
    """What Mean and Norm say of a float or integer tensor; None where they say nothing."""
    if value.mean is None or value.norm is None or dtype.kind not in ("float", "int"):
        return None
    bounds = _float_range(value, dtype)
    ends = bounds.low, bounds.high
    return Moments.without(bounds.occurring, value.size, ends, float(value.mean), float(value.norm))


def _resembling(
    value: TensorValue, dtype: Dtype, target: np.dtype[Any], moments: Moments, generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Floats with the recorded mean and norm."""
    flat = np.empty(value.size, target)
    with np.errstate(over="ignore", invalid="ignore"):
        draw(moments, value.size, generator, flat)
        if _holds_probabilities(value):
            return _with_sum_one(flat.reshape(value.shape), generator)
        _pin(flat, _float_range(value, dtype).occurring, generator)
    return flat.reshape(value.shape)


def _holds_probabilities(value: TensorValue) -> bool:
    """Whether the mean of a tensor in [0, 1] is one over the length of its rows."""
    if not value.shape or value.shape[-1] < 2 or value.mean is None or value.minimum is None or value.maximum is None:
        return False
    is_share = value.minimum >= 0 and 0 < value.maximum <= 1
    return bool(is_share and math.isclose(float(value.mean) * value.shape[-1], 1, rel_tol=Relative.RECORDED_MEAN))


def _with_sum_one(array: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
    sums = rows.sum(axis=1)
    empty = np.flatnonzero(sums == 0)
    rows[empty, generator.integers(0, rows.shape[1], empty.size)] = 1
    sums[empty] = 1
    shares: np.ndarray[Any, Any] = (rows / sums[:, None]).astype(array.dtype).reshape(array.shape)
    return shares


@dataclass(frozen=True, slots=True)
class _FloatRange:
    """What the statistics of a float tensor say: finite ends, and values that occur, the surest first."""

    low: float
    high: float
    occurring: tuple[float, ...]


def _whole(end: float) -> int:
    return 0 if isinstance(end, float) and not math.isfinite(end) else round(end)


def _integers(
    value: TensorValue, dtype: Dtype, target: np.dtype[Any], generator: np.random.Generator
) -> np.ndarray[Any, Any]:
    drawn_as = np.dtype(np.int8) if dtype.name == "Int4" else target
    least, most = (-8, 7) if dtype.name == "Int4" else (int(np.iinfo(drawn_as).min), int(np.iinfo(drawn_as).max))
    ends = [min(max(_whole(end), least), most) for end in _ends(value, "int")]
    low, high = min(ends), max(ends)
    moments = Moments.without((high, low), value.size, (low, high), _known(value.mean), _known(value.norm))
    if moments is None or high - low > _EXACT_IN_FLOAT64:
        flat = generator.integers(low, high, size=value.size, endpoint=True, dtype=drawn_as)
    else:
        wide = np.empty(value.size, np.float64)
        draw(moments, value.size, generator, wide)
        flat = np.rint(wide).astype(drawn_as)
    return _pin(flat, (high, low), generator)


def _floats(value: TensorValue, dtype: Dtype, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    bounds = _float_range(value, dtype)
    flat = generator.random(value.size)
    # In place: a tensor may be as large as memory allows. Halves, as the difference of two large ends would overflow.
    half_width = bounds.high / 2 - bounds.low / 2
    flat *= half_width
    flat += bounds.low / 2
    flat *= 2
    np.clip(flat, bounds.low, bounds.high, out=flat)
    return _pin(flat, bounds.occurring, generator)


def _float_range(value: TensorValue, dtype: Dtype) -> _FloatRange:
    largest = _largest(dtype)
    low, high = map(float, _ends(value, dtype.kind))
    occurring = []
    # inf - inf makes the mean NaN, so only a NaN norm proves a NaN; some kernels lose it in Max and Min.
    if math.isnan(low) or math.isnan(high) or (value.norm is not None and math.isnan(value.norm)):
        occurring.append(math.nan)
    occurring += sorted({end for end in (low, high) if math.isinf(end)})
    low = min(max(low, -largest), largest) if math.isfinite(low) else low
    high = min(max(high, -largest), largest) if math.isfinite(high) else high
    # Ends that stand in for an infinite or unknown one below are made up, so they need not occur.
    occurring += [end for end in (high, low) if math.isfinite(end)]
    if not math.isfinite(low):
        low = min(-1.0, high - 1.0) if math.isfinite(high) else -1.0
    if not math.isfinite(high):
        high = max(1.0, low + 1.0)
    return _FloatRange(min(low, high), max(low, high), tuple(occurring))


def _known(figure: float | None) -> float:
    """The figure; NaN where there is none."""
    return math.nan if figure is None else float(figure)


def _ends(value: TensorValue, kind: str) -> tuple[float, float]:
    if value.minimum is None or value.maximum is None:
        return DEFAULT_RANGE[kind]
    return value.minimum, value.maximum


def _pin(flat: np.ndarray[Any, Any], values: tuple[float, ...], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Put `values` at distinct random places; the last ones are given up first when there are too few elements."""
    kept = values[: flat.size]
    for place, pinned in zip(_distinct_places(flat.size, len(kept), generator), kept):
        flat[place] = pinned
    return flat


def _distinct_places(size: int, count: int, generator: np.random.Generator) -> list[int]:
    """`count` different indices below `size`, by drawing until they differ: a permutation would cost more."""
    places: list[int] = []
    while len(places) < count:
        place = int(generator.integers(size))
        if place not in places:
            places.append(place)
    return places


def _largest(dtype: Dtype) -> float:
    array_type = array_dtype(dtype)
    if dtype.kind == "complex":
        array_type = np.dtype(np.float32 if dtype.item_bytes == 8 else np.float64)
    assert array_type is not None  # random_array has seen to it
    if array_type.kind == "f":
        # Not finfo, which warns once MindSpore has set the processor to flush subnormal numbers to zero.
        return float(np.nextafter(array_type.type(math.inf), array_type.type(0)))
    import ml_dtypes

    return float(ml_dtypes.finfo(array_type).max)  # type: ignore[no-untyped-call]  # ml_dtypes is half typed
