"""The answer of a comparison: what all pairs of dumps of a run amount to together.

Faults of one cause in several layers, calls or ranks are one; a later step comes behind an earlier one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, filterfalse
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import structs

from msprobe_collector.dump_format import DIRECTIONS, is_compiled_record, is_optimizer_record
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.answers import (
    CONFIDENCES,
    Answer,
    Confidence,
    Finding,
    Gap,
    Measure,
    NextStep,
    Place,
    Reach,
    RunRows,
)
from pytest_msprobe.answers.from_rows import place_of_calls
from pytest_msprobe.answers.words import readable
from pytest_msprobe.manifests.value import ManifestDifference, is_of_another_model
from pytest_msprobe.suites.comparison.accounting.account import AccountStep, Basis, any_beyond, any_differs
from pytest_msprobe.suites.comparison.accounting.causes import OPERATIONS, Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import (
    Explained,
    RunDiagnosis,
    are_by_content,
    basis_of,
    called_alike,
    explained,
    of_unseen_updates,
    open_key,
)
from pytest_msprobe.suites.comparison.accounting.next_collection import known_numbers, next_collections
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.operations import EQUAL_AGAIN
from pytest_msprobe.suites.contract import escape

#: Kinds that a computation or the values themselves prove, where both dumps hold tensors.
_PROVED = ("born", "defined", "dtype", "only_one_side", "rewired", "arguments", "parameter", "batch", "recomputed")
#: Kinds that say of a value that it differs, and not of a call.
_OF_VALUES = ("first", "unknown", "parameter", "batch")
#: Kinds that are computed from the values of the record alone.
_COMPUTED = ("born", "defined")
#: Largest size of what `next` needs, of the 4 kB of the diagnosis.
_MOST_COLLECTION = 1600
_MOST_OPEN = 3
_Part = TypeVar("_Part")


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


#: Faults of one cause, each with its pair of dumps.
_Group: TypeAlias = Sequence[tuple[Pair, Fault]]


def run_answer(
    rows: RunRows,
    diagnoses: Mapping[str, RunDiagnosis],
    setup: Sequence[ManifestDifference] = (),
    accept: Collection[str] = (),
) -> Answer:
    """The answer of a run from the diagnoses of its pairs, by the paths of their targets; `setup` is what differs in
    their manifests, most likely explanation first.
    """
    pairs = [_without_expected(rows, Pair(dump, diagnosis)) for dump, diagnosis in diagnoses.items()]
    if "bits" in accept:
        pairs = [Pair(pair.dump, _without_bits(pair.diagnosis)) for pair in pairs]
    basis = basis_of(_of_all(pairs, attrgetter("steps")))
    if basis == "none" or not rows.judged:
        gaps = [Gap(kind="no tensors compared", reason="no tensor was compared"), *rows.gaps()]
        return structs.replace(rows.made(gaps=gaps, is_judged=False), basis=basis)
    causes = _causes(pairs)
    by_setup = [(pair, explained(setup, pair.diagnosis)) for pair in pairs]
    setups = [reasons for _, reasons in by_setup if reasons.differences]
    is_open = "unaccounted" not in accept and _has_open(pairs)
    # What fails for another reason than its numbers, such as a dtype, is no rounding.
    findings = _causing(rows, pairs, causes, by_setup)
    if not findings and is_open:
        findings = [*_open_records(rows, pairs)]
    per_pair = [pair.diagnosis for pair in pairs]
    findings = findings or [*_of_unseen(of_unseen_updates(setup, per_pair))] or _failed(rows)
    unknown = [[(pair, fault)] for pair in pairs for fault in _unmade(pair.diagnosis)]
    steps = [*_next(rows, causes or unknown, basis)]
    if not steps and basis != "tensors" and _has_open(pairs):
        steps = [NextStep("noise")]  # tells rounding from more
    if setups and setups[0].is_first:
        first = setups[0].differences[0]
        same = NextStep("same setting", subject=first.what)
        steps = [NextStep("one model") if is_of_another_model(first) else same]
    answer = rows.made(
        findings,
        measure=_measure(rows, pairs, basis),
        are_new=True,
        next_steps=steps or None,
        gaps=[*_not_covered(pairs, basis), *rows.gaps()],
    )
    for pair, reasons in by_setup:
        following = [*_around(pair, reasons), *called_alike(reasons, pair.diagnosis)]
        for fault in (*pair.diagnosis.faults, *pair.diagnosis.unknown):
            rows.following.update(_ids_of(rows, pair, fault))
            following += fault.inheriting
        rows.following.update(_item_of(rows, pair, step) for step in following)
    return structs.replace(answer, basis=basis, reach=_reach(causes), next_collection=_collection(per_pair))


def _of_all(pairs: Iterable[Pair], part: Callable[[RunDiagnosis], Iterable[_Part]]) -> list[_Part]:
    """A part of the diagnoses of all pairs together."""
    return [*chain.from_iterable(part(pair.diagnosis) for pair in pairs)]


def _causing(
    rows: RunRows, pairs: Sequence[Pair], causes: Sequence[_Group], by_setup: Sequence[tuple[Pair, Explained]]
) -> list[Finding]:
    """The findings on what is at fault, and on other set-ups in place of what these explain."""
    of_setup = {id(fault) for _, reasons in by_setup for fault in reasons.faults}
    findings = [_finding(rows, group) for group in causes if not _ids(group) <= of_setup]
    for pair, reasons in by_setup:
        if reasons.differences:
            findings.insert(0 if reasons.is_first else len(findings), _of_setup(rows, pair, reasons))
            break
    unaccounted = _of_all(pairs, attrgetter("unaccounted"))
    if not (rows.unreadable or any(map(attrgetter("account.is_unreadable"), unaccounted))):
        return findings
    # Where values cannot be read it is not known what made others.
    for place, finding in enumerate(findings):
        if finding.kind not in _COMPUTED:
            findings[place] = structs.replace(finding, confidence="possible")
    return findings


def _ids(group: _Group) -> set[int]:
    return {id(fault) for _, fault in group}


def _has_open(pairs: Iterable[Pair]) -> bool:
    """Whether it is not shown of a pair that rounding made its differences."""
    return any(pair.diagnosis.outcome == "unaccounted" for pair in pairs)


def open_keys(diagnosis: RunDiagnosis, accept: Collection[str]) -> Iterator[str]:
    """Names, which stay while it is the same, of what makes a run no success although no item fails by it."""
    if diagnosis.basis != "tensors":
        return
    faults = _without_bits(diagnosis).faults if "bits" in accept else diagnosis.faults
    yield from (fault.key for fault in faults if not fault.has_item)
    if diagnosis.outcome == "unaccounted" and diagnosis.missing == 0 and "unaccounted" not in accept:
        yield from map(open_key, diagnosis.unexplained)
        yield "values are beyond their limits, and it is not shown that rounding made them so"


def _measure(rows: RunRows, pairs: Sequence[Pair], basis: Basis) -> Measure:
    """What a comparison without a finding shows."""
    steps: list[AccountStep] = _of_all(pairs, attrgetter("steps"))
    if are_by_content(steps):
        states = [step.account.content for step in steps]
        measure = rows.measure("found", differing=states.count("rejoined"), names=(basis,))
        calls = sum(map(states.count, EQUAL_AGAIN))
        return structs.replace(measure, judged=calls, total=calls, noun="calls")
    differing = sum(any_differs(step.account.keys) for step in steps)
    kind = "rounding" if basis == "tensors" else "noise"
    if not differing:
        kind = "equal"
    elif _has_open(pairs):
        kind = "tolerance"
    measure = rows.measure(kind, differing=differing, names=(basis,))
    return structs.replace(measure, judged=len(steps), total=max(len(steps), measure.total))


def _without_expected(rows: RunRows, pair: Pair) -> Pair:
    """`pair` without the faults whose items all fail as expected, and without what a baseline knows of the run."""

    def is_new(fault: Fault) -> bool:
        if fault.has_item:
            return not all(map(rows.is_expected, _ids_of(rows, pair, fault)))
        return not rows.is_known(fault.key)

    faults = tuple(filter(is_new, pair.diagnosis.faults))
    unexplained = tuple(step for step in pair.diagnosis.unexplained if not rows.is_known(open_key(step)))
    if len(faults) == len(pair.diagnosis.faults) and len(unexplained) == len(pair.diagnosis.unexplained):
        return pair
    return Pair(pair.dump, replace(pair.diagnosis, faults=faults, unexplained=unexplained))


def _without_bits(diagnosis: RunDiagnosis) -> RunDiagnosis:
    """`diagnosis` without the faults of values that are within their limits, and differ in their bits alone."""
    faults = tuple(
        fault for fault in diagnosis.faults if fault.kind not in _OF_VALUES or any_beyond(fault.step.account.keys)
    )
    return diagnosis if len(faults) == len(diagnosis.faults) else replace(diagnosis, faults=faults)


def _causes(pairs: Sequence[Pair]) -> list[list[tuple[Pair, Fault]]]:
    """Faults by their cause, those of earlier steps first, then in the order of each pair."""
    groups: dict[object, list[tuple[Pair, Fault]]] = {}
    for pair in sorted(pairs, key=_first_step):
        for fault in sorted(pair.diagnosis.faults, key=lambda fault: bool(fault.after)):
            groups.setdefault((pair.slot.step, cause_of(fault)), []).append((pair, fault))

    def rank(group: list[tuple[Pair, Fault]]) -> tuple[int, int]:
        pair, fault = group[0]
        return _first_step(pair), CONFIDENCES.index(_confidence(fault, pair))

    return _with_initial_state(sorted(groups.values(), key=rank))


def cause_of(fault: Fault) -> tuple[object, ...]:
    """Equal for faults of one cause: one kind, operation, place and difference of arguments.

    What an operation does wrong it does in every layer; a value that it gets is of its layer, whatever its number.
    """
    if fault.kind == "parameter":
        return fault.kind, fault.name or (fault.step.record, fault.value)
    operation = fault.step.operation
    name = operation.bare if operation.is_cell else operation.name
    cell = "" if fault.kind in OPERATIONS else fault.step.cell
    layer = tuple(part for part in cell.split(".") if not part.isdecimal())
    return fault.kind, fault.side, name, fault.value, fault.step.account.definition, layer


def _with_initial_state(groups: list[list[tuple[Pair, Fault]]]) -> list[list[tuple[Pair, Fault]]]:
    """The groups, with several parameters that differ before any operation as one."""
    parameters = [group for group in groups if group[0][1].kind == "parameter"]
    steps = {group[0][0].slot.step for group in parameters}
    if len(parameters) < _SEVERAL or len(steps) > 1:
        return groups
    others = [group for group in groups if group[0][1].kind != "parameter"]
    return [[*chain.from_iterable(parameters)], *others]


_SEVERAL = 3


def _of_setup(rows: RunRows, pair: Pair, reasons: Explained) -> Finding:
    """The finding that the two runs are set up differently, in place of what that explains."""
    fault, first = reasons.faults[0], reasons.differences[0]
    cause = _finding(rows, [(pair, fault)])
    count = sum(fault.kind == "parameter" for fault in reasons.faults)
    figures: dict[str, float | int | str] = {"differing": count, "of": "parameters"} if count else {}
    for other in reasons.differences[1:]:
        if other.section == "initial state":
            figures = {"differing": other.target, "of": other.what}
            break
    return structs.replace(
        cause,
        kind="model" if is_of_another_model(first) and first.section != "step" else "setting",
        confidence="likely",
        place=structs.replace(cause.place, operation=first.what, names=(), source="", cell=""),
        figures=figures,
        arguments=(first.argument,),
        detail="; ".join(_sentences(reasons.differences)),
    )


def _sentences(differences: Sequence[ManifestDifference]) -> list[str]:
    return [difference.sentence for difference in differences[:_SEVERAL]]


def _of_unseen(differences: Sequence[ManifestDifference]) -> Iterator[Finding]:
    """The finding that optimizers are set up differently, of which the dumps show no effect."""
    if differences:
        yield Finding(
            kind="setting",
            confidence="likely",
            place=Place(record="", operation=differences[0].what),
            arguments=(differences[0].argument,),
            detail="; ".join([*_sentences(differences), "the dumps end before the update"]),
        )


def _finding(rows: RunRows, group: _Group) -> Finding:
    pair, fault = group[0]
    same_pair = [fault for other, fault in group if other is pair]
    parameters = _parameters_of(fault, same_pair)
    figures = _figures_of_group(group)
    if parameters:
        figures["names"] = len(parameters)
    detail = readable(fault.sentence).rstrip(".")
    if len(parameters) >= _SEVERAL and fault.kind == "parameter":
        detail = "they differ before any operation: another initial state, checkpoint or number of optimizer steps"
    records = dict.fromkeys(chain.from_iterable(fault.all_records for fault in same_pair))
    count = len(group) if len(group) > len(same_pair) else len(records)
    ids = _ids_of(rows, pair, fault)
    place = Place(**_place_of(group, same_pair, records), names=parameters[:_SEVERAL])
    return Finding(
        id=next(filterfalse(rows.is_expected, ids), ids[0]),
        kind=fault.kind,
        confidence=_confidence(fault, pair),
        place=place,
        figures=figures,
        arguments=fault.arguments,
        pattern=fault.pattern,
        count=count,
        detail=detail,
    )


def _parameters_of(fault: Fault, same_pair: Sequence[Fault]) -> tuple[str, ...]:
    """The parameters that a finding on faults of one pair is about."""
    region = fault.step.account.region
    if region is not None:
        return region.parameters
    if fault.kind != "parameter":
        return ()
    return tuple(other.name or f"{other.step.record}.{other.value}" for other in same_pair)


def _figures_of_group(group: _Group) -> dict[str, float | int | str]:
    pair, fault = group[0]
    account = fault.step.account
    figures: dict[str, float | int | str] = {"side": fault.side, "inheriting": len(fault.reached)}
    sizes = [fault.size for _, fault in group if fault.size is not None and math.isfinite(fault.size)]
    if sizes:
        figures["size"] = max(sizes)
    if account.region is not None:
        figures |= _figures_of(account.region, pair.diagnosis)
    if fault.share is not None:
        figures["share"] = fault.share
    if fault.worst is not None:
        figures["worst"] = str(list(fault.worst))
    if account.partner and account.partner != fault.step.record:
        figures["partner"] = account.partner
    for record, growth in pair.diagnosis.growths(fault.reached)[:1]:
        figures |= {"grows_in": record, "growth": growth}
    return figures


def _figures_of(region: Region, diagnosis: RunDiagnosis) -> dict[str, float | int | str]:
    """The calls of both runs in which they part, with the lines of the golden script."""
    if region.parameters:
        tied = {"golden": region.golden_parameters[0]} if len(region.golden_parameters) == 1 else {}
        return {"lost": "update" if region.is_update else "gradient", **tied}
    figures: dict[str, float | int | str] = {"calls": len(region.target), "golden_calls": len(region.golden)}
    if len(region.target) > 1:
        figures["until"] = region.target[-1].rpartition(".")[0]
        if last := _line(diagnosis, region.target[-1], 0):
            figures["until_source"] = last
    if region.golden:
        figures["golden"] = region.golden[0].rpartition(".")[0]
        if line := _line(diagnosis, region.golden[0], 1):
            figures["golden_source"] = line
    if len(region.golden) > 1:
        figures["golden_until"] = region.golden[-1].rpartition(".")[0]
    if region.distance >= 0:
        figures["apart"] = region.distance
    if region.factor:
        figures["factor"] = region.factor
    return figures


def _line(diagnosis: RunDiagnosis, record: str, side: int) -> str:
    """`train.py:25`, the line that made a call of either run; "" where nothing says it."""
    if diagnosis.sides is None:
        return ""
    return diagnosis.sides[side].stacks.user_line(record.rpartition(".")[0])


def _place_of(group: _Group, same_pair: Sequence[Fault], records: Iterable[str]) -> dict[str, Any]:
    pair, fault = group[0]
    operation, step = fault.step.operation, pair.slot.step
    sources = (_source_of(pair.diagnosis, other) for other in same_pair)
    directions = dict.fromkeys(record.rpartition(".")[2] for record in records)
    calls = [(other.step.operation.call, other.step.cell) for other in same_pair]
    return {
        "record": fault.all_records[0],
        **place_of_calls(operation.name if len(same_pair) > 1 else operation.call, calls),
        "directions": tuple(directions),
        "value": fault.value,
        "source": next(filter(None, sources), ""),
        "cell": fault.step.cell,
        "ranks": tuple(known_numbers(other.slot.rank for other, _ in group)),
        "steps": (step,) if step is not None else (),
    }


def _confidence(fault: Fault, pair: Pair) -> Confidence:
    # Parameters of a later step are what the earlier ones made of them.
    is_later = fault.kind == "parameter" and bool(pair.slot.step)
    if pair.diagnosis.basis != "tensors" or is_later:
        return "first difference only"
    return "proved" if fault.kind in _PROVED else "likely"


def _source_of(diagnosis: RunDiagnosis, fault: Fault) -> str:
    """`train.py:25`, the line of the training script that made the call at fault; "" where nothing says it."""
    if diagnosis.sides is None:
        return fault.step.source
    return diagnosis.sides[fault.step.account.place < 0].stacks.user_line(fault.step.operation.call)


def _ids_of(rows: RunRows, pair: Pair, fault: Fault) -> list[str]:
    """Node ids of the items at fault."""
    operations = [Operation.of(record, 0) for record in fault.all_records]
    return [_node_id(rows, pair, fault.step, operation.call, operation.phase) for operation in operations]


def _item_of(rows: RunRows, pair: Pair, step: AccountStep) -> str:
    """Node id of the item of a record."""
    part = step.operation.phase if step.operation.phase in DIRECTIONS else "record"
    return _node_id(rows, pair, step, step.operation.call, part)


def _around(pair: Pair, reasons: Explained) -> Iterator[AccountStep]:
    """Records that cannot be right where there is a fault: layers around it, sums over its uses.

    Of two models or steps nothing can be right.
    """
    causes = [*pair.diagnosis.faults, *pair.diagnosis.unknown]
    is_all = bool(reasons.is_first and is_of_another_model(reasons.differences[0]))
    has_calls = not all(fault.step.operation.is_cell for fault in causes)
    for step in pair.diagnosis.steps if causes else ():
        operation = step.operation
        is_sum = operation.is_cell or operation.phase == GRADIENTS or is_optimizer_record(step.record)
        if is_all or (has_calls and is_sum):
            yield step


def _node_id(rows: RunRows, pair: Pair, step: AccountStep, call: str, part: str) -> str:
    """Node id of a part of a call; what only the golden dump has is called so there."""
    golden = "golden." if step.account.place < 0 else ""
    return f"{rows.file_id(pair.dump)}::{escape(golden + call)}::{part}"


def _open_records(rows: RunRows, pairs: Iterable[Pair]) -> Iterator[Finding]:
    """Records beyond their limits of which it is not shown why, and inputs that nothing is known to have made."""
    for pair in pairs:
        for fault in _unmade(pair.diagnosis)[:_MOST_OPEN]:
            yield structs.replace(_finding(rows, [(pair, fault)]), confidence="first difference only")
        for step in pair.diagnosis.unexplained[:_MOST_OPEN]:
            yield _open_record(rows, pair, step)


def _open_record(rows: RunRows, pair: Pair, step: AccountStep) -> Finding:
    operation, key, detail = step.operation, step.first_beyond, readable(step.account.reason)
    directions, value = (operation.phase,), getattr(key, "path", "")
    place = Place(record=step.record, operation=operation.call, directions=directions, value=value)
    figures: dict[str, float | int | str] = {}
    if key is not None and key.distance is not None and math.isfinite(key.distance):
        figures["size"] = key.distance
    is_compiled = is_compiled_record(step.record)
    if is_compiled:
        # No benchmark computes it, which is known: the inputs are equal, and this output is not.
        detail = ""
    return Finding(
        id=_node_id(rows, pair, step, operation.call, operation.phase),
        kind="first" if is_compiled else "unexplained",
        confidence="first difference only",
        place=structs.replace(place, source=step.source, cell=step.cell),
        figures=figures,
        detail=detail,
    )


def _unmade(diagnosis: RunDiagnosis) -> Sequence[Fault]:
    """Inputs that nothing has made; of a part of a run nobody knows, since what made them may be left out."""
    return () if diagnosis.missing else diagnosis.unknown


def _failed(rows: RunRows) -> list[Finding]:
    """Failed rows that no account explains."""
    return [structs.replace(finding, confidence="first difference only") for finding in rows.findings()]


def _reach(causes: Iterable[_Group]) -> Reach:
    reached, causing, last = set[tuple[str, str]](), set[tuple[str, str]](), ""
    for pair, fault in chain.from_iterable(causes):
        reached.update((pair.dump, step.record) for step in fault.reached)
        causing.update((pair.dump, record) for record in fault.records)
        if fault.reached:
            last = last or fault.reached[-1].record
    return Reach(len(reached - causing), last)


def _not_covered(pairs: Sequence[Pair], basis: Basis) -> Iterator[Gap]:
    if uncomputed := _of_all(pairs, attrgetter("unaccounted")):
        reason = next(filter(None, map(attrgetter("account.reason"), uncomputed)), "")
        yield Gap(kind="uncomputed", what=uncomputed[0].record, count=len(uncomputed), noun="records", reason=reason)
    if unknown := _of_all(pairs, attrgetter("unknown")):
        first = f"{unknown[0].step.record}.{unknown[0].value}"
        yield Gap(kind="unmade", what=first, count=len(unknown), noun="inputs")
    rounding = [pair for pair in pairs if pair.diagnosis.outcome == "rounding"]
    if rounded := _of_all(rounding, attrgetter("unheld")):
        yield Gap(kind="unheld", what=".".join(rounded[0]), count=len(rounded), noun="inputs")
    if missing := sum(pair.diagnosis.missing for pair in pairs):
        yield Gap(kind="not in this run", count=missing, noun="records of the target")
    if basis not in ("tensors", "none") and any(pair.diagnosis.faults for pair in pairs):
        yield Gap(kind="no benchmark" if basis == "values" else "not computed again", what=basis)


def _next(rows: RunRows, causes: Sequence[_Group], basis: Basis) -> Iterator[NextStep]:
    if basis not in ("tensors", "values", "none") and causes:
        file = rows.facts.answer or "diagnosis.json"
        if not rows.facts.answer and rows.facts.arguments:
            yield NextStep("answer file", rows.facts.command(f"--msprobe-diagnosis={file}"))
        command = ("python", "-m", "pytest_msprobe", "next", file, "-o", "proof.json")
        yield NextStep("collection", command)
    for group in causes[:1]:
        pair, fault = group[0]
        if pair.diagnosis.sides is not None:
            yield from _next_steps(pair.diagnosis, fault)


def _next_steps(diagnosis: RunDiagnosis, fault: Fault) -> list[NextStep]:
    """Commands and what to do by hand, most useful first."""
    call = fault.step.operation.call
    assert diagnosis.sides is not None
    if fault.kind == "first":
        scope = NextStep("scope", subject=call)
        return [scope] if fault.step.account.is_noise else [scope, NextStep("noise")]
    if fault.kind == "born":
        check = ("pytest", f"--msprobe-dump={diagnosis.sides[fault.side == 'golden'].path}", "-k", call)
        kept = NextStep("error data", (*check, "--msprobe-error-data=error_data"))
        return [NextStep("by itself", check), kept, NextStep("this call", subject=call)]
    if fault.kind == "parameter":
        values = NextStep("values")
        return [NextStep("earlier step"), values] if Slot.of(diagnosis.sides[0].path).step else [values]
    return [NextStep(_BY_HAND.get(fault.kind, "lines"), subject=call)]


#: What to do by hand about other kinds.
_BY_HAND = {"batch": "batch", "gradient": "hooks", "another_rank": "ranks", "unrecorded": "maker", "unknown": "maker"}
_BY_HAND |= {"recomputed": "checkpoint", "rewired": "wiring"}


def _collection(diagnoses: Sequence[RunDiagnosis]) -> dict[str, object] | None:
    """What `next` writes, of as many calls as there is room for."""
    encoded = map(msgspec.json.encode, next_collections(diagnoses))
    content = next((it for it in encoded if len(it) <= _MOST_COLLECTION), None)
    return None if content is None else msgspec.json.decode(content, type=dict[str, object])


def _first_step(pair: Pair) -> int:
    return -1 if pair.slot.step is None else pair.slot.step
