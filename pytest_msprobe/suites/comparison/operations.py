"""One operation of the target against its partner: verdicts on all its values, and what follows for the operation.

A dump against its golden dump: every operation matched, measured and judged, one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from msprobe_collector.dump_format import DIRECTIONS, Dump, DumpError, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.manifest import CompiledCode
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import abbreviated
from pytest_msprobe.apis.topics import UnwrittenMemory, says_where, unwritten_memory
from pytest_msprobe.numerics.expected import DTYPES, Share, Times
from pytest_msprobe.suites.comparison.content.content import Content, ContentState
from pytest_msprobe.suites.comparison.content.place import Region
from pytest_msprobe.suites.comparison.content.rejoined import RowContent, parted_of
from pytest_msprobe.suites.comparison.estimates import Sketches
from pytest_msprobe.suites.comparison.mapping import (
    ValuePairing,
    api_naming,
    cell_naming,
    layer_naming,
    read_api_mapping,
    read_cell_mapping,
    read_data_mapping,
    read_layer_mapping,
)
from pytest_msprobe.suites.comparison.matching import ACROSS_FRAMEWORKS, SAME_NAMES, Matching, Naming, match
from pytest_msprobe.suites.comparison.noise import NoiseRun, RecordNoise, apply_tolerance
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.suites.comparison.values import (
    FUZZY_NOTE,
    DistanceLimits,
    TensorComparison,
    ValueComparison,
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
        if self.fault or any(value.status in ("error", "unreadable") for value in self.values):
            return "error"
        if self.is_equal_again:
            return "pass"
        # A tensor on either side may have nothing to be compared with.
        if self.held_by != "both" or any(value.status == "unmatched" and value.is_tensor for value in self.values):
            return "skip"
        compared = any(value.status in ("pass", "warning") for value in self.values)
        return "pass" if compared or not self.values else "skip"

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
        return next((value for value in self.values if value.status == "error"), None)

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
        least = DTYPES[dtype.name].step / 100 if dtype is not None and dtype.name in DTYPES else 0.0
        known = max(before, least)
        return after, after / known if known else 0.0

    @cached_property
    def is_origin(self) -> bool:
        """Whether the inputs agree and the outputs do not: this operation introduces the difference."""
        inputs = [value for value in self.values if not value.is_output]
        outputs = [value for value in self.values if value.is_output and value.status == "error"]
        if self.held_by != "both" or not outputs or any(_is_unknown(value) for value in inputs):
            return False
        farthest = max((value.distance or 0.0 for value in inputs), default=0.0)
        return (
            max(math.inf if value.distance is None else value.distance for value in outputs) > Times.GROWTH * farthest
        )

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
            wrong = next(value for value in self.values if value.status in ("error", "unreadable"))
            return f"{wrong.path}: {wrong.message}"
        if self.status == "skip":
            return _skip_message(self.values)
        notes = [f"{value.path}: {value.message}" for value in self.values if value.status == "warning"]
        return "; ".join(notes)


#: What is known of a record by the values that it makes, and that they are right.
EQUAL_AGAIN: Mapping[ContentState, str] = {
    "found": "another call of the other run makes equal values",
    "coarser": "the other run makes these values in a finer dtype",
    "rejoined": "computed in other steps than in the other run, and all that is made of it is equal again",
}


def _is_unknown(value: ValueComparison) -> bool:
    """Whether an input cannot count as agreeing."""
    return value.status in ("error", "unreadable") or (value.status == "unmatched" and value.is_tensor)


def _skip_message(values: Sequence[ValueComparison]) -> str:
    lone = [value for value in values if value.status == "unmatched" and value.is_tensor]
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
        target, golden: the dumps.
        limits: largest distances by dtype.
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
        self._settings = settings
        self.limits = DistanceLimits.with_changes(settings.distances)
        self._rules = read_api_mapping(settings.api_mapping) if isinstance(settings.api_mapping, Path) else {}
        cells = settings.cell_mapping
        self._cell_rules = read_cell_mapping(cells) if isinstance(cells, Path) else {}
        self._names = read_data_mapping(settings.data_mapping) if settings.data_mapping else {}
        self._naming = self._choose_naming()
        self._noise = NoiseRun(self.golden, settings.noise, self.limits, settings.distances) if settings.noise else None
        # Which tolerance a bit may stay below is the noise run's to say.
        accept = settings.accept | {"bits"} if settings.noise else settings.accept
        if self._naming.is_translated:
            accept |= {"integers"}  # MindSpore counts in int32 where PyTorch does in int64
        if self._is_other_precision:
            accept |= {"dtype"}
        self._sketches = Sketches((self.target, self.golden))
        self._tensors = TensorComparison(
            (self.target.tensors, self.golden.tensors), self.limits, accept, self._sketches
        )
        frameworks = (self.target.framework, self.golden.framework) if self._naming.is_translated else None
        self._values = ValuePairing(frameworks, self._rules, self._names)

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
        yield from (self.target, self.golden)
        if self._noise is not None:
            yield self._noise.dump

    @property
    def is_mapped(self) -> bool:
        """Whether a mapping of names was given."""
        settings = self._settings
        return any((settings.cell_mapping, settings.api_mapping, settings.data_mapping, settings.layer_mapping))

    @cached_property
    def matching(self) -> Matching:
        """Which operation is which."""
        if self.content is None:
            return self._by_name
        return self.content.refined(self._by_name, self.target.operations, self.golden.operations)

    @cached_property
    def _by_name(self) -> Matching:
        fixed = _fixed(self._names, self.target, self.golden)
        return match(self.target, self.golden, self._naming, fuzzy=self._settings.fuzzy, fixed=fixed)

    @cached_property
    def _held(self) -> Content | None:
        return Content.of(self.target, self.golden)

    @cached_property
    def content(self) -> Content | None:
        """What both runs hold of each other; None where their calls are the same, or names are given.

        Of one run in another precision each value has another dtype, so that without tensors content decides.
        """
        matching = self._by_name
        lone = [(self.golden, self.target, operation) for operation in matching.golden_only]
        lone += [
            (self.target, self.golden, one) for one in self.target.operations if one.record not in matching.partners
        ]
        count = sum(
            operation.phase in DIRECTIONS and not operation.is_cell and side.compiled_in(other, operation) is None
            for side, other, operation in lone
        )
        return self._held if (count or self._is_other_precision) and not self.is_mapped else None

    @cached_property
    def _is_other_precision(self) -> bool:
        """Whether no tensors are there, and one run computes in another precision."""
        return self.mode != "real" and self.target.other_floats(self.golden) > Share.OTHER_PRECISION

    def _state(self, operation: Operation, *, is_golden: bool = False) -> ContentState:
        return "" if self.content is None else self.content.state(operation, is_golden=is_golden)

    def _region(self, operation: Operation, *, is_golden: bool = False) -> Region | None:
        return None if self.content is None else self.content.region(operation, is_golden=is_golden)

    def row_content(self, found: OperationComparison) -> RowContent | None:
        """What a row tells of what both runs hold; None where that does not decide."""
        if self.content is None:
            return None
        target, golden = (None, found.operation) if found.held_by == "golden" else (found.operation, found.partner)
        return RowContent(
            self.content.record(target),
            self.content.record(golden, is_golden=True),
            None if found.region is None else parted_of(found.region, self.target, self.golden),
        )

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
        try:
            target = self.target.leaves(operation.record)
            golden = self.golden.leaves(partner.record) if partner is not None else []
        except DumpError as error:
            held = "both" if partner is not None else "target"
            return OperationComparison(operation, partner, held, operation.index, fault=str(error))  # type: ignore[arg-type]
        if partner is None:
            lone = tuple(self._lone(leaf, None) for leaf in target)
            compiled = self.target.compiled_in(self.golden, operation)
            states = self._state(operation), self._region(operation)
            return OperationComparison(operation, None, "target", operation.index, lone, "", False, compiled, *states)
        unwritten = _unwritten(operation, self.target), _unwritten(partner, self.golden)
        noise = self._noise.of_record(partner.record, golden) if self._noise is not None else None
        values, state = list[ValueComparison](), self._state(operation)
        for left, right in self._values.pairs(operation, partner, target, golden):
            is_place = False
            for leaf in (left, right):
                if leaf is not None and not isinstance(leaf.value, TensorValue):
                    is_place = is_place or says_where(operation.name, leaf.path, leaf.value)
            if is_place:
                found = judge_place(left, right)
            elif left is None or right is None:
                found = self._lone(left, right)
                if found.status == "unmatched" and state in (*EQUAL_AGAIN, "beside"):
                    found = replace(found, status="skip")  # what it is for shows in what is made
            elif (unwritten[0] and unwritten[0].covers(left.path)) or (
                unwritten[1] and unwritten[1].covers(right.path)
            ):
                words = _UNWRITTEN_OUTPUT if left.is_output else _UNWRITTEN_INPUT
                found = ValueComparison(left, right, "skip", (words,))
            else:
                found = self._value(left, right, noise)
                if operation.record in self.matching.by_bare_name:
                    status = "warning" if found.status == "pass" else found.status
                    found = replace(found, status=status, reasons=(*found.reasons, FUZZY_NOTE))
            if found.status == "error" and state in (*EQUAL_AGAIN, "beside"):
                found = replace(found, status="warning")  # what both runs hold says that the values are right
            elif found.status == "error" and self._is_rounding(operation, found, values):
                found = replace(found, status="skip", reasons=(_ROUNDING,))
            values.append(found)
        region = self._region(operation) or self._region(partner, is_golden=True)
        recomputed = (
            self.target.is_recomputed_otherwise(operation.record),
            self.golden.is_recomputed_otherwise(partner.record),
        )
        return OperationComparison(
            operation, partner, "both", operation.index, tuple(values), "", False, None, state, region, recomputed
        )

    def _is_rounding(self, operation: Operation, found: ValueComparison, before: Sequence[ValueComparison]) -> bool:
        """Whether two values of which no tensors are there are as far apart as rounding makes them.

        Gradients may be 0 but for rounding, and what Adam makes of these shows in no value that a later call gets.
        What it makes of inputs `before` that agree is its own, but for the share of elements that are rounding.
        """
        left, right = found.target, found.golden
        if left is None or right is None or self.mode == "real" or not (left.tensor and right.tensor):
            return False
        held = self._held
        if held is None or held.is_rounding(left, right):
            return held is not None
        given = max((value.distance or 0.0 for value in before if not value.is_output), default=0.0)
        is_given = any(value.status not in ("pass", "warning") for value in before)
        is_given |= not left.is_output or (found.distance or 0.0) <= Times.UNSURE_SIGNS * math.sqrt(given)
        return is_given and held.is_update(operation)

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
        for left, right in self._values.pairs(operation, partner, target, golden):
            if left is not None and not (unwritten and unwritten.covers(left.path)):
                yield left, right

    def release(self) -> None:
        """Let go of the tensors that stayed loaded."""
        self.target.tensors.release()
        self.golden.tensors.release()

    def golden_only(self, operation: Operation) -> OperationComparison:
        """The verdict on an operation that only the golden dump has."""
        order = len(self.target.operations) + operation.index
        try:
            values = tuple(self._lone(None, leaf) for leaf in self.golden.leaves(operation.record))
        except DumpError as error:
            return OperationComparison(operation, None, "golden", order, fault=str(error))
        compiled = self.golden.compiled_in(self.target, operation)
        states = self._state(operation, is_golden=True), self._region(operation, is_golden=True)
        return OperationComparison(operation, None, "golden", order, values, "", False, compiled, *states)

    def cells_in_target(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        """The path of a golden Cell in the target's tree: of its innermost Cell that matches, from there its own."""
        for depth in range(len(cells), 0, -1):
            if (found := self._matched_cells.get(cells[:depth])) is not None:
                return (*found, *cells[depth:])
        return cells

    @cached_property
    def _matched_cells(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Paths in the target by those in the golden dump: of Cells that match, else of Cells whose calls do."""
        found: dict[tuple[str, ...], tuple[str, ...]] = {}
        of_calls: dict[tuple[str, ...], tuple[str, ...]] = {}
        for operation in self.target.operations:
            if (partner := self.matching.partners.get(operation.record)) is not None:
                mine = cells_of(self.target, operation.record, f"{operation.call}.forward")
                theirs = cells_of(self.golden, partner.record, f"{partner.call}.forward")
                (found if operation.is_cell else of_calls).setdefault(theirs, mine)
        return of_calls | found

    def _value(self, target: Leaf, golden: Leaf, noise: RecordNoise | None) -> ValueComparison:
        if not (target.is_tensor or golden.is_tensor):
            return judge_plain(target, golden, self.limits)
        if noise is None:
            return self._tensors.judge(target, golden)
        tolerance = noise.tolerance(target, golden)
        found = self._tensors.judge(target, golden, limit=tolerance.limit)
        return apply_tolerance(found, tolerance)

    def _lone(self, target: Leaf | None, golden: Leaf | None) -> ValueComparison:
        missing = "golden dump" if golden is None else "target"
        keys = [self._sketches.key(side, leaf) if leaf else "" for side, leaf in enumerate((target, golden))]
        contents = (keys[0], keys[1]) if any(keys) else None
        words = (f"The {missing} has no such value.",)
        return ValueComparison(target, golden, "unmatched", words, contents=contents)

    def unused_mappings(self) -> Iterator[str]:
        """A line on each mapping file with entries that fit nothing in the dumps.

        A table of APIs may be of many models: it is one only where no entry fits.
        """
        settings, names = self._settings, {operation.name for operation in self.target.operations}
        cells = [operation.name for operation in self.target.operations if operation.is_cell]
        values = [left for left in self._names if _record_of(left, self.target) is None]
        values += [right for right in self._names.values() if _record_of(right, self.golden) is None]
        yield from _unused(settings.data_mapping, values, 2 * len(self._names))
        yield from _unused(
            settings.cell_mapping,
            [left for left in self._cell_rules if not any(left in name for name in cells)],
            len(self._cell_rules),
        )
        if names.isdisjoint(self._rules):
            yield from _unused(settings.api_mapping, list(self._rules), len(self._rules))

    def _choose_naming(self) -> Naming:
        settings = self._settings
        if settings.layer_mapping is not None:
            for side in (self.target, self.golden):
                if not side.parents:
                    raise DumpError(
                        "the layer mapping needs a construct.json with parents; dump at level L0 or mix",
                        file=str(side.path.parent),
                    )
            return layer_naming(self.target, self.golden, read_layer_mapping(settings.layer_mapping))
        if settings.cell_mapping:
            return cell_naming(self._cell_rules, self._rules)
        if settings.api_mapping:
            return api_naming(self._rules)
        is_pytorch = {self.target.framework == "pytorch", self.golden.framework == "pytorch"}
        return ACROSS_FRAMEWORKS if len(is_pytorch) > 1 else SAME_NAMES


def _fixed(names: Mapping[str, str], target: ComparedDump, golden: ComparedDump) -> dict[str, str]:
    """Records of the target and of the golden dump that a data mapping makes one."""
    fixed: dict[str, str] = {}
    for target_name, golden_name in names.items():
        left, right = _record_of(target_name, target), _record_of(golden_name, golden)
        if left is not None and right is not None:
            fixed.setdefault(left, right)
    return fixed


def _unused(file: object, entries: Sequence[str], total: int) -> Iterator[str]:
    if entries:
        yield f"{file}: {len(entries)} of {total} names fit nothing in the dumps, such as {abbreviated(entries[0])}"


def _record_of(value_name: str, side: ComparedDump) -> str | None:
    """The record that a full value name belongs to, or None when the dump has none."""
    name = value_name
    while name:
        if name in side:
            return name
        name = name.rpartition(".")[0]
    return None


def _unwritten(operation: Operation, side: ComparedDump) -> UnwrittenMemory | None:
    """Which values of a forward mean nothing, if any; the inputs of a backward are gradients, which count."""
    if operation.phase != "forward":
        return None
    found = unwritten_memory(operation.name, side.framework, "mixed")
    return found if found.outputs or found.inputs else None
