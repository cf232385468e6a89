"""Which parameters of two runs are one, by what they hold, and whose gradients or updates the other run does not have.

A port may call them otherwise, transpose them, and join several into one: of what is joined, sizes, squares of norms
and sums add up.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

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
    values = [value for record in located.target.records.values() for value in record.outputs]
    unit = max((value.unit for value in values), default=0.0)
    farthest = max(located.found.distances.values(), default=0.0)
    tolerance = max(
        Relative.LONG_SUMS, tolerance_of(unit), min(Times.GROWTH_OF_ROUNDING * farthest, Relative.OTHER_VALUE)
    )
    rate = max(target.rate, golden.rate)
    lost: list[Lost] = []
    updates: list[tuple[float, Lost]] = []
    known: tuple[set[str], set[str]] = set(), set()
    for mine, theirs in _pairs(target.parameters, golden.parameters, tolerance):
        names = tuple(it.name for it in mine), tuple(it.name for it in theirs)
        gradient, other = _whole(mine, _gradient), _whole(theirs, _gradient)
        if gradient is not None and other is not None:
            for side, own in zip(known, names):
                side.update(own)
            if gradient.gradient_look in located.found.noise and other.gradient_look in located.held.noise:
                continue
            if gradient.distance(other) > tolerance:
                lost.append(Lost(names[0], names[1], gradient, is_gradient=True))
                continue
        after, other = _whole(mine, _after), _whole(theirs, _after)
        if (
            after is not None
            and other is not None
            and not abs(after.norm - other.norm) <= (tolerance * after.norm + Times.UNSURE_STEP * rate)
        ):
            ratio = after.norm / other.norm - 1 if other.norm else math.inf
            updates.append((ratio, Lost(names[0], names[1], after, is_gradient=False)))
    every = [{it.name for it in run.parameters} for run in (target, golden)]
    is_complete = all(every) and list(known) == every
    return Results([*lost, *_sure(updates)], is_complete)


def share_parameters(target: HeldRun, golden: HeldRun) -> bool:
    """Return whether a part of the parameters that a port may leave as they are is the same in both runs."""
    mine, theirs = (
        {leaf.gradient_look for record in run.records.values() for leaf in record.leaves if not leaf.is_plain}
        for run in (target, golden)
    )
    return len(mine & theirs) >= Share.ONE_MODEL * max(min(len(mine), len(theirs)), 1)


def _sure(updates: Sequence[tuple[float, Lost]]) -> list[Lost]:
    """Updates that are not what Adam makes of gradients that are rounding: of matrices, or of several by one factor."""
    ratios = [ratio for ratio, _ in updates]
    is_one = len(ratios) > 1 and 0 < max(ratios, key=abs) / min(ratios, key=abs) < Times.ONE_FACTOR
    return [lost for _, lost in updates if is_one or len(lost.value.shape) > 1]


def _gradient(parameter: HeldParameter) -> HeldValue | None:
    return parameter.gradient


def _after(parameter: HeldParameter) -> HeldValue | None:
    return parameter.after


def _whole(parameters: Sequence[HeldParameter], of: Callable[[HeldParameter], HeldValue | None]) -> HeldValue | None:
    values = [value for value in map(of, parameters) if value is not None]
    return joined(values) if len(values) == len(parameters) else None


def joined(values: Sequence[HeldValue]) -> HeldValue:
    """Return what is known of several values in one."""
    first, size = values[0], sum(value.size for value in values)
    return HeldValue(
        first.record,
        first.path,
        size,
        first.shape if len(values) == 1 else (size,),
        math.sqrt(sum(value.norm**2 for value in values)),
        max(value.most for value in values),
        min(value.least for value in values),
        sum(value.mean * value.size for value in values) / size,
        max(value.unit for value in values),
        all(value.is_known for value in values),
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
        size, square = whole.before.size, whole.before.norm**2
        # Three parameters may be joined into one, as query, key and value are.
        for count in range(1, 3):
            some = [part for part in distinct if part.before.size < size and part.before.norm**2 < square]
            for chosen in _neighbours(some, count):
                rest = size - sum(it.before.size for it in chosen), square - sum(it.before.norm**2 for it in chosen)
                last = by_look.get(_look(*rest), ()) if rest[0] > 0 and rest[1] > 0 else ()
                together = ((*chosen, it) for it in last if it not in chosen)
                found = next((it for it in together if joined([p.before for p in it]).is_like(whole.before)), None)
                if found is not None:
                    yield whole, found
                    break
            else:
                continue
            break


def _neighbours(parts: Sequence[HeldParameter], count: int) -> Iterator[tuple[HeldParameter, ...]]:
    """As many parameters as `count`, of those that stand near each other in the model."""
    for index, part in enumerate(parts):
        # Parts of one parameter stand within so many places.
        for others in combinations(parts[index + 1 : index + 32], count - 1):
            yield part, *others


def _look(size: int, square: float) -> tuple[int, str]:
    return size, f"{math.sqrt(square):.{LOOK_DIGITS}e}"
