"""The causes of the differences of two runs, and which records inherit from each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from msprobe_collector.dump_format import is_communication
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.suites.comparison.accounting.account import (
    AccountStep,
    Differences,
    Numbers,
    ValueKey,
    any_differs,
    key_at,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow
from pytest_msprobe.suites.comparison.accounting.observed import ARGUMENTS, FIRST

ValueKind = Literal["parameter", "batch", "gradient", "unrecorded", "another_rank", "unknown"]
FaultKind = Literal[
    "born", "defined", "dtype", "only_one_side", "rewired", "recomputed", "first", "arguments", "parted", ValueKind
]

#: Without tensors the first operation that differs may be right.
OBSERVED = (FIRST, ARGUMENTS)
#: Kinds of faults of operations, where others are of values.
OPERATIONS = ("born", "defined", "dtype", "only_one_side", "recomputed", "another_rank", *OBSERVED)
#: Kinds that are known from the flow and not from a computation: none is claimed of what another fault reaches.
_OF_FLOW = ("dtype", "only_one_side", "rewired", "recomputed", "gradient", "unrecorded", "unknown")


@dataclass(slots=True)
class Fault:
    """One cause.

    Attributes:
        step: first record at fault, or first one that uses the value at fault.
        kind: see docs/two_runs.md.
        side: `target`, `golden` or `both`.
        value: place in the record.
        name: of a parameter.
        sentence: what is wrong.
        size: relative size of the difference there; None when unknown.
        share: of the difference that is at fault; None when unknown.
        worst: place of the largest element.
        records: all records of the call at fault.
        inheriting: records that inherit it, in order.
        reached: those of them that differ; without tensors, by more than they may.
        after: without tensors, the first record of another cause that reaches this one; else "".
    """

    step: AccountStep
    kind: FaultKind
    side: str
    value: str
    sentence: str
    name: str = ""
    size: float | None = None
    share: float | None = 1.0
    worst: tuple[int, ...] | None = None
    records: list[str] = field(default_factory=list)
    inheriting: list[AccountStep] = field(default_factory=list)
    reached: list[AccountStep] = field(default_factory=list)
    after: str = ""

    @property
    def pattern(self) -> str:
        """What the elements have in common that arise here wrongly; "" where nothing is known."""
        if self.kind != "born":
            return ""
        return next((output.pattern for output in self.step.account.outputs if output.path == self.value), "")

    @property
    def all_records(self) -> list[str]:
        """`records`, or the step's alone where there are none."""
        return self.records or [self.step.record]

    @classmethod
    def of_value(cls, step: AccountStep, key: ValueKey, kind: FaultKind, sentence: str, name: str = "") -> Fault:
        """A fault of a value that differs, on both sides."""
        return cls(step, kind, "both", key.path, sentence, name=name, size=key.distance)

    @property
    def arguments(self) -> Differences:
        """What the two runs have otherwise there: arguments of the call, or the shapes of a value."""
        key = key_at(self.step.account.keys, self.value)
        if key is not None and key.target and key.golden_shape not in (None, key.shape):
            name = self.name or f"{self.step.operation.call}.{self.value}"
            return (ArgumentDifference(name, str(list(key.shape)), str(list(key.golden_shape or ()))),)
        return self.step.account.definition if self.kind in ("defined", "arguments") else ()

    @property
    def has_item(self) -> bool:
        """Whether an item fails by it: by what its record computes, not by what it gets."""
        return self.kind in ("born", "defined")

    @property
    def key(self) -> str:
        """A name that stays while it is the same one."""
        return f"{self.kind}: {self.name or f'{self.step.record}.{self.value}'}"


def from_another_rank(step: AccountStep) -> Fault | None:
    """A value that a communication call received, when what this rank gave agrees; None of all other records."""
    if step.operation.phase != "forward" or not is_communication(step.record):
        return None
    key = step.first_beyond
    if key is None or any_differs(step.inputs):
        return None
    sentence = f"{key.path} differs, and what this rank gave agrees: it came from another rank"
    return Fault(step, "another_rank", "both", key.path, sentence, size=key.distance)


