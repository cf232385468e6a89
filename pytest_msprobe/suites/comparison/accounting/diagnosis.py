"""The diagnosis of one pair of dumps: what is at fault, what follows from it, and what could not be accounted for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_msprobe.suites.comparison.accounting.account import Basis, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.causes import Fault
from pytest_msprobe.suites.comparison.accounting.faults import FaultFinder
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, SideFlow, is_held
from pytest_msprobe.suites.comparison.accounting.other_leaves import OtherLeaves
from pytest_msprobe.suites.comparison.cells import Origin
from pytest_msprobe.suites.comparison.content.judgement import causes_by_content
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.sides import ComparedDump

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.elements import ElementSearch

_ORDER: tuple[Basis, ...] = ("tensors", "statistics", "sketches", "values", "checksums", "fingerprints", "none")


def basis_of(steps: Iterable[Step]) -> Basis:
    """What the content of values is known by throughout: the weakest of the records."""
    found = {step.account.basis for step in steps}
    return next((basis for basis in _ORDER if basis in found), "none")


def _is_noise(steps: Iterable[Step]) -> bool:
    """Whether all that differs is within what a noise run differs by."""
    return all(
        step.account.is_noise and not any(key.is_beyond for key in step.account.keys)
        for step in steps
        if any(key.differs for key in step.account.keys)
    )


def open_key(step: Step) -> str:
    """A name of a record of which it is not shown that rounding made its difference."""
    return f"unaccounted: {step.record}"


Outcome = Literal["fault", "rounding", "equal", "unaccounted"]


@dataclass(frozen=True, slots=True)
class RunDiagnosis:
    """What became of the differences of one pair of dumps.

    Attributes:
        steps: all records that were judged, in order.
        faults: that with the largest effect first; without tensors, where differences begin, which need be no faults.
        unknown: inputs of unknown origin that differ by more than they may, first ones first; none of them is at fault.
        unexplained: records beyond their limits of which it is not shown that rounding made them so, in order.
        passed_on: (record, place) of the outputs that differ and that another record uses.
        origins: where differences begin.
        missing: how many records of the target were not judged in this run.
        sides: the dumps, target first; None where only the rows of a run are at hand.
    """

    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    unknown: tuple[Fault, ...]
    passed_on: frozenset[tuple[str, str]]
    origins: tuple[Origin, ...] = ()
    unexplained: tuple[Step, ...] = ()
    missing: int = 0
    sides: tuple[ComparedDump, ComparedDump] | None = None

    @classmethod
    def of(cls, steps: Sequence[Step], sides: tuple[ComparedDump, ComparedDump] | None = None) -> RunDiagnosis:
        """The diagnosis from the accounts of a run, in the order of verdicts.

        Without `sides`, the dumps, it says nothing of records that were left out and adds up no gradients.
        """
        missing = 0
        if sides is not None:
            missing = len(sides[0].operations) - sum(step.account.place >= 0 for step in steps)
        basis = basis_of(steps)

        def is_wrong(step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]) -> bool | None:
            if sides is None or basis not in ("tensors", "sketches"):
                return False
            # Without either the comparison needs no NumPy.
            from pytest_msprobe.suites.comparison.accounting.terms import is_wrong_sum

            return is_wrong_sum(sides, step, key, sources)

        searches = _searches(steps, sides) if sides is not None and basis == "tensors" else (None, None)
        flow = DataFlow(steps, searches)
        finder = FaultFinder(flow, is_wrong, is_whole=missing == 0, other_leaves=OtherLeaves(flow, sides))
        faults, passed_on = tuple(finder.find()), frozenset(finder.passed_on)
        if any(step.account.content for step in steps):
            causes = tuple(causes_by_content(steps, faults))
            return cls(tuple(steps), causes, (), passed_on, tuple(finder.origins()), (), missing, sides)
        return cls(
            tuple(steps),
            faults,
            tuple(finder.unknown),
            passed_on,
            tuple(finder.origins()),
            tuple(finder.unexplained),
            missing,
            sides,
        )

    @property
    def region(self) -> Region | None:
        """The calls in which the two runs part; None where they do not, or where names and order decide."""
        return next((step.account.region for step in self.steps if step.account.region is not None), None)

    @property
    def is_one_model(self) -> bool:
        """Whether what both runs hold shows that they compute with the same parameters."""
        is_by_content = any(step.account.content for step in self.steps)
        return is_by_content and (self.region is None or self.region.is_one_model)

    @property
    def basis(self) -> Basis:
        """What the values are known by."""
        return basis_of(self.steps)

    @property
    def outcome(self) -> Outcome:
        """See docs/two_runs.md."""
        differs = any(key.differs for step in self.steps for key in step.account.keys)
        if self.basis == "tensors" and self.faults:
            return "fault"
        is_open = bool(self.unexplained or self.unknown)
        if self.basis != "tensors":
            is_open = differs and (bool(self.faults) or not _is_noise(self.steps))
        return "unaccounted" if is_open else "rounding" if differs else "equal"

    @property
    def unheld(self) -> list[tuple[str, str]]:
        """(record, place) of the inputs that differ and that a call made which the dumps do not hold."""
        held = {name for step in self.steps for name in (step.record, step.account.partner)}
        return [
            (step.record, key.path)
            for step in self.steps
            for key in step.inputs
            if key.differs and (made_by := key.origins[0].made_by) and not is_held(made_by, held)
        ]

    @property
    def counts(self) -> Counter[str]:
        """Records by kind of account."""
        return Counter(step.account.kind for step in self.steps)

    def growths(self, steps: Sequence[Step] | None = None) -> list[tuple[str, float]]:
        """(record, growth) where relative differences grow most on their way, among `steps` or all.

        Outputs that nothing uses are left out: a gradient that is zero but for rounding has no meaningful growth.
        """
        found = [
            (step.record, output.growth)
            for step in (self.steps if steps is None else steps)
            for output in step.account.outputs
            if output.growth is not None
            and math.isfinite(output.growth)
            and (step.record, output.path) in self.passed_on
        ]
        return sorted(found, key=lambda entry: -entry[1])[:5]

    @property
    def unaccounted(self) -> list[Step]:
        """Records that differ, and that no benchmark could compute."""
        return [step for step in self.steps if step.account.kind == "unaccounted"]


def _searches(
    steps: Sequence[Step], sides: tuple[ComparedDump, ComparedDump]
) -> tuple[ElementSearch | None, ElementSearch | None]:
    """What finds makers by the elements of values, for each side that does not say who made them."""
    target, golden = (
        None
        if any(key.origins[is_golden].made_by for step in steps for key in step.account.keys)
        else _search(steps, side, is_golden=bool(is_golden))
        for is_golden, side in enumerate(sides)
    )
    return target, golden


def _search(steps: Sequence[Step], side: ComparedDump, *, is_golden: bool) -> ElementSearch:
    from pytest_msprobe.suites.comparison.accounting.elements import Candidate, ElementSearch

    flow = SideFlow(is_golden=is_golden)
    outputs = [
        Candidate(flow.record(step), (is_golden and key.golden_path) or key.path, flow.place(step))
        for step in steps
        if not step.operation.holds_calls and flow.place(step) >= 0
        for key in step.outputs
        if flow.content(key)
    ]
    return ElementSearch(side, outputs)
