"""Lists of steps and ranks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from msprobe_collector.configuration import NumberRanges, parse_number_ranges


@pytest.mark.parametrize(
    ("value", "ranges", "text"),
    [
        ([], (), "all"),
        ([3, "1"], ((1, 1), (3, 3)), "1, 3"),
        (["5-8", 2, "6"], ((2, 2), (5, 8)), "2, 5-8"),
        (["1-3", "4-4", 3], ((1, 4),), "1-4"),
        ([" 7 "], ((7, 7),), "7"),
        (["0-1000000"], ((0, 1000000),), "0-1000000"),
    ],
)
def test_elements_become_ascending_ranges(value: list[object], ranges: object, text: str) -> None:
    found = parse_number_ranges(value)
    assert found.ranges == ranges
    assert str(found) == text


def test_no_range_admits_all() -> None:
    assert NumberRanges().admits(7)
    assert NumberRanges().last is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=8))
def test_what_is_admitted_is_what_was_listed(bounds: list[tuple[int, int]]) -> None:
    found = parse_number_ranges([f"{first}-{first + more}" for first, more in bounds])
    listed = {number for first, more in bounds for number in range(first, first + more + 1)}
    assert {number for number in range(80) if found.admits(number)} == listed
    assert found.last == max(listed)
    assert all(left[1] + 1 < right[0] for left, right in zip(found.ranges, found.ranges[1:]))
