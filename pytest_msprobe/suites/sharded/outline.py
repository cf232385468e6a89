"""The logical run of a sharded one, and the outline of one step: which pass a record belongs to, what is around it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DumpError, Frame
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.fact_table import fact_of
from pytest_msprobe.suites.contract import SuiteError
from pytest_msprobe.suites.sharded.inference import STAGES
from pytest_msprobe.suites.sharded.judgement import Form, Phase, all_loaded, forward_of, phase_of
from pytest_msprobe.suites.sharded.matching import Calls, MatchingIndex, RecordMatching, offsets_of
from pytest_msprobe.suites.sharded.ranks import Grids, RankDump, ShardedStep, contradicted

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.placements import Axis, Grid

    Whole = tuple[tuple[Axis, ...], Any]
    Held = Sequence[tuple[RankDump, Mapping[str, Leaf]]]


class LogicalRun:
    """A run that the ranks of a step are judged by.

    Attributes:
        leader: its first rank, whose records are the items.
        ranks: all of them.
        grids: what they are to each other.
    """

    def __init__(self, ranks: Sequence[RankDump]) -> None:
        self.leader, self.ranks, self.grids = ranks[0], ranks, Grids()
        self._latest: tuple[str, dict[str, list[tuple[RankDump, Leaf]]]] = "", {}

    @classmethod
    def read(cls, paths: Sequence[Path], data_dirs: Sequence[Path]) -> LogicalRun:
        """The run whose dumps are at `paths`.

        Raises:
            DumpError: one of them cannot be read.
            SuiteError: ranks are missing, or have layers that others lack.
        """
        if len(paths) == 1:
            return cls([RankDump(paths[0], data_dirs)])
        step = ShardedStep.read(paths[0].parent.parent, paths, data_dirs)
        for error in step.unreadable.values():
            raise error
        if step.problems:
            raise SuiteError(f"the logical run is not whole: {step.problems[0]}")
        run = cls(list(step.ranks.values()))
        if lack := run._lack_of_layers():
            raise SuiteError(
                f"{step.folder}: {lack}; give a logical run whose ranks all have all layers, or that on one rank"
            )
        return run

    def _lack_of_layers(self) -> str:
        """Which rank has other layers than the first one, in words; "" for none."""
        expected = _layers(self.leader)
        for dump in self.ranks:
            stages = [name for name in dump.membership.groups if name.lower() in STAGES]
            if stages:
                return f"the ranks of the logical run are stages of a pipeline (group {stages[0]})"
            if apart := sorted(expected ^ _layers(dump)):
                having, lacking = self.leader.number, dump.number
                if apart[0] not in expected:
                    having, lacking = lacking, having
                return f"rank {lacking} of the logical run has no layer {apart[0]!r}, rank {having} has"
        return ""

    @cached_property
    def _matching(self) -> RecordMatching | None:
        return RecordMatching(self.leader, self.ranks, {}) if len(self.ranks) > 1 else None

    @property
    def beside(self) -> int:
        """How many records of its ranks belong to none of the first one."""
        return self._matching.only_on_ranks if self._matching is not None else 0

    def is_certain(self, record: str) -> bool:
        """Whether it is certain which records of all its ranks are the same call as `record` of the first one."""
        return self._matching is None or self._matching.is_certain(record)

    def held(self, leaf: Leaf) -> list[tuple[RankDump, Leaf]]:
        """A value of the first rank, on all ranks that have it.

        Raises:
            DumpError: a record cannot be decoded.
        """
        if self._matching is None:
            return [(self.leader, leaf)]
        record = leaf.place.record
        if self._latest[0] != record:
            held: dict[str, list[tuple[RankDump, Leaf]]] = {}
            parts, reason = self._matching.parts(record)
            if reason:
                raise DumpError(
                    f"the ranks of the logical run do not match: {reason}", file=str(self.leader.path), record=record
                )
            for calls in parts:
                name = record if calls.dump is self.leader else calls.records[0]
                for path, leaf_of_rank in calls.dump.held(name).items():
                    held.setdefault(path, []).append((calls.dump, leaf_of_rank))
            self._latest = record, held
        return self._latest[1][leaf.path]

    @staticmethod
    def is_partial(held: Sequence[tuple[RankDump, Leaf]]) -> bool:
        """Whether the run itself says of a value that its ranks hold terms of a sum. Raises DumpError."""
        return all(dump.is_partial(leaf) for dump, leaf in held)

    def wholes(
        self,
        held: Sequence[tuple[RankDump, Leaf]],
        tolerance: float,
        form: Form = "tensor",
        *,
        may_be_partial: bool,
        calls: int = 1,
    ) -> Iterator[Whole]:
        """What the whole of a value may be; `held` are those of `calls` records of each rank, rank by rank.

        Of terms of a sum statistics tell too little.

        Raises:
            DumpError: a file cannot be read.
        """
        from pytest_msprobe.suites.sharded.placements import in_other_orders, wholes

        values = all_loaded(held, form)
        if len(values) == 1:
            yield (), values[0]
            return
        first, leaf = held[0]
        stated = first.stated(leaf)
        may_be_partial = form != "statistics" and (may_be_partial or self.is_partial(held))
        grids = self.grids.of([dump for dump, _ in held[::calls]], calls)
        is_on_several = len(self.ranks) > 1
        orders = (False, True) if is_on_several and form == "tensor" else (False,)
        for is_reordered, grid in product(orders, grids):
            for axes, whole in wholes(values, grid, tolerance, may_be_partial=may_be_partial, are_calls=calls > 1):
                if contradicted([axes], stated, first) is not None:
                    continue
                if is_reordered:
                    yield from in_other_orders(axes, whole)
                else:
                    yield axes if is_on_several else (), whole


def _layers(dump: RankDump) -> set[str]:
    return {key[1] for key in MatchingIndex(dump).keys.values() if key[0] == "layer"}


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
