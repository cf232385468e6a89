"""What the wrong elements of an output have in common, where they stand, and whether it was rounded to one side.

Each rule is a hypothesis on what the device returned instead: a factor, zero, a shift, a repeated block, a narrower
dtype. The first that explains nearly all wrong elements is named, the most special first. Where none does, only the
place is said: one box, a tile, columns, a stride, the last block.

A device rounds to nearest; truncation goes to one side. A truncated element is within one ULP of the exact result, so
that no bound on single elements can see it. All of them together can: of the elements that rounding to nearest moves
up, truncation moves every one down. Both rounding to nearest with an error below half an ULP before it and unbiased
stochastic rounding move at most half of these elements the other way, each independently of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.dtypes import float_format, in_spacings, kind_of, part_dtype, round_once, unit_roundoff
from pytest_msprobe.numerics.expected import Absolute, Chance, Relative, Roundoffs, Share, Times
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, is_same, unravelled, widened

Mask = npt.NDArray[np.bool_]


def describe_region(is_off: Mask) -> str:
    """Where the elements are, such as ``columns 992 to 1023`` or ``one 16 x 16 tile at [.., 32:48, 64:80]``.

    "" where they are everywhere, or nowhere.
    """
    places = np.flatnonzero(is_off)
    if places.size in (0, is_off.size) or (places.size > 8 and places.size >= Share.NO_REGION * is_off.size):
        return ""
    if places.size == 1:
        return f"one element at {list(unravelled(int(places[0]), is_off.shape))}"
    region = _box(is_off) or _run(places, is_off.size) or _lines(is_off) or _stride(places)
    return region or f"{places.size} of {is_off.size} elements, scattered"


def _box(is_off: Mask) -> str:
    """One box of indices that is smaller than the output along some axis."""
    spans = [_span(is_off, axis) for axis in range(is_off.ndim)]
    volume = int(np.prod([stop - start for start, stop in spans]))
    partial = [axis for axis, (start, stop) in enumerate(spans) if stop - start < is_off.shape[axis]]
    filled = np.count_nonzero(is_off) / volume
    places = np.flatnonzero(is_off)
    if (
        is_off.ndim == 1
        or not partial
        or filled < Share.FILLED
        or volume <= 2
        or filled < places.size / (places[-1] - places[0] + 1)
    ):
        return ""  # nothing, or rather a run of elements
    if len(partial) == 1:
        return _slab(partial[0], spans[partial[0]], is_off.shape)
    sizes = " x ".join(str(stop - start) for start, stop in spans if stop - start > 1)
    return f"one {sizes} tile at {_slices(spans, is_off.shape)}"


def _span(is_off: Mask, axis: int) -> tuple[int, int]:
    others = tuple(other for other in range(is_off.ndim) if other != axis)
    hit = np.flatnonzero(is_off.any(axis=others))
    return int(hit[0]), int(hit[-1]) + 1


def _slab(axis: int, span: tuple[int, int], shape: tuple[int, ...]) -> str:
    name = {len(shape) - 1: "column", len(shape) - 2: "row"}.get(axis, f"index on axis {axis}:")
    start, stop = span
    if stop - start == 1:
        return f"{name} {start}"
    plural = f"{name}s" if name in ("row", "column") else f"indices on axis {axis}:"
    return f"{plural} {start} to {stop - 1}"


def _slice(start: int, stop: int) -> str:
    return f"{start}:{stop}" if stop - start > 1 else str(start)


def _slices(spans: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> str:
    """A region as NumPy writes it: ``[.., 32:48, 64:80]``, the axes before the first partial one left out."""
    first = next(axis for axis, (start, stop) in enumerate(spans) if stop - start < shape[axis])
    shown = [_slice(*span) for span in spans[first:]]
    return f"[{', '.join(['..', *shown] if first else shown)}]"


def _run(places: npt.NDArray[np.int64], size: int) -> str:
    """Elements in one run of memory."""
    first, last = int(places[0]), int(places[-1])
    length = last - first + 1
    if places.size < Share.FILLED * length or length >= size:
        return ""
    if last == size - 1:
        return f"the last {length} of {size} elements"
    return f"the first {length} of {size} elements" if first == 0 else f"{length} elements from flat position {first}"


def _lines(is_off: Mask) -> str:
    """Whole rows or columns, not side by side."""
    if is_off.ndim < 2:
        return ""
    rows = is_off.reshape(-1, is_off.shape[-1])
    for name, table in (("rows", rows), ("columns", rows.T)):
        shares = table.mean(axis=1)
        hit = np.flatnonzero(shares)
        if hit.size < len(shares) and (shares[hit] >= Share.FILLED).all():
            step = _step(hit)
            every = f"every {_ordinal(step)} of the {name}, from {hit[0]}" if step > 1 and hit.size > 2 else ""
            shown = ", ".join(map(str, hit[:4])) + (", .." if hit.size > 4 else "")
            return every or f"{hit.size} of {len(shares)} {name}: {shown}"
    return ""


def _stride(places: npt.NDArray[np.int64]) -> str:
    step = _step(places)
    if step < 2 or places.size < 8:
        return ""
    expected = (int(places[-1]) - int(places[0])) // step + 1
    return f"every {_ordinal(step)} element, from {places[0]}" if places.size >= Share.FILLED * expected else ""


def _step(places: Array) -> int:
    return int(np.gcd.reduce(np.diff(places)))


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


ErrorDirection = Literal["towards zero", "away from zero", "down", "up"]

#: The order in which they are reported: a truncated output of positive numbers is also rounded down.
_DIRECTIONS: tuple[ErrorDirection, ...] = ("towards zero", "down", "away from zero", "up")
#: Elements of one significand are rounded alike, so that they count as one; more than this many are not distinguished.
_ENOUGH = 128
_LOOKED_AT = 4096


@dataclass(frozen=True, slots=True)
class RoundingBias:
    """An output that was rounded to one side.

    Attributes:
        direction: where the elements went.
        count, total: how many of the elements that rounding to nearest moves to the other side.
    """

    direction: ErrorDirection
    count: int
    total: int


def find_rounding_bias(tested: Array, reference: Array) -> RoundingBias | None:
    """The side to which `tested` was rounded, or None where its rounding may be fair.

    Args:
        tested: floats of a format narrower than float32; None for all others, where a factor that all elements share
            may be off by half an ULP itself, which looks the same.
        reference: the exact result in float64, of the same shape.

    Only finite elements within one ULP count, and of bfloat16 only normal ones. What equals the rounded benchmark
    is never one-sided.
    """
    if tested.dtype.kind not in "fV" or tested.dtype.itemsize >= 4:
        return None
    counts = _DirectionCounts()
    for _, (values, exact) in chunks(tested, reference):
        counts.add(values, exact)
    return next((bias for direction in _DIRECTIONS if (bias := counts.found(direction)) is not None), None)


class _DirectionCounts:
    """Per direction: elements that nearest rounding moves to the other one, and how many of them went to this one."""

    def __init__(self) -> None:
        self._total = dict.fromkeys(_DIRECTIONS, 0)
        self._count = dict.fromkeys(_DIRECTIONS, 0)
        self._agreeing = dict.fromkeys(_DIRECTIONS, 0)
        self._significands: dict[ErrorDirection, Array] = dict.fromkeys(_DIRECTIONS, np.empty(0))

    def add(self, tested: Array, exact: Array) -> None:
        """Take a chunk into account."""
        exact = exact.astype(np.float64, copy=False)  # the benchmark of a cast has the dtype of the cast
        wide, nearest = widened(tested), round_once(exact, tested.dtype).astype(np.float64)
        moved = _comparable(wide, exact, tested.dtype) & (nearest != exact)
        wide, nearest, exact = wide[moved], nearest[moved], exact[moved]
        upwards, is_up, is_negative = nearest > exact, wide > exact, exact < 0
        wanted_up = (is_negative, np.zeros_like(is_up), ~is_negative, np.ones_like(is_up))
        for direction, wanted in zip(_DIRECTIONS, wanted_up):
            self._add_direction(direction, exact, upwards != wanted, is_up == wanted)

    def _add_direction(self, direction: ErrorDirection, exact: Array, is_other: Array, is_here: Array) -> None:
        self._total[direction] += int(np.count_nonzero(is_other))
        self._count[direction] += int(np.count_nonzero(is_other & is_here))
        self._agreeing[direction] += int(np.count_nonzero(~is_other & ~is_here))
        if self._significands[direction].size < _ENOUGH:
            significands = np.abs(np.frexp(exact[is_other][:_LOOKED_AT])[0])
            self._significands[direction] = np.unique(np.concatenate([self._significands[direction], significands]))

    def found(self, direction: ErrorDirection) -> RoundingBias | None:
        """The finding for one direction."""
        count, total = self._count[direction], self._total[direction]
        if count <= Share.ONE_DIRECTION * total or self._agreeing[direction] > (1 - Share.ONE_DIRECTION) * total:
            return None
        independent = min(total, self._significands[direction].size)
        surprise = 2 * independent * (count / total - 0.5) ** 2
        return RoundingBias(direction, count, total) if surprise > -math.log(Chance.FALSE_ALARM) else None


def _comparable(wide: Array, exact: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Elements that are finite, within one ULP, and so large that no device flushes them to zero."""
    format_ = float_format(dtype)
    least = Times.SMALLEST_NORMAL * format_.smallest_normal
    if format_.smallest_normal > Absolute.FLUSHED_BELOW:
        least *= 2.0**-format_.mantissa_bits
    magnitude = np.abs(exact)
    with np.errstate(invalid="ignore"):
        error = np.abs(wide - exact)
    usable = np.isfinite(error) & (magnitude >= least) & (magnitude <= format_.largest)
    is_comparable: npt.NDArray[np.bool_] = usable.copy()
    is_comparable[usable] = in_spacings(error[usable], magnitude[usable], format_) <= 1
    return is_comparable


