"""What tools/plain.py counts."""

from __future__ import annotations

import pytest

from tools.plain import counts

DENSE = """
first = [x for x in range(3)] + [x for x in range(4)]
second = 1 if first else 2
if [x for x in first]:
    third = [x for x in first]
"""


@pytest.mark.parametrize(
    ("text", "what", "number"),
    [
        (DENSE, "dense statements", 1),
        (DENSE, "comprehensions", 4),
        (DENSE, "conditional expressions", 1),
        ("third = (1 if a else 2) + (3 if b else 4)", "dense statements", 1),
        ("def f(one, two):\n    for found in two:\n        told.known = found", "vague names", 2),
        (
            "A = 3\nB: float = -2.5 * 10**3\nC = (1, 2)\nD = ('a', 1)\nE = True\nF = ()\nG = A + 1",
            "numeric constants",
            3,
        ),
        ("class A:\n" + 299 * "    a = 1\n", "long classes", 0),
        ("class A:\n" + 300 * "    a = 1\n", "long classes", 1),
        ("#" * 99 + "\n" + "#" * 100, "long lines", 1),
    ],
)
def test_counts(text: str, what: str, number: int) -> None:
    assert counts(text)[what] == number
