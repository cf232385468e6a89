"""The smallest next collection: the tensors of the calls that a comparison without tensors suspects.

Sketches and statistics tell where two runs part, tensors whether a call is wrong there. Only the first suspects are
needed: what they reach is explained by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis

MOST_CALLS = 10
SIDES = ("target", "golden")


def next_collection(diagnoses: Sequence[RunDiagnosis]) -> dict[str, Any] | None:
    """What to collect of both runs, in builtin types; None where nothing is suspected that tensors would clear up.

    `calls` are the suspects, `target` and `golden` what config.json of these runs has besides `dump_path`.
    """
    known = [each for each in diagnoses if each.sides is not None and each.basis not in ("tensors", "values", "none")]
    suspects = [(each, fault) for each in known for fault in each.faults]
    # What another suspect reaches is most often explained by it.
    suspects.sort(key=lambda pair: bool(pair[1].after))
    names: list[dict[str, None]] = [{}, {}]
    calls: dict[str, None] = {}
    for each, fault in suspects:
        if fault.step.operation.call not in calls and len(calls) == MOST_CALLS:
            break
        calls[fault.step.operation.call] = None
        for records, found in zip(names, _records(each, fault)):
            records.update(dict.fromkeys(found))
    if not calls:
        return None
    dumps = [[each.sides[side] for each in known if each.sides is not None] for side in (0, 1)]
    return {"calls": list(calls), **{side: _keys(dumps[at], list(names[at])) for at, side in enumerate(SIDES)}}


def _records(diagnosis: RunDiagnosis, fault: Fault) -> tuple[list[str], list[str]]:
    """Records of target and golden dump to collect for a fault: of a backward its forward, too."""
    assert diagnosis.sides is not None
    step, has_target = fault.step, fault.step.account.place >= 0
    mine = step.record if has_target else ""
    theirs = step.account.partner if has_target else step.record
    return _with_forward(mine, diagnosis.sides[0]), _with_forward(theirs, diagnosis.sides[1])


def _with_forward(record: str, dump: Dump) -> list[str]:
    if not record:
        return []
    operation = Operation.of(record, 0)
    forward = f"{operation.call}.forward"
    return [*([forward] if operation.phase == "backward" and forward in dump else []), record]


def _keys(dumps: Sequence[Dump], names: Sequence[str]) -> dict[str, Any]:
    """Keys of config.json."""
    slots = [Slot.of(dump.path) for dump in dumps]
    keys = {"task": "tensor", "level": dumps[0].level or "mix", "tensor": {"list": list(names)}}
    return keys | {
        name: numbers for name in ("step", "rank") if (numbers := _numbers(getattr(slot, name) for slot in slots))
    }


def _numbers(found: Iterable[int | None]) -> list[int]:
    return sorted({number for number in found if number is not None})
