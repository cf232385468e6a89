"""Files that a killed process left without their end: cut back to the last whole entry."""

from __future__ import annotations

import msgspec

#: What stands before the key of an entry: the collector here writes one per line, the existing one indents by two.
_BEFORE_ENTRY = (b',\n"', b',\n  "')


def repaired(text: bytes, *, brackets: int) -> bytes | None:
    """`text` cut before its last entry, which is not whole, and closed by `brackets` brackets; None without any."""
    end = max(text.rfind(start) for start in _BEFORE_ENTRY)
    return None if end < 0 else text[:end] + b"\n" + b"}" * brackets


def decoded_whole(text: bytes) -> object:
    """What JSON `text` holds; without the last entry when its end is truncated. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        if (whole := repaired(text, brackets=1)) is None:
            raise
        return msgspec.json.decode(whole)
