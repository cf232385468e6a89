from __future__ import annotations

import pytest

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.values import abbreviated, counted, printable, printable_lines


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("Mint.add.0 = 1", "Mint.add.0 = 1"),
        ("é 中文 🙂 ", "é 中文 🙂 "),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nFAILED b", "a\\nFAILED b"),
        ("a\r\tb\x00\x7f\x9b", "a\\r\\tb\\x00\\x7f\\x9b"),
        ("\u202eevil\u2028\ufeff", "\\u202eevil\\u2028\\ufeff"),
        ("\ud800", "\\ud800"),
        ("C:\\new", "C:\\new"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, safe: str) -> None:
    assert printable(text) == safe
    assert printable(text).isprintable()


def test_our_own_lines_stay_lines() -> None:
    assert printable_lines("a\n\x1bb\r\n  c") == "a\n\\x1bb\\r\n  c"


def test_a_long_or_endless_value_is_shortened() -> None:
    assert abbreviated("x" * 100) == "'" + "x" * 76 + "..."
    assert abbreviated((1, "\x1b")) == "(1, '\\x1b')"
    assert abbreviated(10**5000) == "a int too large to show"


def test_an_error_of_a_dump_is_one_line() -> None:
    error = DumpError("bad \x1b[2J", file="dump.json", record="Mint.add.0\nFAILED forged.forward")
    assert str(error) == "dump.json: Mint.add.0\\nFAILED forged.forward: bad \\x1b[2J"


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [
        (0, ("API calls",), "0 API calls"),
        (1, ("API calls",), "1 API call"),
        (1, ("records of its other ranks", "are"), "1 record of its other ranks is"),
        (2, ("records of its other ranks", "are"), "2 records of its other ranks are"),
        (1, ("operations", "differ"), "1 operation differs"),
        (1, ("", "were"), "1 was"),
    ],
)
def test_a_count_has_its_noun_and_verb(count: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(count, *words) == expected
