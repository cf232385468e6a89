"""Where two runs part: between the last shared values and the first that should be equal, and in which parameters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, dropwhile, islice
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec
from msgspec import structs

from msprobe_collector.dump_format import is_compiled_record
from pytest_msprobe.numerics.expected import Relative, Share, Times
from pytest_msprobe.suites.comparison.content.regions import Located, MatchedValues, Parting, tolerance_of
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

    A port may call parameters otherwise, transpose them, and join several into one: of what is
    joined, sizes, squares of norms and sums add up.

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


#: So many records behind the first, and values of the target, are searched for values that correspond to each other.
_MOST_RECORDS, _MOST_VALUES = 400, 24
#: A region of more calls of the target is no place.
_MOST_CALLS, _MOST_GOLDEN = 16, 32


class Region(msgspec.Struct, frozen=True):
    """Where two runs part.

    Attributes:
        target, golden: records of each run from the first whose inputs are found, in the order of execution.
        distance: how far their results are apart at least; -1 where no values correspond.
        factor: of the result of the target to that of the golden run; 0 without one.
        parameters: of the target, where only their gradients or updates are not found; `golden_parameters` start equal.
        is_update: whether their gradients are found.
        extra: the record that one run alone has there, where both call the same APIs but for that one; else "".
        is_golden_extra: whether that is the golden run.
        is_one_model: whether both runs compute with the same parameters.
    """

    target: tuple[str, ...]
    golden: tuple[str, ...] = ()
    distance: float = -1.0
    factor: float = 0.0
    parameters: tuple[str, ...] = ()
    golden_parameters: tuple[str, ...] = ()
    is_update: bool = False
    extra: str = ""
    is_golden_extra: bool = False
    is_one_model: bool = False


def region_of_results(lost: Sequence[Lost], gradients: Sequence[HeldValue]) -> Region:
    """Return the optimizer that gets or makes what the golden run does not have; of a gradient, what gives it."""
    missing = [loss for loss in lost if loss.is_gradient]
    chosen = missing or lost
    look = chosen[0].value.gradient_look
    makers = (value.record for value in gradients if missing and value.gradient_look == look)
    names = dict.fromkeys(chain.from_iterable(loss.parameters for loss in chosen))
    golden = dict.fromkeys(chain.from_iterable(loss.golden for loss in chosen))
    record = next(makers, chosen[0].value.record)
    return Region((record,), parameters=(*names,), golden_parameters=(*golden,), is_update=not missing)


def region_of(located: Located) -> Region:
    """Return the calls in which two runs part; where none of their values correspond, the first ones alone."""
    region = _trimmed(_nearest(located), located)
    apis = _apis(located.target, region.target), _apis(located.golden, region.golden)
    counts = Counter(apis[0].values()), Counter(apis[1].values())
    for is_golden in (False, True):
        more, less = counts[is_golden] - counts[not is_golden], counts[not is_golden] - counts[is_golden]
        if more.total() == 1 and not less and len(apis[is_golden]) > 1:
            extra = next(name for name, api in apis[is_golden].items() if api in more)
            return structs.replace(region, extra=extra, is_golden_extra=is_golden)
    return region


def _apis(side: Parting, names: Sequence[str]) -> dict[str, str]:
    return {name: side.records[name].operation.bare for name in names}


class _Candidate(NamedTuple):
    """A region, whether one of its results is made by a first call, and both by one API."""

    region: Region
    is_first: bool
    is_alike: bool

    @property
    def rank(self) -> tuple[float, bool]:
        """Order: of near results and few calls, and of results of one API."""
        return self.region.distance * len(self.region.target), not self.is_alike

    @property
    def length(self) -> int:
        """Number of calls."""
        return len(self.region.target) + len(self.region.golden)


def _nearest(located: Located) -> Region:
    """The shortest region behind which both runs hold values that correspond."""
    target, golden = _first(located)
    candidates = list(_candidates(located, target, golden))
    # In the sharpest region one run computes in one call what the other one may compute in several.
    sharp = [it for it in candidates if it.is_first and len(it.region.golden) <= _MOST_GOLDEN]
    near = [it for it in sharp if it.region.distance < Relative.CORRESPONDING]
    near = near or [it for it in candidates if it.region.distance < Relative.CORRESPONDING_LATER]
    if near:
        return min(near, key=lambda candidate: candidate.rank).region
    # The same call of a value that one more call of one run has changed may be far from it.
    alike = [it for it in sharp if it.is_alike]
    if alike:
        return min(alike, key=lambda candidate: candidate.length).region
    return Region(_joined(located.target, target), tuple(golden[:1]))


def _candidates(located: Located, target: Sequence[str], golden: Sequence[str]) -> Iterator[_Candidate]:
    """Regions between the first calls and values of one size that are not found."""
    lost = _lost(located.golden, golden, located.in_target)
    ways = [(value, tuple(_way(located.golden, value.record))) for value in lost]
    for value in islice(_lost(located.target, target, located.in_golden), _MOST_VALUES):
        mine = tuple(_way(located.target, value.record))
        # What parts later may have another cause.
        for other, theirs in ways if set(target[:1]) <= set(mine) and len(mine) <= _MOST_CALLS else ():
            if value.size == other.size:
                is_first = value.record in target or other.record in golden
                factor = _factor(value, other)
                distance = 0.0 if factor and is_first else value.distance(other)
                apis = located.target.records[value.record], located.golden.records[other.record]
                is_alike = apis[0].operation.bare == apis[1].operation.bare
                yield _Candidate(Region(mine, theirs, distance, factor), is_first, is_alike)


def _joined(side: Parting, first: Sequence[str]) -> tuple[str, ...]:
    """The first record that parts; with others of them, up to where they meet."""
    for record in islice(side.parted, _MOST_VALUES):
        way = tuple(_way(side, record.name))
        if set(first[:1]) < set(way).intersection(first) and len(way) <= _MOST_CALLS:
            return way
    return tuple(first[:1])


def _first(located: Located) -> tuple[list[str], list[str]]:
    """The first records of each run that part: forwards alone, where there are any.

    Of a forward that makes one number, as a compiled loss does, only the gradients tell that it parts.
    """
    sides = (located.target, located.golden)
    forward, backward = [], []
    for side in sides:
        forward.append([record.name for record in side.first if record.operation.phase == "forward"])
        backward.append([record.name for record in side.first if record.operation.phase == "backward"])
    if not any(forward):
        return backward[0], backward[1]
    for side, mine, gradients in zip(sides, forward, backward):
        calls = (name.removesuffix("backward") + "forward" for name in gradients[:1] if is_compiled_record(name))
        if not mine:
            mine.extend(name for name in calls if name in side.records)
    return forward[0], forward[1]


def _lost(side: Parting, first: Sequence[str], matches: MatchedValues) -> Iterator[HeldValue]:
    """Values of the records that part which are not found, from the first one on."""
    behind = dropwhile(lambda record: record.name not in first, side.parted)
    for record in islice(behind, _MOST_RECORDS):
        if record.operation.phase == "forward" and not record.is_movement:
            yield from filter(matches.is_lost, record.outputs)


def _way(side: Parting, record: str) -> Iterator[str]:
    """The records that part and lead to `record`, in the order of execution."""
    parted = {other.name for other in side.parted}
    waiting, leading = [record], set[str]()
    while waiting:
        name = waiting.pop()
        if name in parted and name not in leading:
            leading.add(name)
            waiting += side.records[name].sources
    return (other.name for other in side.parted if other.name in leading)


def _trimmed(region: Region, located: Located) -> Region:
    """A region without calls whose values say nothing, such as masks of Inf."""
    target = _losing(located.target, located.in_golden, region.target)
    golden = _losing(located.golden, located.in_target, region.golden)
    return structs.replace(region, target=target, golden=golden)


def _losing(side: Parting, matches: MatchedValues, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if matches.loses(side.records[name])) or names


def _factor(value: HeldValue, other: HeldValue) -> float:
    """By which all statistics of two values differ; 0 where there is no such factor, or it is 1."""
    factor = value.norm / other.norm if other.norm else 0.0
    off = abs(factor - 1)
    allowed = Share.SAME_FACTOR * off * min(1.0, factor)
    largest = max(abs(other.most), abs(other.least))
    pairs = ((value.most, other.most), (value.least, other.least), (value.mean, other.mean))
    scales = (largest, largest, other.norm / math.sqrt(other.size))
    is_one = all(abs(x - factor * y) <= allowed * scale for (x, y), scale in zip(pairs, scales))
    return factor if is_one and off > Relative.LEAST_FACTOR else 0.0
