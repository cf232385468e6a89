"""A whole dump, classified in the order of execution: which record made what the others pass on.

What a record does with NaN and Inf is first seen from its own values; where they come from, from the records before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from operator import attrgetter

from msprobe_collector.dump_format import DumpError, parse_api_name
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import INPUT_FIELDS, OUTPUT
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import UnwrittenMemory
from pytest_msprobe.suites.overflow.values import FINITE, BufferRules, Finiteness, ObservedValue, OverflowDump, combined

#: What a value is known by in dumps that do not say who made it.
_Look = tuple[object, ...]


class Use:
    """What a record does with the values that are not finite.

    Attributes:
        record: its name.
        bad: its values that are not finite.
        is_inspection: whether all that comes out is true or false: nothing is computed from the value.
    """

    def __init__(self, record: str, bad: Sequence[ObservedValue], *, is_inspection: bool) -> None:
        self.record = record
        self.bad = bad
        self.is_inspection = is_inspection

    @property
    def inputs(self) -> list[ObservedValue]:
        """The values that went in."""
        return [value for value in self.bad if value.is_input]

    @property
    def outputs(self) -> list[ObservedValue]:
        """The values that came out."""
        return [value for value in self.bad if not value.is_input]


def discarding(uses: Mapping[str, Use], framework: str) -> dict[str, bool]:
    """Return the records whose NaN and Inf are all taken out again, and whether selections do so.

    log(0) in the position buckets of T5 is -Inf in the places that a `where` fills from elsewhere.
    Whether a value is taken out shows in the flow: all that is computed from it is finite.

    A selection leaves an element whatever it holds. A division by Inf gives 0 where the exact value would give another
    number.

    Args:
        uses: of the calls of a dump that hold any, by name in the order of execution.
        framework: of the dump.
    """
    users = _users(uses)
    discarded: dict[str, bool] = {}
    for name, use in reversed(list(uses.items())):
        takers = [users[f"{name}.{value.path}"] for value in use.outputs]
        pairs = zip(takers, use.outputs, strict=True)
        if takers and all(_is_taken_out(of_value, value, discarded, framework) for of_value, value in pairs):
            selects = []
            for taker in chain.from_iterable(takers):
                if taker.outputs:
                    selects.append(taker.is_inspection or discarded.get(taker.record, False))
                else:
                    selects.append(taker.is_inspection or _is(taker.record, "selections", framework))
            discarded[name] = all(selects)
    return discarded


def _users(uses: Mapping[str, Use]) -> dict[str, list[Use]]:
    """Which records use a value, by `Torch.log.0.forward.output.0`; a backward uses what its forward held."""
    users: dict[str, list[Use]] = defaultdict(list)
    alike: dict[_Look, str] = {}
    for name, use in uses.items():
        call, _, phase = name.rpartition(".")
        backwards = []
        if phase == "forward" and f"{call}.backward" in uses and uses[f"{call}.backward"].outputs:
            backwards = [uses[f"{call}.backward"]]
        for value in use.inputs:
            users[value.made_by or alike.get(_look(value), "")] += [use, *backwards]
        for value in use.outputs:
            alike[_look(value)] = f"{name}.{value.path}"
            users[f"{name}.{value.path}"] += backwards
    return users


def _look(value: ObservedValue) -> _Look:
    return value.dtype, value.shape, value.finiteness, value.statistics


def _is_taken_out(users: Sequence[Use], value: ObservedValue, discarded: Container[str], framework: str) -> bool:
    """Whether a value has users, and none of them makes more of it than what is discarded."""
    users = [use for use in users if not use.is_inspection]
    for use in users:
        if use.outputs and use.record not in discarded:
            return False
        # A NaN among what is sorted or searched makes any index.
        if value.finiteness.has_nan and _is(use.record, "index_outputs", framework):
            return False
    return bool(users)


def _is(record: str, topic: str, framework: str) -> bool:
    api = parse_api_name(record.rpartition(".")[0])
    return facts(topic).of(api, framework) is not None


class Conduct(Enum):
    """What a record does, before the records around it are looked at."""

    CLEAN = "nothing is wrong"
    ABSORBS = "bad inputs, finite outputs"
    PASSES_ON = "bad inputs, bad outputs"
    MAKES = "finite inputs, bad outputs"
    MAKES_NAN = "inputs hold Inf only, outputs NaN: inf - inf, inf / inf, 0 * inf"
    FROM_A_CONSTANT = "bad only through a number that the script passed, such as -inf for a mask"
    HAS_NO_INPUTS = "bad outputs, and the record does not tell what went in"
    HOLDS_BUFFERS = "bad only in memory that was not written yet"
    IS_UNKNOWN = "neither data nor statistics of the outputs"


MAKERS = (Conduct.MAKES, Conduct.MAKES_NAN)
#: Dtypes of outputs that only say something of the inputs.
_TRUTHS = {"Bool", "<class 'bool'>"}
#: Levels that the records around do not change.
_LEVELS = {
    Conduct.CLEAN: "clean",
    Conduct.ABSORBS: "absorbed",
    Conduct.HOLDS_BUFFERS: "ignored",
    Conduct.IS_UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class SurveyedRecord:
    """One record among all of its dump.

    Attributes:
        operation: its name, taken apart, and its place in the order of execution.
        conduct: what it does, seen on its own.
        inputs, outputs: what is not finite, of all inputs (for a backward those of its forward too) and all outputs.
        bad: its own values that are not finite.
        source: record that they come from, "" for an origin and where none is known.
        fault: why the record cannot be read.
        is_discarded: whether what it makes or passes on is taken out again before any loss or gradient.
        is_selected_out: whether selections do so, which leave an element whatever it holds.
    """

    operation: Operation
    conduct: Conduct
    inputs: Finiteness = FINITE
    outputs: Finiteness = FINITE
    bad: tuple[ObservedValue, ...] = ()
    source: str = ""
    fault: str = ""
    is_discarded: bool = False
    is_selected_out: bool = False

    @property
    def level(self) -> str:
        """What the record does among the others.

        `origin` makes NaN or Inf, `propagated` passes them on, `absorbed` swallows them; `discarded` makes or passes on
        what others take out again; `ignored` when they stand only in buffers; `unknown` when the dump does not tell;
        `clean` without any.
        """
        if self.is_discarded:
            return "discarded"
        if self.conduct in MAKERS and not self.source:
            return "origin"
        return _LEVELS.get(self.conduct, "propagated")

    @property
    def is_uncollected(self) -> bool:
        """Whether what it passes on comes from something that the dump does not hold."""
        return self.level == "propagated" and not self.source and self.conduct is not Conduct.FROM_A_CONSTANT


def _observe(
    operation: Operation,
    values: Sequence[ObservedValue],
    fields: Collection[str],
    saved: Sequence[ObservedValue],
    rule: UnwrittenMemory,
) -> SurveyedRecord:
    """A record on its own.

    Args:
        operation: its name.
        values: of the record.
        fields: which it has.
        saved: values of its forward, for a backward: gradients are computed from them as well.
        rule: which of its values are buffers.
    """
    ins = [value for value in values if value.is_input and not rule.covers(value.path)]
    ins += saved
    outs = [value for value in values if not value.is_input]
    bad_ins, bad = _bad(ins), _bad(values)
    finiteness = attrgetter("finiteness")
    inputs, outputs = combined([*map(finiteness, ins)]), combined([*map(finiteness, outs)])
    if not outputs.is_bad and not (outputs.is_known and (outs or OUTPUT in fields)):
        conduct = Conduct.IS_UNKNOWN
    elif not outputs.is_bad:
        conduct = Conduct.ABSORBS if bad_ins else Conduct.CLEAN
    elif not bad_ins and _are_buffers(rule, bad):
        conduct = Conduct.HOLDS_BUFFERS
    elif not bad_ins:
        tells_inputs = inputs.is_known and not INPUT_FIELDS.isdisjoint(fields)
        conduct = Conduct.MAKES if tells_inputs else Conduct.HAS_NO_INPUTS
    elif outputs.has_nan and not inputs.has_nan:
        conduct = Conduct.MAKES_NAN
    elif all(value.is_plain for value in bad_ins) and (inputs.has_inf or not outputs.has_inf):
        conduct = Conduct.FROM_A_CONSTANT
    else:
        conduct = Conduct.PASSES_ON
    return SurveyedRecord(operation, conduct, inputs, outputs, bad)


def _bad(values: Iterable[ObservedValue]) -> tuple[ObservedValue, ...]:
    """Those of the values that are not finite."""
    return tuple(value for value in values if value.is_bad)


def _are_buffers(rule: UnwrittenMemory, bad: Sequence[ObservedValue]) -> bool:
    """Whether the `bad` values of a record whose inputs are all finite or buffers are buffers."""
    if rule.outputs:
        return all(rule.covers(value.path) for value in bad if not value.is_input)
    return any(value.is_input for value in bad)  # its buffer came back as it was


class Survey:
    """The records of one dump by name.

    Attributes:
        dump: the dump.
        records: all of them, in the order of the file.
        first: the first origin; where there is none, the first record that passes on what no record made; or None.
    """

    def __init__(self, dump: OverflowDump, rules: BufferRules) -> None:
        """Read every record of `dump`, and its data where there is some."""
        self.dump = dump
        self._rules = rules
        # What may explain a bad value, the first of each kind: an origin, what nobody made, what the script passed.
        self._origin = self._entry = self._constant = ""
        self._inner: dict[str, str] = {}
        self._bad: dict[str, tuple[ObservedValue, ...]] = {}
        self._uses: dict[str, Use] = {}
        observed = [self._observed(Operation.of(name, order)) for order, name in enumerate(dump.record_names)]
        discarded = discarding(self._uses, dump.framework)
        for place, record in enumerate(observed):
            name = record.operation.record
            if record.conduct is not Conduct.FROM_A_CONSTANT and name in discarded:
                observed[place] = replace(record, is_discarded=True, is_selected_out=discarded[name])
        for record in observed:
            if record.conduct in MAKERS and not record.is_discarded:
                for cell in dump.ancestors(record.operation.record):
                    self._inner.setdefault(cell, record.operation.record)  # the first one inside it
        self._entered: dict[str, str] = {}
        for record in observed:
            if record.conduct is Conduct.PASSES_ON and not record.operation.is_cell:
                for cell in dump.ancestors(record.operation.record):
                    self._entered.setdefault(cell, record.operation.record)
        self.records = {record.operation.record: record for record in observed}
        # What a Cell does is explained by the calls inside it, and dumps list these before or after it.
        for record in sorted(observed, key=lambda record: record.operation.is_cell):
            self.records[record.operation.record] = replace(record, source=self._source(record))
        origins = (record for record in self.records.values() if record.level == "origin")
        uncollected = (record for record in self.records.values() if record.is_uncollected)
        self.first = next(origins, None) or next(uncollected, None)

    @property
    def unjudged(self) -> int:
        """How many records cannot be read, or tell nothing."""
        return sum(record.level == "unknown" for record in self.records.values())

    def _observed(self, operation: Operation) -> SurveyedRecord:
        """The record on its own."""
        try:
            values, fields = self.dump.values(operation.record)
        except DumpError as error:
            return SurveyedRecord(operation, Conduct.IS_UNKNOWN, fault=str(error))
        self._bad[operation.record] = _bad(values)
        if faults := [value.fault for value in values if value.fault]:
            return SurveyedRecord(operation, Conduct.IS_UNKNOWN, fault="; ".join(faults))
        if not operation.holds_calls and self._bad[operation.record]:
            dtypes = {canonical_dtype(value.dtype) for value in values if not value.is_input}
            use = Use(operation.record, self._bad[operation.record], is_inspection=bool(dtypes) and dtypes <= _TRUTHS)
            self._uses[operation.record] = use
        rule = self._rules.of(operation.name, self.dump.framework)
        saved: list[ObservedValue] = []
        if operation.phase == "backward":
            name = f"{operation.name}.forward.{operation.number}" if operation.is_cell else f"{operation.call}.forward"
            saved = [value for value in self._bad.get(name, ()) if not rule.covers(value.path)]
        return _observe(operation, values, fields, saved, rule)

    def _source(self, surveyed: SurveyedRecord) -> str:
        """Where a record's NaN and Inf come from, given those before it; "" for its own and those of the script."""
        conduct, record = surveyed.conduct, surveyed.operation.record
        if conduct in _LEVELS or surveyed.is_discarded:
            return ""
        if record in self._inner:
            return self._inner[record]
        if conduct in MAKERS and record in self._entered:  # a parameter of a layer inside, or what no record made
            return self._entered[record]
        earlier = self._origin or self._entry
        if conduct is Conduct.FROM_A_CONSTANT:
            self._constant = self._constant or record
            return ""
        if conduct is Conduct.MAKES or (conduct is Conduct.MAKES_NAN and not earlier):
            self._origin = self._origin or record
            return ""
        if not earlier and self._constant and not surveyed.outputs.has_nan:
            return self._constant
        self._entry = self._entry or ("" if earlier else record)
        return earlier
