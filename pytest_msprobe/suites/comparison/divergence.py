"""Where two runs diverge: the first operation that differs, and those that introduce a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from pytest_msprobe.suites.comparison.growth import Growth, growth_of
from pytest_msprobe.suites.comparison.noise import BASES
from pytest_msprobe.suites.comparison.operation_comparison import OperationComparison

_MOST_NAMED = 10
_NONE: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """What the report needs of one operation; small, because one is kept for each that differs.

    Attributes:
        record: name in the dump that holds it.
        order: place in the order of execution.
        held_by: `both`, `target` or `golden`.
        status: verdict on the operation.
        values: number of its values by state.
        first: name of the first value that differs, "" when none does.
        reason: what differs there.
        is_input: whether that value went into the operation.
        row: which of its values that is.
        is_origin: whether its inputs agree and its outputs do not.
        first_bits: name of the first value whose checksum or fingerprint differs, "" when none does.
        distance, growth: of its outputs, see `growth`.
        tolerances: number of its values by the basis of their tolerance, where a noise run was given.
    """

    record: str
    order: int
    held_by: str
    status: str
    values: dict[str, int]
    first: str = ""
    reason: str = ""
    is_input: bool = False
    row: int = 0
    is_origin: bool = False
    first_bits: str = ""
    distance: float = 0.0
    growth: float = 0.0
    tolerances: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, verdict: OperationComparison) -> RecordSummary:
        """The summary of a verdict."""
        first = verdict.first_error
        values: Counter[str] = Counter(
            value.status for value in verdict.values if value.status != "unmatched" or value.is_tensor
        )
        if verdict.fault:
            values["skip" if verdict.is_skipped else "unreadable"] += 1
        distance, growth = growth_of(verdict.values)
        tolerances: dict[str, int] = {}
        for value in verdict.values:
            if value.tolerance is not None:
                tolerances[value.tolerance.basis] = tolerances.get(value.tolerance.basis, 0) + 1
        return cls(
            record=verdict.operation.record,
            order=verdict.order,
            held_by=verdict.held_by,
            status=verdict.status,
            values=dict(values),
            first=first.name if first is not None else "",
            reason=first.message if first is not None else "",
            is_input=first is not None and not first.is_output,
            row=verdict.values.index(first) if first is not None else 0,
            is_origin=verdict.is_origin,
            first_bits=next(
                (value.name for value in verdict.values if value.distance != 0 and value.differs_in_bits), ""
            ),
            distance=distance,
            growth=growth,
            tolerances=tolerances,
        )

    def to_wire(self) -> dict[str, Any]:
        """The summary in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RecordSummary:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)


