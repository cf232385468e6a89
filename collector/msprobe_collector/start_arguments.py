"""What `start` takes, checked."""

from __future__ import annotations

from collections.abc import Sequence


class DebuggerError(Exception):
    """A call of PrecisionDebugger that cannot be done; one line."""


def checked_token_range(token_range: Sequence[int] | None) -> tuple[int, int] | None:
    """(first, last) of a token range, or None for none. Raises DebuggerError."""
    if token_range is None:
        return None
    whole = isinstance(token_range, (list, tuple)) and all(type(number) is int for number in token_range)
    if not whole or len(token_range) != 2 or not 0 <= token_range[0] <= token_range[1]:
        raise DebuggerError(f"start(): token_range {token_range!r} is not [first, last] with 0 <= first <= last")
    return token_range[0], token_range[1]


def check_rank(rank_id: int | None) -> None:
    """Refuse what is not a rank. Raises DebuggerError."""
    if rank_id is not None and (type(rank_id) is not int or rank_id < 0):
        raise DebuggerError(f"start(): rank_id {rank_id!r} is not a whole number from 0")
