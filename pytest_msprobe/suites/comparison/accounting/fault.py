"""One cause of differences: an operation, or a value that no operation of this rank made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msprobe_collector.dump_format import is_communication
from pytest_msprobe.suites.comparison.accounting.account import ValueKey
from pytest_msprobe.suites.comparison.accounting.flow import Maker, Step

ValueKind = Literal["parameter", "batch", "constant", "gradient", "unrecorded", "another_rank"]
FaultKind = Literal["born", "defined", "dtype", "only_one_side", "first", "arguments", ValueKind]


@dataclass(slots=True)
class Fault:
    """One cause.

    Attributes:
        step: first record at fault, or first one that uses the value at fault.
        kind: see docs/accounting.md.
        side: `target`, `golden` or `both`.
        value: place in the record.
        name: of a parameter.
        sentence: what is wrong.
        size: relative size of the difference there; None when unknown.
        share: of the difference that is at fault; None when unknown.
        worst: place of the largest element.
        records: all records of the call at fault.
        reached: records that inherit it, in order; without tensors those that differ by more than they may.
        after: without tensors, the first record of another cause that reaches this one; else "".
    """

    step: Step
    kind: FaultKind
    side: str
    value: str
    sentence: str
    name: str = ""
    size: float | None = None
    share: float | None = 1.0
    worst: tuple[int, ...] | None = None
    records: list[str] = field(default_factory=list)
    reached: list[Step] = field(default_factory=list)
    after: str = ""


def unrecorded(step: Step, key: ValueKey, maker: Maker | None) -> Fault:
    """An input that differs although what made it agrees, or that nothing in the dump made."""
    origin = f"; {maker.step.record}, which made it in one run, agrees" if maker is not None else ""
    sentence = f"{key.path} differs, and no record made it{origin}: something that the dump does not hold changed it"
    return Fault(step, "unrecorded", "both", key.path, sentence, "", key.distance, records=[step.record])


def from_another_rank(step: Step) -> Fault | None:
    """A value that a communication call received, when what this rank gave agrees; None of all other records."""
    if step.operation.phase != "forward" or not is_communication(step.record) or any(map(_differs, step.inputs)):
        return None
    key = next((key for key in step.outputs if key.is_beyond), None)
    if key is None:
        return None
    sentence = f"{key.path} differs, and what this rank gave agrees: it came from another rank"
    return Fault(step, "another_rank", "both", key.path, sentence, "", key.distance)


def _differs(key: ValueKey) -> bool:
    return key.differs
