"""The parts of two runs that are computed in other steps, and what is found of each record.

A region is a connected set of records that are not found, of one run or of both, behind which values are found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from msprobe_collector.dump_format.dump import Dump
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.content import Parted, SharedContent, SourceCall
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.content.regions import Located, MatchedValues
from pytest_msprobe.suites.comparison.content.values import HeldRecord, HeldRun
from pytest_msprobe.verdicts import FigureWire


class RecordContent(msgspec.Struct, frozen=True, array_like=True):
    """What one record of a run has to do with the other run.

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
