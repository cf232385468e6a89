"""Text of a dump made safe to show: on a terminal, in a message, in a table."""

from __future__ import annotations

from typing import Any

_LONGEST = 80


def shown(text: str) -> str:
    r"""`text` with every character that is not printable as its Python escape: `\x1b`, `\n`, `\u202e`, `\ud800`.

    Names, file names and source lines of a dump may hold control characters, which a terminal would obey, line breaks,
    which would make one line of a report two, and marks that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def shown_lines(text: str) -> str:
    """Text as of `shown` that we laid out in lines: the line breaks stay, everything else is escaped."""
    return text if text.isprintable() else "\n".join(map(shown, text.split("\n")))


def shortened(value: Any) -> str:
    """The representation of a value from a dump in at most 80 characters."""
    try:
        text = shown(repr(value))
    except (ValueError, RecursionError):  # Python writes no whole number of more than 4,300 digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
