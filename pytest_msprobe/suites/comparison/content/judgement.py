"""What two runs of different calls are to blame for: what they hold decides, and not what the calls are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_msprobe.suites.comparison.accounting.account import Step
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.content.regions import Located, Parting, locate
from pytest_msprobe.suites.comparison.content.values import HeldRecord, held_records
from pytest_msprobe.suites.comparison.sides import ComparedDump

#: Kinds that are known of a call or of a value by itself, whatever the other run calls.
_OF_ITSELF = ("born", "parameter", "batch")
#: Kinds that are known of two calls which are one call of both runs.
_OF_PAIRS = ("defined", "arguments", "dtype", "first", "recomputed")


@dataclass(frozen=True, slots=True)
class ContentJudgement:
    """What the values of two runs show.

    Attributes:
        faults: causes that they leave; where the runs part, the first one is there.
        found, held: number of values of the target that the golden run holds, and of all that say something.
        rejoined: records of the target that are computed in other steps, and behind which all is equal again.
    """

    faults: tuple[Fault, ...]
    found: int
    held: int
    rejoined: frozenset[str]


def has_other_structure(steps: Iterable[Step]) -> bool:
    """Whether a call of one run has no partner in the other one, outside of compiled code."""
    return any(
        step.account.kind == "unmatched" and not step.operation.holds_calls and not step.account.is_compiled
        for step in steps
    )


def by_content(
    steps: Sequence[Step], faults: Sequence[Fault], sides: tuple[ComparedDump, ComparedDump]
) -> ContentJudgement | None:
    """Return what the values of two runs show; None where the golden run holds none of the target's.

    Args:
        steps: all records that were judged.
        faults: what names and order of calls show.
        sides: the dumps, target first.
    """
    target, golden = (held_records(side) for side in sides)
    located = locate(target, golden)
    if not located.found.partners:
        return None
    values = [value for record in target.values() for value in record.outputs]
    held = sum(value.name not in located.found.unjudged for value in values)
    rejoined = frozenset(record.name for record in located.target.rejoined)
    return ContentJudgement(
        tuple(_causes(steps, faults, sides, located)), len(located.found.partners), held, rejoined
    )


def _causes(
    steps: Sequence[Step], faults: Sequence[Fault], sides: tuple[ComparedDump, ComparedDump], located: Located
) -> list[Fault]:
    """The faults that stay; one for the place where the runs part, where none of them is there."""
    first = [{record.name for record in side.first} for side in (located.target, located.golden)]
    found = located.found.partners
    kept = [fault for fault in faults if fault.kind in _OF_ITSELF or _is_of_pair(fault, found, first)]
    if not (located.target.parted or located.golden.parted):
        return kept
    parted = {record.name for record in located.target.parted}
    born = [fault for fault in kept if fault.kind in _OF_ITSELF]
    there = [fault for fault in kept if fault.step.record in first[0]]
    if born or there:
        return born or there
    place = _place(steps, sides, located)
    inherited = [step for step in steps if step.record in parted and step.differs]
    if place is not None:
        place.inheriting = place.reached = [step for step in inherited if step.record not in place.records]
    return [place] if place is not None else list(faults)


def _is_of_pair(fault: Fault, found: dict[str, object], first: Sequence[set[str]]) -> bool:
    """Whether a fault is one of two calls that hold the same values, or at which both runs part."""
    if fault.kind not in _OF_PAIRS:
        return False
    record, partner = fault.step.record, fault.step.account.partner
    outputs = (found.get(f"{record}.{key.path}") for key in fault.step.outputs)
    is_same = any(getattr(value, "record", "") == partner for value in outputs)
    return is_same or (record in first[0] and partner in first[1])


def _place(
    steps: Sequence[Step], sides: tuple[ComparedDump, ComparedDump], located: Located
) -> Fault | None:
    """The first record at which the runs part."""
    record = _earliest(located.target)
    other = _earliest(located.golden)
    by_name = {step.record: step for step in steps}
    partners = {step.account.partner or step.record: step for step in steps}
    step = by_name.get(record.name) if record is not None else partners.get(other.name) if other is not None else None
    if step is None:
        return None
    value = record.outputs[0].path if record is not None and record.outputs else "output.0"
    words = "what goes in is found in the golden run, and what is made of it never again"
    if other is not None:
        frame = sides[1].called_from(other.operation)
        words += f"; the golden run calls {other.operation.call} there{f', {frame}' if frame else ''}"
    return Fault(step, "parted", "both", value, words, records=[step.record])


def _earliest(side: Parting) -> HeldRecord | None:
    """The first record of the forward at which a run parts, else of the backward."""
    forward = [record for record in side.first if record.operation.phase == "forward"]
    return next(iter(forward or side.first), None)
