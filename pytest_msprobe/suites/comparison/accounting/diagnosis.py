"""What dumps without tensors tell of two runs, in words that claim no more than that.

- The answer for one pair of dumps: what is at fault, what follows from it, and what could not be accounted for.
- The file of --msprobe-diagnosis; docs/accounting.md documents it.
- What to do about a fault: commands first.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from msprobe_collector.dump_format import Frame
from pytest_msprobe.suites.comparison.accounting.account import Account, Basis, Step, ValueKey
from pytest_msprobe.suites.comparison.accounting.faults import Fault, FaultFinder, from_another_rank
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, SideFlow
from pytest_msprobe.suites.comparison.cells import CellDifference, Origin
from pytest_msprobe.suites.comparison.sides import ComparedDump

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.accounting.elements import ElementSearch

_EQUAL = {
    "fingerprints": "Every tensor that was compared is equal, bit by bit: all fingerprints are.",
    "checksums": "Every tensor that was compared is equal, bit by bit: all checksums are.",
    "values": "Every tensor that was compared is equal, element by element.",
    "statistics": "All statistics that were compared are equal, which equal bits would make and others may.",
    "none": "No tensor was compared.",
}
_ORDER: tuple[Basis, ...] = ("tensors", "statistics", "values", "checksums", "fingerprints", "none")
#: Of operations that an origin reaches, behind their number.
REACHED: dict[Basis, str] = {
    "values": "of those that get it differ by more than they may, too",
    "statistics": "of those that get it differ by more than they may, too",
    "fingerprints": "of those that get it differ by more than they may, too",
    "checksums": "of those that get it differ, too",
}
HOW_TO_TELL = (
    'Without tensors it cannot be told whether the operation is wrong: dump both runs with "task": "tensor", at least '
    "this call"
)


#: The same where both dumps hold tensors.
NO_BENCHMARK = (
    "Only a benchmark can tell whether the operation is wrong: install PyTorch, use --msprobe-accounting=auto"
)


def basis_of(steps: Iterable[Step]) -> Basis:
    """What the content of values is known by throughout: the weakest of the records."""
    found = {step.account.basis for step in steps}
    return next((basis for basis in _ORDER if basis in found), "none")


def any_differs(steps: Iterable[Step]) -> bool:
    """Whether a value differs."""
    return any(key.differs for step in steps for key in step.account.keys)


def explains(steps: Iterable[Step]) -> bool:
    """Whether all that differs is within what a noise run differs by."""
    return all(
        step.account.is_noise and not any(key.is_beyond for key in step.account.keys)
        for step in steps
        if any(key.differs for key in step.account.keys)
    )


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
    if not any_differs(steps):
        return _EQUAL[basis]
    if explains(steps):
        return f"{count} operations differ, none by more than the noise run allows: all of it is what rounding does."
    if any(key.is_beyond for step in steps for key in step.account.keys):
        return f"{count} operations differ, some by more than they may, and none of them is the first that does."
    return (
        f"{count} operations differ, none by more than the limit of its dtype; whether that is rounding a noise run "
        "tells (--msprobe-noise)."
    )


def lead_of(basis: Basis) -> str:
    """How origins are introduced."""
    return "First that differs" if basis == "checksums" else "First that differs by more than it may"


Outcome = Literal["fault", "rounding", "equal", "unaccounted"]
#: The worst of several pairs is that of the run.
OUTCOMES: tuple[Outcome, ...] = ("fault", "unaccounted", "rounding", "equal")
_MOST_GROWTHS = 5
_MOST_SHOWN = 5
#: So many parameters that differ are one cause.
_SEVERAL = 3


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
        holds_tensors = basis_of(steps) == "tensors"

        def is_wrong(step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]) -> bool:
            if sides is None or not holds_tensors:
                return False
            # Without tensors the comparison needs no NumPy.
            from pytest_msprobe.suites.comparison.accounting.terms import is_wrong_sum

            return is_wrong_sum(sides, step, key, sources)

        searches = _searches(steps, sides) if sides is not None and holds_tensors else (None, None)
        finder = FaultFinder(DataFlow(steps, searches), is_wrong, is_whole=missing == 0)
        faults, passed_on = tuple(finder.find()), frozenset(finder.passed_on)
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
    def basis(self) -> Basis:
        """What the values are known by."""
        return basis_of(self.steps)

    @property
    def outcome(self) -> Outcome:
        """See docs/accounting.md."""
        if self.basis != "tensors":
            if not any_differs(self.steps):
                return "equal"
            return "rounding" if not self.faults and explains(self.steps) else "unaccounted"
        if self.faults:
            return "fault"
        if self.unexplained or self.unknown:
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
        if self.unknown:
            yield f"For {len(self.unknown)} inputs that differ it is not known what made them."
        if self.missing:
            yield f"{self.missing} records of the target were not part of this run."

    def _observations(self) -> Iterator[str]:
        """What dumps without tensors tell."""
        if not self.faults:
            yield without_fault(self.steps, self.basis)
        else:
            lead = lead_of(self.basis)
            yield f"{lead}: {self._listed([fault for fault in self.faults if not fault.after])}."
            if names := [fault.step.record for fault in self.faults if fault.after]:
                more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
                yield f"The same of what they reach: {', '.join(names[:_MOST_SHOWN])}{more}."
            if any(fault.kind == "first" for fault in self.faults):
                yield f"{NO_BENCHMARK if self.basis == 'values' else HOW_TO_TELL}."
        if (bits := first_bits(self.steps)) is not None and self.basis != "checksums":
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
        source = fault.step.source
        if self.sides is not None:
            frame = self.frame(fault)
            source = f"{frame.file}:{frame.line}" if frame is not None else ""
        where = f", called from {source}" if source else ""
        growth = self.growths(fault.reached)[:1]
        grows = f", and it grows most in {growth[0][0]} (x {growth[0][1]:.3g})" if growth and growth[0][1] > 1 else ""
        count = len(fault.reached)
        inherit = REACHED.get(self.basis, "operation inherits it" if count == 1 else "operations inherit it")
        reach = f"; {count} {inherit}{grows}" if count else ""
        inside = f", in {fault.step.cells[-1]}" if fault.step.cells else ""
        return f"{name}{others}{inside}: {fault.sentence.rstrip('.')}{where}{reach}"

    def frame(self, fault: Fault) -> Frame | None:
        """The line of the training script that made the call, where the dumps are at hand and know it."""
        if self.sides is None:
            return None
        side = self.sides[fault.step.account.place < 0]
        return side.stacks.user_frame(f"{fault.step.operation.call}.forward")


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
        if not step.operation.is_cell and flow.place(step) >= 0
        for key in step.outputs
        if flow.content(key)
    ]
    return ElementSearch(side, outputs)


def is_suspect(step: Step) -> bool:
    """Whether a record that nothing could compute again has equal inputs and another output."""
    if step.account.kind != "unaccounted" or step.operation.phase != "forward" or from_another_rank(step) is not None:
        return False
    return not any(key.differs for key in step.inputs) and any(key.is_beyond for key in step.outputs)


def next_steps(diagnosis: RunDiagnosis, fault: Fault) -> list[str]:
    """Commands and steps, most useful first."""
    call = fault.step.operation.call
    assert diagnosis.sides is not None
    dump = shlex.quote(str(diagnosis.sides[fault.side == "golden"].path))
    check = f"pytest --msprobe-dump={dump} -k {shlex.quote(call)}"
    if fault.kind == "first":
        return [
            f'dump both runs again with "task": "tensor", "scope": ["{call}", "{call}"], and compare those dumps',
            f"pytest --msprobe-dump={dump} --msprobe-device=DEVICE -k {shlex.quote(call)}",
            *([] if fault.step.account.is_noise else ["dump the golden run with debugger.perturb: --msprobe-noise"]),
        ]
    if fault.kind == "born":
        return [
            check,
            f"{check} --msprobe-reproducers=reproducers",
            f'dump again with "scope": ["{call}", "{call}"] for this call alone',
        ]
    if fault.kind == "parameter":
        return ["compare the initial values, the checkpoint and the optimizer step that gave this parameter"]
    if fault.kind in ("batch", "constant"):
        return ["compare the data that both runs read at this step: order, augmentation, padding, masks, seeds"]
    if fault.kind == "gradient":
        return ["look for hooks, detached branches and second backwards on this value: gradients are added there"]
    if fault.kind == "another_rank":
        return ["compare the dumps of all ranks (--msprobe-dump=STEP_FOLDER): the cause is in the rank that sent it"]
    if fault.kind == "unrecorded":
        return [
            "look for changes in place before this call; dump with level mix and no scope to see what makes the value"
        ]
    return [f"compare both lines that make the call {call}: arguments, dtypes, configuration of the model"]


_VERSION = 1

#: What differences do in Cells, by their records.
Cells = Mapping[str, CellDifference]


def write_diagnosis(path: Path, diagnoses: Sequence[tuple[RunDiagnosis, Cells]]) -> None:
    """Write the answer of a run. Raises OSError when the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content(diagnoses)), indent=1) + b"\n")


