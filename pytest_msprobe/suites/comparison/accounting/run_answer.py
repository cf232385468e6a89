"""The diagnosis of a comparison: what is said of all pairs of dumps of a run together.

Faults of one cause in several layers, calls or ranks are one; a later step comes behind an earlier one.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import structs

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.diagnosis import AtFault, CannotSay, Diagnosis, Inherited, NextStep, RunRows
from pytest_msprobe.diagnosis.from_rows import named
from pytest_msprobe.diagnosis.value import CONFIDENCES, OUTCOMES, Confidence, Outcome, figure, readable
from pytest_msprobe.manifests.explanation import is_of_another_model
from pytest_msprobe.manifests.value import ManifestDifference
from pytest_msprobe.suites.comparison.accounting.account import Basis
from pytest_msprobe.suites.comparison.accounting.answer import (
    cause_of,
    items_of,
    next_steps,
    sentence_of,
    source_of,
)
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis, any_differs, basis_of, open_key
from pytest_msprobe.suites.comparison.accounting.next_collection import MOST_CALLS, next_collection
from pytest_msprobe.suites.comparison.accounting.settings import Explained, explained
from pytest_msprobe.suites.contract import escape

#: Kinds that a computation or the values themselves prove, where both dumps hold tensors.
_PROVED = ("born", "defined", "dtype", "only_one_side", "rewired", "arguments", "parameter", "batch", "recomputed")
#: Kinds that are computed from the values of the record alone.
_COMPUTED = ("born", "defined")
#: Largest size of what `next` needs, of the 4 kB of the diagnosis.
_MOST_COLLECTION = 1600
_MOST_OPEN = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of dumps.

    Attributes:
        dump: path of the target.
        diagnosis: what is to blame.
    """

    dump: str
    diagnosis: RunDiagnosis

    @property
    def slot(self) -> Slot:
        """Which step and rank it is of."""
        return Slot.of(Path(self.dump))


def run_answer(
    rows: RunRows, diagnoses: Mapping[str, RunDiagnosis], setup: Sequence[ManifestDifference] = ()
) -> Diagnosis:
    """The diagnosis of a run from the diagnoses of its pairs, by the paths of their targets; `setup` is what differs in
    their manifests, most likely explanation first.
    """
    given = [Pair(dump, diagnosis) for dump, diagnosis in diagnoses.items()]
    pairs = [_without_expected(rows, pair) for pair in given]
    basis = basis_of(step for pair in pairs for step in pair.diagnosis.steps)
    found = [pair.diagnosis.outcome for pair in pairs]
    outcome: Outcome = next(one for one in OUTCOMES if one in found)
    are_expected = any(pair is not other for pair, other in zip(pairs, given))
    if are_expected and outcome in ("equal", "rounding"):
        outcome = "unaccounted"  # an expected failure is no praise
    if basis == "none" or not rows.judged:
        return structs.replace(rows.made("not_judged", told="no tensor was compared"), basis=basis)
    causes = _causes(pairs)
    by_setup = [(pair, explained(setup, pair.diagnosis)) for pair in pairs]
    of_setup = {id(fault) for _, found in by_setup for fault in found.faults}
    at_fault = [_at_fault(rows, group) for group in causes if not all(id(fault) in of_setup for _, fault in group)]
    first = next(((pair, found) for pair, found in by_setup if found.differences), None)
    if first is not None:
        outcome = "fault"
        at_fault.insert(0 if first[1].is_first else len(at_fault), _of_setup(rows, *first))
    if rows.unreadable or any(_has_unreadable(pair) for pair in pairs):
        # Where values cannot be read it is not known what made others.
        at_fault = [
            each if each.kind in _COMPUTED else structs.replace(each, confidence="possible") for each in at_fault
        ]
        if at_fault and all(each.confidence == "possible" for each in at_fault):
            outcome = "unaccounted"
    if not at_fault and outcome == "unaccounted":
        at_fault = [*_open_records(rows, pairs)] or _failed(rows)
    if not at_fault and (failed := _failed(rows)):
        # What fails for another reason than its numbers, such as a dtype, is no rounding.
        outcome, at_fault = "unaccounted", failed
    steps = list(_next(rows, causes or _unknown(pairs), basis)) or _with_noise(outcome, basis)
    diagnosis = rows.made(
        outcome,
        at_fault,
        told="" if are_expected else _told(outcome, basis, pairs),
        are_new=True,
        next_steps=_same_setup(first[1]) if first is not None and first[1].is_first else steps,
    )
    return structs.replace(
        diagnosis,
        basis=basis,
        inherited=_inherited(causes),
        cannot_say=(*_not_covered(pairs, basis), *diagnosis.cannot_say),
        next_collection=_collection([pair.diagnosis for pair in pairs]),
    )


