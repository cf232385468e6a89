"""Whether an optimizer gets the gradients of the backward passes since its step before, and nothing of that one.

What a step gets is the sum of what the last passes gave, times one factor: of a loss scale, of clipping. Where it is
that sum and the gradient of the step before on top, it was not set to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from msprobe_collector.laws.law import Checked, Finding, Unchecked, few_digits, listed
from msprobe_collector.laws.observation import Array, Update, UpdatedParameter, smallest, unit_roundoff
from msprobe_collector.laws.training import FRESH

#: Bits by which elements must agree before a sum is what a step got, and where one factor is fitted to them.
_BITS, _BITS_OF_FITTED = 20.0, 40.0
#: Factors of two parameters are the same to within this part: each is fitted to rounded values.
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class Passes:
    """What backward passes gave to one parameter since the step before.

    Attributes:
        given: of each, in order; None for one that cannot be read.
        late: those of the records that stand behind the step's, of which some belong to it.
        dtypes: of all of these.
        had_some: whether the dump of the step before shows passes that gave it something.
    """

    given: Sequence[Array | None]
    late: Sequence[Array | None] = ()
    dtypes: Sequence[str] = ()
    had_some: bool = False


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum that the gradient may be, and the sum of the magnitudes, to which its rounding belongs."""

    total: Array
    magnitude: Array
    terms: int
    is_stale: bool

    def plus(self, array: Array, *, is_stale: bool = False) -> _Sum:
        return _Sum(self.total + array, self.magnitude + np.abs(array), self.terms + 1, self.is_stale or is_stale)

    def relative(self, unit: float) -> float:
        """How far rounding may be off: each term is rounded, each sum, and what the factor makes of it."""
        return 2 * (self.terms + 4) * unit

    def tolerance(self, factor: float, unit: float, tiny: float) -> Array:
        return self.relative(unit) * factor * self.magnitude + 4 * tiny


