"""Which faults of a run the set-ups of the two runs explain, so that no operation is to blame for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import filterfalse
from operator import attrgetter
from typing import NamedTuple

from msprobe_collector.dump_format import is_optimizer_record
from msprobe_collector.dump_format.dump import Slot
from pytest_msprobe.apis.topics import fact_of
from pytest_msprobe.manifests.explanation import Effect, explains, explanations, is_of_another_model
from pytest_msprobe.manifests.value import ManifestDifference
from pytest_msprobe.suites.comparison.accounting.account import AccountStep
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
    faults = sorted(diagnosis.faults or diagnosis.unknown, key=lambda fault: _place(fault.step))
    candidates = [*differences, *_other_shapes(faults)]
    if diagnosis.is_one_model:  # its values are found, whatever shapes its parameters and its batch have
        candidates = [other for other in differences if other.section == "step" or not is_of_another_model(other)]
    effects = {id(it): _effect_of(it.step, it.kind, it.arguments, diagnosis) for it in faults}
    # That leaves or the states of generators differ is no reason, but the same difference.
    explaining = explanations(candidates, list(effects.values()))
    reasons = list(filterfalse(_is_same, explaining))
    if reasons:
        reasons += filter(_is_same, explaining)
    of_setup = [fault for fault in faults if _is_explained(effects[id(fault)], reasons)]
    return Explained(reasons, of_setup, bool(of_setup) and of_setup[0] is faults[0])


def _is_same(difference: ManifestDifference) -> bool:
    """Whether a difference is of values that no operation made."""
    return difference.what == "state" or (difference.section in _SAME and not is_of_another_model(difference))


def _is_explained(effect: Effect, reasons: Sequence[ManifestDifference]) -> bool:
    return any(explains(difference, effect) for difference in reasons)


def _place(step: AccountStep) -> int:
    return step.account.place if step.account.place >= 0 else step.account.partner_place


def called_alike(reasons: Explained, diagnosis: RunDiagnosis) -> Iterator[AccountStep]:
    """Calls with other arguments that no value shows, as a cause has them too, or as a set-up says."""
    causes = {(fault.step.operation.name, fault.arguments) for fault in diagnosis.faults if fault.arguments}
    for step in diagnosis.steps:
        arguments = step.account.definition
        if not arguments or step.account.blamed:
            continue
        effect = _effect_of(step, "arguments", arguments, diagnosis)
        if (step.operation.name, arguments) in causes or _is_explained(effect, reasons.differences):
            yield step


def of_unseen_updates(
    differences: Sequence[ManifestDifference], diagnoses: Sequence[RunDiagnosis]
) -> list[ManifestDifference]:
    """Settings of optimizers whose effect no value can show: the dumps end before the update of the parameters."""
    for diagnosis in diagnoses:
        last = _last_backward(diagnosis)[0]
        calls = (step.account.place for step in diagnosis.steps if not step.operation.holds_calls)
        is_optimizer = any(map(is_optimizer_record, map(attrgetter("record"), diagnosis.steps)))
        if math.isinf(last) or is_optimizer or max(calls, default=-1) > last:
            return []
    return [other for other in differences if other.section == "optimizer" and other.likelihood > 0.9]


def _last_backward(diagnosis: RunDiagnosis) -> tuple[float, float]:
    """Places of the last backward in the target and in the golden run; infinity without one."""
    accounts = [step.account for step in diagnosis.steps if step.operation.phase == "backward"]
    mine, theirs = (map(attrgetter(side), accounts) for side in ("place", "partner_place"))
    return max(mine, default=math.inf), max(theirs, default=math.inf)


def _effect_of(step: AccountStep, kind: str, arguments: Differences, diagnosis: RunDiagnosis) -> Effect:
    is_update = _place(step) > _last_backward(diagnosis)[step.account.place < 0]
    number = Slot.of(diagnosis.sides[0].path).step if diagnosis.sides is not None else None
    is_drawn = kind == "defined" and fact_of("random", step.operation.name) is not None
    return Effect(kind, is_update, is_drawn, bool(number), arguments)


def _other_shapes(faults: Sequence[Fault]) -> Iterator[ManifestDifference]:
    """The first value of another shape that no operation made: two models, or two batches."""
    for fault in faults[:1]:
        if fault.kind in ("parameter", "batch", "unknown") and fault.arguments:
            section, what = ("batch", "shape of the batch") if fault.kind == "batch" else ("model", "shape")
            shape = fault.arguments[0]
            sentence = f"{shape.name} {shape.target}, golden {shape.golden}"
            yield ManifestDifference(section, what, shape.target, shape.golden, sentence, 0.9, (shape.name,))
