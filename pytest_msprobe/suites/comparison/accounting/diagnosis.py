"""The answer for one pair of dumps: what is at fault, what follows from it, and what could not be accounted for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pytest_msprobe.suites.comparison.accounting import observed_text
from pytest_msprobe.suites.comparison.accounting.account import Basis, ValueKey
from pytest_msprobe.suites.comparison.accounting.fault import Fault, from_another_rank
from pytest_msprobe.suites.comparison.accounting.faults import Causes
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Step
from pytest_msprobe.suites.comparison.cells import Origin
from pytest_msprobe.suites.comparison.side import Side

Outcome = Literal["fault", "rounding", "equal", "unaccounted"]
#: The worst of several pairs is that of the run.
OUTCOMES: tuple[Outcome, ...] = ("fault", "unaccounted", "rounding", "equal")
_MOST_GROWTHS = 5
_MOST_SHOWN = 5
#: So many parameters that differ are one cause.
_SEVERAL = 3


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What became of the differences of one pair of dumps.

    Attributes:
        target, golden: the dumps.
        steps: all records that were judged, in order.
        faults: that with the largest effect first; without tensors, where differences begin, which need be no faults.
        unlinked: inputs that differ and whose maker is not known.
        passed_on: (record, place) of the outputs that differ and that another record uses.
        missing: how many records of the target were not judged in this run.
        origins: where differences begin.
    """

    target: Side
    golden: Side
    steps: tuple[Step, ...]
    faults: tuple[Fault, ...]
    unlinked: int
    passed_on: frozenset[tuple[str, str]]
    missing: int
    origins: tuple[Origin, ...] = ()

    @classmethod
    def of(cls, target: Side, golden: Side, steps: Sequence[Step]) -> Diagnosis:
        """The diagnosis from the accounts of a run, in the order of verdicts."""
        missing = len(target.operations) - sum(step.account.place >= 0 for step in steps)
        holds_tensors = observed_text.basis_of(steps) == "tensors"

        def is_wrong(step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]) -> bool:
            if not holds_tensors:
                return False
            # Without tensors the comparison needs no NumPy.
            from pytest_msprobe.suites.comparison.accounting.gradient_sums import is_wrong_sum

            return is_wrong_sum((target, golden), step, key, sources)

        causes = Causes(DataFlow(steps), is_wrong, is_whole=missing == 0)
        faults = causes.find()
        return cls(
            target,
            golden,
            tuple(steps),
            tuple(faults),
            causes.unlinked,
            frozenset(causes.passed_on),
            missing,
            tuple(causes.origins()),
        )

    @property
    def basis(self) -> Basis:
        """What the values are known by."""
        return observed_text.basis_of(self.steps)

    @property
    def outcome(self) -> Outcome:
        """See docs/accounting.md."""
        if self.basis != "tensors":
            if not observed_text.differs(self.steps):
                return "equal"
            return "rounding" if not self.faults and observed_text.explains(self.steps) else "unaccounted"
        if self.faults:
            return "fault"
        if any(is_suspect(step) for step in self.steps) or self.unlinked:
            return "unaccounted"
        differs = any(key.differs for step in self.steps for key in step.account.keys)
        return "rounding" if differs else "equal"

    @property
    def has_fault_without_item(self) -> bool:
        """Whether something is at fault that fails no item, such as a parameter."""
        return self.basis == "tensors" and any(fault.kind not in ("born", "defined") for fault in self.faults)

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
        return sorted(found, key=lambda entry: -entry[1])[:_MOST_GROWTHS]

    @property
    def last(self) -> tuple[Step, str, float] | None:
        """(record, place, distance) of the last output of the forward that both sides have."""
        for step in reversed(self.steps):
            if step.operation.phase == "forward" and not step.operation.is_cell and step.account.partner:
                for key in step.outputs:
                    if key.distance is not None:
                        return step, key.path, key.distance
        return None

    @property
    def unaccounted(self) -> list[Step]:
        """Records that differ, and that no benchmark could compute."""
        return [step for step in self.steps if step.account.kind == "unaccounted"]

    @property
    def text(self) -> str:
        """The answer as one paragraph."""
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        inheriting = sum(kind in ("inherited", "rounding") for kind in (step.account.kind for step in self.steps))
        if self.basis != "tensors":
            yield from self._observations()
        elif self.outcome == "equal":
            yield "Every tensor that was compared is equal, bit by bit."
        elif self.outcome == "fault":
            yield f"At fault: {self._listed(self.faults)}."
        elif self.outcome == "rounding":
            yield f"No operation is wrong on either side: {inheriting} operations differ, all of it rounding."
        else:
            yield "No operation is found to be wrong, but not every difference is accounted for."
        if self.outcome != "equal" and self.last is not None:
            step, path, distance = self.last
            far = f"differs by {distance:.3g}" if math.isfinite(distance) else "differs"
            yield f"The last forward output, {step.record}.{path}, {far}."
        if self.outcome != "equal" and not self.faults and (largest := self.growths()):
            yield f"It grows most in {largest[0][0]} (x {largest[0][1]:.3g})."
        if uncomputed := self.unaccounted:
            suspects = [step.record for step in uncomputed if is_suspect(step)]
            named = f"; equal inputs and another output: {', '.join(suspects[:_MOST_SHOWN])}" if suspects else ""
            yield f"{len(uncomputed)} operations could not be computed again{named}."
        if self.unlinked:
            yield f"For {self.unlinked} inputs that differ it is not known what made them."
        if self.missing:
            yield f"{self.missing} records of the target were not part of this run."

    def _observations(self) -> Iterator[str]:
        """What dumps without tensors tell."""
        if not self.faults:
            yield observed_text.without_fault(self.steps, self.basis)
        else:
            lead = observed_text.lead(self.basis)
            yield f"{lead}: {self._listed([fault for fault in self.faults if not fault.after])}."
            if names := [fault.step.record for fault in self.faults if fault.after]:
                more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
                yield f"The same of what they reach: {', '.join(names[:_MOST_SHOWN])}{more}."
            if any(fault.kind == "first" for fault in self.faults):
                yield f"{observed_text.HOW_TO_TELL}."
        if (bits := observed_text.first_bits(self.steps)) is not None and self.basis != "checksums":
            yield f"Bits differ first in {bits[0].record}.{bits[1]}."

    def _listed(self, faults: Sequence[Fault]) -> str:
        state, others = self._initial_state(faults)
        shown = [*state, *(self._sentence(fault) for fault in others[:_MOST_SHOWN])]
        more = len(others) - len(others[:_MOST_SHOWN])
        return f"{'; '.join(shown)}{f'; and {more} more' if more else ''}"

    def _initial_state(self, faults: Sequence[Fault]) -> tuple[list[str], list[Fault]]:
        """(a sentence on all values when several parameters differ before any operation, the other faults)."""
        values = [fault for fault in faults if fault.kind in ("parameter", "constant", "batch")]
        parameters = [fault for fault in values if fault.kind == "parameter"]
        if len(parameters) < _SEVERAL:
            return [], list(faults)
        names = ", ".join(fault.name or f"{fault.step.record}.{fault.value}" for fault in parameters[:_SEVERAL])
        return [
            f"{len(values)} values differ before any operation, {len(parameters)} of them parameters ({names}, ...): "
            "another initial state, checkpoint or number of optimizer steps"
        ], [fault for fault in faults if fault not in values]

    def _sentence(self, fault: Fault) -> str:
        name, *more = fault.records or [fault.step.record]
        others = f" (and {' and '.join(record.rpartition('.')[2] for record in more)})" if more else ""
        frame = self.frame(fault)
        where = f", called from {frame.file}:{frame.line}" if frame is not None else ""
        growth = self.growths(fault.reached)[:1]
        grows = f", and it grows most in {growth[0][0]} (x {growth[0][1]:.3g})" if growth and growth[0][1] > 1 else ""
        count = len(fault.reached)
        inherit = observed_text.REACHED.get(
            self.basis, "operation inherits it" if count == 1 else "operations inherit it"
        )
        reach = f"; {count} {inherit}{grows}" if count else ""
        inside = f", in {fault.step.cells[-1]}" if fault.step.cells else ""
        return f"{name}{others}{inside}: {fault.sentence.rstrip('.')}{where}{reach}"

    def frame(self, fault: Fault) -> Any:
        """The line of the training script that made the call, or None."""
        side = self.golden if fault.step.account.place < 0 else self.target
        return side.stacks.user_frame(f"{fault.step.operation.call}.forward")


def is_suspect(step: Step) -> bool:
    """Whether a record that nothing could compute again has equal inputs and another output."""
    if step.account.kind != "unaccounted" or step.operation.phase != "forward" or from_another_rank(step) is not None:
        return False
    return not any(key.differs for key in step.inputs) and any(key.is_beyond for key in step.outputs)