def _without_expected(rows: RunRows, pair: Pair) -> Pair:
    """`pair` without the faults whose items all fail as expected, and without what a baseline knows of the run."""

    def is_new(fault: Fault) -> bool:
        if fault.has_item:
            return not all(rows.is_expected(_node_id(rows, pair.dump, item)) for item in items_of(fault))
        return not rows.is_known(fault.key)

    faults = tuple(filter(is_new, pair.diagnosis.faults))
    unexplained = tuple(step for step in pair.diagnosis.unexplained if not rows.is_known(open_key(step)))
    if len(faults) == len(pair.diagnosis.faults) and len(unexplained) == len(pair.diagnosis.unexplained):
        return pair
    return Pair(pair.dump, replace(pair.diagnosis, faults=faults, unexplained=unexplained))


def _has_unreadable(pair: Pair) -> bool:
    """Whether a record was not accounted for since a dump cannot be read: such a text begins with its path."""
    paths = [pair.dump, *(str(side.path) for side in pair.diagnosis.sides or ())]
    return any(path in step.account.reason for step in pair.diagnosis.unaccounted for path in paths)


def _causes(pairs: Sequence[Pair]) -> list[list[tuple[Pair, Fault]]]:
    """Faults by their cause, those of earlier steps first, then in the order of each pair."""
    groups: dict[object, list[tuple[Pair, Fault]]] = {}
    for pair in sorted(pairs, key=lambda pair: _first_step(pair.slot.step)):
        for fault in sorted(pair.diagnosis.faults, key=lambda fault: bool(fault.after)):
            groups.setdefault((pair.slot.step, cause_of(fault)), []).append((pair, fault))
    ordered = sorted(
        groups.values(),
        key=lambda group: (
            _first_step(group[0][0].slot.step),
            CONFIDENCES.index(_confidence(group[0][1], group[0][0])),
        ),
    )
    return _with_initial_state(ordered)


def _with_initial_state(groups: list[list[tuple[Pair, Fault]]]) -> list[list[tuple[Pair, Fault]]]:
    """The groups, with several parameters that differ before any operation as one."""
    parameters = [group for group in groups if group[0][1].kind == "parameter"]
    steps = {group[0][0].slot.step for group in parameters}
    if len(parameters) < _SEVERAL or len(steps) > 1:
        return groups
    others = [group for group in groups if group[0][1].kind != "parameter"]
    return [[entry for group in parameters for entry in group], *others]


_SEVERAL = 3


def _of_parameters(found: Explained) -> str:
    """How many parameters differ, where they do."""
    known = (f"{one.target} {one.what} differ" for one in found.differences[1:] if one.section == "initial state")
    count = sum(fault.kind == "parameter" for fault in found.faults)
    return next(known, counted(count, "parameters", "differ") if count else "")


