"""Errors in units of the last place of the tested dtype."""

from __future__ import annotations

import math
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
    largest: float

    @property
    def largest_spacing(self) -> float:
        """The spacing at the largest finite value."""
        return 2.0 ** (math.frexp(self.largest)[1] - 1 - self.mantissa_bits)


@cache
def float_format(dtype: np.dtype[Any]) -> FloatFormat:
    """The format of a float dtype, those of ml_dtypes included; ValueError for any other dtype."""
    limits = _float_limits(dtype)
    return FloatFormat(
        mantissa_bits=int(limits.nmant), smallest_normal=2.0 ** int(limits.minexp), largest=float(limits.max)
    )


def unit_roundoff(dtype: np.dtype[Any]) -> float:
    """The largest relative error of rounding to a float dtype or to the parts of a complex one: 2**-24 for float32."""
    return 2.0 ** -(float_format(part_dtype(dtype)).mantissa_bits + 1)


def part_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of a complex number, else the dtype itself."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def largest_ulp_error(
    difference: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64], format_: FloatFormat
) -> float:
    """The largest difference / spacing(magnitude): the spacing is 2**(floor(log2(magnitude)) - mantissa_bits).

    Below the smallest normal value, zero included, the spacing is the smallest subnormal: an invented value where the
    benchmark is 0 counts as a huge error (possibly inf in float64), not as one relative to 1. Both arrays must be
    finite and of at least one element, except that an inf difference gives inf.
    """
    binades = _in_binades(difference, magnitude, format_)
    return binades.item(int(binades.argmax())) * 2.0**format_.mantissa_bits


def in_spacings(
    difference: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64], format_: FloatFormat
) -> npt.NDArray[np.float64]:
    """Each difference / spacing(magnitude); see `largest_ulp_error`."""
    binades = _in_binades(difference, magnitude, format_)
    binades *= 2.0**format_.mantissa_bits
    return binades


def spacings(magnitude: npt.NDArray[np.float64], format_: FloatFormat) -> npt.NDArray[np.float64]:
    """The distance of each value to the next larger one."""
    return _binades(magnitude, format_) * 2.0**-format_.mantissa_bits


def _in_binades(
    difference: npt.NDArray[np.float64], magnitude: npt.NDArray[np.float64], format_: FloatFormat
) -> npt.NDArray[np.float64]:
    binade = _binades(magnitude, format_)
    return np.divide(difference, binade, out=binade)


def _binades(magnitude: npt.NDArray[np.float64], format_: FloatFormat) -> npt.NDArray[np.float64]:
    """The largest power of 2 that each is not below, and that of no subnormal."""
    binade = (magnitude.view(np.int64) & _EXPONENT_BITS).view(np.float64)
    return np.maximum(binade, format_.smallest_normal, out=binade)
