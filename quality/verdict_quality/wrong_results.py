"""Faults in what was written: the computation was right, or wrong by no rule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import round_once, unit_roundoff
from quality.verdict_quality.recordings import is_float
from quality.verdict_quality.target import Fault, Target


def floats(change: Callable[[Array, np.random.Generator], Array | None]) -> Fault:
    """A fault of float results: `change` gets a float64 copy, and what it returns is rounded to the dtype."""

    def fault(target: Target) -> Array | None:
        if not is_float(target.right) or target.right.size == 0:
            return None
        with np.errstate(all="ignore"):
            changed = change(np.array(target.right, np.float64, order="C"), target.rng)
        return None if changed is None else round_once(changed, target.right.dtype)

    return fault


def one_element(change: Callable[[float], float]) -> Fault:
    """A fault of one element that is neither 0 nor infinite, any of them."""

    def altered(wide: Array, rng: np.random.Generator) -> Array | None:
        candidates = np.flatnonzero(np.isfinite(wide) & (wide != 0))
        if not candidates.size:
            return None
        place = np.unravel_index(rng.choice(candidates), wide.shape)
        wide[place] = change(float(wide[place]))
        return wide

    return floats(altered)


def swapped_elements(wide: Array, rng: np.random.Generator) -> Array | None:
    flat = wide.reshape(-1)
    start = int(rng.integers(flat.size))
    others = np.flatnonzero(flat != flat[start])
    if not others.size:
        return None
    other = others[np.argmin(abs(others - start))]
    flat[[start, other]] = flat[[other, start]]
    return wide


def _eighth(wide: Array) -> int:
    return max(1, wide.size // 8)


def tail_not_written(wide: Array, rng: np.random.Generator) -> Array:
    wide.reshape(-1)[-_eighth(wide) :] = 0
    return wide


def tail_repeats_head(wide: Array, rng: np.random.Generator) -> Array | None:
    if wide.size < 2:
        return None
    flat = wide.reshape(-1)
    flat[-_eighth(wide) :] = flat[: _eighth(wide)].copy()
    return wide


def offset(wide: Array, rng: np.random.Generator) -> Array:
    finite = wide[np.isfinite(wide)]
    return wide + 0.01 * float(np.sqrt(np.mean(finite**2))) if finite.size else wide


def one_tile_not_written(wide: Array, rng: np.random.Generator) -> Array | None:
    """A quarter of the last two axes each, somewhere."""
    if wide.ndim < 2 or min(wide.shape[-2:]) < 4:
        return None
    rows, columns = (length // 4 for length in wide.shape[-2:])
    row, column = rng.integers(4) * rows, rng.integers(4) * columns
    wide[..., row : row + rows, column : column + columns] = 0
    return wide


def one_column_doubled(wide: Array, rng: np.random.Generator) -> Array | None:
    if wide.ndim < 2 or wide.shape[-1] < 2:
        return None
    wide[..., int(rng.integers(wide.shape[-1]))] *= 2
    return wide


def truncated(target: Target) -> Array | None:
    """Every element rounded towards zero from the exact result, half dtypes only."""
    right = target.right
    if not is_float(right) or right.dtype.itemsize != 2:
        return None
    exact = target.exact()
    if exact is None:
        return None
    with np.errstate(all="ignore"):
        lower = np.nextafter(right, right.dtype.type(0))
        return np.where(np.abs(right.astype(np.float64)) > np.abs(exact), lower, right).astype(right.dtype)


def shifted(wide: Array, rng: np.random.Generator) -> Array:
    return np.roll(wide.reshape(-1), 1).reshape(wide.shape)


def transposed(wide: Array, rng: np.random.Generator) -> Array | None:
    return None if wide.ndim < 2 else wide.swapaxes(-1, -2).reshape(wide.shape)


def noisy(target: Target) -> Array | None:
    """Every element off by up to 16 roundings of its dtype: an intermediate that lost four bits."""
    if not is_float(target.right):
        return None
    wide = target.right.astype(np.float64)
    error = 16 * unit_roundoff(target.right.dtype) * target.rng.uniform(-1, 1, wide.shape)
    with np.errstate(all="ignore"):
        return round_once(wide * (1 + error), target.right.dtype)


#: The precision that a kernel may have fallen to: bits of the significand that are left, with the hidden one.
NARROWER = {"float64": 24, "float32": 11, "float16": 8, "bfloat16": 4}


def narrower_output(target: Target) -> Array | None:
    """float32 with the 11 bits of TF32 and HF32, float16 with the 8 of bfloat16, bfloat16 with the 4 of float8."""
    bits = NARROWER.get(target.right.dtype.name)
    return None if bits is None else round_once(to_bits(target.right, bits), target.right.dtype)


def to_bits(array: Array, bits: int) -> Array:
    """float64 values of `array` with significands of `bits` bits, to nearest even."""
    with np.errstate(all="ignore"):
        significand, exponent = np.frexp(array.astype(np.float64))
        return np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)


def integer_off_by_one(target: Target) -> Array | None:
    """One integer one too large, one bool inverted."""
    if target.right.dtype.kind not in "iub" or not target.right.size:
        return None
    changed = np.array(target.right)
    place = np.unravel_index(target.rng.integers(changed.size), changed.shape)
    changed[place] = not changed[place] if changed.dtype.kind == "b" else changed[place] + changed.dtype.type(1)
    return changed
