"""Element types: kinds within which outputs can be compared, units of the last place, and rounding once.

What a perfect device would return is the float64 result, rounded once to the dtype under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format.values import array_dtype, find_dtype
from pytest_msprobe.numerics.expected import Relative

Kind = Literal["bool", "int", "float", "complex", "other"]

# ml_dtypes is not annotated.
_float_limits: Callable[[np.dtype[Any]], Any] = ml_dtypes.finfo
_integer_limits: Callable[[np.dtype[Any]], Any] = ml_dtypes.iinfo


@cache
def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of `dtype`.

    bfloat16 and fp8 (which NumPy calls void) are "float", int4 is "int". Extended precision, strings, objects and
    records are "other": float64 cannot hold them, so nothing here measures them.
    """
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iu":
        return "int"
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return "float"
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return "complex"
    return _kind_of_ml_dtype(dtype) if dtype.kind == "V" else "other"


def _kind_of_ml_dtype(dtype: np.dtype[Any]) -> Kind:
    try:
        _float_limits(dtype)
    except ValueError:
        pass
    else:
        return "float"
    try:
        _integer_limits(dtype)
    except ValueError:
        return "other"
    return "int"


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


@cache
def unit_roundoff(dtype: np.dtype[Any] | str) -> float:
    """Give the largest relative error of rounding to a dtype, or to the parts of a complex one: 2**-24 for float32.

    A dtype is an array's, or its name as frameworks and dumps write it: `Float32`, `torch.float8_e5m2`. Whole numbers
    and bool are not rounded: 0.

    Raises:
        ValueError: the dtype is not known, or holds no numbers.
    """
    if isinstance(dtype, str):
        named = find_dtype(dtype)
        if named is not None and named.name == "HiFloat8":
            return Relative.HIFLOAT8
        array = array_dtype(named) if named is not None else getattr(ml_dtypes, dtype.rpartition(".")[2], None)
        if not isinstance(array, (np.dtype, type)):
            raise ValueError(f"{dtype!r} is no dtype whose rounding is known")
        dtype = np.dtype(array)
    if kind_of(dtype) in ("bool", "int"):
        return 0.0
    return 2.0 ** -(float_format(part_dtype(dtype)).mantissa_bits + 1)


def part_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of a complex number, else the dtype itself."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


FLOAT32_ROUNDOFF = unit_roundoff(np.dtype(np.float32))


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


# NumPy rounds float64 to these in one step; every other float type comes from ml_dtypes.
_ROUNDED_BY_NUMPY = (np.float16, np.float32, np.float64, np.complex64, np.complex128)


def round_once(reference: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`reference` in `dtype`, each element rounded once, to nearest, ties to even.

    Beyond the largest finite value the result is inf (NaN in formats without inf, such as float8_e4m3fn); NaN stays
    NaN; complex numbers are rounded part by part. Where there is nothing to round (an integer or bool on either side,
    or float against complex) `reference` itself is returned. No NumPy warning is raised.
    """
    with np.errstate(all="ignore"):
        return round_unguarded(reference, dtype)


def round_unguarded(reference: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`round_once` for callers that have silenced NumPy already, which costs as much as rounding a small array."""
    kind = kind_of(dtype)
    if reference.dtype == dtype or kind not in ("float", "complex") or kind != kind_of(reference.dtype):
        return reference
    if dtype.type in _ROUNDED_BY_NUMPY:
        return reference.astype(dtype)
    return _to_odd_float32(reference).astype(dtype)


def _to_odd_float32(reference: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 rounded to odd: an inexact value keeps its last bit set, so that it can never look like a tie.

    ml_dtypes goes from float64 to bfloat16 through float32 rounded to nearest, which rounds twice: 1 + 2**-8 + 2**-40
    becomes the tie 1 + 2**-8 and then 1, where 1 + 2**-7 is nearer. Rounding to odd first is exact for every
    format that is at least two bits narrower than float32 (Boldo and Melquiond, 2008).
    """
    exact = np.asarray(reference, dtype=np.float64).reshape(-1)
    nearest = exact.astype(np.float32)
    widened = nearest.astype(np.float64)
    bits = nearest.view(np.uint32)
    bits -= np.abs(widened) > np.abs(exact)
    bits |= widened != exact
    return nearest.reshape(reference.shape)