#: Formats to which a device may have fallen, by the bits of their significands.
_NARROWER = {11: "float16 or HF32/TF32", 8: "bfloat16", 4: "float8"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the wrong elements of an output have in common; as text a short phrase, "" where nothing is wrong.

    Attributes:
        kind: a key of `_RULES`, such as `factor`; `noise` or `none` for errors everywhere without a rule; "" where only
            the place is known.
        figure: the factor, the number that is added or that an integer is off by, the bits that are left; else None.
        words: the phrase for both: ``256 x too large``.
        place: where they are: ``columns 992 to 1023``; "" everywhere.
    """

    kind: str = ""
    figure: float | None = None
    words: str = ""
    place: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.words, self.place)))


def find_pattern(
    tested: Array,
    reference: Array,
    tolerance: Array | float = 0.0,
    *,
    others: Mapping[str, Array] | None = None,
) -> Pattern:
    """Return what is wrong: ``256 x too large, columns 992 to 1023``.

    Args:
        tested: the output of the device.
        reference: the raw result of the benchmark, of the same shape.
        tolerance: what each element may be off by, in the shape of both.
        others: what the output may be instead, by the phrase that says so: ``equals input 0``. Those of another size
            are ignored.
    """
    # Larger outputs would take too much memory for copies of each hypothesis.
    if tested.shape != reference.shape or not 0 < tested.size <= 1 << 24:
        return Pattern()
    if "other" in (kind_of(tested.dtype), kind_of(reference.dtype)) or tested.dtype.kind == "c":
        return Pattern()
    with np.errstate(all="ignore"):
        wrong = _WrongElements.of(tested, reference, tolerance, others or {})
        if not wrong.is_off.any():
            # Each element is within its tolerance, but not all of them together.
            bias = find_rounding_bias(tested, reference) if kind_of(tested.dtype) == "float" else None
            if bias:
                return Pattern("bias", words=f"rounded {bias.direction}")
            wrong = replace(wrong, is_off=wrong.tested != wrong.right)
        if not wrong.is_off.any():
            return Pattern()
        for kind, rule in _RULES.items():
            named = rule(wrong)
            if named:
                words, figure = named if isinstance(named, tuple) else (named, None)
                return Pattern(kind, figure, words, describe_region(wrong.is_off))
        is_everywhere = 2 * np.count_nonzero(wrong.is_off) > wrong.is_off.size
        place = "" if is_everywhere else describe_region(wrong.is_off)
        return Pattern(place=place) if place else _spread(wrong)


@dataclass(frozen=True, slots=True)
class _WrongElements:
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
    others: Mapping[str, Array]

    @classmethod
    def of(
        cls,
        tested: Array,
        reference: Array,
        tolerance: Array | float,
        others: Mapping[str, Array],
    ) -> _WrongElements:
        wide, right = tested.astype(np.float64), round_once(reference, tested.dtype).astype(np.float64)
        allowed = np.broadcast_to(np.asarray(tolerance, np.float64), wide.shape)
        if kind_of(tested.dtype) == "float":
            spacing = 2 * unit_roundoff(tested.dtype) * np.abs(np.where(np.isfinite(right), right, 0))
            tiny = float_format(part_dtype(tested.dtype)).smallest_normal * unit_roundoff(tested.dtype)
            allowed = np.maximum(np.nan_to_num(allowed), spacing + tiny)
        is_off = ~(is_same(wide, right) | (np.abs(wide - right) <= allowed))
        return cls(wide, right, allowed, is_off, dtype=tested.dtype, others=others)

    @property
    def tested_off(self) -> Floats:
        """The tested values of the wrong elements, shape (n,)."""
        return self.tested[self.is_off]

    @property
    def right_off(self) -> Floats:
        """The right values of the wrong elements, shape (n,)."""
        return self.right[self.is_off]

    @property
    def unit(self) -> float:
        """Unit roundoff of the tested dtype; 0 of exact ones."""
        return unit_roundoff(self.dtype)

    def is_explained_by(self, instead: Array, *, spread: float = 0.0) -> bool:
        """Whether `instead` is what stands at nearly all wrong places."""
        tested, instead = self.tested_off, np.broadcast_to(instead, self.tested.shape)[self.is_off]
        allowed = np.minimum(self.tolerance[self.is_off], Share.OF_ERROR * np.abs(tested - self.right_off))
        allowed = np.maximum(allowed, Roundoffs.INSTEAD * self.unit * np.abs(instead)) + spread
        close = (tested == instead) | (np.abs(tested - instead) <= allowed)
        return int(np.count_nonzero(close)) >= Share.EXPLAINED * tested.size


#: The words of a rule, with its figure where it has one; "" where it does not hold.
_Named = str | tuple[str, float]


def _not_finite(wrong: _WrongElements) -> str:
    tested, right = wrong.tested_off, wrong.right_off
    where = " where finite" if np.isfinite(right).all() else ""
    if np.isnan(tested).all():
        return f"NaN{where}"
    if np.isinf(tested).all():
        return f"Inf{where}"
    return "" if np.isfinite(tested).any() else "NaN and Inf"


def _zero(wrong: _WrongElements) -> str:
    if (wrong.tested_off != 0).any():
        return ""
    return "all zero" if not wrong.tested.any() else "zero"


def _swapped(wrong: _WrongElements) -> str:
    tested, right = wrong.tested_off, wrong.right_off
    is_pair = tested.size == 2 and tested[0] == right[1] and tested[1] == right[0]
    return "two elements swapped" if is_pair else ""


def _copied(wrong: _WrongElements) -> str:
    """One element that is another one, the first or a neighbour."""
    places = np.flatnonzero(wrong.is_off)
    if places.size != 1 or kind_of(wrong.dtype) != "float":
        return ""
    right, at = wrong.right.reshape(-1), int(places[0])
    blocks = (k for k in (0, at - 1, at + 1) if 0 <= k < right.size and k != at)
    return next((f"repeats block {k} (one element)" for k in blocks if right[k] == wrong.tested.flat[at]), "")


def _integer_step(wrong: _WrongElements) -> _Named:
    if kind_of(wrong.dtype) == "float":
        return ""
    steps = np.unique(wrong.tested_off - wrong.right_off)
    if kind_of(wrong.dtype) == "bool":
        return "inverted"
    if steps.size > 1:
        return ""
    return f"{'too large' if steps[0] > 0 else 'too small'} by {abs(steps[0]):g}", float(steps[0])


def _other(wrong: _WrongElements) -> str:
    for name, other in wrong.others.items():
        if other.size == wrong.tested.size and wrong.is_explained_by(other.reshape(wrong.tested.shape)):
            return name
    return ""


def _factor(wrong: _WrongElements) -> _Named:
    """The benchmark times one number, by least squares."""
    tested, right = wrong.tested_off, wrong.right_off
    usable = np.isfinite(tested) & np.isfinite(right) & (right != 0)
    if usable.sum() < max(1, Share.EXPLAINED * tested.size):
        return ""
    scale = float(np.abs(right[usable]).max())
    tested, right = tested[usable] / scale, right[usable] / scale
    factor = float(np.dot(tested, right) / np.dot(right, right))
    if not wrong.is_explained_by(factor * wrong.right) or factor == 1:
        return ""
    if math.isclose(factor, -1, rel_tol=Relative.OTHER_SIGN):
        return "other sign", -1.0
    shown = f"{factor:.4g}"
    if shown in ("0", "1"):
        return ""
    return f"{shown} x too {'large' if abs(factor) > 1 else 'small'}", factor


def _offset(wrong: _WrongElements) -> _Named:
    """The benchmark plus one number, by the median."""
    difference = wrong.tested_off - wrong.right_off
    if wrong.tested.size < 4 or difference.size < 4 or not np.isfinite(difference).all():
        return ""
    offset = float(np.median(difference))
    shown = f"{abs(offset):.3g} {'added' if offset > 0 else 'subtracted'}"
    # The median may come from a large element, whose spacing is coarse.
    rounded = Roundoffs.INSTEAD * wrong.unit * float(np.nanmax(np.abs(wrong.right_off)))
    spread = min(Share.OF_OFFSET * abs(offset), rounded)
    return (shown, offset) if offset and wrong.is_explained_by(wrong.right + offset, spread=spread) else ""


def _shifted(wrong: _WrongElements) -> str:
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


def _transposed(wrong: _WrongElements) -> str:
    if wrong.right.ndim < 2:
        return ""
    laid_out = wrong.right.swapaxes(-1, -2).reshape(wrong.right.shape)
    return "transposed" if wrong.is_explained_by(laid_out) else ""


def _repeated(wrong: _WrongElements) -> str:
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


def _narrower(wrong: _WrongElements) -> _Named:
    """The right result in fewer bits, or one that fits into fewer."""
    if kind_of(wrong.dtype) != "float":
        return ""
    tested = wrong.tested[np.isfinite(wrong.tested) & (wrong.tested != 0)]
    right = wrong.right[np.isfinite(wrong.right) & (wrong.right != 0)]
    whole = float_format(part_dtype(wrong.dtype)).mantissa_bits + 1
    for bits, name in sorted(_NARROWER.items()):
        if bits >= whole or tested.size < 4 or not right.size:
            continue
        fits = (_to_bits(tested, bits) == tested).mean() >= Share.EXPLAINED
        if fits and (_to_bits(right, bits) == right).mean() < Share.EXPLAINED / 2:
            return f"matches {name}", float(bits)
    return ""


def _to_bits(values: Floats, bits: int) -> Floats:
    significand, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)


def _to_one_side(wrong: _WrongElements) -> str:
    """Nearly all errors of one sign, as a biased computation leaves them."""
    error = wrong.tested_off - wrong.right_off
    if error.size < 32 or not np.isfinite(error).all():
        return ""
    for name, signs in (("", np.sign(error)), (" in size", np.sign(error) * np.sign(wrong.right_off))):
        if abs(signs.mean()) > Share.ONE_SIDE:
            return f"too {'large' if signs.mean() > 0 else 'small'}{name}"
    return ""


def _spread(wrong: _WrongElements) -> Pattern:
    """Errors everywhere without a rule: how large they are."""
    error = np.abs(wrong.tested_off - wrong.right_off)
    size = np.abs(wrong.right_off)
    share = float(np.median(error / np.maximum(size, np.finfo(np.float64).tiny)))
    if share < Roundoffs.NOISE * wrong.unit:
        roundings = share / wrong.unit
        return Pattern("noise", roundings, f"noise of about {roundings:.2g} roundings everywhere")
    return Pattern("none", words="unrelated values everywhere" if share > 0.5 else "no pattern, everywhere")


#: The most special first: zero is also a factor, and a shift of equal values is anything.
_RULES: Mapping[str, Callable[[_WrongElements], _Named]] = {
    "not finite": _not_finite,
    "swapped": _swapped,
    "zero": _zero,
    "copied": _copied,
    "narrower": _narrower,
    "integer step": _integer_step,
    "factor": _factor,
    "lookalike": _other,
    "repeated": _repeated,
    "shifted": _shifted,
    "transposed": _transposed,
    "offset": _offset,
    "one side": _to_one_side,
}
