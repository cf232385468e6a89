"""Two runs compared by what they hold, whatever their calls are named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import msgspec
from msgspec import structs

from msprobe_collector.dump_format.dump import Dump
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.finding import Parted, SharedContent, SourceCall
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.comparison.content.place import (
    Region,
    Results,
    region_of,
    region_of_results,
    results_of,
    share_parameters,
)
from pytest_msprobe.suites.comparison.content.regions import (
    Located,
    MatchedValues,
    Parting,
    constants_of,
    islands,
    locate,
)
from pytest_msprobe.suites.comparison.content.values import HeldRecord, HeldRun, HeldValue, held_run, held_value
from pytest_msprobe.suites.comparison.matching import Matching
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.verdicts import FigureWire


class RecordContent(msgspec.Struct, frozen=True, array_like=True):
    """What one record of a run has to do with the other run.

    A region is a connected set of records that are not found, of one run or of both, behind which
    values are found.

    Attributes:
        record: its name.
        order: place in the order of execution of its dump.
        state: see `ContentState`.
        matched, values: how many of its outputs the other run holds, of those that say something.
        partner: record of the other run that holds the first of them; "" for none.
        region: number of the region that it is in; -1 for none.
    """

    record: str
    order: int
    state: str
    matched: int
    values: int
    partner: str = ""
    region: int = -1


class RowContent(FigureWire, msgspec.Struct, frozen=True):
    """What a row tells: of the record of each run that it is about, and the place where the runs part, of one row."""

    target: RecordContent | None = None
    golden: RecordContent | None = None
    parted: Parted | None = None


def record_contents(
    target: HeldRun, golden: HeldRun, located: Located, states: Sequence[Mapping[str, str]]
) -> tuple[dict[str, RecordContent], dict[str, RecordContent]]:
    """What is found of each record of both runs, by name."""
    mine, theirs = _numbered(target, golden, located, states)
    return (
        _contents(target, located.in_golden, states[0], mine),
        _contents(golden, located.in_target, states[1], theirs),
    )


def _contents(
    run: HeldRun, matches: MatchedValues, states: Mapping[str, str], regions: Mapping[str, int]
) -> dict[str, RecordContent]:
    """What is found of each record of one run."""
    contents = {}
    for name, record in run.records.items():
        state, partners = states[name], matches.partners_of(record)
        values = sum(map(matches.is_judged, record.outputs)) if state != "beside" else 0
        contents[name] = RecordContent(
            name,
            record.operation.index,
            state,
            matched=len(partners),
            values=values,
            partner=partners[0].record if partners else "",
            region=regions.get(name, -1),
        )
    return contents


def parted_of(region: Region, target: Dump, golden: Dump) -> Parted:
    """The place where two runs part, with lines of both scripts."""

    def calls(records: Sequence[str], side: Dump) -> tuple[SourceCall, ...]:
        operations = [Operation.of(record, 0) for record in records]
        return tuple(SourceCall(it.call, it.phase, side.stacks.user_line(it.call)) for it in operations)

    mine, theirs = calls(region.target, target), calls(region.golden, golden)
    return Parted(
        target=mine,
        golden=theirs,
        target_count=len(mine),
        golden_count=len(theirs),
        distance=region.distance if region.distance >= 0 else None,
        factor=region.factor or None,
        parameters=region.parameters,
    )


class ContentRows:
    """Rows of one pair of dumps, in any order."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._sides: tuple[dict[str, RecordContent], dict[str, RecordContent]] = {}, {}
        self._parted: Parted | None = None

    def add(self, row: RowContent) -> None:
        """Take a row."""
        for side, record in zip(self._sides, (row.target, row.golden)):
            if record is not None:
                side[record.record] = record
        self._parted = self._parted or row.parted

    def content(self) -> SharedContent | None:
        """What the rows amount to; None where they say nothing."""
        target, golden = self._sides
        if not (target or golden):
            return None
        regions = {record.region for record in chain(target.values(), golden.values())}
        held = sum(min(record.matched, record.values) for record in target.values())
        return SharedContent(
            found=held,
            values=sum(record.values for record in target.values()),
            regions=len(regions - {-1}),
            target_records=_in_regions(target),
            golden_records=_in_regions(golden),
            parted=self._parted,
        )

    def columns(self) -> dict[str, object]:
        """For the page: [record, state, region, partner] of each record of both runs, in the order of execution."""
        target, golden = map(_columns, self._sides)
        return {"target": target, "golden": golden, "parted": msgspec.to_builtins(self._parted)}


def _in_regions(side: Mapping[str, RecordContent]) -> int:
    return sum(record.region >= 0 for record in side.values())


