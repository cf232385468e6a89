"""How far two values are apart, in parts of what they are compared with. Loads no NumPy.

What a distance is depends on what is known of both values: `measurement` has that of two outputs, the sketches of the
collector estimate that of two tensors, and each statistic is a bound of it.
"""

from __future__ import annotations

import math


def relative(size: float, scale: float) -> float:
    """Return a size in parts of a scale, or an error in those of its limit; where this is 0, infinity but for 0."""
    if scale:
        return size / scale
    return math.inf if size else 0.0
