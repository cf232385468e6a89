"""Whether an optimizer gets the gradients of the backward passes since its step before, and nothing of that one.

What a step gets is the sum of what the last passes gave, times one factor: of a loss scale, of clipping. Where it is
that sum and the gradient of the step before on top, it was not set to zero. `arrive` says whether
any gradient arrives at all, as far as records of optimizers tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from msprobe_laws.law import Checked, Unchecked, Violation, few_digits, listed
from msprobe_laws.observation import Array, Update, UpdatedParameter, coarsest_roundoff, smallest
from msprobe_laws.training import FRESH
from pytest_msprobe.numerics.expected import Absolute, Relative, Roundoffs, Times


@dataclass(frozen=True, slots=True)
class Passes:
    """What backward passes gave to one parameter since the step before.

    Attributes:
        gradients: of each, in order; None for one that cannot be read.
        late: those of the records that stand behind the step's, of which some belong to it.
        dtypes: of all of these.
        had_some: whether the dump of the step before shows passes that gave it something.
    """

    gradients: Sequence[Array | None]
    late: Sequence[Array | None] = ()
    dtypes: Sequence[str] = ()
    had_some: bool = False


def mean_of(ranks: Sequence[Passes]) -> Passes | None:
    """Return what data parallelism makes of the passes of its ranks; None where these are not as many on each."""
    if len({(len(passes.gradients), len(passes.late)) for passes in ranks}) > 1:
        return None
    gradients = _shares([passes.gradients for passes in ranks])
    late = _shares([passes.late for passes in ranks])
    dtypes = [dtype for passes in ranks for dtype in passes.dtypes]
    return Passes(gradients, late, dtypes, all(passes.had_some for passes in ranks))


def _shares(of_ranks: Sequence[Sequence[Array | None]]) -> list[Array | None]:
    """Return the gradients of all ranks pass by pass, each as its share of their mean."""
    arrays = chain.from_iterable(zip(*of_ranks))
    return [None if array is None else array / len(of_ranks) for array in arrays]


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
        """Return how far rounding may be off: each term is rounded, each sum, and what the factor makes of it."""
        return 2 * (self.terms + Roundoffs.GRADIENT) * unit

    def tolerance(self, factor: float, unit: float, tiny: float) -> Array:
        return self.relative(unit) * factor * self.magnitude + Times.SMALLEST_NORMAL * tiny


#: (whether it holds the gradient of the step before, factor) of a sum that is the gradient.
_Fit = tuple[bool, float]


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the gradient of one parameter may be.

    Attributes:
        fits: of the sums that give it; one alone where its elements tell which it is.
        is_certain: whether they do.
        off: by a factor, how far it is from what this step's passes gave, in tolerances; norms of both.
    """

    fits: Sequence[_Fit]
    is_certain: bool
    off: Callable[[float], tuple[float, float, float]]

    def fit_among(self, certain: Collection[_Fit]) -> _Fit | None:
        """Return what it is; where its own elements are too few to tell, by what other parameters are."""
        if self.is_certain:
            return self.fits[0]
        for is_stale, factor in sorted(self.fits):
            if any(
                is_stale == kind and abs(factor - other) <= Relative.SAME_FACTORS * other for kind, other in certain
            ):
                return is_stale, factor
        return None


def fresh(update: Update, before: Update | None, passes_of: Callable[[str], Iterable[Passes]]) -> Checked:
    """Return what the law says of one step.

    Args:
        update: the step.
        before: the step before; None where it is not known.
        passes_of: what a parameter was given; more than one where it may be one or the other.
    """
    older = {} if before is None else {item.name: item for item in before.parameters}
    judged: dict[str, _Judged] = {}
    for item in update.parameters:
        for passes in passes_of(item.name) if item.gradient is not None else ():
            assert item.gradient is not None
            judgement = _judged(item.gradient, item.gradient_dtype, older.get(item.name), passes)
            if item.name not in judged or judgement.is_certain or not judged[item.name].fits:
                judged[item.name] = judgement
            if judgement.is_certain:
                break
    if not judged:
        return Unchecked("no parameter has a gradient", is_moot=True)
    certain = {judgement.fits[0] for judgement in judged.values() if judgement.is_certain}
    fits = {name: judgement.fit_among({(False, 1.0), *certain}) for name, judgement in judged.items()}
    findings = [_finding(name, judged[name], fit[1]) for name, fit in fits.items() if fit is not None and fit[0]]
    unknown = [name for name, fit in fits.items() if fit is None]
    if findings or not unknown:
        return findings
    return Unchecked(
        f"gradients of {len(unknown)} of {len(fits)} parameters ({listed(unknown)}) are no sum of what the recorded "
        "backward passes gave (begun before the dump, reduced over ranks, or changed by the script?)"
    )


