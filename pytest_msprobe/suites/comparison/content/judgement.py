"""What two runs of different calls are to blame for: what they hold decides, and not what their calls are named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_msprobe.apis.fact_table import is_name_in_place
from pytest_msprobe.apis.topics import fact_of
from pytest_msprobe.suites.comparison.accounting.account import AccountStep
from pytest_msprobe.suites.comparison.accounting.causes import Fault, FaultKind
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.content.values import split_name

#: Kinds that are known of a call or of a value by itself, whatever the other run calls.
_OF_ITSELF = ("born", "parameter", "batch")
#: Kinds that are known of two calls which are one call of both runs.
_OF_PAIRS = ("defined", "arguments", "dtype", "first", "recomputed")


def causes_by_content(steps: Sequence[AccountStep], faults: Sequence[Fault]) -> list[Fault]:
    """Return the faults that the values of both runs leave; where the runs part, one of them says so.

    Args:
        steps: all records that were judged, of a pair of runs with different calls.
        faults: what names and order of calls show.
    """
    itself = [fault for fault in faults if fault.kind in _OF_ITSELF]
    kept = [*itself, *(fault for fault in faults if fault.kind in _OF_PAIRS and _is_of_pair(fault))]
    parted = [step for step in steps if step.account.content in ("parted", "first") or step.account.region is not None]
    islands = list(_islands(steps))
    if not parted:
        return [*kept, *islands, *_not_finite(steps)]
    there = [fault for fault in kept if fault.step.account.content == "first"]
    earlier = [island for island in islands if 0 <= island.step.account.place < parted[0].account.place]
    causes = itself or there or earlier
    if not causes:
        return [_place(parted, steps)]
    reached = {id(step) for fault in causes for step in (fault.step, *fault.inheriting)}
    after = [step for step in parted if id(step) not in reached]
    first = causes[0]
    return [replace(first, inheriting=[*first.inheriting, *after], reached=[*first.reached, *after]), *causes[1:]]


def _is_of_pair(fault: Fault) -> bool:
    """Whether two calls are one call of both runs that makes other values, or would for other ones.

    Arguments are compared where both get equal values. Of what moves elements, or makes constants, they say how an
    implementation cuts its tensors.
    """
    step = fault.step
    if fault.kind == "arguments" and step.account.content == "found":
        is_given = all(key.shape == key.golden_shape and not key.is_beyond for key in step.inputs)
        return is_given and bool(step.inputs) and fact_of("movements", step.operation.name) is None
    return bool(step.account.partner) and step.account.content in ("first", "parted", "coarser")


def _islands(steps: Sequence[AccountStep]) -> Iterator[Fault]:
    """The calls from which on the target computes in a coarser dtype than the golden run, of one line of the script."""
    coarser: dict[str, list[AccountStep]] = {}
    for step in steps:
        if step.account.content == "coarser":
            coarser.setdefault(step.source, []).append(step)
    for of_line in coarser.values():
        first, records = of_line[0], [step.record for step in of_line]
        after = [step for step in steps if step.account.place > first.account.place and step.differs]
        yield Fault(first, "dtype", "target", "output.0", "", records=records, inheriting=after, reached=after)


def _not_finite(steps: Sequence[AccountStep]) -> Iterator[Fault]:
    """Makers of what is not finite in one run and numbers in the other one, where equal values are made of it."""
    makers = {step.record: step for step in steps if step.account.place >= 0}
    for step in steps:
        is_pair = step.account.partner and step.account.content == "found"
        for key in step.inputs if is_pair else ():
            maker = makers.get(split_name(key.origins[0].made_by)[0])
            is_infinite = key.excess == math.inf and not key.is_integer and key.shape == key.golden_shape
            if maker is not None and is_infinite:
                words = "one run makes NaN or Inf there, the other one numbers, and what is made of both agrees"
                yield Fault(maker, "defined", "both", "output.0", words, size=math.inf, records=[maker.record])


def _place(parted: Sequence[AccountStep], steps: Sequence[AccountStep]) -> Fault:
    """The fault that the runs part in a region; of one call that one of them makes besides, that call."""
    step = next((step for step in parted if step.account.region is not None), parted[0])
    region = step.account.region
    kind: FaultKind = "parted"
    side = "both"
    if region is not None and (other := _extra(region, steps)) is not None:
        step, kind, side = other, "only_one_side", ("target", "golden")[other.account.place < 0]
    value = next((key.path for key in step.outputs), "output.0")
    after = [other for other in parted if other is not step]
    return Fault(step, kind, side, value, "", records=[step.record], inheriting=after, reached=after)


def _extra(region: Region, steps: Sequence[AccountStep]) -> AccountStep | None:
    """The call of one run alone that makes the difference; of gradients, the only one whose effect nothing shows.

    Of a call with a backward in the dump that is shown: gradients which agree behind it have passed it. Where a
    backward alone parts, the call is one which writes over what the backward needs.
    """
    is_backward = bool(region.target) and all(record.endswith(".backward") for record in region.target)
    if region.parameters or is_backward:
        lone = [step for step in steps if not step.account.partner and step.account.content == "unused"]
        shown = {_call_of(step) for step in steps if step.operation.phase == "backward"}
        silent = [step for step in lone if step.operation.phase == "forward" and _call_of(step) not in shown]
        is_only = len(silent) == 1 and (region.parameters or is_name_in_place(silent[0].operation.bare))
        return silent[0] if is_only else None
    for step in steps:
        if step.record == region.extra and (step.account.place < 0) == region.is_golden_extra:
            return step
    return None


def _call_of(step: AccountStep) -> tuple[str, bool]:
    """The name of a call, and whether the golden run alone has it."""
    return step.operation.name, step.account.place < 0
