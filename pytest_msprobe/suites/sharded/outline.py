"""What the records of one step are: which pass they belong to, what is around them, and where they were called."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import Frame
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.topics import fact_of
from pytest_msprobe.suites.sharded.judgement import Phase, forward_of, phase_of
from pytest_msprobe.suites.sharded.layer_names import offsets_of
from pytest_msprobe.suites.sharded.logical import LogicalRun
from pytest_msprobe.suites.sharded.matching import Calls, RecordMatching
from pytest_msprobe.suites.sharded.ranks import Grids, RankDump, ShardedStep

if TYPE_CHECKING:
    from msprobe_collector.dump_format.leaves import Leaf
    from pytest_msprobe.suites.sharded.placements import Grid

    #: The tensors of each record of a rank that is a part, by their places.
    Held = Sequence[tuple[RankDump, Mapping[str, Leaf]]]


class CallPlaces(ABC):
    """Says where calls were made, by the first of the records that tell it."""

    def frames(self, operation: Operation) -> Sequence[Frame]:
        """Call stack of a record, innermost first; () where no dump has it."""
        for dump, record in self._stacked(operation):
            if frames := dump.stacks.frames(record):
                return frames
        return ()

    def source(self, operation: Operation) -> str:
        """The line of the script that made the call; "" where no dump says it."""
        for dump, record in self._stacked(operation):
            if (frame := dump.stacks.user_frame(record)) is not None:
                return str(frame)
        return ""

    @abstractmethod
    def _stacked(self, operation: Operation) -> Iterator[tuple[RankDump, str]]:
        """Records whose stacks tell where a record was called, the best first."""


class StepOutline(CallPlaces):
    """One training step of a sharded run, and the logical run's; nothing here looks at values.

    Attributes:
        step: the ranks.
        run: the logical run, by which it is judged.
        logical: its first rank.
        number: of the step, as its folder says.
        grids: what ranks may be to each other.
    """

    def __init__(self, step: ShardedStep, run: LogicalRun) -> None:
        self.step = step
        self.run, self.logical, self.grids = run, run.leader, Grids()
        self.number = None if step.leader is None else Slot.of(step.leader.path).step

    @cached_property
    def matching(self) -> RecordMatching:
        """Which records of ranks are parts of which logical record."""
        ranks = list(self.step.ranks.values())
        return RecordMatching(self.logical, ranks, offsets_of(self.logical, ranks))

    @cached_property
    def updates(self) -> list[Operation]:
        """The steps of optimizers."""
        return [operation for operation in self.logical.operations if self.matching.is_update(operation.record)]

    @cached_property
    def _last_backward(self) -> float:
        """Place of the last record of a backward; infinite for none."""
        places = (operation.index for operation in self.logical.operations if phase_of(operation) == "backward")
        return max(places, default=math.inf)

    def phase(self, operation: Operation) -> Phase:
        """Which pass of the step a record belongs to: what is called behind the last backward updates parameters."""
        phase = phase_of(operation)
        is_behind = operation.index > self._last_backward and not operation.is_cell
        if phase == "forward" and is_behind and self.around(operation) is None:
            return "optimizer"
        return phase

    def is_arithmetic_of_update(self, operation: Operation) -> bool:
        """Whether a call behind the last backward is part of what the records of optimizers amount to."""
        return phase_of(operation) == "forward" and self.phase(operation) == "optimizer"

    def is_behind_updates(self, operation: Operation) -> bool:
        """Whether it computes element by element behind the last step of an optimizer, as an averaged copy is."""
        is_behind = bool(self.updates) and operation.index > self.updates[-1].index
        return is_behind and self.is_arithmetic_of_update(operation) and bool(fact_of("elementwise", operation.name))

    def around(self, operation: Operation) -> Operation | None:
        """The record of the layer in which an operation ran, in its direction."""
        parent = self.logical.parents.get(operation.record)
        if parent is None and operation.phase == "backward":
            forward = self.logical.parents.get(f"{operation.call}.forward")
            parent = forward and forward.replace(".forward.", ".backward.")
        return None if parent is None else self.operation(parent)

    def operation(self, record: str) -> Operation | None:
        """The logical record of this name; None for none."""
        return Operation.of(record, self.logical.orders[record]) if record in self.logical.orders else None

    @cached_property
    def items(self) -> list[Operation]:
        """The records that are judged: what optimizers amount to is in records of their own."""
        if not self.updates:
            return self.logical.operations
        return [
            operation
            for operation in self.logical.operations
            if not self.is_arithmetic_of_update(operation) or self.is_behind_updates(operation)
        ]

    def held(self, parts: Sequence[Calls]) -> Held:
        """The tensors of each of these records of ranks.

        Raises:
            DumpError: one of them cannot be decoded.
        """
        return [(calls.dump, self.matching.tensors(calls.dump, record)) for calls in parts for record in calls.records]

    def grids_of(self, parts: Sequence[Calls]) -> list[Grid]:
        """What the ranks of these records may be to each other."""
        return self.grids.of([calls.dump for calls in parts], len(parts[0].records))

    def _stacked(self, operation: Operation) -> Iterator[tuple[RankDump, str]]:
        """Records whose stacks tell where a record was called: those of its parts, then its own; of its forward too."""
        parts = self.matching.parts(operation.record)[0][:1]
        for dump, record in [*((calls.dump, calls.records[0]) for calls in parts), (self.logical, operation.record)]:
            yield dump, record
            yield dump, forward_of(Operation.of(record, 0))