@dataclass(slots=True)
class Divergence:
    """Counts and findings over the operations of one dump, taken in any order.

    Attributes:
        values: values by state.
        operations: operations by who holds them.
        verdicts: operations by verdict.
        why_unmatched: what is said when no operation matched.
    """

    values: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    why_unmatched: str = "no operation matched"
    _differing: list[RecordSummary] = field(default_factory=list)
    _golden_only: list[str] = field(default_factory=list)
    _growth: Growth = field(default_factory=Growth)
    _tolerances: Counter[str] = field(default_factory=Counter)
    _first_bits: tuple[int, str] | None = None

    def add(self, summary: RecordSummary) -> None:
        """Count one operation."""
        self.values.update(summary.values)
        self.operations[summary.held_by] += 1
        self.verdicts[summary.status] += 1
        self._growth.add(summary.order, summary.record, summary.distance, summary.growth)
        self._tolerances.update(summary.tolerances)
        if summary.first_bits:
            bits = (summary.order, summary.first_bits)
            self._first_bits = min(self._first_bits or bits, bits)
        if summary.first:
            # One is kept for each operation that differs: without what has been added up.
            self._differing.append(replace(summary, distance=0.0, growth=0.0, first_bits="", tolerances=_NONE))
        if summary.held_by == "golden":
            self._golden_only.append(summary.record)

    @property
    def is_complete(self) -> bool:
        """Whether everything that either dump holds was compared."""
        return not (
            self.operations["target"] or self.operations["golden"] or self.values["unmatched"] or self.unreadable
        )

    @property
    def is_unmatched(self) -> bool:
        """Whether there were operations, and none had a partner."""
        return bool(self.verdicts) and not self.operations["both"]

    @property
    def unreadable(self) -> int:
        """How many values or operations could not be read."""
        return self.values["unreadable"]

    @property
    def first(self) -> RecordSummary | None:
        """The first operation in the order of execution that has a value that differs."""
        return min(self._differing, key=lambda summary: summary.order, default=None)

    @property
    def origins(self) -> list[RecordSummary]:
        """Operations that introduce a difference, in order.

        A backward also takes what its forward kept, so it is none when its forward differs; gradients of parameters
        have no recorded inputs; a Cell is none when an operation inside it differs, or was recorded at all beside it.
        """
        differing = sorted(self._differing, key=lambda summary: summary.order)
        operations = [Operation.of(summary.record, summary.order) for summary in differing]
        forwards = {operation.call for operation in operations if operation.phase == "forward"}
        has_calls = any(not operation.is_cell for operation in operations)
        cells = [operation.name.rpartition(".")[0] for operation in operations if operation.is_cell]
        found = []
        for summary, operation in zip(differing, operations):
            if not summary.is_origin or operation.phase == GRADIENTS:
                continue
            if operation.phase == "backward" and operation.call in forwards:
                continue
            path = operation.name.rpartition(".")[0]
            if operation.is_cell and (has_calls or any(cell.startswith(f"{path}.") for cell in cells)):
                continue
            found.append(summary)
        return found

    def lines(self) -> Iterator[str]:
        """The findings, most important first."""
        yield from self._first_lines()
        if self._first_bits is not None and (self.first is None or self._first_bits[1] != self.first.first):
            yield f"first differing bits: {self._first_bits[1]}"
        yield from self._growth.lines()
        counts = self.operations
        yield (
            f"{counts['both']} operations matched, {counts['target']} only in the target, "
            f"{counts['golden']} only in the golden dump"
        )
        if self._golden_only:
            shown = ", ".join(self._golden_only[:_MOST_NAMED])
            more = len(self._golden_only) - _MOST_NAMED
            yield f"only in the golden dump: {shown}{f' and {more} more' if more > 0 else ''}"
        states = ("pass", "warning", "error", "unmatched", "unreadable", "skip")
        found = ", ".join(f"{self.values[state]} {state}" for state in states if self.values[state])
        yield f"values: {found or 'none'}"
        if self._tolerances:
            bases = (f"{self._tolerances[basis]} {words}" for basis, words in BASES.items() if self._tolerances[basis])
            yield f"tolerances: {', '.join(bases)}"

    def _first_lines(self) -> Iterator[str]:
        first = self.first
        if first is None:
            if not self.verdicts:
                yield "no operation was compared"
            elif not self.operations["both"]:
                yield self.why_unmatched
            elif not self.values["pass"] + self.values["warning"]:
                yield "no value was compared"
            elif self.unreadable:
                yield f"no divergence among the values that were compared; {self.unreadable} could not be"
            else:
                yield "no divergence: every value that was compared agrees"
            return
        yield f"first divergence: {first.first}: {first.reason}"
        origins = self.origins
        if first.is_input:
            yield "  no operation before it differs: it came from outside the dump, like a parameter or a batch"
        elif any(origin.record == first.record for origin in origins):
            yield "  its inputs agree: the difference arises in this operation"
        if origins:
            names = ", ".join(origin.record for origin in origins[:_MOST_NAMED])
            more = f" and {len(origins) - _MOST_NAMED} more" if len(origins) > _MOST_NAMED else ""
            yield f"inputs agree, outputs do not: {names}{more}"