def _columns(side: Mapping[str, RecordContent]) -> list[list[object]]:
    records = sorted(side.values(), key=lambda record: record.order)
    return [[it.record, it.state, it.region, it.partner] for it in records]


#: A record of the target (0) or of the golden run (1).
_Key = tuple[int, str]


def _numbered(
    target: HeldRun, golden: HeldRun, located: Located, states: Sequence[Mapping[str, str]]
) -> tuple[dict[str, int], dict[str, int]]:
    """The number of the region of each record that is in one, of both runs."""
    sides = (target.records, located.in_golden), (golden.records, located.in_target)
    inside = [_rejoined(records, matches, state) for (records, matches), state in zip(sides, states)]
    joined, ends = _Joined(), set[_Key]()
    for side, (records, matches) in enumerate(sides):
        others = sides[1 - side][0]
        for record in records.values():
            before = [(side, name) for name in _front(record, inside[side])]
            if record.name in inside[side]:
                joined.join([*before, *((side, source) for source in record.sources)], inside)
            for partner in dict.fromkeys(it.record for it in matches.partners_of(record)):
                theirs = _front(others[partner], inside[1 - side]) if partner in others else []
                behind = [*before, *((1 - side, name) for name in theirs)]
                joined.join(behind, inside)
                ends.update(behind)
    roots = set(map(joined.root, ends))
    numbers: dict[_Key, int] = {}
    numbers_of: tuple[dict[str, int], dict[str, int]] = {}, {}
    for side, names in enumerate(inside):
        for name in names:
            if (root := joined.root((side, name))) in roots:
                numbers_of[side][name] = numbers.setdefault(root, len(numbers))
    return numbers_of


def _rejoined(records: Mapping[str, HeldRecord], matches: MatchedValues, states: Mapping[str, str]) -> dict[str, None]:
    """The records whose values are not all found, and all that is made of them is."""
    names = (name for name, record in records.items() if states[name] == "rejoined" and matches.loses(record))
    return dict.fromkeys(names)


def _front(record: HeldRecord, inside: Collection[str]) -> list[str]:
    """The record itself where it is `inside`, else those inside that it uses."""
    if record.name in inside:
        return [record.name]
    return [name for name in record.sources if name in inside]


class _Joined:
    """Sets of records that are joined one by one."""

    def __init__(self) -> None:
        self._next: dict[_Key, _Key] = {}

    def root(self, key: _Key) -> _Key:
        """What stands for the set of `key`."""
        while (parent := self._next.get(key, key)) != key:
            self._next[key] = self._next.get(parent, parent)
            key = parent
        return key

    def join(self, keys: Iterable[_Key], inside: Sequence[Collection[str]]) -> None:
        """Make one set of all that are `inside` of their side."""
        roots = [self.root(key) for key in keys if key[1] in inside[key[0]]]
        for root in roots[1:]:
            self._next[self.root(root)] = self.root(roots[0])


#: `found`: the other run holds what the record makes. `coarser`: the same, in a finer dtype. `rejoined`: it does not,
#: and holds all that is made of it. `unused`: it does not, and nothing is made of it. `parted`: something is made of it
#: that the other run never holds; `first`: the same, and what goes in is held. `beside`: no API call of the model.
#: "": nothing is said.
ContentState = Literal["", "found", "coarser", "rejoined", "unused", "parted", "first", "beside"]


