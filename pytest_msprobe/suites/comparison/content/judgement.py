"""What two runs of different calls are to blame for: what they hold decides, and not what their calls are named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_msprobe.suites.comparison.accounting.account import Step
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.content.values import split_name

#: Kinds that are known of a call or of a value by itself, whatever the other run calls.
_OF_ITSELF = ("born", "parameter", "batch")
#: Kinds that are known of two calls which are one call of both runs.
_OF_PAIRS = ("defined", "arguments", "dtype", "first", "recomputed")


def causes_by_content(steps: Sequence[Step], faults: Sequence[Fault]) -> list[Fault]:
    """Return the faults that the values of both runs leave; where the runs part, one of them says so.

    Args:
        steps: all records that were judged, of a pair of runs with different calls.
        faults: what names and order of calls show.
    """
    kept = [fault for fault in faults if fault.kind in _OF_ITSELF]
    kept += [fault for fault in faults if fault.kind in _OF_PAIRS and fault.step.account.partner]
    parted = [step for step in steps if step.account.content in ("parted", "first")]
    if not parted:
        return [*kept, *_not_finite(steps)]
    itself = [fault for fault in kept if fault.kind in _OF_ITSELF]
    there = [fault for fault in kept if fault.step.account.content == "first"]
    return itself or there or [_place(parted)]


def _not_finite(steps: Sequence[Step]) -> Iterator[Fault]:
    """Makers of what is not finite in one run and numbers in the other one, where equal values are made of it."""
    makers = {step.record: step for step in steps if step.account.place >= 0}
    for step in steps:
        is_pair = step.account.partner and step.account.content == "found"
        for key in step.inputs if is_pair else ():
            maker = makers.get(split_name(key.origins[0].made_by)[0])
            if maker is not None and key.excess == math.inf and key.shape == key.golden_shape:
                words = "one run makes NaN or Inf there, the other one numbers, and what is made of both agrees"
                yield Fault(maker, "defined", "both", "output.0", words, size=math.inf, records=[maker.record])


def _place(parted: Sequence[Step]) -> Fault:
    """The fault that the runs part at the first of their records."""
    first = [step for step in parted if step.account.content == "first"] or list(parted)
    first = [step for step in first if step.operation.phase == "forward"] or first
    target = [step for step in first if step.account.place >= 0]
    golden = [step for step in first if step.account.place < 0]
    step = (target or golden)[0]
    words, other = "what goes in is found in the golden run, and what is made of it never again", ""
    if step.account.partner:
        other = step.account.partner.rpartition(".")[0]
    elif target and golden:
        other = golden[0].operation.call
        words += f"; there the golden run calls {other}, {golden[0].source}" if golden[0].source else ""
    value = next((key.path for key in step.outputs), "output.0")
    after = [later for later in parted if later is not step]
    records = [step.record]
    return Fault(step, "parted", "both", value, words, other, records=records, inheriting=after, reached=after)
