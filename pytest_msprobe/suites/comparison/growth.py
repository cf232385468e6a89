"""How the distance between two runs grows along a step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

from msprobe_collector.dump_format import find_dtype
from pytest_msprobe.suites.comparison.agreement import DISTANCES
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison

#: Parts of the step for which the largest distance is said.
_PARTS = 4


def growth_of(values: Sequence[ValueComparison]) -> tuple[float, float]:
    """(largest finite distance of an operation's outputs, how many times that of its inputs this is).

    Inputs count as at least a hundredth of the dtype's limit apart, about one rounding of an operation, so that this is
    growth and not rounding of equal inputs. Both are 0.0 where the outputs agree, or no distance is known.
    """
    before = after = 0.0
    farthest = None
    for value in values:
        distance = value.distance
        if not distance or distance == math.inf or not value.is_tensor:
            continue
        if not value.is_output:
            before = max(before, distance)
        elif distance > after:
            after, farthest = distance, value.golden
    if farthest is None:
        return 0.0, 0.0
    dtype = find_dtype(farthest.dtype)
    least = DISTANCES.get(dtype.name, 0.0) / 100 if dtype is not None else 0.0
    known = max(before, least)
    return after, after / known if known else 0.0


class Growth:
    """Distances of operations, taken in any order: two numbers for each, however many there are."""

    def __init__(self) -> None:
        self._orders = array("q")
        self._distances = array("d")
        self._largest = (0.0, 0, "")

    def add(self, order: int, record: str, distance: float, growth: float) -> None:
        """Take the operation `record` at the place `order`, whose outputs are `distance` apart."""
        self._orders.append(order)
        self._distances.append(distance)
        # Of equal ones the first in the step, in whatever order they come.
        self._largest = max(self._largest, (growth, -order, record))

    def lines(self) -> Iterator[str]:
        """The largest distance in each part of the step, and where it grows most; nothing where all is equal."""
        last = max(self._orders, default=0)
        if not any(self._distances):
            return
        parts = [0.0] * _PARTS
        for order, distance in zip(self._orders, self._distances):
            part = min(_PARTS - 1, _PARTS * order // (last + 1))
            parts[part] = max(parts[part], distance)
        growth, _, record = self._largest
        grows = f"; it grows most in {record}: x {growth:.3g}" if growth > 1 else ""
        yield f"largest distance by quarter of the step: {', '.join(f'{part:.3g}' for part in parts)}{grows}"
