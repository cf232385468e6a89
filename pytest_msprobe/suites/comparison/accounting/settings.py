"""Which faults of a run the set-ups of the two runs explain, so that no operation is to blame for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msprobe_collector.dump_format import is_optimizer_record
from msprobe_collector.dump_format.dump import Slot
from pytest_msprobe.apis.topics import fact_of
from pytest_msprobe.manifests.explanation import Effect, explains, explanations, is_of_another_model
from pytest_msprobe.manifests.value import ManifestDifference
from pytest_msprobe.suites.comparison.accounting.account import Step
from pytest_msprobe.suites.comparison.accounting.arguments import Differences
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis


class Explained(NamedTuple):
    """What set-ups explain.

    Attributes:
        differences: that do so, what explains the first difference of the values first; empty where none does.
        faults: that are explained.
        is_first: whether the first fault in the order of execution is one of them.
    """

    differences: Sequence[ManifestDifference]
    faults: Sequence[Fault]
    is_first: bool


#: Sections that say which values differ before any operation.
_SAME = ("initial state", "batch")


def explained(differences: Sequence[ManifestDifference], diagnosis: RunDiagnosis) -> Explained:
    """Which faults of a pair of dumps, or without faults which values of unknown origin, the `differences` explain."""
    if diagnosis.is_one_model:  # its values are found, whatever shapes its parameters and its batch have
        differences = [one for one in differences if one.section == "step" or not is_of_another_model(one)]
    faults = sorted(diagnosis.faults or diagnosis.unknown, key=lambda fault: _place(fault.step))
    known = [*differences, *([] if diagnosis.is_one_model else _other_shapes(faults))]
    effects = {id(fault): _effect(fault, diagnosis) for fault in faults}
    # That leaves or the states of generators differ is no reason, but the same difference.
    found = explanations(known, list(effects.values()))
    same = [one for one in found if one.what == "state" or (one.section in _SAME and not is_of_another_model(one))]
    reasons = [one for one in found if one not in same]
    reasons += same if reasons else []
    of_setup = [fault for fault in faults if any(explains(one, effects[id(fault)]) for one in reasons)]
    return Explained(reasons, of_setup, bool(of_setup) and of_setup[0] is faults[0])


def _place(step: Step) -> int:
    return step.account.place if step.account.place >= 0 else step.account.partner_place


def called_alike(reasons: Explained, diagnosis: RunDiagnosis) -> Iterator[Step]:
    """Calls with other arguments that no value shows, as a cause has them too, or as a set-up says."""
    causes = {(fault.step.operation.name, fault.arguments) for fault in diagnosis.faults if fault.arguments}
    for step in diagnosis.steps:
        arguments = step.account.definition
        if not arguments or step.account.blamed:
            continue
        effect = _effect_of(step, "arguments", arguments, diagnosis)
        if (step.operation.name, arguments) in causes or any(explains(one, effect) for one in reasons.differences):
            yield step


def of_unseen_updates(
    differences: Sequence[ManifestDifference], diagnoses: Sequence[RunDiagnosis]
) -> list[ManifestDifference]:
    """Settings of optimizers whose effect no value can show: the dumps end before the update of the parameters."""
    for steps in (diagnosis.steps for diagnosis in diagnoses):
        last = max((step.account.place for step in steps if step.operation.phase == "backward"), default=math.inf)
        if any(is_optimizer_record(step.record) for step in steps):
            return []
        if math.isinf(last) or any(not step.operation.holds_calls and step.account.place > last for step in steps):
            return []
    # What explains other numbers with a lower likelihood, such as how an optimizer is implemented, may change none.
    return [one for one in differences if one.section == "optimizer" and one.likelihood > 0.9]


def _effect(fault: Fault, diagnosis: RunDiagnosis) -> Effect:
    return _effect_of(fault.step, fault.kind, fault.arguments, diagnosis)


def _effect_of(step: Step, kind: str, arguments: Differences, diagnosis: RunDiagnosis) -> Effect:
    backwards = [step.account for step in diagnosis.steps if step.operation.phase == "backward"]
    account = step.account
    if account.place >= 0:
        is_update = account.place > max((one.place for one in backwards), default=account.place)
    else:
        is_update = account.partner_place > max((one.partner_place for one in backwards), default=account.partner_place)
    number = Slot.of(diagnosis.sides[0].path).step if diagnosis.sides is not None else None
    is_drawn = kind == "defined" and fact_of("random", step.operation.name) is not None
    return Effect(kind, is_update, is_drawn, bool(number), arguments)


def _other_shapes(faults: Sequence[Fault]) -> list[ManifestDifference]:
    """The first value of another shape that no operation made: two models, or two batches."""
    for fault in faults[:1]:
        if fault.kind in ("parameter", "batch", "unknown") and fault.arguments:
            shape = fault.arguments[0]
            what = "shape of the batch" if fault.kind == "batch" else "shape"
            sentence = f"{shape.name} {shape.target}, golden {shape.golden}"
            section = "batch" if fault.kind == "batch" else "model"
            return [ManifestDifference(section, what, shape.target, shape.golden, sentence, 0.9, (shape.name,))]
    return []
