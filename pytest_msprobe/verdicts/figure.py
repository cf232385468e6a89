"""Numbers of an output."""

from __future__ import annotations

import math
from typing import NamedTuple


class Figure(NamedTuple):
    """A number that a suite gives of an output, and how reports show it.

    Attributes:
        name: key in `OutputRow.figures`.
        title: headline of its column.
        form: format of the number, such as `.3g`.
        is_low_bad: whether the lowest value is the worst one; else the highest.
    """

    name: str
    title: str
    form: str
    is_low_bad: bool = False

    def worse_of(self, value: float, other: float | None) -> float:
        """The worse of two values, NaN as the worst of all; `value` when there is no other."""
        if math.isnan(value):
            value = -math.inf if self.is_low_bad else math.inf
        if other is None:
            return value
        return min(value, other) if self.is_low_bad else max(value, other)
