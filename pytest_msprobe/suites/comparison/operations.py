"""One operation of the target against its partner: verdicts on all its values, and what follows for the operation.

A dump against its golden dump: every operation matched, measured and judged, one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Literal

from msprobe_collector.dump_format import DIRECTIONS, Dump, DumpError, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.manifest import CompiledCode
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.fact_table import UnwrittenMemory, says_where, unwritten_memory
from pytest_msprobe.numerics.expected import DTYPES, Share, Times
from pytest_msprobe.suites.comparison.content import CommonContent, ContentState, RowContent, parted_of
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.estimates import Sketches
from pytest_msprobe.suites.comparison.mapping import Mappings, Pair, ValuePairing
from pytest_msprobe.suites.comparison.matching import Matching, match
from pytest_msprobe.suites.comparison.noise import NoiseRun, RecordNoise, apply_tolerance
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.suites.comparison.values import (
    FUZZY_NOTE,
    DistanceLimits,
    TensorComparison,
    ValueComparison,
    farthest_of,
    judge_place,
    judge_plain,
)
from pytest_msprobe.suites.contract import cells_of
from pytest_msprobe.verdicts import HeldBy


@dataclass(frozen=True)
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
        compiled: of one without a partner, the compiled code of either run that it is a part of; None without.
        content: of two runs with different calls, what is known of the values that it makes.
        region: the calls in which the two runs part, of the record that stands for them.
        recomputed: whether a checkpoint computed its forward otherwise the second time, in each run.
    """

    operation: Operation
    partner: Operation | None
    held_by: HeldBy
    order: int
    values: tuple[ValueComparison, ...] = ()
    fault: str = ""
    is_skipped: bool = False
    compiled: CompiledCode | None = None
    content: ContentState = ""
    region: Region | None = None
    recomputed: tuple[bool, bool] = (False, False)

    @cached_property
    def status(self) -> Literal["pass", "error", "skip"]:
        """`error` when a value differs or cannot be read, `skip` when not everything could be compared."""
        if self.is_skipped:
            return "skip"
        if self.fault or self.wrong:
            return "error"
        if self.is_equal_again:
            return "pass"
        # A tensor on either side may have nothing to be compared with.
        if self.held_by != "both" or any(map(attrgetter("is_lone"), self.values)):
            return "skip"
        statuses = {value.status for value in self.values}
        return "pass" if statuses & {"pass", "warning"} or not statuses else "skip"

    @cached_property
    def wrong(self) -> list[ValueComparison]:
        """The values that differ or cannot be read."""
        return list(filter(attrgetter("is_wrong"), self.values))

    @cached_property
    def is_unreadable(self) -> bool:
        """Whether it, or a value of it, could not be read or judged."""
        return bool(self.fault) or any(value.status == "unreadable" for value in self.wrong)

    @property
    def is_equal_again(self) -> bool:
        """Whether it has no partner, and the other run holds what it makes, or all that is made of it."""
        return self.held_by != "both" and self.content in EQUAL_AGAIN

    @property
    def places(self) -> tuple[int, int]:
        """Places in the order of execution of the target and of the golden dump; -1 where a dump lacks it."""
        if self.partner is not None:
            return self.operation.index, self.partner.index
        return (-1, self.operation.index) if self.held_by == "golden" else (self.operation.index, -1)

    @property
    def first_error(self) -> ValueComparison | None:
        """The first value that differs."""
        return next((value for value in self.wrong if value.status == "error"), None)

    @cached_property
    def growth(self) -> tuple[float, float]:
        """(largest finite distance of the outputs, how many times that of the inputs this is).

        Inputs count as at least a hundredth of the dtype's limit apart, about one rounding of an operation, so that
        this is growth and not rounding of equal inputs. Both are 0.0 where the outputs agree, or no distance is known.
        """
        before = after = 0.0
        farthest = None
        for value in self.values:
            distance = value.distance
            if not distance or distance == math.inf or not value.is_tensor:
                continue
            if not value.is_output:
                before = max(before, distance)
            elif distance > after:
                after, farthest = distance, value.golden
        if farthest is None:
            return 0.0, 0.0
        dtype = find_dtype(farthest.dtype)
        if dtype is not None and dtype.name in DTYPES:
            before = max(before, DTYPES[dtype.name].step / 100)
        return after, after / before if before else 0.0

    @cached_property
    def is_origin(self) -> bool:
        """Whether the inputs agree and the outputs do not: this operation introduces the difference."""
        if self.held_by != "both":
            return False
        distances, farthest_input = [], 0.0
        for value in self.values:
            if not value.is_output:
                # What is wrong, or has nothing to be compared with, cannot count as agreeing.
                if value.is_wrong or value.is_lone:
                    return False
                farthest_input = max(farthest_input, value.distance or 0.0)
            elif value.status == "error":
                distances.append(value.distance)
        return bool(distances) and farthest_of(distances) > Times.GROWTH * farthest_input

    @property
    def message(self) -> str:
        """One line on a skip or an error; the notes of a pass."""
        if self.fault:
            return self.fault
        if self.compiled is not None:
            return f"one run computes it in compiled code: {self.compiled}"
        if self.is_equal_again:
            return EQUAL_AGAIN[self.content]
        if self.held_by == "target":
            return "unmatched: the golden dump has no such operation"
        if self.held_by == "golden":
            return "unmatched: only the golden dump has this operation"
        if self.status == "error":
            return f"{self.wrong[0].path}: {self.wrong[0].message}"
        if self.status == "skip":
            return _skip_message(self.values)
        return "; ".join(f"{value.path}: {value.message}" for value in self.values if value.status == "warning")


