"""What rounding does to one element that is the sum of known terms, in the orders in which kernels add."""

from __future__ import annotations

import numpy as np

from pytest_msprobe.numerics.measurement import Floats

#: Vector kernels keep so many sums side by side, and add them up at the end: 1 is one term after the other.
_LANES = (1, 4, 8, 16, 32)
#: Blocked kernels and split-k add up so many terms first.
_BLOCKS = (64, 256, 1024)


def largest_partial_sums(terms: Floats) -> float:
    """The sum of the squares of all partial sums, in the order of adding where it is largest.

    Rounding each partial sum c to nearest leaves errors that are independent and proportional to c; their variance is
    proportional to this sum (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2).

    Args:
        terms: in the order of a direct sum, shape (n,), float64.
    """
    return max(
        *(_in_lanes(terms, lanes) for lanes in _LANES if lanes <= max(1, terms.size)),
        *(_in_blocks(terms, length) for length in _BLOCKS if length < terms.size),
        _in_lanes(terms[::-1], 1),
        0.0,
    )


def _in_lanes(terms: Floats, lanes: int) -> float:
    rows = np.concatenate([terms, np.zeros(-terms.size % lanes)]).reshape(-1, lanes)
    return _squares(np.cumsum(rows, axis=0)) + _squares(np.cumsum(rows.sum(axis=0))[1:])


def _in_blocks(terms: Floats, length: int) -> float:
    rows = np.concatenate([terms, np.zeros(-terms.size % length)]).reshape(-1, length)
    return _squares(np.cumsum(rows, axis=1)) + _squares(np.cumsum(rows.sum(axis=1))[1:])


def _squares(sums: Floats) -> float:
    return float(np.vdot(sums, sums))