_Kind = Literal["fresh", "stale", "unknown"]


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the gradient of one parameter is.

    Attributes:
        kind: what its elements tell.
        fits: (whether it holds the gradient of the step before, factor) of the sums that give it.
        size: of one that is stale, how far it is from what this step's passes gave, in tolerances.
        norms: of it, and of what this step's passes gave.
    """

    kind: _Kind
    fits: Sequence[tuple[bool, float]]
    size: float = 0.0
    norms: tuple[float, float] = (0.0, 0.0)


def fresh(update: Update, before: Update | None, passes_of: Callable[[str], Passes]) -> Checked:
    """What the law says of one step; `before` is the step before, and `passes_of` says what a parameter was given."""
    older = {} if before is None else {item.name: item for item in before.parameters}
    judged = {
        item.name: _judged(item, older.get(item.name), passes_of(item.name))
        for item in update.parameters
        if item.gradient is not None
    }
    if not judged:
        return Unchecked("no parameter has a gradient", is_moot=True)
    known = {(False, 1.0), *(one.fits[0] for one in judged.values() if one.kind != "unknown")}
    kinds = {name: _told(one, known) for name, one in judged.items()}
    findings = [_finding(name, judged[name]) for name, kind in kinds.items() if kind == "stale"]
    unknown = [name for name, kind in kinds.items() if kind == "unknown"]
    if findings or not unknown:
        return findings
    return Unchecked(
        f"gradients of {len(unknown)} of {len(kinds)} parameters ({listed(unknown)}) are no sum of what the recorded "
        "backward passes gave (begun before the dump, reduced over ranks, or changed by the script?)"
    )


def _told(one: _Judged, known: Iterable[tuple[bool, float]]) -> _Kind:
    """Which kind it is; where its own elements are too few to tell, by what other parameters are."""
    if one.kind != "unknown":
        return one.kind
    for is_stale, factor in sorted(one.fits):
        if any(is_stale == kind and abs(factor - other) <= _SAME * other for kind, other in known):
            return "stale" if is_stale else "fresh"
    return "unknown"


def _judged(item: UpdatedParameter, before: UpdatedParameter | None, passes: Passes) -> _Judged:
    gradient, older = item.gradient, None if before is None else before.gradient
    assert gradient is not None
    arrays = [*passes.given, *passes.late, gradient, *(() if older is None else (older,))]
    if any(array is None or array.size != gradient.size or not np.all(np.isfinite(array)) for array in arrays):
        return _Judged("unknown", ())
    if not np.any(gradient):
        return _Judged("fresh", ((False, 1.0),))
    dtypes = (item.gradient_dtype, *passes.dtypes)
    unit, tiny = max(map(unit_roundoff, dtypes)), max(map(smallest, dtypes))
    sums = list(_sums(passes, older if older is not None and np.any(older) else None, gradient.size))
    fits: list[tuple[bool, float]] = []
    for factor, least in ((1.0, _BITS), (None, _BITS_OF_FITTED)):
        found: dict[bool, tuple[float, float]] = {}
        for one in sums:
            if (fit := _fits(gradient, one, factor, unit, tiny)) is not None:
                found.setdefault(one.is_stale, fit)
        # By one factor both may fit, where gradients are alike from step to step. Not so by the factor 1, but where
        # the gradient of the step before is below rounding.
        is_stale = False not in found
        if found and found[is_stale][1] >= least and (factor == 1.0 or len(found) == 1):
            fitted = found[is_stale][0]
            own = next((one for one in sums if not one.is_stale), None) if is_stale else None
            size, norms = _how_stale(gradient, own, fitted, unit, tiny)
            return _Judged("stale" if is_stale else "fresh", ((is_stale, fitted),), size, norms)
        fits += [(kind, fit[0]) for kind, fit in found.items()]
    own = next((one for one in sums if not one.is_stale), None)
    return _Judged("unknown", fits, *_how_stale(gradient, own, 1.0, unit, tiny))


def _how_stale(
    gradient: Array, own: _Sum | None, factor: float, unit: float, tiny: float
) -> tuple[float, tuple[float, float]]:
    """(how far the gradient is from this step's `own` passes, in tolerances; norms of both)."""
    norm = float(np.linalg.norm(gradient))
    if own is None:
        return float(np.max(np.abs(gradient)) / (unit * np.max(np.abs(gradient)) + tiny)), (norm, 0.0)
    size = np.max(np.abs(gradient - factor * own.total) / own.tolerance(factor, unit, tiny))
    return float(size), (norm, factor * float(np.linalg.norm(own.total)))


def _sums(passes: Passes, older: Array | None, size: int) -> Iterator[_Sum]:
    """What the gradient may be: all passes, then fewer of the first; each with the gradient of the step before, too."""
    nothing = _Sum(np.zeros(size), np.zeros(size), 0, False)
    for late in range(len(passes.late) + 1):
        own = [array for array in (*passes.given, *passes.late[:late]) if array is not None]
        sums = [nothing]
        for array in reversed(own):
            sums.append(sums[-1].plus(array))
        for one in reversed(sums):
            if one.terms:
                yield one
            # A parameter of which no passes are recorded is not watched.
            if older is not None and (one.terms or (passes.had_some and not own)):
                yield one.plus(older, is_stale=True)


def _fits(given: Array, one: _Sum, factor: float | None, unit: float, tiny: float) -> tuple[float, float] | None:
    """(factor by which the sum is what was given, how many bits of them agree); None where it is not."""
    if factor is None:
        square = float(one.total @ one.total)
        factor = float(given @ one.total) / square if square else 0.0
        if not factor > 0 or not math.isfinite(factor):
            return None
    if np.any(np.abs(given - factor * one.total) > one.tolerance(factor, unit, tiny)):
        return None
    telling = int(np.count_nonzero((np.abs(given) > 16 * tiny) | (factor * one.magnitude > 16 * tiny)))
    return factor, max(0, telling - (factor != 1.0)) * max(0.0, -math.log2(one.relative(unit)))


def _finding(name: str, one: _Judged) -> Finding:
    whole, own = map(few_digits, one.norms)
    if one.norms[1]:
        message = (
            f"its gradient has the norm {whole}: it is that of this step's backward passes (norm {own}) and that of "
            "the step before, added up: it was not set to zero (is zero_grad called in each step?)"
        )
    else:
        message = (
            "no backward pass of this step gave it a gradient, and it still holds that of the step before "
            f"(norm {whole}): it was not set to zero (is zero_grad called in each step?)"
        )
    return Finding(FRESH, name, message, one.size)
