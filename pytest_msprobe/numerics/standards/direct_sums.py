"""What rounding does to one element that is the sum of known terms, in the orders in which kernels add."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.measurement import Floats

#: Vector kernels keep so many sums side by side, and add them up at the end: 1 is one term after the other.
_LANES = (1, 4, 8, 16, 32)
#: Blocked kernels and split-k add up so many terms first.
_BLOCKS = (64, 256, 1024)


def largest_partial_sums(terms: Floats) -> float:
    """The 2-norm of all partial sums, in the order of adding where it is largest.

    Rounding each partial sum c to nearest leaves errors that are independent and proportional to c; their standard
    deviation is proportional to this norm (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2).

    Args:
        terms: shape (n,), float64.
    """
    squares = [_in_rows(terms[::-1], 1, 0)]
    squares += [_in_rows(terms, lanes, 0) for lanes in _LANES if lanes <= max(1, terms.size)]
    squares += [_in_rows(terms, length, 1) for length in _BLOCKS if length < terms.size]
    return math.sqrt(max(squares))


def largest_error_of_sums(terms: Floats) -> float:
    """The largest error of adding up `terms` in float32, over orders of adding, in the unit of `terms`.

    Rounding errors are no chance where terms are equal: each addition then rounds to the same side.

    Args:
        terms: shape (n,), float64; rounded to float32 for all but one of the orders,
            which adds products as they are, as fused multiply-adds do.
    """
    exact, fused = float(terms.sum()), np.float32(0)
    with np.errstate(all="ignore"):
        rounded = terms.astype(np.float32)
        for term in terms.tolist():
            fused = np.float32(float(fused) + term)
        sums = [fused, *(_sum_in_lanes(order, lanes) for order in (rounded, rounded[::-1]) for lanes in _LANES)]
    return max(abs(float(total) - exact) for total in sums)


def _sum_in_lanes(terms: npt.NDArray[np.float32], lanes: int) -> np.float32:
    rows = _rows(terms, lanes)
    total: np.float32 = np.cumsum(np.cumsum(rows, axis=0)[-1:])[-1:].sum()
    return total


def _in_rows(terms: Floats, length: int, axis: int) -> float:
    """The square of the norm of all partial sums of lanes, which axis 0 adds up, or of blocks."""
    rows = _rows(terms, length)
    return _squares(np.cumsum(rows, axis=axis)) + _squares(np.cumsum(rows.sum(axis=axis))[1:])


def _rows(terms: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = np.concatenate([terms, np.zeros(-terms.size % length, terms.dtype)])
    return rows.reshape(-1, length)


def _squares(sums: Floats) -> float:
    return float(np.vdot(sums, sums))
