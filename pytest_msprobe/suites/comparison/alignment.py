"""Two sequences aligned: which elements are the same ones, although some were added or left out in between.

Myers, "An O(ND) difference algorithm and its variations" (1986): fast when few elements differ, and never crossing.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

#: From this many additions and omissions on, a shortest script is not worth its time; see `align`.
_MOST_DIFFERENCES = 2000


def align(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Index pairs of equal elements, ascending on both sides: a longest common subsequence.

    Where more than 2,000 elements differ, a common subsequence that need not be the longest.
    """
    known_left, known_right = set(left), set(right)
    kept_left = [index for index, token in enumerate(left) if token in known_right]
    kept_right = [index for index, token in enumerate(right) if token in known_left]
    found = _align([left[index] for index in kept_left], [right[index] for index in kept_right])
    return [(kept_left[i], kept_right[j]) for i, j in found]


def _align(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    start = 0
    shortest = min(len(left), len(right))
    while start < shortest and left[start] == right[start]:
        start += 1
    end = 0
    while end < shortest - start and left[-1 - end] == right[-1 - end]:
        end += 1
    middle_left, middle_right = left[start : len(left) - end], right[start : len(right) - end]
    middle = _shortest_script(middle_left, middle_right)
    if middle is None:
        middle = _nearest_next(middle_left, middle_right)
    pairs = [(index, index) for index in range(start)]
    pairs += [(i + start, j + start) for i, j in middle]
    return pairs + [(len(left) - k, len(right) - k) for k in range(end, 0, -1)]


def _shortest_script(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """The matches of a shortest edit script, or None when it is too long."""
    most = len(left) + len(right)
    reach = array("q", [0]) * (2 * min(most, _MOST_DIFFERENCES) + 3)
    offset = len(reach) // 2
    history: list[array[int]] = []
    for cost in range(min(most, _MOST_DIFFERENCES) + 1):
        history.append(reach[offset - cost - 1 : offset + cost + 2])
        for diagonal in range(-cost, cost + 1, 2):
            below, above = reach[offset + diagonal + 1], reach[offset + diagonal - 1]
            x = below if diagonal == -cost or (diagonal != cost and above < below) else above + 1
            y = x - diagonal
            while x < len(left) and y < len(right) and left[x] == right[y]:
                x += 1
                y += 1
            reach[offset + diagonal] = x
            if x >= len(left) and y >= len(right):
                return _matches(history, len(left), len(right))
    return None


def _matches(history: list[array[int]], x: int, y: int) -> list[tuple[int, int]]:
    found = []
    for cost in range(len(history) - 1, -1, -1):
        reach = history[cost]  # diagonals -cost-1 .. cost+1, as they were before this step
        diagonal = x - y
        below, above = reach[diagonal + cost + 2], reach[diagonal + cost]
        came_down = diagonal == -cost or (diagonal != cost and above < below)
        before = 0 if cost == 0 else (below if came_down else above + 1)
        while x > max(before, 0) and y > 0 and x > before:
            x -= 1
            y -= 1
            found.append((x, y))
        if cost:
            x, y = (below, below - diagonal - 1) if came_down else (above, above - diagonal + 1)
    return found[::-1]


def _nearest_next(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Greedy: each element takes its first equal behind the match before, unless that would skip over most of them."""
    places: dict[Hashable, list[int]] = {}
    for index in range(len(right) - 1, -1, -1):
        places.setdefault(right[index], []).append(index)
    found, last = [], -1
    for index, token in enumerate(left):
        waiting = places.get(token, [])
        while waiting and waiting[-1] <= last:
            waiting.pop()
        if waiting and waiting[-1] - last <= 1 + 4 * (len(right) - last) // max(1, len(left) - index):
            last = waiting.pop()
            found.append((index, last))
    return found