#: What is known of a record by the values that it makes, and that they are right.
EQUAL_AGAIN: Mapping[ContentState, str] = {
    "found": "another call of the other run makes equal values",
    "coarser": "the other run makes these values in a finer dtype",
    "rejoined": "computed in other steps than in the other run, and all that is made of it is equal again",
}


def _is_call(operation: Operation) -> bool:
    return operation.phase in DIRECTIONS and not operation.is_cell


def _is_place(operation: Operation, leaf: Leaf | None) -> bool:
    """Whether an argument says where or how, and not what is computed."""
    if leaf is None or isinstance(leaf.value, TensorValue):
        return False
    return says_where(operation.name, leaf.path, leaf.value)


def _skip_message(values: Sequence[ValueComparison]) -> str:
    lone = list(filter(attrgetter("is_lone"), values))
    if not lone:
        return next((f"{value.path}: {value.message}" for value in values if value.message), "nothing was compared")
    more = f" and {len(lone) - 1} more" if len(lone) > 1 else ""
    return f"unmatched: {lone[0].path}{more}: {lone[0].message}"


_ROUNDING = "What both runs hold differs by rounding alone."
_UNWRITTEN_OUTPUT = "The call leaves this memory uninitialised."
_UNWRITTEN_INPUT = "The call takes buffers to fill, whose content before it means nothing."


