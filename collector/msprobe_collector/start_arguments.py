"""What `start` and `perturb` take, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msprobe_collector.framework import Framework


class DebuggerError(Exception):
    """A call of PrecisionDebugger that cannot be done; one line."""


def checked_models(model: Any, framework: Framework) -> list[Any]:
    """The layers that were given: one, a list or tuple of them, or none.

    Raises:
        DebuggerError: one of them is not a layer of the framework.
    """
    if model is None:
        return []
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for item in models:
        if not framework.is_layer(item):
            layer = framework.layer
            raise DebuggerError(f"start(): the model is a {type(item).__name__}; give a {layer}, or a list of {layer}s")
    return models


def checked_token_range(token_range: Sequence[int] | None) -> tuple[int, int] | None:
    """(first, last) of a token range, or None for none.

    Raises:
        DebuggerError: it is not [first, last] with 0 <= first <= last.
    """
    if token_range is None:
        return None
    whole = isinstance(token_range, (list, tuple)) and all(type(number) is int for number in token_range)
    if not whole or len(token_range) != 2 or not 0 <= token_range[0] <= token_range[1]:
        raise DebuggerError(f"start(): token_range {token_range!r} is not [first, last] with 0 <= first <= last")
    return token_range[0], token_range[1]


def check_rank(rank_id: int | None) -> None:
    """Refuse what is not a rank.

    Raises:
        DebuggerError: it is neither None nor a whole number from 0 on.
    """
    if rank_id is not None and (type(rank_id) is not int or rank_id < 0):
        raise DebuggerError(f"start(): rank_id {rank_id!r} is not a whole number from 0")


def check_roundings(roundings: int, seed: int) -> None:
    """Refuse what is not a number of roundings or a seed.

    Raises:
        DebuggerError: `roundings` is not a whole number from 1 to 2**20, or `seed` not one from 0 on.
    """
    if type(roundings) is not int or not 1 <= roundings <= 2**20:
        raise DebuggerError(f"perturb(): roundings {roundings!r} is not a whole number from 1 to {2**20}")
    if type(seed) is not int or seed < 0:
        raise DebuggerError(f"perturb(): seed {seed!r} is not a whole number from 0")