def _judged(gradient: Array, dtype: str, before: UpdatedParameter | None, passes: Passes) -> _Judged:
    older = None if before is None else before.gradient
    dtypes = (dtype, *passes.dtypes)
    unit, tiny = coarsest_roundoff(dtypes), max(map(smallest, dtypes))
    off = partial(_off, gradient, None, unit, tiny)
    arrays = [*passes.gradients, *passes.late, gradient, *(() if older is None else (older,))]
    if any(array is None or array.size != gradient.size or not np.all(np.isfinite(array)) for array in arrays):
        return _Judged((), False, off)
    if not np.any(gradient):
        return _Judged(((False, 1.0),), True, off)
    sums = list(_sums(passes, older if older is not None and np.any(older) else None, gradient.size))
    off = partial(_off, gradient, next((total for total in sums if not total.is_stale), None), unit, tiny)
    fits: list[_Fit] = []
    for factor, least in ((1.0, Absolute.BITS_OF_A_SUM), (None, Absolute.BITS_OF_FITTED)):
        fitting: dict[bool, tuple[float, float]] = {}
        for total in sums:
            if (fit := _fits(gradient, total, factor, unit, tiny)) is not None:
                fitting.setdefault(total.is_stale, fit)
        # By one factor both may fit, where gradients are alike from step to step. Not so by the factor 1, but where
        # the gradient of the step before is below rounding.
        is_stale = False not in fitting
        if fitting and fitting[is_stale][1] >= least and (factor == 1.0 or len(fitting) == 1):
            return _Judged(((is_stale, fitting[is_stale][0]),), True, off)
        fits += [(kind, fit[0]) for kind, fit in fitting.items()]
    return _Judged(fits, False, off)


def _off(gradient: Array, total: _Sum | None, unit: float, tiny: float, factor: float) -> tuple[float, float, float]:
    """See `_Judged.off`."""
    norm = float(np.linalg.norm(gradient))
    if total is None:
        return 1 / unit, norm, 0.0
    rest = float(np.linalg.norm(gradient - factor * total.total))
    allowed = total.relative(unit) * max(norm, factor * float(np.linalg.norm(total.magnitude))) + tiny
    return rest / allowed, norm, factor * float(np.linalg.norm(total.total))


def _sums(passes: Passes, older: Array | None, size: int) -> Iterator[_Sum]:
    """Return what the gradient may be: all passes, then fewer of the first.

    Each with the gradient of the step before, too.
    """
    nothing = _Sum(np.zeros(size), np.zeros(size), 0, False)
    for late in range(len(passes.late) + 1):
        arrays = [array for array in (*passes.gradients, *passes.late[:late]) if array is not None]
        sums = [nothing]
        for array in reversed(arrays):
            sums.append(sums[-1].plus(array))
        for total in reversed(sums):
            if total.terms:
                yield total
            # A parameter of which no passes are recorded is not watched.
            if older is not None and (total.terms or (passes.had_some and not arrays)):
                yield total.plus(older, is_stale=True)


def _fits(gradient: Array, total: _Sum, factor: float | None, unit: float, tiny: float) -> tuple[float, float] | None:
    """Return (factor by which the sum is what was given, how many bits of them agree); None where it is not."""
    if factor is None:
        square = float(total.total @ total.total)
        factor = float(gradient @ total.total) / square if square else 0.0
        if not factor > 0 or not math.isfinite(factor):
            return None
    if np.any(np.abs(gradient - factor * total.total) > total.tolerance(factor, unit, tiny)):
        return None
    hidden = Times.FLUSHED * tiny
    telling = int(np.count_nonzero((np.abs(gradient) > hidden) | (factor * total.magnitude > hidden)))
    return factor, max(0, telling - (factor != 1.0)) * max(0.0, -math.log2(total.relative(unit)))


def _finding(name: str, judgement: _Judged, factor: float) -> Violation:
    size, norm, norm_of_passes = judgement.off(factor)
    whole, part = few_digits(norm), few_digits(norm_of_passes)
    if norm_of_passes:
        message = f"its gradient, of norm {whole}, is that of this step's backward passes, of norm {part}, and that of"
        message += " the step before, added up"
    else:
        message = (
            f"no backward pass of this step gave it a gradient, and it holds that of the step before, norm {whole}"
        )
    return Violation(
        FRESH, name, f"{message}: it was not set to zero (are gradients cleared in each step, as zero_grad does?)", size
    )


def arrive(steps: Sequence[Mapping[str, bool]], ends: Callable[[str], Sequence[str] | None]) -> Checked:
    """Return what the law says of the parameters of an optimizer in all of its steps that are known.

    A gradient that is 0 in every element may be meant: behind a weight that is still 0, in an
    expert that no token chose, in a part of which the loss does not count yet. It is no finding,
    and is named where no 0 in the step explains it.

    Args:
        steps: of each, whether the gradient is 0 in every element, by parameter. One with no other gradients tells
            nothing.
        ends: calls in which the gradient of a parameter becomes 0 and that got no 0; None where they are not known.
    """
    telling = [step for step in steps if not all(step.values())]
    if not telling:
        return Unchecked("no gradient is known that is not 0", is_moot=True)
    names = dict.fromkeys(name for step in telling for name in step)
    calls = {name: ends(name) for name in names if all(step.get(name, True) for step in telling)}
    zero = tuple(name for name, ends_in in calls.items() if ends_in is None or ends_in)
    if not zero:
        return []
    last = dict.fromkeys(call for name in zero for call in calls[name] or ())
    where = f"; {listed(last)} gets another one and gives it back as 0" if last else ""
    when = "in the only step that is known" if len(telling) == 1 else f"in each of {len(telling)} steps"
    return Unchecked(f"the gradient is 0 in every element, {when}{where}", parameters=zero)
