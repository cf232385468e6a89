"""What comes of the numbers that a framework has computed of a large tensor on its device.

No size of the elements is known on the host when a sketch is computed: all are multiplied by 2**-32 in the tables of
phases, which costs nothing and leaves room for the sums of the largest numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format.sketches import SketchRow, exponent_of
from msprobe_collector.dump_format.writing.statistics import Statistics

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
