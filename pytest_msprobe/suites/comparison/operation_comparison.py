"""One operation of the target against its partner: verdicts on all its values, and what follows for the operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison

Side = Literal["both", "target", "golden"]

#: An output counts as wrong by itself when it is this many times farther off than the worst input.
_GROWTH = 10


@dataclass(frozen=True, slots=True)
class OperationComparison:
    """What became of one operation.

    Attributes:
        operation: of the target; of the golden dump when only that one has it.
        partner: golden operation, or None.
        held_by: which dumps have the operation.
        order: place in the order of execution; golden-only operations come last.
        values: verdicts on its values: inputs, parameters, outputs.
        fault: why the whole operation could not be read or was not judged, or "".
        is_skipped: whether that is deliberate.
    """

    operation: Operation
    partner: Operation | None
    held_by: Side
    order: int
    values: tuple[ValueComparison, ...] = ()
    fault: str = ""
    is_skipped: bool = False

    @property
    def status(self) -> Literal["pass", "error", "skip"]:
        """`error` when a value differs or cannot be read, `skip` when not everything could be compared."""
        if self.is_skipped:
            return "skip"
        if self.fault or any(value.status in ("error", "unreadable") for value in self.values):
            return "error"
        if self.held_by != "both" or self.lacks_partners:
            return "skip"
        compared = any(value.status in ("pass", "warning") for value in self.values)
        return "pass" if compared or not self.values else "skip"

    @property
    def lacks_partners(self) -> bool:
        """Whether a tensor on either side has nothing to be compared with."""
        return any(value.status == "unmatched" and value.is_tensor for value in self.values)

    @property
    def first_error(self) -> ValueComparison | None:
        """The first value that differs."""
        return next((value for value in self.values if value.status == "error"), None)

    @property
    def is_origin(self) -> bool:
        """Whether the inputs agree and the outputs do not: this operation introduces the difference."""
        inputs = [value for value in self.values if not value.is_output]
        outputs = [value for value in self.values if value.is_output and value.status == "error"]
        if self.held_by != "both" or not outputs or any(_is_unknown(value) for value in inputs):
            return False
        farthest = max((value.distance or 0.0 for value in inputs), default=0.0)
        return max(_distance(value) for value in outputs) > _GROWTH * farthest

    @property
    def message(self) -> str:
        """One line on a skip or an error; the notes of a pass."""
        if self.fault:
            return self.fault
        if self.held_by == "target":
            return "unmatched: the golden dump has no such operation"
        if self.held_by == "golden":
            return "unmatched: only the golden dump has this operation"
        if self.status == "error":
            wrong = next(value for value in self.values if value.status in ("error", "unreadable"))
            return f"{wrong.path}: {wrong.message}"
        if self.status == "skip":
            return _skip_message(self.values)
        notes = [f"{value.path}: {value.message}" for value in self.values if value.status == "warning"]
        return "; ".join(notes)


def _is_unknown(value: ValueComparison) -> bool:
    """Whether an input cannot count as agreeing."""
    return value.status in ("error", "unreadable") or (value.status == "unmatched" and value.is_tensor)


def _distance(value: ValueComparison) -> float:
    return math.inf if value.distance is None else value.distance


def _skip_message(values: Sequence[ValueComparison]) -> str:
    lone = [value for value in values if value.status == "unmatched" and value.is_tensor]
    if not lone:
        return next((f"{value.path}: {value.message}" for value in values if value.message), "nothing was compared")
    more = f" and {len(lone) - 1} more" if len(lone) > 1 else ""
    return f"unmatched: {lone[0].path}{more}: {lone[0].message}"