class DumpComparison:
    """Two dumps and how they are compared.

    Attributes:
        target, golden, sides: the dumps.
        limits: largest distances by dtype.
        mappings: of names.
        mode: `real`, `md5`, `sketches` or `statistics`: what both hold throughout, which decides the columns of tables.
    """

    def __init__(self, target: Path, golden: Path, settings: ComparisonSettings) -> None:
        """Read both dumps and the mapping files.

        Raises:
            DumpError: a dump cannot be read, or they cannot be compared.
            MappingError: a mapping file is not what it should be.
        """
        self.target = ComparedDump(target, settings.data_dir)
        self.golden = ComparedDump(golden, settings.data_dir)
        self.sides = self.target, self.golden
        self.limits = DistanceLimits.with_changes(settings.distances)
        self.mappings = Mappings.read(settings)
        self._fuzzy = settings.fuzzy
        self._naming = self.mappings.naming(*self.sides)
        self._noise, accept = None, settings.accept
        if settings.noise:
            self._noise = NoiseRun(self.golden, settings.noise, self.limits, settings.distances)
            accept |= {"bits"}  # which tolerance a bit may stay below is the noise run's to say
        frameworks = None
        if self._naming.is_translated:
            frameworks = self.target.framework, self.golden.framework
            accept |= {"integers"}  # MindSpore counts in int32 where PyTorch does in int64
        if self._is_other_precision:
            accept |= {"dtype"}
        self._sketches = Sketches(self.sides)
        folders = self.target.tensors, self.golden.tensors
        self._tensors = TensorComparison(folders, self.limits, accept, self._sketches)
        self._values = ValuePairing(frameworks, self.mappings.apis, self.mappings.values)

    @cached_property
    def mode(self) -> str:
        """See the class."""
        if self.target.task == self.golden.task == "tensor":
            return "real"
        if self.target.holds_sketches and self.golden.holds_sketches:
            return "sketches"
        return "md5" if self.target.holds_md5 and self.golden.holds_md5 else "statistics"

    def dumps(self) -> Iterator[Dump]:
        """Both, and that of the noise run."""
        yield from self.sides
        if self._noise is not None:
            yield self._noise.dump

    @cached_property
    def matching(self) -> Matching:
        """Which operation is which."""
        if self.content is None:
            return self._by_name
        return self.content.refined(self._by_name, self.target.operations, self.golden.operations)

    @cached_property
    def _by_name(self) -> Matching:
        return match(*self.sides, self._naming, fuzzy=self._fuzzy, fixed=self.mappings.fixed(*self.sides))

    @cached_property
    def _held(self) -> CommonContent | None:
        return CommonContent.of(*self.sides)

    @cached_property
    def content(self) -> CommonContent | None:
        """What both runs hold of each other; None where their calls are the same, or names are given.

        Of one run in another precision each value has another dtype, so that without tensors content decides.
        """
        if self.mappings.are_given or not (self._has_lone_call or self._is_other_precision):
            return None
        return self._held

    @property
    def _has_lone_call(self) -> bool:
        """Whether either run has an API call without partner that is no part of compiled code."""
        for operation in self._by_name.golden_only:
            if _is_call(operation) and self.golden.compiled_in(self.target, operation) is None:
                return True
        for operation in self.target.operations:
            is_lone = _is_call(operation) and operation.record not in self._by_name.partners
            if is_lone and self.target.compiled_in(self.golden, operation) is None:
                return True
        return False

    @cached_property
    def _is_other_precision(self) -> bool:
        """Whether no tensors are there, and one run computes in another precision."""
        return self.mode != "real" and self.target.other_floats(self.golden) > Share.OTHER_PRECISION

    def _state(self, operation: Operation, *, is_golden: bool = False) -> ContentState:
        return "" if self.content is None else self.content.state(operation, is_golden=is_golden)

    def _region(self, operation: Operation, *, is_golden: bool = False) -> Region | None:
        return None if self.content is None else self.content.region(operation, is_golden=is_golden)

    def row_content(self, compared: OperationComparison) -> RowContent | None:
        """What a row tells of what both runs hold; None where that does not decide."""
        if self.content is None:
            return None
        target, golden = compared.operation, compared.partner
        region = parted_of(compared.region, *self.sides) if compared.region is not None else None
        if compared.held_by == "golden":
            return RowContent(None, self.content.record(compared.operation, is_golden=True), region)
        return RowContent(self.content.record(target), self.content.record(golden, is_golden=True), region)

    @property
    def operations(self) -> list[Operation]:
        """All operations in the order of verdicts: the target's, then those that only the golden dump has."""
        return [*self.target.operations, *self.matching.golden_only]

    def verdicts(self) -> Iterator[OperationComparison]:
        """The verdict on every operation, in order."""
        for operation in self.target.operations:
            yield self.verdict(operation)
        for operation in self.matching.golden_only:
            yield self.golden_only(operation)

    def verdict(self, operation: Operation, *, for_account: bool = False) -> OperationComparison:
        """The verdict on one operation of the target. Holds the tensors of one value at a time.

        `for_account` the tensors of an API call stay loaded until `release`.
        """
        partner = self.matching.partners.get(operation.record)
        self.target.tensors.keeps = self.golden.tensors.keeps = for_account and not operation.holds_calls
        held_by: HeldBy = "both" if partner is not None else "target"
        compared = OperationComparison(operation, partner, held_by, operation.index)
        try:
            target = self.target.leaves(operation.record)
            golden = self.golden.leaves(partner.record) if partner is not None else []
        except DumpError as error:
            return replace(compared, fault=str(error))
        compared = replace(compared, content=self._state(operation), region=self._region(operation))
        if partner is None:
            lone = tuple(self._lone(leaf, None) for leaf in target)
            return replace(compared, values=lone, compiled=self.target.compiled_in(self.golden, operation))
        return replace(
            compared,
            values=tuple(self._judged(operation, partner, target, golden)),
            region=compared.region or self._region(partner, is_golden=True),
            recomputed=(
                self.target.is_recomputed_otherwise(operation.record),
                self.golden.is_recomputed_otherwise(partner.record),
            ),
        )

    def _judged(
        self, operation: Operation, partner: Operation, target: Sequence[Leaf], golden: Sequence[Leaf]
    ) -> list[ValueComparison]:
        """The verdicts on the values of two operations, given what is known of what both runs hold."""
        noise = self._noise.of_record(partner.record, golden) if self._noise is not None else None
        unwritten = _unwritten(operation, self.target), _unwritten(partner, self.golden)
        is_right = self._state(operation) in (*EQUAL_AGAIN, "beside")
        values: list[ValueComparison] = []
        for pair in self._values.pairs(operation, partner, target, golden):
            value = self._value(operation, pair, unwritten, noise)
            if is_right and value.status == "unmatched" and None in pair:
                value = replace(value, status="skip")  # what it is for shows in what is made
            elif is_right and value.status == "error":
                value = replace(value, status="warning")  # what both runs hold says that the values are right
            elif value.status == "error" and self._is_rounding(operation, value, values):
                value = replace(value, status="skip", reasons=(_ROUNDING,))
            values.append(value)
        return values

    def _value(
        self, operation: Operation, pair: Pair, unwritten: Sequence[UnwrittenMemory | None], noise: RecordNoise | None
    ) -> ValueComparison:
        """The verdict on one value of two operations by itself."""
        target, golden = pair
        if _is_place(operation, target) or _is_place(operation, golden):
            return judge_place(target, golden)
        if target is None or golden is None:
            return self._lone(target, golden)
        mine, theirs = unwritten
        if (mine and mine.covers(target.path)) or (theirs and theirs.covers(golden.path)):
            words = _UNWRITTEN_OUTPUT if target.is_output else _UNWRITTEN_INPUT
            return ValueComparison(target, golden, "skip", (words,))
        if not (target.is_tensor or golden.is_tensor):
            value = judge_plain(target, golden, self.limits)
        elif noise is None:
            value = self._tensors.judge(target, golden)
        else:
            tolerance = noise.tolerance(target, golden)
            value = apply_tolerance(self._tensors.judge(target, golden, limit=tolerance.limit), tolerance)
        if operation.record not in self.matching.by_bare_name:
            return value
        status = "warning" if value.status == "pass" else value.status
        return replace(value, status=status, reasons=(*value.reasons, FUZZY_NOTE))

    def _is_rounding(self, operation: Operation, value: ValueComparison, before: Sequence[ValueComparison]) -> bool:
        """Whether two values of which no tensors are there are as far apart as rounding makes them.

        Gradients may be 0 but for rounding, and what Adam makes of these shows in no value that a later call gets.
        What it makes of inputs `before` that agree is its own, but for the share of elements that are rounding.
        """
        target, golden = value.target, value.golden
        if target is None or golden is None or self.mode == "real" or not (target.tensor and golden.tensor):
            return False
        if self._held is None or self._held.is_rounding(target, golden):
            return self._held is not None
        farthest = max((other.distance or 0.0 for other in before if not other.is_output), default=0.0)
        is_given = not {other.status for other in before} <= {"pass", "warning"}
        is_given |= not target.is_output or (value.distance or 0.0) <= Times.UNSURE_SIGNS * math.sqrt(farthest)
        return is_given and self._held.is_update(operation)

    def pairs(self, operation: Operation) -> Iterator[tuple[Leaf, Leaf | None]]:
        """The values of a target operation, and those of its partner; not of memory that nobody wrote to."""
        partner = self.matching.partners.get(operation.record)
        if partner is None:
            return
        unwritten = _unwritten(operation, self.target)
        try:
            target, golden = self.target.leaves(operation.record), self.golden.leaves(partner.record)
        except DumpError:
            return
        for leaf, other in self._values.pairs(operation, partner, target, golden):
            if leaf is not None and not (unwritten and unwritten.covers(leaf.path)):
                yield leaf, other

    def release(self) -> None:
        """Let go of the tensors that stayed loaded."""
        self.target.tensors.release()
        self.golden.tensors.release()

    def golden_only(self, operation: Operation) -> OperationComparison:
        """The verdict on an operation that only the golden dump has."""
        order = len(self.target.operations) + operation.index
        compared = OperationComparison(operation, None, "golden", order)
        try:
            values = tuple(self._lone(None, leaf) for leaf in self.golden.leaves(operation.record))
        except DumpError as error:
            return replace(compared, fault=str(error))
        return replace(
            compared,
            values=values,
            compiled=self.golden.compiled_in(self.target, operation),
            content=self._state(operation, is_golden=True),
            region=self._region(operation, is_golden=True),
        )

    def cells_in_target(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        """The path of a golden Cell in the target's tree: of its innermost Cell that matches, from there its own."""
        for depth in range(len(cells), 0, -1):
            if (matched := self._matched_cells.get(cells[:depth])) is not None:
                return (*matched, *cells[depth:])
        return cells

    @cached_property
    def _matched_cells(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Paths in the target by those in the golden dump: of Cells that match, else of Cells whose calls do."""
        of_cells: dict[tuple[str, ...], tuple[str, ...]] = {}
        of_calls: dict[tuple[str, ...], tuple[str, ...]] = {}
        for operation in self.target.operations:
            if (partner := self.matching.partners.get(operation.record)) is not None:
                mine = cells_of(self.target, operation.record, f"{operation.call}.forward")
                theirs = cells_of(self.golden, partner.record, f"{partner.call}.forward")
                (of_cells if operation.is_cell else of_calls).setdefault(theirs, mine)
        return of_calls | of_cells

    def _lone(self, target: Leaf | None, golden: Leaf | None) -> ValueComparison:
        missing = "golden dump" if golden is None else "target"
        keys = self._sketches.key(0, target), self._sketches.key(1, golden)
        words, contents = f"The {missing} has no such value.", keys if any(keys) else None
        return ValueComparison(target, golden, "unmatched", (words,), contents=contents)


def _unwritten(operation: Operation, side: ComparedDump) -> UnwrittenMemory | None:
    """Which values of a forward mean nothing, if any; the inputs of a backward are gradients, which count."""
    if operation.phase != "forward":
        return None
    memory = unwritten_memory(operation.name, side.framework, "mixed")
    return memory if memory.outputs or memory.inputs else None
