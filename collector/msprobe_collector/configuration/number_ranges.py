"""Lists of steps and ranks: `[0, "3", "5-8"]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class NumberRanges:
    """Which steps or ranks are wanted; all of them when no range is given.

    Attributes:
        ranges: (first, last) pairs, both included, ascending and without overlap.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def admits(self, number: int) -> bool:
        """Whether `number` is wanted."""
        return not self.ranges or any(first <= number <= last for first, last in self.ranges)

    @property
    def last(self) -> int | None:
        """The greatest number wanted; None when all are."""
        return self.ranges[-1][1] if self.ranges else None

    def __str__(self) -> str:
        """`0, 5-8`, or `all`."""
        return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in self.ranges) or "all"


def parse_number_ranges(value: object) -> NumberRanges:
    """The ranges that a list of numbers, texts of numbers and texts of ranges means.

    Raises:
        ValueError: it is not a list, or one element is not a number, reversed, or above 1,000,000.
    """
    if not isinstance(value, list):
        raise ValueError(f'{value!r} is not a list of numbers and ranges, such as [0, "3-5"]')
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_bounds(item) for item in value):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return NumberRanges(tuple(merged))


def parse_steps(value: object) -> NumberRanges:
    """Ranges as of `parse_number_ranges`; older versions of the existing tool take one number alone.

    Raises:
        ValueError: it is neither a number nor such a list.
    """
    return parse_number_ranges([value] if type(value) is int else value)


def _bounds(item: object) -> tuple[int, int]:
    text = item if isinstance(item, str) else str(item) if type(item) is int else ""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{item!r} is neither a whole number from 0 on nor a range such as "3-5"')
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ValueError(f'{item!r} ends before it begins; write "{last}-{first}"')
    if last > MAX_NUMBER:
        raise ValueError(f"{item!r} is above {MAX_NUMBER}")
    return first, last
