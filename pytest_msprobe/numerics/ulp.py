"""Errors in units of the last place of the tested dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

# ml_dtypes is not annotated.
_float_limits: Callable[[np.dtype[Any]], Any] = ml_dtypes.finfo

_EXPONENT_BITS = np.int64(0x7FF0_0000_0000_0000)


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """What is needed to know the spacing of a float format at any value."""

    mantissa_bits: int
    smallest_normal: float


@cache
def float_format(dtype: np.dtype[Any]) -> FloatFormat:
    """The format of a float dtype, those of ml_dtypes included; ValueError for any other dtype."""
    limits = _float_limits(dtype)
    return FloatFormat(mantissa_bits=int(limits.nmant), smallest_normal=2.0 ** int(limits.minexp))


def largest_ulp_error(
    difference: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64], format_: FloatFormat
) -> float:
    """The largest difference / spacing(magnitude): the spacing is 2**(floor(log2(magnitude)) - mantissa_bits).

    Below the smallest normal value, zero included, the spacing is the smallest subnormal: an invented value where the
    benchmark is 0 counts as a huge error (possibly inf in float64), not as one relative to 1. Both arrays must be
    finite and of at least one element, except that an inf difference gives inf.
    """
    binade = (magnitude.view(np.int64) & _EXPONENT_BITS).view(np.float64)
    np.maximum(binade, format_.smallest_normal, out=binade)
    np.divide(difference, binade, out=binade)
    return binade.item(int(binade.argmax())) * 2.0**format_.mantissa_bits