def _of_setup(rows: RunRows, pair: Pair, found: Explained) -> AtFault:
    """The finding that the two runs are set up differently, in place of what that explains."""
    fault, (first, *others) = found.faults[0], found.differences
    cause = _at_fault(rows, [(pair, fault)])
    is_of_model = is_of_another_model(first) and first.section != "step"
    argument = first.argument
    sides = f"{argument.target}, golden {argument.golden}"
    if is_of_model and argument.name != first.what:
        sides = f"{argument.target} against {argument.golden}"
    name = f"{argument.name} {sides}" if argument.target else first.sentence
    return structs.replace(
        cause,
        kind="model" if is_of_model else "setting",
        confidence="likely",
        name=f"two different models: {name}" if is_of_model else name,
        sentence="; ".join(one.sentence for one in (others or [first])[:_SEVERAL]),
        how=_of_parameters(found),
        size=None,
        source="",
        cell="",
    )


def _at_fault(rows: RunRows, group: Sequence[tuple[Pair, Fault]]) -> AtFault:
    pair, fault = group[0]
    faults = [fault for _, fault in group]
    own = [fault for other, fault in group if other is pair]
    step = fault.step
    ids = [_node_id(rows, pair.dump, item) for item in items_of(fault)]
    name, sentence = _name(own), sentence_of(own)
    if fault.kind == "parameter" and len(own) >= _SEVERAL:
        sentence = "they differ before any operation: another initial state, checkpoint or number of optimizer steps"
    sizes = [fault.size for fault in faults if fault.size is not None and math.isfinite(fault.size)]
    size = max(sizes, default=None)
    ranks = {other.slot.rank for other, _ in group} - {None}
    records = {record for fault in faults for record in fault.records or [fault.step.record]}
    evidence: dict[str, float | int | str] = {"side": fault.side, "inheriting": len(fault.reached)}
    if fault.share is not None:
        evidence["share"] = fault.share
    if fault.worst is not None:
        evidence["worst"] = str(list(fault.worst))
    if fault.step.account.partner and fault.step.account.partner != step.record:
        evidence["partner"] = fault.step.account.partner
    if growth := next(iter(pair.diagnosis.growths(fault.reached)), None):
        evidence |= {"grows_in": growth[0], "growth": growth[1]}
    return AtFault(
        id=next((each for each in ids if not rows.is_expected(each)), ids[0]),
        record=fault.records[0] if fault.records else step.record,
        kind=fault.kind,
        confidence=_confidence(fault, pair),
        name=name,
        sentence=sentence,
        how=_how(fault, size),
        value=fault.value,
        size=size,
        source=next((source for fault in own if (source := source_of(pair.diagnosis, fault))), ""),
        cell=step.cells[-1] if step.cells else "",
        ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
        steps=() if pair.slot.step is None else (pair.slot.step,),
        count=len(records) if len({id(other) for other, _ in group}) == 1 else len(group),
        evidence=evidence,
    )


def _name(group: Sequence[Fault]) -> str:
    fault = group[0]
    if fault.kind == "parameter":
        names = [each.name or f"{each.step.record}.{each.value}" for each in group]
        more = ", ..." if len(names) > _SEVERAL else ""
        return f"parameter {names[0]}" if len(names) == 1 else f"{len(names)} parameters ({', '.join(names[:3])}{more})"
    operation = fault.step.operation
    records = [record for each in group for record in each.records or [each.step.record]]
    calls = [(each.step.operation.call, each.step.cells[-1] if each.step.cells else "") for each in group]
    name = operation.name if len(group) > 1 else operation.call
    shown = named(name, calls, [record.rpartition(".")[2] for record in records])
    return f"{_OF_VALUES[fault.kind]} {shown}" if fault.kind in _OF_VALUES else shown


#: Kinds of values, before the operation that uses the value first.
_OF_VALUES = {
    "batch": "the batch, in",
    "gradient": "a gradient into",
    "unrecorded": "an input of",
    "unknown": "an input of",
}


