"""A whole dump, classified in the order of execution: which record made what the others pass on.

What one record does with NaN and Inf, seen on its own: lets them pass, swallows them, or makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.topics import UnwrittenMemory
from pytest_msprobe.suites.overflow.values import (
    BufferRules,
    Finiteness,
    ObservedValue,
    OverflowDump,
    RecordValues,
    combined,
)


class Conduct(Enum):
    """What a record does, before the records around it are looked at."""

    CLEAN = "nothing is wrong"
    ABSORBS = "bad inputs, finite outputs"
    PASSES_ON = "bad inputs, bad outputs"
    MAKES = "finite inputs, bad outputs"
    MAKES_NAN = "inputs hold Inf only, outputs NaN: inf - inf, inf / inf, 0 * inf"
    IS_TOLD = "bad only through a number that the script passed, such as -inf for a mask"
    HAS_NO_INPUTS = "bad outputs, and the record does not tell what went in"
    HOLDS_BUFFERS = "bad only in memory that was not written yet"
    IS_UNKNOWN = "neither data nor statistics of the outputs"


@dataclass(frozen=True, slots=True)
class Observation:
    """One record, seen on its own.

    Attributes:
        conduct: what it does.
        inputs, outputs: what is not finite, of all inputs (for a backward those of its forward too) and all outputs.
        bad: its own values that are not finite.
    """

    conduct: Conduct
    inputs: Finiteness
    outputs: Finiteness
    bad: tuple[ObservedValue, ...]


def observe(values: RecordValues, saved: Sequence[ObservedValue], rule: UnwrittenMemory) -> Observation:
    """What a record with these `values` does.

    Args:
        values: of the record.
        saved: values of its forward, for a backward: gradients are computed from them as well.
        rule: which of its values are buffers.
    """
    counted = [value for value in values.inputs if not rule.covers(value.path)]
    ins = [*counted, *saved]
    bad_ins = [value for value in ins if value.finiteness.is_bad]
    bad_outs = [value for value in values.outputs if value.finiteness.is_bad]
    inputs = combined([value.finiteness for value in ins])
    outputs = combined([value.finiteness for value in values.outputs])
    if not bad_outs:
        is_unknown = not values.has_outputs or any(not value.finiteness.is_known for value in values.outputs)
        conduct = Conduct.IS_UNKNOWN if is_unknown else Conduct.ABSORBS if bad_ins else Conduct.CLEAN
    elif _are_buffers(rule, values, bad_ins, bad_outs):
        conduct = Conduct.HOLDS_BUFFERS
    else:
        conduct = _bad_conduct(values, bad_ins, inputs, outputs)
    return Observation(conduct, inputs, outputs, values.bad)


def _are_buffers(
    rule: UnwrittenMemory, values: RecordValues, bad_ins: Sequence[ObservedValue], bad_outs: Sequence[ObservedValue]
) -> bool:
    if bad_ins:
        return False
    if rule.outputs:
        return all(rule.covers(value.path) for value in bad_outs)
    return any(value.finiteness.is_bad for value in values.inputs)  # its buffer came back as it was


def _bad_conduct(
    values: RecordValues, bad_ins: Sequence[ObservedValue], inputs: Finiteness, outputs: Finiteness
) -> Conduct:
    if not bad_ins:
        is_told = values.has_inputs and inputs.is_known
        return Conduct.MAKES if is_told else Conduct.HAS_NO_INPUTS
    makes_nan = outputs.has_nan and not inputs.has_nan
    if makes_nan:
        return Conduct.MAKES_NAN
    if all(value.is_plain for value in bad_ins) and (inputs.has_inf or not outputs.has_inf):
        return Conduct.IS_TOLD
    return Conduct.PASSES_ON


Level = Literal["clean", "absorbed", "propagated", "origin", "ignored", "unknown"]
UNINITIALISED = "uninitialised buffer: its content means nothing"


@dataclass(frozen=True, slots=True)
class SurveyedRecord:
    """One record among all of its dump.

    Attributes:
        operation: its name, taken apart, and its place in the order of execution.
        level: `origin` makes NaN or Inf, `propagated` passes them on, `absorbed` swallows them; `ignored` when they
            stand only in buffers; `unknown` when the dump does not tell.
        observation: the record on its own; None for one that cannot be read.
        source: record that they come from, "" for an origin and where none is known.
        is_intended: whether they begin with a number that the script passed, such as -inf for a mask.
        fault: why the record cannot be read.
    """

    operation: Operation
    level: Level
    observation: Observation | None = None
    source: str = ""
    is_intended: bool = False
    fault: str = ""

    @property
    def is_uncollected(self) -> bool:
        """Whether what it passes on comes from something that the dump does not hold."""
        return self.level == "propagated" and not self.source and not self.is_intended


@dataclass(slots=True)
class _Sources:
    """What may explain a bad value so far, the first of each kind."""

    origin: str = ""
    entry: str = ""
    stated: str = ""


class Survey:
    """The records of one dump by name.

    Attributes:
        records: all of them, in the order of the file.
        first: the first origin; where there is none, the first record that passes on what no record made; or None.
    """

    def __init__(self, dump: OverflowDump, rules: BufferRules) -> None:
        """Read every record of `dump`, and its data where there is some."""
        self._dump = dump
        self._rules = rules
        self._sources = _Sources()
        self._inner: dict[str, str] = {}
        self._bad: dict[str, tuple[ObservedValue, ...]] = {}
        operations = [Operation.of(name, order) for order, name in enumerate(dump.record_names)]
        seen = {operation.record: self._observed(operation) for operation in operations}
        self._note_inner(operations, seen)
        # What a Cell does is explained by the calls inside it, and dumps list these before or after it.
        ordered = sorted(operations, key=lambda operation: operation.is_cell)
        found = {operation.record: self._placed(operation, seen[operation.record]) for operation in ordered}
        self.records = {operation.record: found[operation.record] for operation in operations}
        self.first = self._first("origin") or next((one for one in self.records.values() if one.is_uncollected), None)

    @property
    def unjudged(self) -> int:
        """How many records cannot be read, or tell nothing."""
        return sum(record.level == "unknown" for record in self.records.values())

    def _first(self, level: Level) -> SurveyedRecord | None:
        return next((record for record in self.records.values() if record.level == level), None)

    def _observed(self, operation: Operation) -> Observation | str:
        """The record on its own, or why it cannot be read."""
        try:
            values = self._dump.values(operation.record)
        except DumpError as error:
            return str(error)
        self._bad[operation.record] = values.bad
        if values.fault:
            return values.fault
        return observe(values, self._saved(operation), self._rules.of(operation.name, self._dump.framework))

    def _saved(self, operation: Operation) -> tuple[ObservedValue, ...]:
        """What a backward uses of its forward."""
        if operation.phase != "backward":
            return ()
        is_cell = operation.is_cell
        forward = f"{operation.name}.forward.{operation.number}" if is_cell else f"{operation.call}.forward"
        rule = self._rules.of(operation.name, self._dump.framework)
        return tuple(value for value in self._bad.get(forward, ()) if not rule.covers(value.path))

    def _note_inner(self, operations: list[Operation], seen: dict[str, Observation | str]) -> None:
        """Remember for every Cell the first record inside it that makes something."""
        for operation in operations:
            found = seen[operation.record]
            if isinstance(found, str) or found.conduct not in (Conduct.MAKES, Conduct.MAKES_NAN):
                continue
            for cell in self._dump.ancestors(operation.record):
                self._inner.setdefault(cell, operation.record)

    def _placed(self, operation: Operation, found: Observation | str) -> SurveyedRecord:
        """The record among those before it."""
        if isinstance(found, str):
            return SurveyedRecord(operation, "unknown", fault=found)
        conduct, sources, record = found.conduct, self._sources, operation.record
        if conduct in _FIXED:
            return SurveyedRecord(operation, _FIXED[conduct], found)
        inner = self._inner.get(record, "")
        if inner:
            return SurveyedRecord(operation, "propagated", found, inner)
        earlier = sources.origin or sources.entry
        if conduct is Conduct.IS_TOLD:
            sources.stated = sources.stated or record
            return SurveyedRecord(operation, "propagated", found, is_intended=True)
        if conduct is Conduct.MAKES or (conduct is Conduct.MAKES_NAN and not earlier):
            sources.origin = sources.origin or record
            return SurveyedRecord(operation, "origin", found)
        if not earlier and sources.stated and not found.outputs.has_nan:
            return SurveyedRecord(operation, "propagated", found, sources.stated, is_intended=True)
        sources.entry = sources.entry or ("" if earlier else record)
        return SurveyedRecord(operation, "propagated", found, earlier)


#: Levels that the records around do not change.
_FIXED: dict[Conduct, Level] = {
    Conduct.CLEAN: "clean",
    Conduct.ABSORBS: "absorbed",
    Conduct.HOLDS_BUFFERS: "ignored",
    Conduct.IS_UNKNOWN: "unknown",
}
