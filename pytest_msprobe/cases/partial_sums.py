"""How large the partial sums are that lead to the elements of a gradient, all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.expected import Share


def norms_of_partial_sums(gradient: Callable[[Array], Array | None], incoming: Array, channels: int) -> Array | None:
    """The 2-norm of the partial sums of each element, one term for each position of the incoming gradient.

    A gradient is linear in the incoming one: that of its first positions, all others being 0, is a partial sum. Between
    those that are computed, sums are taken to go straight. What they do beside that is chance, which others allow for.

    Args:
        gradient: of an incoming gradient, float64; None where the benchmark refuses.
        incoming: the incoming gradient.
        channels: its axis whose elements belong to one position; positions are added up in their order in memory.

    Returns:
        In the shape of the gradient, float64; None where that is no sum over positions.
    """
    moved = np.moveaxis(incoming, channels, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    total: Array = np.zeros(())
    squares: Array = np.zeros(())
    reached = []
    # Of the partial sums of each element 32 are computed.
    for first, last in pairwise(np.unique(np.linspace(0, len(rows), 33).astype(int)).tolist()):
        part = np.zeros_like(rows)
        part[first:last] = rows[first:last]
        added = gradient(np.ascontiguousarray(np.moveaxis(part.reshape(moved.shape), -1, channels)))
        if added is None:
            return None
        following = total + added
        squares = squares + (last - first) / 3 * (total * total + total * following + following * following)
        reached.append(np.count_nonzero(added) / max(1, added.size))
        total = following
    return np.sqrt(squares) if reached and float(np.mean(reached)) >= Share.REACHED else None
