"""Which values of one run the other one holds, under any name, and where the two part.

A value is *found* where the other run has one of the same number of elements and the same statistics up to rounding:
norm, largest and smallest element and mean depend neither on names nor on shape and order. Between found values each
run may compute in its own way. Where all that is made of values that are not found is found again, the runs *rejoin*;
where it is not, they have *parted*, at the first calls whose inputs are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

from pytest_msprobe.numerics.expected import Relative, Roundoffs, Times
from pytest_msprobe.suites.comparison.content.values import HeldRecord, HeldRun, HeldValue


@dataclass(slots=True)
class MatchedValues:
    """Where the values of one run are held by the other one.

    Attributes:
        partners: found value of the other run, by name.
        distances: how far both are apart, by name.
        silent: names of values that say nothing by themselves: all elements are equal, as the only one is; the dump
            has no statistics; or they are not finite in both runs. What is made of them tells.
        unjudged: names of gradients that are rounding.
        noise: looks of these.
        refuted: names of values without other elements, such as a loss, that the same call makes otherwise of the same.
    """

    partners: dict[str, HeldValue] = field(default_factory=dict)
    distances: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    unjudged: set[str] = field(default_factory=set)
    noise: set[tuple[object, ...]] = field(default_factory=set)
    refuted: set[str] = field(default_factory=set)

    def partners_of(self, record: HeldRecord) -> list[HeldValue]:
        """The values of the other run that the outputs of a record are."""
        return [self.partners[value.name] for value in record.outputs if value.name in self.partners]

    def sources_of(self, record: HeldRecord) -> list[HeldValue]:
        """The values of the other run that the inputs of a record are."""
        return [self.partners[name] for name in record.makers if name in self.partners]

    def has(self, value: HeldValue) -> bool:
        """Whether a value is found, or is rounding."""
        return value.name in self.partners or value.name in self.unjudged

    def is_lost(self, value: HeldValue) -> bool:
        """Whether a value says something, and is not found."""
        return not self.has(value) and value.name not in self.silent

    def loses(self, record: HeldRecord) -> bool:
        """Whether an output of a record says something, and is not found."""
        return any(map(self.is_lost, record.outputs))

    def is_judged(self, value: HeldValue) -> bool:
        """Whether a value is found, or lost."""
        return value.name in self.partners or self.is_lost(value)


class _Run:
    """The values of one run, by size and statistics.

    Attributes:
        records: of the run.
        units: roundoff of the coarsest dtype on the way to a value, by name.
    """

    def __init__(self, run: HeldRun) -> None:
        self.records, self.units = run.records, dict[str, float]()
        self._by_size: dict[int, list[HeldValue]] = {}
        self._infinite = set[tuple[int, bool]]()
        self._grids: dict[tuple[int, float], dict[tuple[int, ...], list[HeldValue]]] = {}
        for record in run.records.values():
            unit = max((self.units.get(name, 0.0) for name in sources_of(record, run.records)), default=0.0)
            for value in record.outputs:
                self._add(value, max(unit, value.unit))
        self._coarsest = max(self.units.values(), default=0.0)
        for value in run.gradients:
            self._add(value, self._coarsest)

    def _add(self, value: HeldValue, unit: float) -> None:
        self.units[value.name] = unit
        if value.is_finite:
            self._by_size.setdefault(value.size, []).append(value)
        elif value.is_known:
            self._infinite.add((value.size, math.isnan(value.norm)))

    def has_infinite(self, value: HeldValue) -> bool:
        """Whether a value of that size holds NaN, as `value` does, or Inf."""
        return (value.size, math.isnan(value.norm)) in self._infinite

    def candidates(
        self, value: HeldValue, record: HeldRecord, matches: MatchedValues, unit: float, least: float
    ) -> list[tuple[float, HeldValue]]:
        """(distance, value) of what may be an output `value` of `record` of the other run, that of the first rank among
        them; `unit` is on its way, and it may be off by `least`.
        """
        users = set[str]().union(*(_users(source, self.records) for source in matches.sources_of(record)))
        others = sorted((self.records[user] for user in users), key=lambda other: other.operation.index)
        alike = [other.outputs for other in others if other.operation.phase == record.operation.phase]
        widest = max(tolerance_of(max(unit, self._coarsest)), least)
        return self._near(value, unit, least, alike) or self._nearest(value, unit, least, widest)

    def _near(
        self, value: HeldValue, unit: float, least: float, others: Iterable[Iterable[HeldValue]]
    ) -> list[tuple[float, HeldValue]]:
        """(distance, value) of those `others` that may be `value`."""
        near = []
        for other in chain.from_iterable(others):
            if other.size == value.size and other.is_finite:
                distance = value.distance(other)
                if distance <= max(tolerance_of(max(unit, self.units[other.name])), least):
                    near.append((distance, other))
        return near

    def _nearest(self, value: HeldValue, unit: float, least: float, widest: float) -> list[tuple[float, HeldValue]]:
        """The same of all values up to the distance `widest`; where there are many, of the nearest of them."""
        around = self._around(value, widest)
        # More values than that within reach are looked at from the nearest on.
        is_crowded = sum(map(len, around)) > 64 and widest > Relative.EQUAL_STATISTICS
        near = self._nearest(value, unit, least, widest / 2) if is_crowded else []
        return near or self._near(value, unit, least, around)

    def _around(self, value: HeldValue, widest: float) -> list[list[HeldValue]]:
        """The values of one size whose distance from `value` may be below `widest`, and some others.

        They are sorted into cells that no such distance reaches across, of a power of 2 each.
        """
        width = 2.0 ** math.ceil(math.log2(Times.CELL * min(widest, Relative.WIDEST_CELL)))
        if (value.size, width) not in self._grids:
            grid = self._grids[value.size, width] = {}
            for other in self._by_size.get(value.size, ()):
                grid.setdefault(_cell(other, width), []).append(other)
        grid = self._grids[value.size, width]
        if len(grid) == 1 or widest > Relative.WIDEST_CELL:
            return list(grid.values())
        middle = _cell(value, width)
        places = (tuple(map(sum, zip(middle, step))) for step in product((-1, 0, 1), repeat=len(middle)))
        return [grid[place] for place in places if place in grid]


def _cell(value: HeldValue, width: float) -> tuple[int, ...]:
    """Where a value stands by its norm, its largest magnitude and its mean, in cells of a `width`."""
    largest = max(abs(value.most), abs(value.least))
    if not value.norm or not largest:
        return 0, 0, 0
    mean = value.mean * math.sqrt(value.size) / value.norm
    return tuple(math.floor(it / width) for it in (math.log(value.norm), math.log(largest), mean))


def sources_of(record: HeldRecord, records: Mapping[str, HeldRecord]) -> list[str]:
    """Names of the values that a record computes from: of a backward those that its forward made, too."""
    forward = records.get(f"{record.operation.call}.forward")
    if forward is None or record.operation.phase != "backward":
        return record.makers
    return [*record.makers, *(value.name for value in forward.outputs)]


def _users(value: HeldValue, records: Mapping[str, HeldRecord]) -> set[str]:
    """Names of the records of a run that use one of its values."""
    maker = records.get(value.record)
    return maker.users.get(value.path, set()) if maker is not None else set()


def find(target: HeldRun, golden: HeldRun, sums: float = Relative.LONG_SUMS) -> MatchedValues:
    """Return where the outputs of `target`, in the order of execution, are held by `golden`; `sums` is what sums in
    float32 may be off.
    """
    matches, mine, theirs = MatchedValues(), _Run(target), _Run(golden)
    levels: dict[str, float] = {}
    for record in target.records.values():
        level = max((levels.get(name, 0.0) for name in sources_of(record, target.records)), default=0.0)
        least = max(sums, min(Times.GROWTH_OF_ROUNDING * level, Relative.OTHER_VALUE))
        for value in record.outputs:
            levels[value.name] = level
            unit = mine.units[value.name]
            limit = max(least, tolerance_of(unit))
            if not value.is_finite:
                if not value.is_known or theirs.has_infinite(value):
                    matches.silent.add(value.name)
            elif value.is_plain:
                are_other = [value.distance(rival) > limit for rival in _rivals(value, record, matches, golden.records)]
                (matches.refuted if are_other and all(are_other) else matches.silent).add(value.name)
            elif _is_noise(value, record, limit):
                matches.unjudged.add(value.name)
                matches.noise.add(value.look)
            elif candidates := theirs.candidates(value, record, matches, unit, least):
                distance, partner = min(candidates, key=lambda item: _rank(record, item, matches, golden.records))
                matches.partners[value.name], matches.distances[value.name] = partner, distance
                # What is near by its statistics may be as far as the roundings on its way, as its like was.
                levels[value.name] = max(distance, min(level, tolerance_of(unit)))
    return matches


def tolerance_of(unit: float) -> float:
    """How far rounding to a dtype with that roundoff may move a statistic in one operation."""
    return Roundoffs.STATISTIC * unit


def _rivals(
    value: HeldValue, record: HeldRecord, matches: MatchedValues, golden: Mapping[str, HeldRecord]
) -> Iterator[HeldValue]:
    """What the same call of the other run makes of the same values."""
    partners = matches.sources_of(record)
    if not partners or len(partners) < len(record.makers):
        return
    for name in set[str].intersection(*(_users(partner, golden) for partner in partners)):
        if golden[name].operation.bare == record.operation.bare:
            yield from (other for other in golden[name].outputs if other.is_plain and other.size == value.size)


def _is_noise(value: HeldValue, record: HeldRecord, tolerance: float) -> bool:
    """Whether a gradient is no larger than the rounding of the sums that it is.

    The gradient of a bias adds up n elements of the incoming one for each of its own: at most sqrt(n) times its norm.
    That of a bias in front of a norm, or of the keys of an attention, is 0 in exact arithmetic.
    """
    if record.operation.phase != "backward":
        return False
    sums = (other for other in record.inputs if other.size > value.size and other.size % value.size == 0)
    return any(value.norm <= tolerance * math.sqrt(other.size / value.size) * other.norm for other in sums)


def _rank(
    record: HeldRecord, candidate: tuple[float, HeldValue], matches: MatchedValues, golden: Mapping[str, HeldRecord]
) -> tuple[bool, int, bool, float]:
    """Order of candidates for an output of `record`: of its phase, of what its inputs are, of one name, nearest.

    Last come gradients of parameters, which no API call has made as they are.
    """
    distance, value = candidate
    other = golden.get(value.record)
    if other is None:
        return True, 1, True, distance
    shared = sum(source.name in other.makers for source in matches.sources_of(record))
    is_other_phase = other.operation.phase != record.operation.phase
    return is_other_phase, -shared, other.operation.bare != record.operation.bare, distance


@dataclass(slots=True)
class Parting:
    """Where one run leaves what the other one holds.

    Attributes:
        records: of the run.
        parted: records of which something is made that is never found again, in the order of execution.
        first: those of them whose inputs come from no other of them, but for those that make constants or move
            elements; these without others.
    """

    records: Mapping[str, HeldRecord]
    parted: list[HeldRecord] = field(default_factory=list)
    first: list[HeldRecord] = field(default_factory=list)


def parting(run: HeldRun, matches: MatchedValues, parameters: Mapping[int, Sequence[HeldValue]]) -> Parting:
    """Return where a run parts from what is found.

    Args:
        run: the run.
        matches: its values that the other run holds.
        parameters: of the other run, by number of elements.
    """
    records, rejoins = run.records, _rejoining(run, matches, parameters)
    result, sources, others, constants = Parting(records), set[str](), [], constants_of(records)
    for name, record in records.items():
        if rejoins[name]:
            continue
        result.parted.append(record)
        before = {*record.sources}
        if record.operation.phase == "backward":
            before.add(f"{record.operation.call}.forward")
        is_given = all(rejoins.get(maker, True) or maker in sources for maker in before)
        is_silent = not matches.loses(record)
        if is_given and (is_silent or name in constants or record.is_movement):
            sources.add(name)
            others.append(record)
        elif is_given:
            result.first.append(record)
    if not any(map(matches.loses, result.parted)):
        return Parting(records)
    result.first = result.first or others
    return result


def _rejoining(run: HeldRun, matches: MatchedValues, parameters: Mapping[int, Sequence[HeldValue]]) -> dict[str, bool]:
    """Whether all that is made of a record is found again, by its name; see `parting`."""
    logs, last = _logs_of(run), run.last_backward
    rejoins: dict[str, bool] = {}
    is_clean: dict[str, bool] = {}
    for name, record in reversed(list(run.records.items())):
        used = [value for value in record.outputs if value.path in record.users]
        ends = [value for value in record.outputs if value.path not in record.users]
        rejoins[name] = all(map(matches.has, _results(record, run, matches, parameters, last))) and all(
            matches.has(value) or _all(rejoins, record.users[value.path] - logs) for value in used
        )
        if record.operation.phase == "forward" and logs.issuperset(chain.from_iterable(record.users.values())):
            rejoins[name] = rejoins[name] and _is_right_end(record, run.records, matches, is_clean)
        are_clean = all(_all(is_clean, record.users[value.path]) for value in used)
        is_clean[name] = rejoins[name] and are_clean and all(map(matches.has, ends))
    return rejoins


def _all(marks: Mapping[str, bool], names: Iterable[str]) -> bool:
    return all(marks[name] for name in names)


def _logs_of(run: HeldRun) -> set[str]:
    """Names of the records that only look at a value, such as a loss that is logged: no gradient comes back."""
    logs = set[str]()
    for name, record in reversed(list(run.records.items())):
        is_looked_at = logs.issuperset(chain.from_iterable(record.users.values()))
        has_gradient = f"{record.operation.call}.backward" in run.records
        if record.operation.phase == "forward" and run.last_backward >= 0 and is_looked_at and not has_gradient:
            logs.add(name)
    return logs


def constants_of(records: Mapping[str, HeldRecord]) -> set[str]:
    """Return the records that no parameter enters, such as those of a mask, and no values but integers of the batch."""
    constants = set[str]()
    for name, record in records.items():
        floats = sum(value.unit > 0 for value in record.inputs)
        is_given = len(record.makers) < floats or bool(record.leaves) or record.operation.phase == "backward"
        if not is_given and constants.issuperset(record.sources):
            constants.add(name)
    return constants


def _is_right_end(
    record: HeldRecord, records: Mapping[str, HeldRecord], matches: MatchedValues, is_clean: Mapping[str, bool]
) -> bool:
    """Whether what is made of a loss shows that it is right: its gradients.

    The gradient of a loss hardly depends on the values that went in, so that of values that are not found the gradients
    behind it tell.
    """
    backward = records.get(f"{record.operation.call}.backward")
    if any(value.name in matches.refuted for value in record.outputs):
        return False
    if backward is None or all(value.name in matches.partners for value in record.outputs):
        return True
    if all(name in matches.partners for name in record.makers):
        return not any(matches.is_lost(value) and value.path not in backward.users for value in backward.outputs)
    return is_clean[backward.name]


def _results(
    record: HeldRecord, run: HeldRun, matches: MatchedValues, parameters: Mapping[int, Sequence[HeldValue]], last: int
) -> list[HeldValue]:
    """Outputs that no record uses and that count all the same: gradients of parameters that the other run has, and what
    is made behind the `last` backward without an optimizer, or without any.
    """
    unused = [value for value in record.outputs if value.path not in record.users and value.name not in matches.silent]
    if record.operation.phase == "forward":
        is_behind = not run.parameters and record.operation.index > last
        return unused if is_behind and not record.users else []
    forward = run.records.get(f"{record.operation.call}.forward")
    leaves = forward.leaves if forward is not None and unused else []
    shapes = {leaf.shape for leaf in leaves if any(map(leaf.is_like, parameters.get(leaf.size, ())))}
    return [value for value in unused if value.shape in shapes]


def islands(target: HeldRun, golden: HeldRun, matches: MatchedValues) -> list[str]:
    """Return the first records of each stretch in which a run computes in a coarser dtype than the other one.

    Where most products do, that is the precision of the run.
    """
    coarsest = max((value.unit for record in golden.records.values() for value in record.outputs), default=0.0)
    coarser: dict[str, HeldRecord] = {}
    products = 0
    for name, record in target.records.items():
        if record.operation.phase == "forward":
            if any(_is_coarser(value, matches, coarsest) for value in record.outputs):
                coarser[name] = record
            products += record.is_product
    if 2 * sum(record.is_product for record in coarser.values()) >= max(products, 1):
        return []
    return [name for name, record in coarser.items() if coarser.keys().isdisjoint(record.sources)]


def _is_coarser(value: HeldValue, matches: MatchedValues, coarsest: float) -> bool:
    """Whether a value has a coarser dtype than its partner, or than any value of the other run."""
    partner = matches.partners.get(value.name)
    return value.unit > coarsest or (partner is not None and value.unit > partner.unit > 0)


@dataclass(frozen=True, slots=True)
class Located:
    """What two runs hold of each other.

    Attributes:
        in_golden: values of the target that the golden run holds.
        in_target: values of the golden run that the target holds.
        target, golden: where each run parts from the other one.
    """

    in_golden: MatchedValues
    in_target: MatchedValues
    target: Parting
    golden: Parting


def locate(target: HeldRun, golden: HeldRun) -> Located:
    """Return where two runs part.

    Where they do, small models may have differences that are below what long sums explain: then sums are taken to be
    short, so that the place is the earliest that shows.
    """
    located = _located(target, golden, Relative.LONG_SUMS)
    return _located(target, golden, Relative.SHORT_SUMS) if located.target.parted or located.golden.parted else located


def _located(target: HeldRun, golden: HeldRun, sums: float) -> Located:
    in_golden, in_target = find(target, golden, sums), find(golden, target, sums)
    mine, theirs = _parameters_of(target), _parameters_of(golden)
    return Located(in_golden, in_target, parting(target, in_golden, theirs), parting(golden, in_target, mine))


def _parameters_of(run: HeldRun) -> dict[int, list[HeldValue]]:
    """The parameters that records of a run get, each once, by number of elements."""
    leaves = {leaf.gradient_look: leaf for record in run.records.values() for leaf in record.leaves}
    by_size: dict[int, list[HeldValue]] = {}
    for leaf in leaves.values():
        by_size.setdefault(leaf.size, []).append(leaf)
    return by_size
