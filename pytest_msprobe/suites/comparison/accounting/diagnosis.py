"""The diagnosis of one pair of dumps: what is at fault, what follows from it, and what could not be accounted for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Literal

from pytest_msprobe.suites.comparison.accounting.account import AccountStep, Basis, ValueKey, any_beyond, any_differs
from pytest_msprobe.suites.comparison.accounting.faults import FlowFaults, find_faults
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, SideFlow, is_held
from pytest_msprobe.suites.comparison.accounting.other_leaves import OtherLeaves
from pytest_msprobe.suites.comparison.content.judgement import causes_by_content
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.sides import ComparedDump

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.elements import ElementSearch

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
