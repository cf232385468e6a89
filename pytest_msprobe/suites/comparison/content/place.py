"""The calls of both runs between the last values that they share and the first that should be equal and are not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, dropwhile, islice
from typing import NamedTuple

import msgspec
from msgspec import structs

from msprobe_collector.dump_format import is_compiled_record
from pytest_msprobe.numerics.expected import Relative, Share
from pytest_msprobe.suites.comparison.content.parameters import Lost
from pytest_msprobe.suites.comparison.content.regions import Located, MatchedValues, Parting
from pytest_msprobe.suites.comparison.content.values import HeldValue

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