def _confidence(fault: Fault, pair: Pair) -> Confidence:
    # Parameters of a later step are what the earlier ones made of them.
    is_later = fault.kind == "parameter" and bool(pair.slot.step)
    if pair.diagnosis.basis != "tensors" or is_later:
        return "first difference only"
    return "proved" if fault.kind in _PROVED else "likely"


def _how(fault: Fault, size: float | None) -> str:
    if size:
        return f"{figure(100 * size)} % off" if size >= 1e-4 else f"{figure(size)} of its size off"
    if fault.kind == "only_one_side":
        return f"only in the {'golden run' if fault.side == 'golden' else fault.side}"
    return {"rewired": "from another place", "dtype": "another dtype", "arguments": "other arguments"}.get(
        fault.kind, ""
    )


def _node_id(rows: RunRows, dump: str, item: str) -> str:
    call, _, part = item.rpartition(".")
    return f"{rows.file_id(dump)}::{escape(call)}::{part}"


def _open_records(rows: RunRows, pairs: Iterable[Pair]) -> Iterator[AtFault]:
    """Records beyond their limits of which it is not shown why, and inputs that nothing is known to have made."""
    for pair in pairs:
        diagnosis = pair.diagnosis
        for fault in diagnosis.unknown[:_MOST_OPEN]:
            yield structs.replace(_at_fault(rows, [(pair, fault)]), confidence="first difference only")
        for step in diagnosis.unexplained[:_MOST_OPEN]:
            key = next((key for key in step.outputs if key.is_beyond), None)
            distance = key.distance if key is not None else None
            size = distance if distance is not None and math.isfinite(distance) else None
            reason = readable(step.account.reason).rstrip(".") if step.account.reason else "it is not shown why"
            yield AtFault(
                id=_node_id(rows, pair.dump, f"{step.operation.call}.{step.operation.phase}"),
                record=step.record,
                kind="unexplained",
                confidence="first difference only",
                name=step.record,
                sentence=f"it differs by more than its limit, and {reason}",
                how=f"{figure(100 * size)} % off" if size else "",
                value=key.path if key is not None else "",
                size=size,
                source=step.source,
                cell=step.cells[-1] if step.cells else "",
            )


def _unknown(pairs: Iterable[Pair]) -> list[list[tuple[Pair, Fault]]]:
    return [[(pair, fault)] for pair in pairs for fault in pair.diagnosis.unknown]


def _failed(rows: RunRows) -> list[AtFault]:
    """Failed rows that no account explains."""
    return [structs.replace(each, confidence="first difference only") for each in rows.at_fault()]


def _inherited(causes: Iterable[Sequence[tuple[Pair, Fault]]]) -> Inherited:
    reached = {
        (pair.dump, step.record): step.record for group in causes for pair, fault in group for step in fault.reached
    }
    own = {(pair.dump, record) for group in causes for pair, fault in group for record in fault.records}
    last = next((fault.reached[-1].record for group in causes for _, fault in group if fault.reached), "")
    return Inherited(len(reached.keys() - own), last)


def _not_covered(pairs: Sequence[Pair], basis: Basis) -> Iterator[CannotSay]:
    uncomputed = [step for pair in pairs for step in pair.diagnosis.unaccounted]
    if uncomputed:
        reason = next((readable(step.account.reason) for step in uncomputed if step.account.reason), "")
        yield CannotSay(
            f"{counted(len(uncomputed), 'records')}, the first {uncomputed[0].record}",
            f"could not be computed again{f': {reason}' if reason else ''}",
            len(uncomputed),
        )
    if unknown := [fault for pair in pairs for fault in pair.diagnosis.unknown]:
        first = f"{unknown[0].step.record}.{unknown[0].value}"
        yield CannotSay(
            f"{counted(len(unknown), 'inputs')}, the first {first}", "it is not known what made them", len(unknown)
        )
    if missing := sum(pair.diagnosis.missing for pair in pairs):
        yield CannotSay(counted(missing, "records of the target"), "were not part of this run", missing)
    if basis not in ("tensors", "none") and any(pair.diagnosis.faults for pair in pairs):
        yield CannotSay("whether an operation is wrong", f"the dumps hold {_HELD[basis]}")
    elif basis in ("statistics", "sketches"):
        yield CannotSay("single elements", f"the dumps hold {_HELD[basis]}")


