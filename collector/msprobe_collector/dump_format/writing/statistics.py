"""Max, Min, Mean and L2 norm of an array, right for every dtype, and cheap: the whole collection waits for them.

- Of one array, and of many small ones of one dtype and size at once.
- Of a large tensor on a device, from the numbers that the framework has computed of it there, and
  its sketch.
- As the text that a dump has of them, which may be filled in when the record is complete otherwise.
- What comes of the numbers that a framework has computed of a large tensor on its device, its
  sketch too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Union

import msgspec
import numpy as np

from msprobe_collector.dump_format.sketches import WITHOUT_NUMBERS, SketchRow, exponent_of
from msprobe_collector.dump_format.values import INF_COUNT, NAN_COUNT, STATISTICS

Number = Union[float, int, bool, None]

#: Elements that are raised to float64 at a time: 256 KiB, which stay in the cache for all four reductions.
_CHUNK = 1 << 15
#: Elements of one `dot`: few enough for OpenBLAS to keep it in this thread; waking others costs more than they save.
_DOT = 1 << 13


class Statistics(NamedTuple):
    """What a dump says about a tensor, in the tensor's own unit.

    Attributes:
        maximum, minimum: exact, also for integers; NaN when one element is NaN. Magnitudes for complex numbers.
        mean, norm: computed in float64; the norm is the L2 norm of all elements.
        nan_count, inf_count: elements that are NaN, and infinite ones of either sign.

    All four are None for an empty tensor; mean and norm for booleans too.
    """

    maximum: Number
    minimum: Number
    mean: Number
    norm: Number
    nan_count: int = 0
    inf_count: int = 0


#: Of a tensor without elements, or whose elements nobody can read.
NO_STATISTICS = Statistics(None, None, None, None)
#: Is shown every element of an array once, in C order, in pieces of one dimension.
See = Callable[[np.ndarray[Any, Any]], None]


def statistics_of(array: np.ndarray[Any, Any], see: See | None = None) -> Statistics:
    """The statistics of `array`, of any shape and any numeric dtype (bfloat16 and float8 through ml_dtypes too).

    `see` gets the elements in the same pass, while they are in the cache: another one over a large tensor costs half
    as much as the statistics.
    """
    if array.size == 0 or array.dtype.kind in WITHOUT_NUMBERS:
        return NO_STATISTICS
    flat = array.ravel()
    kind = array.dtype.kind
    if see is not None and kind in "bc":
        see(flat)
    if kind == "b":
        return Statistics(bool(flat.any()), bool(flat.all()), None, None)
    if kind == "c":
        return _of_floats(np.abs(flat))
    if kind in "iu":
        _, _, mean, norm = _reduced(flat, see)
        return Statistics(int(np.maximum.reduce(flat)), int(np.minimum.reduce(flat)), mean, norm)
    return _of_floats(flat, see)


def _of_floats(flat: np.ndarray[Any, Any], see: See | None = None) -> Statistics:
    # NumPy 2 warns where a product leaves the range; a training script may turn warnings into errors.
    with np.errstate(over="ignore", invalid="ignore"):
        maximum, minimum, mean, norm = _reduced(flat, see)
    if math.isfinite(maximum) and math.isfinite(minimum):
        # The square of an element left the range of float64; the norm itself may not.
        if (math.isinf(norm) or norm == 0.0) and (maximum or minimum):
            scale = max(abs(maximum), abs(minimum))
            scaled = flat.astype(np.float64) / scale
            norm = scale * math.sqrt(float(scaled.dot(scaled)))
        return Statistics(maximum, minimum, mean, norm)
    nan_count = int(np.count_nonzero(np.isnan(flat)))
    return Statistics(maximum, minimum, mean, norm, nan_count, int(np.count_nonzero(np.isinf(flat))))


def _reduced(flat: np.ndarray[Any, Any], see: See | None) -> tuple[float, float, float, float]:
    """(max, min, mean, norm) in float64, a chunk at a time."""
    size = flat.size
    if size <= _CHUNK:
        maximum, minimum, total, squares = _of_chunk(flat, see)
        return maximum, minimum, total / size, math.sqrt(squares)
    parts = [_of_chunk(flat[start : start + _CHUNK], see) for start in range(0, size, _CHUNK)]
    maxima, minima, totals, squares_of_parts = np.array(parts).T
    squares = float(squares_of_parts.sum())
    return float(maxima.max()), float(minima.min()), float(totals.sum()) / size, math.sqrt(squares)


_MAXIMUM, _MINIMUM, _ONES = np.maximum.reduce, np.minimum.reduce, np.ones(_DOT)


def _of_chunk(flat: np.ndarray[Any, Any], see: See | None) -> tuple[float, float, float, float]:
    """(max, min, sum, sum of squares). The sum is a product with ones: quicker, and silent where infinities meet."""
    if see is not None:
        see(flat)
    wide = flat.astype(np.float64, copy=False)
    size = wide.size
    if size <= _DOT:
        return float(_MAXIMUM(wide)), float(_MINIMUM(wide)), float(wide.dot(_ONES[:size])), float(wide.dot(wide))
    pieces = [wide[start : start + _DOT] for start in range(0, size, _DOT)]
    total = sum(float(piece.dot(_ONES[: piece.size])) for piece in pieces)
    squares = sum(float(piece.dot(piece)) for piece in pieces)
    return float(_MAXIMUM(wide)), float(_MINIMUM(wide)), total, squares


def statistics_of_parts(flat: np.ndarray[Any, Any], sizes: Sequence[int]) -> list[Statistics]:
    """The statistics of small arrays of a numeric dtype that lie one after the other, to rounding as `statistics_of`.

    `sizes` are their numbers of elements, none of which is 0.
    """
    statistics: list[Statistics] = []
    start = first = end = 0
    for at, size in enumerate(sizes):
        end += size
        if at + 1 == len(sizes) or end + sizes[at + 1] - start > _CHUNK:  # what stays in the cache
            statistics += _of_parts(flat[start:end], sizes[first : at + 1])
            start, first = end, at + 1
    return statistics


def _of_parts(flat: np.ndarray[Any, Any], sizes: Sequence[int]) -> list[Statistics]:
    kind, starts = flat.dtype.kind, [0, *accumulate(sizes[:-1])]
    if kind == "b":
        tops, lows = np.logical_or.reduceat(flat, starts).tolist(), np.logical_and.reduceat(flat, starts).tolist()
        return [Statistics(top, low, None, None) for top, low in zip(tops, lows)]
    with np.errstate(all="ignore"):
        wide = np.abs(flat) if kind == "c" else flat
        exact = wide if kind in "iu" else wide.astype(np.float64, copy=False)
        wide = wide.astype(np.float64, copy=False)
        maxima, minima = np.maximum.reduceat(exact, starts), np.minimum.reduceat(exact, starts)
        means, norms = np.add.reduceat(wide, starts) / sizes, np.sqrt(np.add.reduceat(wide * wide, starts))
        # Rare: not finite, or squares that left the range.
        others = ~np.isfinite(norms) | ((norms == 0.0) & ((maxima != 0) | (minima != 0)))
    nothing = [0] * len(sizes)
    rows = zip(maxima.tolist(), minima.tolist(), means.tolist(), norms.tolist(), nothing, nothing)
    statistics = list(map(_statistics_of_row, rows))
    for at in np.flatnonzero(others):
        statistics[at] = statistics_of(flat[starts[at] : starts[at] + sizes[at]])
    return statistics


#: Makes `Statistics` of six values, without the cost of its own `__new__`.
_statistics_of_row: Callable[[tuple[Any, ...]], Statistics] = partial(tuple.__new__, Statistics)
_NAMES = ", ".join(f'"{name}": %s' for name in STATISTICS)


def statistics_text(statistics: Statistics) -> str:
    """The entries of a dump, as JSON text without braces."""
    maximum, minimum, mean, norm, nan_count, inf_count = statistics
    if type(norm) is float and norm - norm == 0.0:  # finite, and all others with it
        return _NAMES % (maximum, minimum, mean, norm)
    text = _NAMES % tuple(map(number_text, (maximum, minimum, mean, norm)))
    if nan_count or inf_count:
        text += f', "{NAN_COUNT}": {nan_count}, "{INF_COUNT}": {inf_count}'
    return text


def statistics_texts(statistics: Sequence[Statistics]) -> Iterator[str]:
    """The text of each; quicker than one by one."""
    numbers: list[Number] = []
    others: dict[int, str] = {}
    for at, values in enumerate(statistics):
        norm = values[3]
        if type(norm) is float and norm - norm == 0.0:  # finite, and all others with it
            numbers += values[:4]
        else:
            others[at] = statistics_text(values)
    encoded = msgspec.json.encode(numbers).decode()[1:-1].split(",")
    lines = "\n".join([_NAMES] * (len(numbers) // 4))
    finite = iter((lines % tuple(encoded)).split("\n") if numbers else ())
    return (others[at] if at in others else next(finite) for at in range(len(statistics)))


def number_text(number: Number) -> str:
    """A statistic as JSON text, with the bare NaN and Infinity that dumps use."""
    if number is None:
        return "null"
    if isinstance(number, bool):
        return "true" if number else "false"
    if isinstance(number, int) or math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


#: Stands around the number of a value whose statistics come later; JSON text never holds it.
_SLOT = "\0"
#: Stands around the entry of a value that is left out where it is nothing but zeros.
_REST = "\1"
_NOTHING = statistics_text(NO_STATISTICS)


def slot(number: int | str) -> str:
    """What stands in the text of a record for the statistics of the value `number` until they are there."""
    return f"{_SLOT}{number}{_SLOT}"


def without_slot(text: str) -> tuple[str, int | None]:
    """Return an entry of a dump without its slot, and the number in it; None where there is none."""
    parts = text.split(_SLOT)
    return (parts[0] + parts[2], int(parts[1])) if len(parts) > 1 else (text, None)


def rest(entry: str) -> str:
    """The `entry` of a tensor with a slot, in whose place null is to stand where the tensor is nothing but zeros."""
    return f"{_REST}{entry}{_REST}"


def filled(text: str, late: dict[str, str], zeros: set[str]) -> str:
    """`text` with what is `late` in its slots, taken out of there; null where there is nothing.

    `late` has the statistics by the numbers of values, as text; `zeros` are those that are nothing but zeros.
    """
    if _REST in text:
        parts = text.split(_REST)
        for at in range(1, len(parts), 2):
            if _SLOT in parts[at] and parts[at].split(_SLOT)[1] in zeros:
                parts[at] = "null"
        text = "".join(parts)
    parts = text.split(_SLOT)
    parts[1::2] = [late.pop(number, _NOTHING) for number in parts[1::2]]
    return "".join(parts)


#: No size of the elements is known on the host when a sketch is computed on a device: all are
#: multiplied by 2**-32 in the tables of phases, which costs nothing and leaves room for the sums
#: of the largest numbers.
SHIFT = 32
#: Largest magnitude that must be left after the shift, by the bytes of a number: below it digits are lost.
_LEAST_SHIFTED = {4: 2.0**-125, 8: 2.0**-1050}


class DeviceSketch:
    """Has the sketch of a large tensor, for `SketchRows`."""

    def __init__(self, row: SketchRow | None) -> None:
        """Its row; None where the sketch has lost its digits."""
        self._row = row

    def content(self) -> None:
        """Return no key: a sketch costs less than to fetch the elements."""

    def sketch(self, largest: float | None) -> SketchRow | None:
        """See `TensorValues`."""
        return self._row


def statistics_of_blocks(
    columns: Sequence[Sequence[Any]], count: int, kind: Literal["bool", "int", "float"]
) -> tuple[Statistics, int]:
    """Return the statistics of a tensor of `count` elements, and how many are +Inf where that is counted.

    Args:
        columns: minimum, maximum, sum and norm of each block of elements, and of floating-point numbers the counts of
            elements that are NaN, that are not finite and, where there are sketches, that are +Inf.
        count: elements of the tensor.
        kind: of its elements; complex numbers count with their magnitudes.
    """
    minima, maxima, sums, norms, *counts = columns
    nan, not_finite, above = (*(int(sum(numbers)) for numbers in counts), 0, 0, 0)[:3]
    if kind == "bool":
        return Statistics(bool(max(maxima)), bool(min(minima)), None, None), 0
    maximum, minimum = (math.nan, math.nan) if nan else (max(maxima), min(minima))
    if kind == "int":
        maximum, minimum = int(maximum), int(minimum)
    norm: float | None = math.hypot(*norms)
    if (norm == math.inf and not not_finite) or (norm == 0.0 and (maximum or minimum)):
        norm = None  # squares left the range
    return Statistics(maximum, minimum, sum(sums) / count, norm, nan, not_finite - nan), above


def row_from_device(numbers: np.ndarray[Any, Any], statistics: Statistics, above: int) -> SketchRow | None:
    """Return the row of the sketch `numbers` of a tensor of these `statistics`, of whose elements `above` are +Inf.

    None where its digits are lost: a large tensor whose numbers are all below 1e-28.
    """
    nan, infinite = statistics.nan_count, statistics.inf_count
    largest = max(abs(statistics.maximum or 0), abs(statistics.minimum or 0))
    exact = np.ldexp(numbers.astype(np.float64), SHIFT)
    if not math.isfinite(largest):  # of the finite elements nobody knows it
        largest = float(np.abs(exact).max())
    if largest and math.ldexp(largest, -SHIFT) < _LEAST_SHIFTED[numbers.itemsize]:
        return None
    exponent = exponent_of(largest)
    return SketchRow(np.ldexp(exact, -exponent).astype(np.float32), exponent, (nan, above, infinite - above))
