"""The logical side of a sharded run: on one rank, or on several, whose values are put together by trying as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.suites.contract import SuiteError
from pytest_msprobe.suites.sharded.inference import STAGES
from pytest_msprobe.suites.sharded.judgement import Form, all_loaded
from pytest_msprobe.suites.sharded.matching import MatchingIndex, RecordMatching
from pytest_msprobe.suites.sharded.ranks import Grids, RankDump, ShardedStep, contradicted

if TYPE_CHECKING:
    from pytest_msprobe.suites.sharded.placements import Axis

    #: What ranks may hold together, and how they hold it; () for one rank.
    Whole = tuple[tuple[Axis, ...], Any]


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