class CommonContent:
    """What two runs hold of each other.

    Attributes:
        is_parted: whether one of them makes something that the other one never holds.
        place: the calls in which they part; None where they do not.
        is_one_model: whether both compute with the same parameters, in whatever shapes and calls.
    """

    def __init__(
        self,
        target: HeldRun,
        golden: HeldRun,
        located: Located,
        results: Results,
    ) -> None:
        """What `located` and `results` say of two runs.

        Where all gradients and updates are found, other values on the way to them are another way of computing them.
        """
        self._sides = target.records, golden.records
        self._located = located
        self._parameters, self._last = target.parameters, target.last_backward
        is_other_way = results.are_equal and not located.in_golden.refuted
        has_parted = bool(located.target.parted and located.golden.parted) and not is_other_way
        self.is_parted = has_parted or bool(results.lost)
        # What one run makes besides, or on another way to equal results, has no effect on the values of both.
        other: ContentState = "rejoined" if is_other_way else "unused"
        if has_parted:
            other = ""
        self._states = (
            _states(target, located.target, located.in_golden, other),
            _states(golden, located.golden, located.in_target, other),
        )
        self.is_one_model = results.are_equal or share_parameters(target, golden)
        self.place = region_of(located) if has_parted else None
        self._states[0].update(dict.fromkeys(islands(target, golden, located.in_golden), "coarser"))
        if results.lost and not has_parted:
            self.place = region_of_results(results.lost, target.gradients)
            self._states[0][self.place.target[0]] = "first"
        if self.place is not None:
            self.place = structs.replace(self.place, is_one_model=self.is_one_model)
        self._records = record_contents(target, golden, located, self._states)

    @classmethod
    def of(cls, target: ComparedDump, golden: ComparedDump) -> CommonContent | None:
        """What two dumps hold of each other; None where they have nothing in common."""
        runs = held_run(target), held_run(golden)
        located = locate(*runs)
        return cls(*runs, located, results_of(*runs, located)) if located.in_golden.partners else None

    def state(self, operation: Operation, *, is_golden: bool = False) -> ContentState:
        """What is known of a record of one side."""
        return self._states[is_golden].get(operation.record, "beside")

    def record(self, operation: Operation | None, *, is_golden: bool = False) -> RecordContent | None:
        """What a record of one side has to do with the other run; None of what is no API call."""
        return None if operation is None else self._records[is_golden].get(operation.record)

    def region(self, operation: Operation, *, is_golden: bool = False) -> Region | None:
        """The place where the runs part, of the record that stands for it."""
        if self.place is None or is_golden == bool(self.place.target):
            return None
        return self.place if operation.record in (self.place.target or self.place.golden)[:1] else None

    def partner(self, name: str) -> HeldValue | None:
        """The value of the golden run that is the value `name` of the target; None where it holds none."""
        return self._located.in_golden.partners.get(name)

    def is_rounding(self, target: Leaf, golden: Leaf) -> bool:
        """Whether two gradients are no larger than the rounding of what they are summed up of."""
        values = held_value(target), held_value(golden)
        noise = self._located.in_golden.noise, self._located.in_target.noise
        return all(value is not None and value.gradient_look in looks for value, looks in zip(values, noise))

    def is_update(self, operation: Operation) -> bool:
        """Whether a call of the target is an optimizer's, and the parameters show that both runs do the same."""
        return bool(self._parameters) and operation.index > self._last and not self.is_parted

    def agrees(self, target: str, golden: str) -> bool:
        """Whether two records may be one: the golden one holds what the target makes, or both get the same."""
        mine, theirs = self._sides[0].get(target), self._sides[1].get(golden)
        if mine is None or theirs is None:
            return mine is theirs
        matches = self._located.in_golden
        judged = [value for value in mine.outputs if value.name in matches.partners]
        for value in judged:
            limit = max(matches.distances[value.name], Relative.LONG_SUMS)
            if any(value.size == other.size and value.distance(other) <= limit for other in theirs.outputs):
                return True
        if judged or mine.output_shapes != theirs.output_shapes:
            return False
        sources = {source.name for source in matches.sources_of(mine)}
        return bool(sources.intersection(theirs.makers)) or not (mine.makers or theirs.makers)

    def refined(self, matching: Matching, target: Iterable[Operation], golden: Iterable[Operation]) -> Matching:
        """Return `matching` without the pairs of API calls that hold different values."""
        agreeing: dict[str, bool] = {}
        partners: dict[str, Operation] = {}
        for operation in target:
            partner, call = matching.partners.get(operation.record), operation.call
            if call not in agreeing:
                agreeing[call] = self._is_one_call(matching, call)
            if partner is not None and (operation.holds_calls or agreeing[call]):
                partners[operation.record] = partner
        taken = {partner.record for partner in partners.values()}
        lone = tuple(operation for operation in golden if operation.record not in taken)
        return replace(matching, partners=partners, golden_only=lone)

    def _is_one_call(self, matching: Matching, call: str) -> bool:
        """Whether the forward of a call, where it has one, and its partner agree."""
        record = f"{call}.forward"
        partner = matching.partners.get(record)
        return partner is None or self.agrees(record, partner.record)


def _states(run: HeldRun, side: Parting, matches: MatchedValues, other: ContentState) -> dict[str, ContentState]:
    """What is known of each record of a run; `other` of those that part, where it has no effect."""
    states: dict[str, ContentState] = {}
    constants = constants_of(side.records)
    last = run.last_backward
    first = {record.name for record in side.first}
    parted = {record.name for record in side.parted}
    for name, record in side.records.items():
        if name in parted:
            states[name] = other or ("first" if name in first else "parted")
        elif matches.partners_of(record):
            states[name] = "rejoined" if matches.loses(record) else "found"
        elif run.parameters and record.operation.index > last >= 0:
            states[name] = "beside"  # what an optimizer calls behind the gradients shows in the parameters
        elif record.users or record.operation.phase == "backward":
            states[name] = "rejoined"
        else:
            # Numbers and moved elements that nothing uses are nobody's.
            states[name] = "beside" if name in constants or record.is_movement else "unused"
    return states
