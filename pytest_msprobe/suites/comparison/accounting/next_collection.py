"""The smallest next collection: the tensors of the calls that a comparison without tensors suspects.

Sketches and statistics tell where two runs part, tensors whether a call is wrong there. Only the first suspects are
needed: what they reach is explained by them. With each go the records without which its tensors prove nothing: the
forward of a backward, who uses what a call of one run makes, and the gradients that a gradient is the sum of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import filterfalse, islice
from operator import attrgetter
from pathlib import Path
from typing import Literal

import msgspec

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.answer import SCHEMA
from pytest_msprobe.suites.comparison.accounting.account import AccountStep, key_at
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow

_MOST_CALLS = 10
_MOST_PARAMETERS = 3
#: Kinds of faults that are shown by where a value comes from.
_OF_VALUES = ("rewired", "unrecorded", "gradient")


Level = Literal["L0", "L1", "mix"]
_LEVELS: dict[str, Level] = {"L0": "L0", "L1": "L1"}


class NextConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What config.json of one run has besides `dump_path`: documented in docs/collecting.md."""

    task: Literal["tensor"]
    level: Level
    tensor: dict[Literal["list"], list[str]]
    step: list[int] = []
    rank: list[int] = []


class NextCollection(msgspec.Struct, frozen=True):
    """What to collect of both runs.

    Attributes:
        calls: whose tensors are asked for.
        target, golden: the configurations of both runs; calls may have other names there.
    """

    calls: list[str]
    target: NextConfiguration
    golden: NextConfiguration


class _Version(msgspec.Struct):
    schema: int


class _Answer(msgspec.Struct):
    next_collection: NextCollection | None


def read_next_collection(path: Path) -> NextCollection | None:
    """What the file of --msprobe-diagnosis says of it; None where it says that there is nothing to collect.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file.
    """
    content = path.read_bytes()
    try:
        version = msgspec.json.decode(content, type=_Version).schema
        if version == SCHEMA:
            return msgspec.json.decode(content, type=_Answer).next_collection
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not what --msprobe-diagnosis writes ({error}); compare the dumps again") from None
    raise ValueError(
        f"{path}: is version {version} of an answer, and only version {SCHEMA} is read; compare the dumps again with "
        "--msprobe-diagnosis"
    )


def next_collections(diagnoses: Sequence[RunDiagnosis]) -> Iterator[NextCollection]:
    """What to collect next, of ever fewer calls; nothing where nothing is suspected that tensors would clear up."""
    suspected = []
    slots: tuple[list[Dump], list[Dump]] = [], []
    for diagnosis in diagnoses:
        if diagnosis.sides is not None and diagnosis.basis not in ("tensors", "values", "none"):
            suspected += [(diagnosis.sides, steps) for steps in _suspected(diagnosis)]
            for dumps, dump in zip(slots, diagnosis.sides):
                dumps.append(dump)
    for most in range(_MOST_CALLS if suspected else 0, 0, -1):
        names: tuple[dict[str, None], dict[str, None]] = ({}, {})
        calls: dict[str, None] = {}
        for sides, steps in suspected:
            together = calls | dict.fromkeys(step.operation.call for step in steps)
            if not calls or len(together) <= most:
                calls = together
                for step in steps:
                    _add(sides, step, names)
        # An empty list would keep every record; what the other run is asked for is at most as much.
        target = _configuration(slots[0], names[0] or names[1])
        yield NextCollection(list(calls), target, _configuration(slots[1], names[1] or names[0]))


def _suspected(diagnosis: RunDiagnosis) -> Iterator[list[AccountStep]]:
    """A suspect with the records that its tensors are judged with; of those that another one reaches, none."""
    flow = DataFlow(diagnosis.steps)
    first = filterfalse(attrgetter("after"), diagnosis.faults)
    # Of many parameters that differ a few say what all of them do: another initial state.
    parameters = 0
    for fault in first:
        parameters += fault.kind == "parameter"
        if fault.kind == "parameter" and parameters > _MOST_PARAMETERS:
            continue
        if fault.kind in ("parted", "only_one_side") and (region := diagnosis.region) is not None:
            # Between the values that both runs share and those that they do not.
            names = region.target, region.golden
            yield [fault.step, *(step for step in diagnosis.steps if step.record in names[step.account.place < 0])]
        elif fault.kind == "dtype":
            yield [fault.step, *_of_one_dtype(flow)]
        else:
            yield [fault.step, *(_made_by(flow, fault) if fault.kind in _OF_VALUES else ())]


def _made_by(flow: DataFlow, fault: Fault) -> list[AccountStep]:
    """Who made the value that a fault is about: for a gradient all whose gradients it is the sum of."""
    key = key_at(fault.step.inputs, fault.value)
    if key is None:
        return []
    mine, theirs = flow.sources(fault.step, key)
    makers = flow.gradient_sources(fault.step, key) if fault.step.operation.phase == "backward" else []
    makers = makers or [*mine.makers[:1], *theirs.makers[:1]]
    if makers:
        # Calls of one run that stand for others of the other run would be taken for faults.
        return [maker.step for maker in makers if maker.step.account.partner]
    # Who gets in the other run what this call gets here.
    contents = {key.target, key.golden}

    def gets_either(step: AccountStep) -> bool:
        return any(len(contents & {key.target, key.golden}) == 1 for key in step.inputs)

    return list(islice(filter(gets_either, flow.steps.values()), 2))


def _of_one_dtype(flow: DataFlow) -> list[AccountStep]:
    """Small calls that give one dtype on both sides: without them another dtype may be that of a whole run."""
    steps = (step for step in flow.forwards if step.account.partner and step.gives_floats and not step.account.dtype)
    return sorted(steps, key=lambda step: sum(math.prod(key.shape) for key in step.account.keys))[:5]


def _add(sides: tuple[Dump, Dump], step: AccountStep, names: tuple[dict[str, None], dict[str, None]]) -> None:
    """Add the record of a step on both sides, as far as they have it, and of a backward its forward."""
    records = (step.record, step.account.partner) if step.account.place >= 0 else ("", step.record)
    for record, dump, asked in zip(records, sides, names):
        forward = f"{Operation.of(record, 0).call}.forward" if record else ""
        if step.operation.phase == "backward" and forward in dump:
            asked[forward] = None
        if record:
            asked[record] = None


def _configuration(dumps: Sequence[Dump], names: Iterable[str]) -> NextConfiguration:
    slots = [Slot.of(dump.path) for dump in dumps]
    steps, ranks = (known_numbers(map(attrgetter(name), slots)) for name in ("step", "rank"))
    return NextConfiguration("tensor", _LEVELS.get(dumps[0].level or "", "mix"), {"list": list(names)}, steps, ranks)


def known_numbers(numbers: Iterable[int | None]) -> list[int]:
    """Return the numbers of steps or ranks that are known, ascending, each once."""
    return sorted({number for number in numbers if number is not None})