_EQUAL = {
    "tensors": "every compared tensor of {} records, bit by bit",
    "values": "every compared tensor of {} records, element by element",
    "fingerprints": "all fingerprints of {} records, bit by bit",
    "checksums": "all checksums of {} records, bit by bit",
    "sketches": "all sketches and statistics of {} records",
    "statistics": "all statistics of {} records",
}
_HELD = {
    "values": "tensors, and nothing was computed again",
    "statistics": "statistics and no tensors",
    "sketches": "sketches and no tensors",
    "checksums": "checksums and no tensors",
    "fingerprints": "fingerprints and no tensors",
}


def _told(outcome: Outcome, basis: Basis, pairs: Sequence[Pair]) -> str:
    steps = [step for pair in pairs for step in pair.diagnosis.steps]
    count = sum(any(key.differs for key in step.account.keys) for step in steps)
    differing = f"{count} of {counted(len(steps), 'records')} {'differs' if count == 1 else 'differ'}"
    if outcome == "equal":
        return _EQUAL[basis].format(len(steps))
    if outcome == "rounding":
        why = "all of it rounding" if basis == "tensors" else "by no more than the noise run does"
        return f"{differing}, {why}"
    if not any_differs(steps):
        return ""
    return f"{differing}, none by more than its limit"


def _same_setup(found: Explained) -> list[NextStep]:
    first = found.differences[0]
    if is_of_another_model(first):
        return [NextStep((), "name two dumps of one model, one batch and one step")]
    return [NextStep((), f"make both runs with the same {first.what}, and compare again")]


def _next(rows: RunRows, causes: Sequence[Sequence[tuple[Pair, Fault]]], basis: Basis) -> Iterator[NextStep]:
    if basis not in ("tensors", "values", "none") and causes:
        file = rows.facts.answer or "diagnosis.json"
        if not rows.facts.answer and rows.facts.arguments:
            yield NextStep(rows.facts.command(f"--msprobe-diagnosis={file}"), "the file that the next command reads")
        yield NextStep(
            ("python", "-m", "pytest_msprobe", "next", file, "-o", "proof.json"),
            "the smallest collection of tensors that shows whether these calls are wrong",
        )
    for group in causes[:1]:
        pair, fault = group[0]
        if pair.diagnosis.sides is None:
            return
        for text in next_steps(pair.diagnosis, fault):
            if not text.startswith("pytest "):
                yield NextStep((), text)
            elif "--msprobe-device=DEVICE" not in text:
                is_kept = "--msprobe-error-data" in text
                tells = (
                    "the inputs of the call and both results, as files"
                    if is_kept
                    else "how far this call is off by itself"
                )
                yield NextStep(tuple(shlex.split(text)), tells)


def _with_noise(outcome: Outcome, basis: Basis) -> list[NextStep]:
    """What tells rounding from more where no tensors do."""
    if outcome != "unaccounted" or basis == "tensors":
        return []
    advice = "dump the golden run once more with debugger.perturb, and compare with --msprobe-noise=FOLDER"
    return [NextStep((), f"{advice}: it tells how far rounding goes")]


def _collection(diagnoses: Sequence[RunDiagnosis]) -> dict[str, object] | None:
    """What `next` writes, of as many calls as there is room for."""
    for most in range(MOST_CALLS, 0, -1):
        found = next_collection(diagnoses, most)
        if found is None:
            return None
        encoded = msgspec.json.encode(found)
        if len(encoded) <= _MOST_COLLECTION:
            built: dict[str, object] = msgspec.json.decode(encoded)
            return built
    return None


def _first_step(step: int | None) -> int:
    return -1 if step is None else step
