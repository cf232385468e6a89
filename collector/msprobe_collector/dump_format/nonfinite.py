"""Bare NaN and Infinity in a JSON text, made readable for a strict parser."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb"-?(?:NaN|Infinity)")
_QUOTE_OR_ESCAPE = re.compile(rb'"|\\.', re.DOTALL)


def quote_nonfinite(text: bytes) -> bytes:
    """`text` with every bare NaN, Infinity and -Infinity as a JSON string; those inside strings stay as they are.

    Dumps hold these tokens where a statistic is not finite. Linear in the length; returns a text without them itself.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    pieces: list[bytes] = []
    copied = scanned = 0
    inside_string = False
    for match in _TOKEN.finditer(text):
        inside_string ^= _toggles_string(text, scanned, match.start())
        scanned = match.end()
        if not inside_string:
            pieces += (text[copied : match.start()], b'"', match.group(), b'"')
            copied = match.end()
    if not pieces:
        return text
    pieces.append(text[copied:])
    return b"".join(pieces)


def _toggles_string(text: bytes, start: int, end: int) -> bool:
    """Whether text[start:end] holds an odd number of unescaped quotes."""
    if text.find(b"\\", start, end) < 0:
        return text.count(b'"', start, end) % 2 == 1
    return sum(token.group() == b'"' for token in _QUOTE_OR_ESCAPE.finditer(text, start, end)) % 2 == 1
