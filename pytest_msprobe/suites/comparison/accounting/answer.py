"""What is said of one pair of dumps: one answer, for the terminal, the page, the advice file and JSON.

- The answer as a paragraph, what is at fault first.
- Faults of one cause, such as the same argument in every layer, as one sentence.
- What to do about a fault: commands first.
- What dumps without tensors tell of two runs, in words that claim no more than that.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import structs

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.answers import NextStep, Place
from pytest_msprobe.answers.from_rows import place_of_calls
from pytest_msprobe.answers.words import in_words, listed_numbers, place_in_words, readable
from pytest_msprobe.suites.comparison.accounting.account import Basis, Step
from pytest_msprobe.suites.comparison.accounting.causes import OPERATIONS, Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import (
    Outcome,
    RunDiagnosis,
    any_differs,
    explains,
    is_suspect,
)
from pytest_msprobe.suites.comparison.cells import CellDifference
from pytest_msprobe.verdicts import Wire

_EQUAL = {
    "fingerprints": "Every tensor that was compared is equal, bit by bit: all fingerprints are.",
    "checksums": "Every tensor that was compared is equal, bit by bit: all checksums are.",
    "values": "Every tensor that was compared is equal, element by element.",
    "sketches": "All sketches and statistics that were compared are equal: no tensor differs by more than about a "
    "millionth of its norm.",
    "statistics": "All statistics that were compared are equal, which equal bits would make and others may.",
    "none": "No tensor was compared.",
}
#: Of operations that an origin reaches, behind their number.
REACHED: dict[Basis, str] = {
    "values": "of the operations that get it are beyond their own limit as well",
    "sketches": "of the operations that get it are beyond their own limit as well",
    "statistics": "of the operations that get it are beyond their own limit as well",
    "fingerprints": "of the operations that get it are beyond their own limit as well",
    "checksums": "of the operations that get it differ as well",
}
HOW_TO_TELL = (
    'Without tensors it cannot be told whether the operation is wrong: dump both runs with "task": "tensor", at least '
    "this call (python -m pytest_msprobe next FILE writes that configuration from the FILE of --msprobe-diagnosis)"
)
#: The same where both dumps hold tensors.
NO_BENCHMARK = (
    "Only a benchmark can tell whether the operation is wrong: install PyTorch, use --msprobe-accounting=auto"
)
_MOST_SHOWN = 5
#: So many parameters that differ are one cause.
_SEVERAL = 3
#: Outputs that are off by the same share of their size, to this share of it, have a factor in common...
_ONE_FACTOR = 0.02
#: ... where that is more than roundings make.
_LEAST_FACTOR = 1e-4
#: A dump that lacks this share of the other one's records at its end may be of a run that stopped.
_STOPPED = 0.1


class First(msgspec.Struct, frozen=True):
    """Where two runs part.

    Attributes:
        record, value: the value that the account names: `Mint.exp.0.forward`, `output.0`.
        sentence: what is wrong there, one line.
        advice: the sentence, and what to do.
    """

    record: str
    value: str
    sentence: str
    advice: str = ""


class Answer(Wire, msgspec.Struct, frozen=True):
    """What is said of one pair of dumps. It travels with the rows: evidence from tensors is only where they are read.

    Attributes:
        text: the paragraph.
        outcome: see docs/two_runs.md.
        is_known: whether tensors were computed again, so that nothing else may be said of where the runs part.
        first: where they part; None where no value is in question.
        sentences: what is wrong by the item at fault, as `CALL.PART`, where its own row does not say it.
        cause: equal for two pairs of dumps, such as ranks, whose answers have the same causes.
        covers: which rows it was made from.
    """

    text: str
    outcome: Outcome
    is_known: bool
    first: First | None
    sentences: dict[str, str]
    cause: str
    covers: int

    @classmethod
    def of(cls, diagnosis: RunDiagnosis, before: Mapping[int, Outcome] | None = None) -> Answer:
        """The answer from a diagnosis; `before` has the outcomes of earlier steps that the run compared as well."""
        is_known = diagnosis.basis == "tensors"
        values = [fault for fault in diagnosis.faults if is_known and not fault.has_item]
        return cls(
            " ".join(_sentences(diagnosis, before or {})),
            diagnosis.outcome,
            is_known,
            _first(diagnosis) if is_known else None,
            {name: readable(fault.sentence) for fault in values for name in items_of(fault)},
            f"{diagnosis.outcome} {[cause_of(group[0]) for group in grouped(diagnosis.faults)]}",
            covers(diagnosis.steps),
        )

    def says_what(self, other: Answer) -> bool:
        """Whether both say the same; advice names paths, which rows do not have."""
        mine, theirs = (
            structs.replace(one.first, advice="") if one.first is not None else None for one in (self, other)
        )
        return (self.text, mine, self.sentences) == (other.text, theirs, other.sentences)

    @property
    def is_bad(self) -> bool:
        """Whether something is at fault."""
        return self.is_known and self.outcome == "fault"


def items_of(fault: Fault) -> Iterator[str]:
    """`CALL.PART` of the items at fault; what only the golden dump has is called so there."""
    golden = "golden." if fault.step.account.place < 0 else ""
    for record in fault.records or [fault.step.record]:
        operation = Operation.of(record, 0)
        yield f"{golden}{operation.call}.{operation.phase}"


def covers(steps: Iterable[Step]) -> int:
    """A number that is another one for other records, or for records that were judged otherwise."""
    return zlib.crc32("\n".join(sorted(f"{step.record} {step.account.kind}" for step in steps)).encode())


def answers_in_words(answers: Mapping[str, Answer]) -> Iterator[str]:
    """The texts of several dumps, by their paths; dumps of one step with the same causes, such as ranks, share one."""
    slots = {dump: Slot.of(Path(dump)) for dump in answers}
    is_clear = len({str(slot) for slot in slots.values()}) == len(slots)
    alike: dict[tuple[object, ...], list[str]] = {}
    for dump, answer in answers.items():
        own = (slots[dump].step, answer.cause) if is_clear and slots[dump].rank is not None else (dump,)
        alike.setdefault(own, []).append(dump)
    for dumps in alike.values():
        name = str(slots[dumps[0]]) if is_clear else dumps[0]
        if len(dumps) > 1:
            ranks = listed_numbers(slots[dump].rank or 0 for dump in dumps)
            step = f"step {slots[dumps[0]].step}, " if slots[dumps[0]].step is not None else ""
            name = f"{step}the same in ranks {ranks}; rank {slots[dumps[0]].rank}"
        yield f"{name}: {answers[dumps[0]].text}" if len(answers) > 1 else answers[dumps[0]].text


def first_bits(steps: Sequence[Step]) -> tuple[Step, str] | None:
    """(record, place) of the first value in the order of execution whose fingerprint or checksum differs.

    Nothing before it differs, so that it is the first in the data flow as well.
    """
    for step in steps:
        for key in step.account.keys:
            if key.differs and key.target[0] in "fm" and step.account.place >= 0:
                return step, key.path
    return None


def without_fault(steps: Sequence[Step], basis: Basis) -> str:
    """What is said when nothing differs by more than it may."""
    count = sum(any(key.differs for key in step.account.keys) for step in steps if not step.operation.is_cell)
    differing = counted(count, "operations", "differ")
    if not any_differs(steps):
        return _EQUAL[basis]
    if explains(steps):
        return f"{differing}, none by more than the noise run allows: all of it is what rounding does."
    if any(key.is_beyond for step in steps for key in step.account.keys):
        return f"{differing}, some by more than they may, and none of them is the first that does."
    return (
        f"{differing}, none by more than the limit of its dtype; whether that is rounding a noise run "
        "tells (--msprobe-noise)."
    )


def lead_of(basis: Basis) -> str:
    """How origins are introduced."""
    return "First that differs" if basis == "checksums" else "First that differs by more than it may"


def cause_of(fault: Fault) -> tuple[object, ...]:
    """Equal for faults of one cause: one kind, operation, place and difference of arguments.

    What an operation does wrong it does in every layer; a value that it gets is of its layer, whatever its number.
    """
    if fault.kind == "parameter":
        return fault.kind, fault.name or (fault.step.record, fault.value)
    operation = fault.step.operation
    name = operation.bare if operation.is_cell else operation.name
    cell = fault.step.cells[-1] if fault.step.cells and fault.kind not in OPERATIONS else ""
    layer = tuple(part for part in cell.split(".") if not part.isdecimal())
    return fault.kind, fault.side, name, fault.value, fault.step.account.definition, layer


def grouped(faults: Iterable[Fault]) -> list[list[Fault]]:
    """The faults by their causes, in the order of the first of each."""
    groups: dict[object, list[Fault]] = {}
    for fault in faults:
        groups.setdefault(cause_of(fault), []).append(fault)
    return list(groups.values())


def sentence_of(group: Sequence[Fault]) -> str:
    """What is wrong with the first of the faults of one cause."""
    return readable(group[0].sentence).rstrip(".")


def _sentences(diagnosis: RunDiagnosis, before: Mapping[int, Outcome]) -> Iterator[str]:
    steps, outcome = diagnosis.steps, diagnosis.outcome
    yield from _earlier(diagnosis, before)
    if diagnosis.basis != "tensors":
        yield from _observations(diagnosis)
    elif outcome == "equal":
        yield "Every tensor that was compared is equal, bit by bit."
    elif outcome == "fault":
        yield f"At fault: {_listed(diagnosis, diagnosis.faults, before)}."
    elif outcome == "rounding":
        count = sum(step.account.kind in ("inherited", "rounding") for step in steps)
        yield f"No operation is wrong on either side: {counted(count, 'operations', 'differ')}, all of it rounding."
    else:
        yield "No operation is found to be wrong, but not every difference is accounted for."
    if outcome != "equal" and diagnosis.last is not None:
        step, path, distance = diagnosis.last
        far = f"differs by {distance:.3g}" if math.isfinite(distance) else "differs"
        yield f"The last forward output, {step.record}.{path}, {far}."
    if outcome != "equal" and not diagnosis.faults and (largest := diagnosis.growths()):
        yield f"It grows most in {largest[0][0]} (x {largest[0][1]:.3g})."
    yield from _open_questions(diagnosis)


def _earlier(diagnosis: RunDiagnosis, before: Mapping[int, Outcome]) -> Iterator[str]:
    """What must be known before the answer: other numbers of the two dumps, and an earlier step that differs."""
    if diagnosis.sides is not None:
        slots = [Slot.of(side.path) for side in diagnosis.sides]
        if not slots[0].agrees(slots[1]):
            words = f"{slots[0]} is compared with {slots[1]}."
            yield f"{words[:1].upper()}{words[1:]}"
    for step, outcome in sorted(before.items()):
        if outcome in ("fault", "unaccounted"):
            yield f"Step {step} differs already: read its answer first."
            return
        if outcome == "rounding" and diagnosis.outcome == "fault":
            yield f"Step {step} differs already, by rounding: parameters that differ may be no more than that."
            return


def _open_questions(diagnosis: RunDiagnosis) -> Iterator[str]:
    """What the answer does not cover."""
    if uncomputed := diagnosis.unaccounted:
        yield f"{counted(len(uncomputed), 'operations')} could not be computed again."
    if unexplained := diagnosis.unexplained:
        suspects = [step.record for step in unexplained if is_suspect(step)]
        others = [step.record for step in unexplained if not is_suspect(step)]
        reason = next((step.account.reason for step in unexplained if step.account.reason), "")
        named = [f"equal inputs and another output in {_shown(suspects)}"] if suspects else []
        why = f" ({readable(reason).rstrip('.')})" if reason else ""
        yield f"Cannot be accounted for: {'; '.join([*named, *([_shown(others)] if others else [])])}{why}."
    if unknown := diagnosis.unknown:
        first = f"{unknown[0].step.record}.{unknown[0].value}"
        which = f"For {len(unknown)} inputs it is not known what made them: first"
        yield f"{which if len(unknown) > 1 else 'It is not known what made'} {first}."
    yield from _ended(diagnosis.steps)
    if diagnosis.outcome == "rounding" and (unheld := diagnosis.unheld):
        verb = "input that differs comes" if len(unheld) == 1 else "inputs that differ come"
        yield (
            f"{len(unheld)} {verb} from calls that the dumps do not hold, and that are not judged: first "
            f"{'.'.join(unheld[0])}."
        )
    if diagnosis.missing:
        yield f"{counted(diagnosis.missing, 'records of the target', 'were')} not part of this run."


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}"


def _ended(steps: Sequence[Step]) -> Iterator[str]:
    """That one dump ends although the other goes on."""
    places = [(step.account.place, step.account.partner_place) for step in steps]
    tails = []
    for side in (0, 1):
        last = max((pair[side] for pair in places if min(pair) >= 0), default=None)
        tails.append(0 if last is None else sum(pair[side] > last for pair in places))
    for (has, lacks), tail, other in zip((("target", "golden dump"), ("golden dump", "target")), tails, tails[::-1]):
        if not other and tail > max(_SEVERAL, _STOPPED * len(steps)):
            yield f"The {lacks} ends {tail} records before the {has} does: see whether its run stopped there."


def _observations(diagnosis: RunDiagnosis) -> Iterator[str]:
    """What dumps without tensors tell."""
    faults, basis = diagnosis.faults, diagnosis.basis
    if not faults:
        yield without_fault(diagnosis.steps, basis)
    else:
        yield f"{lead_of(basis)}: {_listed(diagnosis, [fault for fault in faults if not fault.after])}."
        if names := [fault.step.record for fault in faults if fault.after]:
            yield f"The same of what they reach: {_shown(names)}."
        if any(fault.kind == "first" for fault in faults):
            yield f"{NO_BENCHMARK if basis == 'values' else HOW_TO_TELL}."
    if (bits := first_bits(diagnosis.steps)) is not None and basis != "checksums":
        yield f"Bits differ first in {bits[0].record}.{bits[1]}."


def _listed(diagnosis: RunDiagnosis, faults: Sequence[Fault], before: Mapping[int, Outcome] | None = None) -> str:
    state, others = _initial_state(diagnosis, faults, before or {})
    groups = grouped(others)
    shown = [*state, *(_sentence(diagnosis, group) for group in groups[:_MOST_SHOWN])]
    more = sum(map(len, groups[_MOST_SHOWN:]))
    return f"{'; '.join(shown)}{f'; and {more} more' if more else ''}"


def _initial_state(
    diagnosis: RunDiagnosis, faults: Sequence[Fault], before: Mapping[int, Outcome]
) -> tuple[list[str], list[Fault]]:
    """(a sentence on all values when several parameters differ before any operation, the other faults)."""
    values = [fault for fault in faults if fault.kind in ("parameter", "batch")]
    parameters = [fault for fault in values if fault.kind == "parameter"]
    if len(parameters) < _SEVERAL:
        return [], list(faults)
    names = [fault.name or f"{fault.step.record}.{fault.value}" for fault in parameters]
    more = ", ..." if len(names) > _SEVERAL else ""
    others = len(values) - len(parameters)
    beside = f" and {others} other value{'s' if others > 1 else ''}" if others else ""
    step = Slot.of(diagnosis.sides[0].path).step if diagnosis.sides is not None else None
    hint = f'; no earlier step was compared: dump "step": [0, {step}]' if step and not before else ""
    return [
        f"{len(parameters)} parameters ({', '.join(names[:_SEVERAL])}{more}){beside} differ before any operation: "
        f"another initial state, checkpoint or number of optimizer steps{hint}"
    ], [fault for fault in faults if fault not in values]


def _sentence(diagnosis: RunDiagnosis, group: Sequence[Fault]) -> str:
    sources = {source_of(diagnosis, each): None for each in group}
    source, *other_sources = sources
    where = f", {'first ' if other_sources else ''}called from {source}" if source else ""
    name = _named(group) if len(group) > 1 else _named_alone(group[0])
    return f"{name}: {sentence_of(group)}{where}{_effect(diagnosis, group)}"


def _named_alone(fault: Fault) -> str:
    name, *more = fault.records or [fault.step.record]
    others = f" (and {' and '.join(record.rpartition('.')[2] for record in more)})" if more else ""
    return f"{name}{others}{f', in {fault.step.cells[-1]}' if fault.step.cells else ''}"


def _named(group: Sequence[Fault]) -> str:
    """`Functional.gelu in 12 layers (0 to 11), forward and backward`."""
    records = [record for fault in group for record in fault.records or [fault.step.record]]
    calls = [(fault.step.operation.call, fault.step.cells[-1] if fault.step.cells else "") for fault in group]
    directions = tuple(record.rpartition(".")[2] for record in records)
    operation = group[0].step.operation.name
    return place_in_words(Place(record=records[0], **place_of_calls(operation, calls), directions=directions))


def source_of(diagnosis: RunDiagnosis, fault: Fault) -> str:
    """`train.py:25`, the line of the training script that made the call at fault; "" where nothing says it."""
    if diagnosis.sides is None:
        return fault.step.source
    frame = diagnosis.frame(fault)
    return f"{frame.file}:{frame.line}" if frame is not None else ""


def _effect(diagnosis: RunDiagnosis, group: Sequence[Fault]) -> str:
    """What inherits from faults of one cause."""
    # A record that uses a value at fault inherits from it; an operation at fault does not inherit from its like.
    own = {
        record for fault in group for record in fault.records if record not in {each.record for each in fault.reached}
    }
    reached = list({step.record: step for fault in group for step in fault.reached if step.record not in own}.values())
    if not reached:
        return ""
    inherit = "operation inherits it" if len(reached) == 1 else "operations inherit it"
    if diagnosis.basis in REACHED:
        return f"; {len(reached)} {REACHED[diagnosis.basis]}{_most_growth(diagnosis, reached)}"
    return f"; {len(reached)} {inherit}{_factor(reached) or _most_growth(diagnosis, reached)}"


def _most_growth(diagnosis: RunDiagnosis, reached: Sequence[Step]) -> str:
    growth = next(iter(diagnosis.growths(reached)), None)
    return f", and it grows most in {growth[0]} (x {growth[1]:.3g})" if growth is not None and growth[1] > 1 else ""


def _factor(reached: Sequence[Step]) -> str:
    """That all outputs are off by the same share of their size."""
    distances = [key.distance for step in reached for key in step.outputs if key.differs and key.distance is not None]
    least, most = min(distances, default=0.0), max(distances, default=0.0)
    if len(distances) < _SEVERAL or not _LEAST_FACTOR < most < math.inf or most - least > _ONE_FACTOR * most:
        return ""
    return f", all {len(distances)} outputs off by {100 * most:.3g} % of their size"


def _first(diagnosis: RunDiagnosis) -> First | None:
    """The first value that the diagnosis names, in the order of execution."""

    def order(step: Step) -> int:
        return step.account.place if step.account.place >= 0 else step.account.partner_place

    if diagnosis.faults:
        fault = min(diagnosis.faults, key=lambda fault: order(fault.step))
        sentence = readable(fault.sentence).rstrip(".")
        steps = [in_words(step) for step in next_steps(diagnosis, fault)] if diagnosis.sides is not None else []
        record = fault.records[0] if fault.records else fault.step.record
        return First(record, fault.value, sentence, ". ".join([f"{sentence[:1].upper()}{sentence[1:]}", *steps[:1]]))
    found = [
        *(
            (order(each.step), each.step.record, each.value, "it is not known what made it")
            for each in diagnosis.unknown
        ),
        *((order(step), step.record, _beyond(step), _why(step)) for step in diagnosis.unexplained),
    ]
    if not found:
        return None
    _, record, value, sentence = min(found)
    return First(record, value, sentence, f"{sentence[:1].upper()}{sentence[1:]}. {_UNEXPLAINED}")


_UNEXPLAINED = "Dump both runs with level mix and no scope, so that the calls inside and before it are in the dump"


def _beyond(step: Step) -> str:
    return next((key.path for key in step.outputs if key.is_beyond), "output.0")


def _why(step: Step) -> str:
    reason = f": {readable(step.account.reason).rstrip('.')}" if step.account.reason else ""
    return f"it cannot be accounted for{reason}"


def next_steps(diagnosis: RunDiagnosis, fault: Fault) -> list[NextStep]:
    """Commands and what to do by hand, most useful first."""
    call = fault.step.operation.call
    assert diagnosis.sides is not None
    check = ("pytest", f"--msprobe-dump={diagnosis.sides[fault.side == 'golden'].path}", "-k", call)
    if fault.kind == "first":
        perturbed = [] if fault.step.account.is_noise else [NextStep("noise")]
        return [NextStep("scope", subject=call), NextStep("by itself", (*check, "--msprobe-device=DEVICE")), *perturbed]
    if fault.kind == "born":
        kept = NextStep("error data", (*check, "--msprobe-error-data=error_data"))
        return [NextStep("by itself", check), kept, NextStep("this call", subject=call)]
    if fault.kind == "parameter":
        is_later = bool(Slot.of(diagnosis.sides[0].path).step)
        return [*([NextStep("earlier step")] if is_later else []), NextStep("values")]
    return [NextStep(_BY_HAND.get(fault.kind, "lines"), subject=call)]


#: What to do by hand about other kinds.
_BY_HAND = {
    "batch": "batch",
    "gradient": "hooks",
    "another_rank": "ranks",
    "unrecorded": "maker",
    "unknown": "maker",
    "recomputed": "checkpoint",
    "rewired": "wiring",
}


#: What differences do in Cells, by their records.
Cells = Mapping[str, CellDifference]


@dataclass(frozen=True, slots=True)
class PairDiagnosis:
    """All that is known of one pair of dumps.

    Attributes:
        diagnosis: what is to blame.
        answer: the same in words.
        cells: what differences do in Cells, by their records.
    """

    diagnosis: RunDiagnosis
    answer: Answer
    cells: Cells
