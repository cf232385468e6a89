"""The exact cosine: no epsilon that would call tiny opposite vectors alike, no overflow or underflow of squares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

WidePair = tuple[npt.NDArray[Any], npt.NDArray[Any]]

# From here up to inf, sums of squares have lost nothing to underflow that a float64 cosine could show.
_SMALLEST_RELIABLE = 1e-250

_LONGEST_SERIAL_DOT = 4096


class CosineSums:
    """The three sums of a cosine, collected chunk by chunk.

    Complex numbers count as their two real parts, so the numerator is the real part of the Hermitian product
    sum(b * conj(t)): a device that rotates the phase loses cosine, as one that turns a real vector does.
    """

    __slots__ = ("reference", "shared", "tested")

    def __init__(self) -> None:
        self.tested = 0.0
        self.reference = 0.0
        self.shared = 0.0

    def add(self, tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> None:
        """Adds a chunk of float64 or complex128 values."""
        tested, reference = _real_parts(tested), _real_parts(reference)
        self.tested += _inner(tested, tested)
        self.reference += _inner(reference, reference)
        self.shared += _inner(tested, reference)

    def add_equal(self, both: npt.NDArray[Any]) -> None:
        """Adds a chunk that is the same on both sides."""
        both = _real_parts(both)
        square = _inner(both, both)
        self.tested += square
        self.reference += square
        self.shared += square

    @property
    def is_reliable(self) -> bool:
        """False when squares overflowed, vanished or met a NaN or Inf, or a side is zero: take `scaled_cosine`."""
        return all(_SMALLEST_RELIABLE < square < math.inf for square in (self.tested, self.reference))

    def cosine(self) -> float:
        """The cosine, shared / (||tested|| * ||reference||), kept within -1..1."""
        value = self.shared / (math.sqrt(self.tested) * math.sqrt(self.reference))
        return max(-1.0, min(1.0, value))


def largest_magnitudes(pairs: Iterable[WidePair]) -> tuple[float, float]:
    """The largest |part| on each side: of the tested values, of the reference."""
    tested_largest = reference_largest = 0.0
    for tested, reference in pairs:
        tested_largest = max(tested_largest, float(np.abs(_real_parts(tested)).max()))
        reference_largest = max(reference_largest, float(np.abs(_real_parts(reference)).max()))
    return tested_largest, reference_largest


def scaled_cosine(pairs: Iterable[WidePair], largest: tuple[float, float]) -> float:
    """The cosine of finite values of any magnitude: each side is first divided by its own `largest_magnitudes`.

    Both sides all zero: 1. Exactly one side all zero: 0, because the angle is undefined and an output that was lost, or
    made up, must not pass for similar.
    """
    tested_largest, reference_largest = largest
    if tested_largest == 0 or reference_largest == 0:
        return 1.0 if tested_largest == reference_largest else 0.0
    sums = CosineSums()
    for tested, reference in pairs:
        sums.add(_real_parts(tested) / tested_largest, _real_parts(reference) / reference_largest)
    return sums.cosine()


def _real_parts(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    real: npt.NDArray[np.float64] = values if values.dtype == np.float64 else values.view(np.float64)
    return real


def _inner(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> float:
    # np.dot has the least overhead, but on longer vectors BLAS takes threads: they would fight with those of the
    # engines, and the last digits would depend on how many there are.
    if left.size <= _LONGEST_SERIAL_DOT:
        return float(np.dot(left, right))
    return float(np.einsum("i,i->", left, right))
