"""What is said about one gradient, computed in float64 over chunks of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Elements that are held in float64 at a time (512 KiB: they stay in the cache), however large the gradient is.
_CHUNK_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class GradientFigures:
    """Figures of one gradient.

    Attributes:
        size: number of elements.
        max, min: NaN if any element is, and of an empty gradient.
        norm: L2; NaN if any element is, 0 of an empty gradient.
        nans, infs: numbers of elements.
        zeros: number of elements that are 0.
        interval_counts: elements in (-inf, b0], (b0, b1], ..., (bn, inf); a NaN is in none.
    """

    size: int
    max: float
    min: float
    norm: float
    nans: int
    infs: int
    zeros: int
    interval_counts: tuple[int, ...]


def measure_gradient(values: npt.NDArray[np.floating[Any]], bounds: Sequence[float] = ()) -> GradientFigures:
    """Figures of a gradient of any float dtype and shape. Without `bounds`, no intervals are counted."""
    import numpy as np

    counts_up_to = [0] * len(bounds)
    highest, lowest, square_sum = -math.inf, math.inf, 0.0
    nans = infs = zeros = 0
    for chunk in _chunks(values):
        # np.maximum, unlike max(), lets a NaN win.
        highest = float(np.maximum(highest, chunk.max()))
        lowest = float(np.minimum(lowest, chunk.min()))
        squares = float(np.dot(chunk, chunk))
        square_sum += squares
        if not math.isfinite(squares):
            nans += int(np.count_nonzero(np.isnan(chunk)))
            infs += int(np.count_nonzero(np.isinf(chunk)))
        zeros += int(np.count_nonzero(chunk == 0))
        # For the few bounds that there are, comparing is ten times faster than searching; a NaN is up to none.
        for place, bound in enumerate(bounds):
            counts_up_to[place] += int(np.count_nonzero(chunk <= bound))
    is_empty = values.size == 0
    return GradientFigures(
        size=values.size,
        max=math.nan if is_empty else highest,
        min=math.nan if is_empty else lowest,
        norm=math.sqrt(square_sum),
        nans=nans,
        infs=infs,
        zeros=zeros,
        interval_counts=_between((0, *counts_up_to, values.size - nans)) if bounds else (),
    )


def _between(counts_up_to: Sequence[int]) -> tuple[int, ...]:
    return tuple(upper - lower for lower, upper in pairwise(counts_up_to))


def md5_of_gradient(values: npt.NDArray[np.floating[Any]]) -> str:
    """Hexadecimal MD5 of the gradient's C-order bytes in float32."""
    import numpy as np

    return hashlib.md5(np.ascontiguousarray(values, dtype=np.float32).data, usedforsecurity=False).hexdigest()


def _chunks(values: npt.NDArray[np.floating[Any]]) -> Iterator[npt.NDArray[np.float64]]:
    import numpy as np

    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS].astype(np.float64)
