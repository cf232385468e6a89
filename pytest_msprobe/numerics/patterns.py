"""What the wrong elements of an output have in common: a factor, zero, a shift, a repeated block, a narrower dtype.

Each rule is a hypothesis on what the device returned instead; the first that explains nearly all wrong elements is
named, the most special first. Where none does, only the place is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.kinds import kind_of
from pytest_msprobe.numerics.one_sidedness import find_one_sided
from pytest_msprobe.numerics.regions import describe_region
from pytest_msprobe.numerics.rounding import round_once
from pytest_msprobe.numerics.ulp import float_format, part_dtype, unit_roundoff

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Larger outputs would take too much memory for copies of each hypothesis.
_MOST_ELEMENTS = 1 << 24
#: A hypothesis must explain this share of the wrong elements.
_EXPLAINED = 0.98
#: Formats to which a device may have fallen, by the bits of their significands.
_NARROWER = {11: "float16 or HF32/TF32", 8: "bfloat16", 4: "float8"}


def name_pattern(
    tested: npt.NDArray[Any],
    reference: npt.NDArray[Any],
    tolerance: npt.NDArray[Any] | float = 0.0,
    *,
    others: Mapping[str, npt.NDArray[Any]] | None = None,
) -> str:
    """A short phrase for what is wrong: ``256 x too large, columns 992 to 1023``; "" where nothing is, or all is noise.

    Args:
        tested: the output of the device.
        reference: the raw result of the benchmark, of the same shape.
        tolerance: what each element may be off by, in the shape of both.
        others: what the output may be instead, by the phrase that says so: ``equals input 0``. Those of another size
            are ignored.
    """
    if tested.shape != reference.shape or not 0 < tested.size <= _MOST_ELEMENTS:
        return ""
    if "other" in (kind_of(tested.dtype), kind_of(reference.dtype)) or tested.dtype.kind == "c":
        return ""
    with np.errstate(all="ignore"):
        wrong = _Wrong.of(tested, reference, tolerance, others or {})
        if not wrong.is_off.any():
            # Each element is within its tolerance, but not all of them together.
            found = find_one_sided(tested, reference) if kind_of(tested.dtype) == "float" else None
            if found:
                return f"rounded {found.side}"
            wrong = replace(wrong, is_off=wrong.tested != wrong.right)
        if not wrong.is_off.any():
            return ""
        what = next((name for rule in _RULES if (name := rule(wrong))), "")
        is_everywhere = not what and 2 * np.count_nonzero(wrong.is_off) > wrong.is_off.size
        where = "" if is_everywhere else describe_region(wrong.is_off)
        return ", ".join(filter(None, (what, where))) or _spread(wrong)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """An output with its wrong elements.

    Attributes:
        tested, right: values in float64, the benchmark's rounded once to the tested dtype.
        tolerance: what each element may be off by.
        is_off: which elements are wrong.
        dtype: of the tested output.
        others: see `name_pattern`.
    """

    tested: Floats
    right: Floats
    tolerance: Floats
    is_off: Mask
    dtype: np.dtype[Any]
    others: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def of(
        cls,
        tested: npt.NDArray[Any],
        reference: npt.NDArray[Any],
        tolerance: npt.NDArray[Any] | float,
        others: Mapping[str, npt.NDArray[Any]],
    ) -> _Wrong:
        wide, right = tested.astype(np.float64), round_once(reference, tested.dtype).astype(np.float64)
        is_float = kind_of(tested.dtype) == "float"
        allowed = np.broadcast_to(np.asarray(tolerance, np.float64), wide.shape)
        if is_float:
            spacing = 2 * unit_roundoff(tested.dtype) * np.abs(np.where(np.isfinite(right), right, 0))
            tiny = float_format(part_dtype(tested.dtype)).smallest_normal * unit_roundoff(tested.dtype)
            allowed = np.maximum(np.nan_to_num(allowed), spacing + tiny)
        same = (wide == right) | (np.isnan(wide) & np.isnan(right))
        is_off = ~(same | (np.abs(wide - right) <= allowed))
        return cls(wide, right, allowed, is_off, tested.dtype, others)

    def is_explained_by(self, instead: npt.NDArray[Any], *, spread: float = 0.0) -> bool:
        """Whether `instead` is what stands at nearly all wrong places."""
        tested, instead = self.tested[self.is_off], np.broadcast_to(instead, self.tested.shape)[self.is_off]
        unit = unit_roundoff(self.dtype) if kind_of(self.dtype) == "float" else 0.0
        allowed = np.minimum(self.tolerance[self.is_off], np.abs(tested - self.right[self.is_off]) / 4)
        allowed = np.maximum(allowed, 4 * unit * np.abs(instead)) + spread
        close = (tested == instead) | (np.abs(tested - instead) <= allowed)
        return int(np.count_nonzero(close)) >= _EXPLAINED * tested.size


def _not_finite(wrong: _Wrong) -> str:
    tested, right = wrong.tested[wrong.is_off], wrong.right[wrong.is_off]
    if np.isnan(tested).all():
        return "NaN where finite" if np.isfinite(right).all() else "NaN"
    if np.isinf(tested).all():
        return "Inf where finite" if np.isfinite(right).all() else "Inf"
    return "" if np.isfinite(tested).any() else "NaN and Inf"


def _zero(wrong: _Wrong) -> str:
    if (wrong.tested[wrong.is_off] != 0).any():
        return ""
    return "all zero" if not wrong.tested.any() else "zero"


def _swapped(wrong: _Wrong) -> str:
    tested, right = wrong.tested[wrong.is_off], wrong.right[wrong.is_off]
    is_pair = tested.size == 2 and tested[0] == right[1] and tested[1] == right[0]
    return "two elements swapped" if is_pair else ""


def _copied(wrong: _Wrong) -> str:
    """One element that is another one, the first or a neighbour."""
    places = np.flatnonzero(wrong.is_off)
    if places.size != 1 or kind_of(wrong.dtype) != "float":
        return ""
    right, at = wrong.right.reshape(-1), int(places[0])
    found = (k for k in (0, at - 1, at + 1) if 0 <= k < right.size and k != at)
    return next((f"repeats block {k} (one element)" for k in found if right[k] == wrong.tested.flat[at]), "")


def _integer_step(wrong: _Wrong) -> str:
    if kind_of(wrong.dtype) == "float":
        return ""
    steps = np.unique(wrong.tested[wrong.is_off] - wrong.right[wrong.is_off])
    if kind_of(wrong.dtype) == "bool":
        return "inverted"
    return f"{'too large' if steps[0] > 0 else 'too small'} by {abs(steps[0]):g}" if steps.size == 1 else ""


def _other(wrong: _Wrong) -> str:
    for name, other in wrong.others.items():
        if other.size == wrong.tested.size and wrong.is_explained_by(other.reshape(wrong.tested.shape)):
            return name
    return ""


def _factor(wrong: _Wrong) -> str:
    """The benchmark times one number, by least squares."""
    tested, right = wrong.tested[wrong.is_off], wrong.right[wrong.is_off]
    usable = np.isfinite(tested) & np.isfinite(right) & (right != 0)
    if usable.sum() < max(1, _EXPLAINED * tested.size):
        return ""
    factor = _least_squares(tested[usable], right[usable])
    if not wrong.is_explained_by(factor * wrong.right) or factor == 1:
        return ""
    if math.isclose(factor, -1, rel_tol=1e-3):
        return "other sign"
    shown = f"{factor:.4g}"
    return "" if shown in ("0", "1") else f"{shown} x too {'large' if abs(factor) > 1 else 'small'}"


def _least_squares(tested: Floats, right: Floats) -> float:
    scale = float(np.abs(right).max())
    tested, right = tested / scale, right / scale
    return float(np.dot(tested, right) / np.dot(right, right))


def _offset(wrong: _Wrong) -> str:
    """The benchmark plus one number, by the median."""
    difference = (wrong.tested - wrong.right)[wrong.is_off]
    if wrong.tested.size < 4 or difference.size < 4 or not np.isfinite(difference).all():
        return ""
    offset = float(np.median(difference))
    shown = f"{abs(offset):.3g} {'added' if offset > 0 else 'subtracted'}"
    # The median may come from a large element, whose spacing is coarse.
    unit = unit_roundoff(wrong.dtype) if kind_of(wrong.dtype) == "float" else 0.0
    spread = min(abs(offset) / 8, 4 * unit * float(np.nanmax(np.abs(wrong.right[wrong.is_off]))))
    return shown if offset and wrong.is_explained_by(wrong.right + offset, spread=spread) else ""


def _shifted(wrong: _Wrong) -> str:
    if wrong.tested.size < 3:
        return ""
    flat = wrong.right.reshape(-1)
    for step, name in ((1, "i-1"), (-1, "i+1")):
        if wrong.is_explained_by(np.roll(flat, step).reshape(wrong.right.shape)):
            return f"equals element {name} (shifted)"
        for axis in range(wrong.right.ndim):
            if wrong.right.shape[axis] > 2 and wrong.is_explained_by(np.roll(wrong.right, step, axis)):
                return f"equals element {name} along axis {axis} (shifted)"
    return ""


def _transposed(wrong: _Wrong) -> str:
    if wrong.right.ndim < 2:
        return ""
    laid_out = wrong.right.swapaxes(-1, -2).reshape(wrong.right.shape)
    return "transposed" if wrong.is_explained_by(laid_out) else ""


def _repeated(wrong: _Wrong) -> str:
    """A run of elements that repeats an earlier, or a later, run of the right result."""
    places = np.flatnonzero(wrong.is_off)
    first, length = int(places[0]), int(places[-1]) - int(places[0]) + 1
    right, tested = wrong.right.reshape(-1), wrong.tested.reshape(-1)
    if places.size < 2 or length > right.size // 2:
        return ""
    starts = np.flatnonzero(right[: right.size - length + 1] == tested[first])[:64]
    for start in {0, max(0, first - length), *map(int, starts)}:
        instead = right.copy()
        instead[first : first + length] = right[start : start + length]
        if start != first and wrong.is_explained_by(instead.reshape(wrong.right.shape)):
            return f"repeats block {start // length} (elements {start} to {start + length - 1})"
    return ""


def _narrower(wrong: _Wrong) -> str:
    """The right result in fewer bits, or one that fits into fewer."""
    if kind_of(wrong.dtype) != "float":
        return ""
    tested = wrong.tested[np.isfinite(wrong.tested) & (wrong.tested != 0)]
    right = wrong.right[np.isfinite(wrong.right) & (wrong.right != 0)]
    own = float_format(part_dtype(wrong.dtype)).mantissa_bits + 1
    for bits, name in sorted(_NARROWER.items()):
        if bits >= own or tested.size < 4:
            continue
        fits = (_to_bits(tested, bits) == tested).mean() >= _EXPLAINED
        if fits and (_to_bits(right, bits) == right).mean() < _EXPLAINED / 2:
            return f"matches {name}"
    return ""


def _to_bits(values: Floats, bits: int) -> Floats:
    significand, exponent = np.frexp(values)
    rounded: Floats = np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)
    return rounded


def _to_one_side(wrong: _Wrong) -> str:
    """Nearly all errors of one sign, as a biased computation leaves them."""
    error = (wrong.tested - wrong.right)[wrong.is_off]
    if error.size < 32 or not np.isfinite(error).all():
        return ""
    for name, signs in (("", np.sign(error)), (" in size", np.sign(error) * np.sign(wrong.right[wrong.is_off]))):
        if abs(signs.mean()) > 0.9:
            return f"too {'large' if signs.mean() > 0 else 'small'}{name}"
    return ""


def _spread(wrong: _Wrong) -> str:
    """Words for errors everywhere without a rule: how large they are."""
    error = np.abs(wrong.tested - wrong.right)[wrong.is_off]
    size = np.abs(wrong.right[wrong.is_off])
    share = float(np.median(error / np.maximum(size, np.finfo(np.float64).tiny)))
    unit = unit_roundoff(wrong.dtype) if kind_of(wrong.dtype) == "float" else 0.0
    if share < 64 * unit:
        return f"noise of about {share / unit:.2g} roundings everywhere"
    return "unrelated values everywhere" if share > 0.5 else "no pattern, everywhere"


#: The most special first: zero is also a factor, and a shift of equal values is anything.
_RULES: tuple[Callable[[_Wrong], str], ...] = (
    _not_finite,
    _swapped,
    _zero,
    _copied,
    _narrower,
    _integer_step,
    _factor,
    _other,
    _repeated,
    _shifted,
    _transposed,
    _offset,
    _to_one_side,
)
