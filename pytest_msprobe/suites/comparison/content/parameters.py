"""Which parameters of two runs are one, by what they hold, and whose gradients or updates the other run does not have.

A port may call them otherwise, transpose them, and join several into one: of what is joined, sizes, squares of norms
and sums add up.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from operator import attrgetter
from typing import Literal

from pytest_msprobe.numerics.expected import Relative, Share, Times
from pytest_msprobe.suites.comparison.content.regions import Located, tolerance_of
from pytest_msprobe.suites.comparison.content.values import LOOK_DIGITS, HeldParameter, HeldRun, HeldValue


@dataclass(frozen=True, slots=True)
class Lost:
    """Parameters that start equal in both runs, and of which the golden run has no such gradient, or no such update.

    Attributes:
        parameters, golden: their names.
        value: the gradient of the first, or the parameter behind its update.
        is_gradient: whether the gradient is another one, and not the update alone.
    """

    parameters: tuple[str, ...]
    golden: tuple[str, ...]
    value: HeldValue
    is_gradient: bool


@dataclass(frozen=True, slots=True)
class Results:
    """What became of the parameters of two runs in a step.

    Attributes:
        lost: gradients and updates of the target that the golden run does not have.
        is_complete: whether each parameter of both runs has a partner, and all gradients are known.
    """

    lost: Sequence[Lost] = ()
    is_complete: bool = False

    @property
    def are_equal(self) -> bool:
        """Whether all that both steps were for is the same."""
        return self.is_complete and not self.lost


def results_of(target: HeldRun, golden: HeldRun, located: Located) -> Results:
    """Return which gradients and updates of parameters both runs have.

    They may be off by what the gradients inside of the step are. What an update makes of a gradient that is rounding is
    not judged: Adam makes a whole step of it. Of elements it does the same, so that updates are held to their norms,
    and those of vectors, of which a third may be such, are lost where several are by one factor.
    """
    values = chain.from_iterable(record.outputs for record in located.target.records.values())
    unit = max((value.unit for value in values), default=0.0)
    farthest = max(located.in_golden.distances.values(), default=0.0)
    grown = min(Times.GROWTH_OF_ROUNDING * farthest, Relative.OTHER_VALUE)
    tolerance = max(Relative.LONG_SUMS, tolerance_of(unit), grown)
    rate = max(target.rate, golden.rate)
    lost: list[Lost] = []
    updates: list[tuple[float, Lost]] = []
    paired: tuple[set[str], set[str]] = set(), set()
    for mine, theirs in _pairs(target.parameters, golden.parameters, tolerance):
        names = _names(mine), _names(theirs)
        gradient, other = _whole(mine, "gradient"), _whole(theirs, "gradient")
        if gradient is not None and other is not None:
            paired[0].update(names[0])
            paired[1].update(names[1])
            if gradient.gradient_look in located.in_golden.noise and other.gradient_look in located.in_target.noise:
                continue
            if gradient.distance(other) > tolerance:
                lost.append(Lost(*names, gradient, is_gradient=True))
                continue
        after, other = _whole(mine, "after"), _whole(theirs, "after")
        if after is None or other is None:
            continue
        if not abs(after.norm - other.norm) <= tolerance * after.norm + Times.UNSURE_STEP * rate:
            ratio = after.norm / other.norm - 1 if other.norm else math.inf
            updates.append((ratio, Lost(*names, after, is_gradient=False)))
    every = set(_names(target.parameters)), set(_names(golden.parameters))
    return Results([*lost, *_sure(updates)], is_complete=all(every) and paired == every)


def _names(parameters: Sequence[HeldParameter]) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in parameters)


def share_parameters(target: HeldRun, golden: HeldRun) -> bool:
    """Return whether a part of the parameters that a port may leave as they are is the same in both runs."""
    mine, theirs = _looks(target), _looks(golden)
    return len(mine & theirs) >= Share.ONE_MODEL * max(min(len(mine), len(theirs)), 1)


def _looks(run: HeldRun) -> set[tuple[object, ...]]:
    leaves = chain.from_iterable(record.leaves for record in run.records.values())
    return {leaf.gradient_look for leaf in leaves if not leaf.is_plain}


def _sure(updates: Sequence[tuple[float, Lost]]) -> list[Lost]:
    """Updates that are not what Adam makes of gradients that are rounding: of matrices, or of several by one factor."""
    ratios = [ratio for ratio, _ in updates]
    is_one = len(ratios) > 1 and 0 < max(ratios, key=abs) / min(ratios, key=abs) < Times.ONE_FACTOR
    return [lost for _, lost in updates if is_one or len(lost.value.shape) > 1]


def _whole(parameters: Sequence[HeldParameter], field: Literal["gradient", "after"]) -> HeldValue | None:
    """The gradients, or the parameters behind the step, in one; None where one is not known."""
    values = [value for value in map(attrgetter(field), parameters) if value is not None]
    return joined(values) if len(values) == len(parameters) else None


def joined(values: Sequence[HeldValue]) -> HeldValue:
    """Return what is known of several values in one."""
    first = values[0]
    if len(values) == 1:
        return first
    size, squares, total = 0, 0.0, 0.0
    for value in values:
        size += value.size
        squares += value.norm**2
        total += value.mean * value.size
    return replace(
        first,
        size=size,
        shape=(size,),
        norm=math.sqrt(squares),
        most=max(value.most for value in values),
        least=min(map(attrgetter("least"), values)),
        mean=total / size,
        unit=max(map(attrgetter("unit"), values)),
        is_known=all(map(attrgetter("is_known"), values)),
    )


_Pair = tuple[tuple[HeldParameter, ...], tuple[HeldParameter, ...]]


def _pairs(target: Sequence[HeldParameter], golden: Sequence[HeldParameter], tolerance: float) -> Iterator[_Pair]:
    """Parameters of both runs that start equal; those that are tied in one run alone meet the same one."""
    by_norm, alone, taken = sorted(golden, key=_norm), list[HeldParameter](), set[str]()
    for mine in target:
        start = bisect_left(by_norm, _norm(mine) * (1 - Relative.LONG_SUMS), key=_norm)
        end = bisect_right(by_norm, _norm(mine) * (1 + Relative.LONG_SUMS), key=_norm)
        partners = [theirs for theirs in by_norm[start:end] if _start_equal(mine, theirs, tolerance)]
        if not partners:
            alone.append(mine)
            continue
        taken.update(theirs.name for theirs in partners)
        # Of layers that start equal any may be meant: the one whose gradient is nearest.
        yield (mine,), (min(partners, key=lambda theirs: _apart(mine, theirs)),)
    others = [theirs for theirs in golden if theirs.name not in taken]
    yield from (((whole,), parts) for whole, parts in _joins(alone, others))
    yield from ((parts, (whole,)) for whole, parts in _joins(others, alone))


def _norm(parameter: HeldParameter) -> float:
    """The norm of a parameter at the start; Inf where it is not finite, so that it can be sorted."""
    return parameter.before.norm if parameter.before.is_finite else math.inf


def _start_equal(mine: HeldParameter, theirs: HeldParameter, tolerance: float) -> bool:
    """Whether two parameters hold the same; of gains that are all 1 and biases that are 0 their gradients decide."""
    before, other = mine.before, theirs.before
    if not before.is_plain:
        return before.is_like(other)
    is_one = other.is_plain and before.size == other.size and before.most == other.most
    return is_one and _apart(mine, theirs) <= tolerance


def _apart(mine: HeldParameter, theirs: HeldParameter) -> float:
    """How far the gradients of two parameters are apart; inf where one of them says nothing."""
    if mine.gradient is None or theirs.gradient is None or mine.gradient.is_plain:
        return math.inf
    return mine.gradient.distance(theirs.gradient)


def _joins(
    wholes: Sequence[HeldParameter], parts: Sequence[HeldParameter]
) -> Iterator[tuple[HeldParameter, tuple[HeldParameter, ...]]]:
    """(parameter, those that are joined in it)."""
    distinct = [part for part in parts if not part.before.is_plain and part.before.is_finite]
    by_look: dict[tuple[int, str], list[HeldParameter]] = {}
    for part in distinct:
        by_look.setdefault(_look(part.before.size, part.before.norm**2), []).append(part)
    for whole in wholes:
        together = _together(whole.before, distinct, by_look)
        if together:
            yield whole, together


def _together(
    whole: HeldValue, parts: Sequence[HeldParameter], by_look: Mapping[tuple[int, str], Sequence[HeldParameter]]
) -> tuple[HeldParameter, ...]:
    """The parameters that are joined in one; () for none."""
    smaller = [part for part in parts if part.before.size < whole.size and part.before.norm < whole.norm]
    for count in range(1, 3):
        for chosen in _neighbours(smaller, count):
            size = whole.size - sum(part.before.size for part in chosen)
            square = whole.norm**2 - sum(part.before.norm**2 for part in chosen)
            for last in by_look.get(_look(size, square), ()) if size > 0 and square > 0 else ():
                values = [part.before for part in (*chosen, last)]
                if last not in chosen and joined(values).is_like(whole):
                    return (*chosen, last)
    return ()


def _neighbours(parts: Sequence[HeldParameter], count: int) -> Iterator[tuple[HeldParameter, ...]]:
    """As many parameters as `count`, of those that stand near each other in the model."""
    for index, part in enumerate(parts):
        # Parts of one parameter stand within so many places.
        for others in combinations(parts[index + 1 : index + 32], count - 1):
            yield part, *others


def _look(size: int, square: float) -> tuple[int, str]:
    return size, f"{math.sqrt(square):.{LOOK_DIGITS}e}"