def content(found: Sequence[tuple[RunDiagnosis, Cells]]) -> dict[str, Any]:
    """What the file says, in builtin types."""
    diagnoses = [diagnosis for diagnosis, _ in found]
    outcomes = [diagnosis.outcome for diagnosis in diagnoses]
    return {
        "version": _VERSION,
        "outcome": next((outcome for outcome in OUTCOMES if outcome in outcomes), "equal"),
        "text": "\n".join(diagnosis.text for diagnosis in diagnoses),
        "at_fault": [
            _fault(diagnosis, fault, diagnosis.sides[0])
            for diagnosis in diagnoses
            if diagnosis.basis == "tensors" and diagnosis.sides is not None
            for fault in diagnosis.faults
        ],
        "dumps": [_dump(diagnosis, cells) for diagnosis, cells in found],
    }


def _dump(diagnosis: RunDiagnosis, cells: Cells) -> dict[str, Any]:
    assert diagnosis.sides is not None
    target, golden = diagnosis.sides
    last = diagnosis.last
    is_known = diagnosis.basis == "tensors"
    bits = first_bits(diagnosis.steps)
    return {
        "target": str(target.path),
        "golden": str(golden.path),
        "outcome": diagnosis.outcome,
        "text": diagnosis.text,
        "basis": diagnosis.basis,
        "origins": [] if is_known else [_fault(diagnosis, fault, target) for fault in diagnosis.faults],
        "first_bits": None if bits is None else {"record": bits[0].record, "value": bits[1]},
        "counts": dict(diagnosis.counts),
        "growth": [{"record": record, "growth": growth} for record, growth in diagnosis.growths()],
        "last": None if last is None else {"record": last[0].record, "value": last[1], "distance": _number(last[2])},
        "cells": [
            {
                "record": record,
                "inherited": cell.inherits,
                "born_inside": list(cell.born),
                "passed_on": cell.passes_on,
                "level": cell.level,
            }
            for record, cell in cells.items()
        ],
        "unaccounted": [
            {
                "record": step.record,
                "reason": step.account.reason,
                "distance": _distance(step.account),
                "is_suspect": is_suspect(step),
            }
            for step in diagnosis.unaccounted
        ],
    }


def _fault(diagnosis: RunDiagnosis, fault: Fault, target: ComparedDump) -> dict[str, Any]:
    frame = diagnosis.frame(fault)
    growth = next(iter(diagnosis.growths(fault.reached)), None)
    return {
        "dump": str(target.path),
        "record": fault.records[0] if fault.records else fault.step.record,
        "records": fault.records,
        "partner": fault.step.account.partner or None,
        "cells": list(fault.step.cells),
        "side": fault.side,
        "kind": fault.kind,
        "value": fault.value,
        "name": fault.name,
        "sentence": fault.sentence,
        "size": _number(fault.size),
        "share": _number(fault.share),
        "worst": None if fault.worst is None else list(fault.worst),
        "source": None
        if frame is None
        else {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.source},
        "after": fault.after or None,
        "inheriting": len(fault.reached),
        "last": fault.reached[-1].record if fault.reached else None,
        "growth": None if growth is None else {"record": growth[0], "growth": growth[1]},
        "next": next_steps(diagnosis, fault),
    }


def _distance(account: Account) -> float | None:
    found = [key.distance for key in account.keys if key.is_output and key.distance is not None]
    return _number(max(found, default=None))


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