class Causes:
    """Faults by node, and what each node inherits from.

    A node is a record, an API call with its forward and backward (`Mint.exp.0`), a value (`parameter up.weight`), or a
    connection (`rewired ...`). Iteration gives the faults.
    """

    def __init__(self, flow: DataFlow) -> None:
        """No causes of the differences in `flow`."""
        self._flow = flow
        self._faults: dict[str, Fault] = {}
        self._parents: dict[str, dict[str, None]] = {}
        self._reached: dict[str, set[str]] = {}
        self._number_makers: dict[Numbers, str] = {}

    def __iter__(self) -> Iterator[Fault]:
        """The faults, in the order in which they were found."""
        return iter(self._faults.values())

    def __bool__(self) -> bool:
        """Whether there is a fault."""
        return bool(self._faults)

    def get(self, node: str) -> Fault | None:
        """The fault of a node."""
        return self._faults.get(node)

    def add(self, node: str, fault: Fault, record: str) -> None:
        """Add a fault of `node`, or one more record to the one that it has."""
        entry = self._faults.setdefault(node, fault)
        if record not in entry.records:
            entry.records.append(record)

    def blame(self, step: AccountStep, fault: Fault, node: str = "") -> None:
        """Add a fault; forward and backward of one call are one fault, and so are all records of one `node`."""
        self.add(node or step.operation.call, fault, step.record)
        if node:
            self.link(step, node)

    def link(self, step: AccountStep, node: str) -> None:
        """Note that a record inherits from a node."""
        if node != step.operation.call or step.operation.phase == "backward":
            self._parents.setdefault(step.record, {})[node] = None

    def inherit(self, backward: AccountStep, forward: AccountStep) -> None:
        """Note that a backward inherits all that its forward does."""
        self._parents.setdefault(backward.record, {}).update(self._parents.get(forward.record, {}))
        self.link(backward, forward.operation.call)

    def makers_of_numbers(self, step: AccountStep) -> list[str]:
        """Return the records that gave the numbers which a call gets otherwise; [] where one is unknown.

        Then it may get something else otherwise, too.
        """
        makers = [self._number_makers.get(numbers, "") for numbers in step.account.takes]
        return makers if all(makers) else []

    def pass_numbers(self, step: AccountStep) -> None:
        """Note the numbers that a call gives, and from whom it inherits those that it gets.

        Records come in the order of execution: counts, sizes and scales that a record gives are known to those behind.
        """
        for maker in self.makers_of_numbers(step):
            self.link(step, maker)
        self._number_makers |= dict.fromkeys(step.account.gives, step.record)

    def parents(self, node: str) -> tuple[str, ...]:
        """What a node inherits from."""
        return tuple(self._parents.get(node, ()))

    def settle(self) -> set[str]:
        """Say what each fault reaches, and drop those that the flow alone shows where others reach them.

        Returns all nodes that the faults which are left reach.
        """
        self._reach()
        self._drop_reached()
        return set().union(*(self._reached[node] for node in self._faults))

    def ranked(self) -> list[Fault]:
        """The faults, that with the largest effect first; those of unknown origin last.

        Without tensors the first in the order of execution: what goes in behind it may agree as far as is known alone.
        """
        return sorted(
            self,
            key=lambda fault: (
                fault.kind == "unknown",
                bool(fault.after),
                -len(fault.reached) if fault.step.account.basis == "tensors" else 0,
                fault.step.account.place,
            ),
        )

    def _in_order(self) -> list[tuple[str, Fault]]:
        return sorted(self._faults.items(), key=lambda item: item[1].step.account.place)

    def _reach(self) -> None:
        """Which records each fault reaches: those that differ and inherit from it."""
        children = defaultdict[str, list[str]](list)
        for record, parents in self._parents.items():
            for parent in parents:
                children[parent].append(record)
        first_at: dict[str, str] = {}
        for node, fault in self._in_order():
            waiting, reached = [node, *fault.records], {node, *fault.records}
            while waiting:
                for record in children.get(waiting.pop(), ()):
                    if record not in reached and self._passes(record):
                        reached.add(record)
                        waiting.append(record)
            self._reached[node] = reached
            itself = {node, *fault.records} if fault.kind in OPERATIONS else {node}
            following = filter(None, map(self._flow.steps.get, reached - itself))
            fault.inheriting = sorted(following, key=attrgetter("account.place"))
            fault.reached = list(filter(attrgetter("differs"), fault.inheriting))
            if fault.kind in OBSERVED and fault.step.account.basis != "tensors":
                fault.after = first_at.get(fault.step.record, "")
            for record in reached:
                first_at.setdefault(record, fault.step.record)

    def _passes(self, record: str) -> bool:
        """Whether a record differs; a call of one run passes everything on."""
        step = self._flow.steps.get(record)
        return step is None or not step.account.partner or any_differs(step.account.keys)

    def _drop_reached(self) -> None:
        """What the flow alone shows is not claimed of what another fault reaches."""
        for node, fault in self._in_order():
            reached_by_others = set[str]()
            for other, cause in self._faults.items():
                if other != node and not cause.kind == fault.kind == "recomputed":
                    reached_by_others |= self._reached[other]
            place = node if node in self._parents else fault.step.record
            is_later_first = fault.kind == FIRST and fault.after
            if is_later_first or (fault.kind in _OF_FLOW and {place, fault.step.record} & reached_by_others):
                del self._faults[node]
