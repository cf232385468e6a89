from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from pytest_msprobe.suites.comparison import matching
from pytest_msprobe.suites.comparison.matching import align

WORDS = st.lists(st.sampled_from("abcde"), max_size=14)


def longest(left: list[str], right: list[str]) -> int:
    """Length of a longest common subsequence, by the textbook table."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def assert_valid(left: list[str], right: list[str], pairs: list[tuple[int, int]]) -> None:
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))


@given(WORDS, WORDS)
def test_pairs_are_a_longest_common_subsequence(left: list[str], right: list[str]) -> None:
    pairs = align(left, right)
    assert_valid(left, right, pairs)
    assert len(pairs) == longest(left, right)


def test_one_more_element_shifts_nothing() -> None:
    left = [f"op{number % 7}" for number in range(1000)]
    right = [*left[:500], "new", *left[500:]]
    assert align(left, right) == [(i, i if i < 500 else i + 1) for i in range(1000)]


def test_sequences_too_different_for_a_shortest_script_still_align(monkeypatch) -> None:
    monkeypatch.setattr(matching, "_MOST_DIFFERENCES", 3)
    left = list("abcdefgh" * 4)
    right = list("hgabcdefxx"[::1] * 4)
    pairs = align(left, right)
    assert_valid(left, right, pairs)
    assert len(pairs) >= 12
