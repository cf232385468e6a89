"""The diagnosis of one pair of dumps: what is at fault, what follows from it, and what could not be accounted for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, filterfalse
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

from msprobe_collector.dump_format import is_optimizer_record
from msprobe_collector.dump_format.dump import Slot
from pytest_msprobe.apis.fact_table import fact_of, is_name_in_place
from pytest_msprobe.manifests.value import Effect, ManifestDifference, explains, explanations, is_of_another_model
from pytest_msprobe.suites.comparison.accounting.account import (
    AccountStep,
    Basis,
    Differences,
    ValueKey,
    any_beyond,
    any_differs,
)
from pytest_msprobe.suites.comparison.accounting.causes import Fault, FaultKind
from pytest_msprobe.suites.comparison.accounting.evidence import OtherLeaves
from pytest_msprobe.suites.comparison.accounting.faults import FlowFaults, find_faults
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, SideFlow, is_held
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.content.values import split_name
from pytest_msprobe.suites.comparison.sides import ComparedDump

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.elements import ElementSearch


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
    backward alone parts, the call is one which writes over what the backward needs, whether it has one itself or not.
    """
    is_backward = bool(region.target) and all(record.endswith(".backward") for record in region.target)
    if region.parameters or is_backward:
        lone = [step for step in steps if not step.account.partner and step.account.content == "unused"]
        silent = [step for step in lone if step.operation.phase == "forward"]
        if region.parameters:
            shown = {_call_of(step) for step in steps if step.operation.phase == "backward"}
            silent = [step for step in silent if _call_of(step) not in shown]
        is_only = len(silent) == 1 and (region.parameters or is_name_in_place(silent[0].operation.bare))
        return silent[0] if is_only else None
    for step in steps:
        if step.record == region.extra and (step.account.place < 0) == region.is_golden_extra:
            return step
    return None


def _call_of(step: AccountStep) -> tuple[str, bool]:
    """The call of a record, and whether the golden run alone has it."""
    return step.operation.call, step.account.place < 0


_ORDER: tuple[Basis, ...] = ("tensors", "statistics", "sketches", "values", "checksums", "fingerprints", "none")


def basis_of(steps: Iterable[AccountStep]) -> Basis:
    """What the content of values is known by throughout: the weakest of the records."""
    return min(map(attrgetter("account.basis"), steps), key=_ORDER.index, default="none")


def _is_noise(steps: Iterable[AccountStep]) -> bool:
    """Whether all that differs is within what a noise run differs by."""
    accounts = map(attrgetter("account"), steps)
    return all(it.is_noise and not any_beyond(it.keys) for it in accounts if any_differs(it.keys))


def are_by_content(steps: Iterable[AccountStep]) -> bool:
    """Return whether what both runs hold decides, and not names and order of their calls."""
    return any(map(attrgetter("account.content"), steps))


def open_key(step: AccountStep) -> str:
    """A name of a record of which it is not shown that rounding made its difference."""
    return f"unaccounted: {step.record}"


Outcome = Literal["fault", "rounding", "equal", "unaccounted"]


