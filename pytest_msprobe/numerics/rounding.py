"""What a perfect device would return: the float64 result, rounded once to the dtype under test."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.kinds import kind_of

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