@dataclass(frozen=True, slots=True)
class RunDiagnosis(FlowFaults):
    """What became of the differences of one pair of dumps.

    Attributes:
        steps: all records that were judged, in order.
        missing: how many records of the target were not judged in this run.
        sides: the dumps, target first; None where only the rows of a run are at hand.
    """

    steps: tuple[AccountStep, ...] = ()
    missing: int = 0
    sides: tuple[ComparedDump, ComparedDump] | None = None

    @classmethod
    def of(cls, steps: Sequence[AccountStep], sides: tuple[ComparedDump, ComparedDump] | None = None) -> RunDiagnosis:
        """The diagnosis from the accounts of a run, in the order of verdicts.

        Without `sides`, the dumps, it says nothing of records that were left out and adds up no gradients.
        """
        missing = 0
        if sides is not None:
            missing = len(sides[0].operations) - sum(step.account.place >= 0 for step in steps)
        basis = basis_of(steps)

        def is_wrong(step: AccountStep, key: ValueKey, sources: list[tuple[AccountStep, ValueKey]]) -> bool | None:
            if sides is None or basis not in ("tensors", "sketches"):
                return False
            # Without either the comparison needs no NumPy.
            from pytest_msprobe.suites.comparison.accounting.terms import is_wrong_sum

            return is_wrong_sum(sides, step, key, sources)

        searches: tuple[ElementSearch | None, ElementSearch | None] = None, None
        if sides is not None and basis == "tensors":
            searches = _search(steps, sides[0], is_golden=False), _search(steps, sides[1], is_golden=True)
        flow = DataFlow(steps, searches)
        leaves = OtherLeaves(flow, sides)
        shown = find_faults(flow, is_wrong, is_whole=missing == 0, other_leaves=leaves)
        if are_by_content(steps):
            causes = tuple(causes_by_content(steps, shown.faults))
            shown = replace(shown, faults=causes, unknown=(), unexplained=())
        from_flow = shown.faults, shown.unknown, shown.unexplained, shown.passed_on, shown.origins
        return cls(*from_flow, tuple(steps), missing, sides)

    @property
    def region(self) -> Region | None:
        """The calls in which the two runs part; None where they do not, or where names and order decide."""
        return next(filter(None, map(attrgetter("account.region"), self.steps)), None)

    @property
    def is_one_model(self) -> bool:
        """Whether what both runs hold shows that they compute with the same parameters."""
        return are_by_content(self.steps) and (self.region is None or self.region.is_one_model)

    @property
    def basis(self) -> Basis:
        """What the values are known by."""
        return basis_of(self.steps)

    @property
    def outcome(self) -> Outcome:
        """See docs/two_runs.md."""
        differs = any_differs(chain.from_iterable(map(attrgetter("account.keys"), self.steps)))
        if self.basis == "tensors" and self.faults:
            return "fault"
        is_open = bool(self.unexplained or self.unknown)
        if self.basis != "tensors":
            is_open = differs and (bool(self.faults) or not _is_noise(self.steps))
        if is_open:
            return "unaccounted"
        return "rounding" if differs else "equal"

    @property
    def unheld(self) -> list[tuple[str, str]]:
        """(record, place) of the inputs that differ and that a call made which the dumps do not hold."""
        records = {name for step in self.steps for name in (step.record, step.account.partner)}
        values = []
        for step in self.steps:
            for key in step.inputs:
                made_by = key.origins[0].made_by
                if key.differs and made_by and not is_held(made_by, records):
                    values.append((step.record, key.path))
        return values

    def growths(self, steps: Sequence[AccountStep]) -> list[tuple[str, float]]:
        """(record, growth) where relative differences grow most on their way, among `steps`.

        Outputs that nothing uses are left out: a gradient that is zero but for rounding has no meaningful growth.
        """
        growths = []
        for step in steps:
            for output in step.account.outputs:
                is_used = (step.record, output.path) in self.passed_on
                if is_used and output.growth is not None and math.isfinite(output.growth):
                    growths.append((step.record, output.growth))
        return sorted(growths, key=itemgetter(1), reverse=True)

    @property
    def unaccounted(self) -> list[AccountStep]:
        """Records that differ, and that no benchmark could compute."""
        return [step for step in self.steps if step.account.kind == "unaccounted"]


def _search(steps: Sequence[AccountStep], side: ComparedDump, *, is_golden: bool) -> ElementSearch | None:
    from pytest_msprobe.suites.comparison.accounting.elements import Candidate, ElementSearch

    flow = SideFlow(is_golden=is_golden)
    if any(key.origins[is_golden].made_by for step in steps for key in step.account.keys):
        return None
    outputs: list[Candidate] = []
    for step in steps:
        if step.operation.holds_calls or flow.place(step) < 0:
            continue
        paths = map(flow.path, filter(flow.content, step.outputs))
        outputs += [Candidate(flow.record(step), path, flow.place(step)) for path in paths]
    return ElementSearch(side, outputs)


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
    faults = sorted(diagnosis.faults or diagnosis.unknown, key=lambda fault: _place_of_step(fault.step))
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


def _place_of_step(step: AccountStep) -> int:
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
    is_update = _place_of_step(step) > _last_backward(diagnosis)[step.account.place < 0]
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
