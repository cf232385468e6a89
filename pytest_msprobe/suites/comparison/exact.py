"""Which of two runs is nearer to a third one, the same step in float64.

How far a value is off, |x - exact| / |exact| in the 2-norm, is counted in *roundings*: in units of the roundoff of the
coarsest dtype on the way to it. A run *leaves* the exact run at a record whose output is many times farther off than
what went in, and than the same output of the other run: that one has the same operation, so that what cancels, or sums
up long rows, is far off in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter, mul
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DIRECTIONS, DumpError, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import array_dtype
from pytest_msprobe.answers import Exact, ExactKind, Farther
from pytest_msprobe.manifests.alone import rounded_operands
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import Absolute, Relative, Roundoffs, Times
from pytest_msprobe.suites.comparison.content.regions import sources_of
from pytest_msprobe.suites.comparison.content.values import HeldRecord, HeldValue, held_run, held_value, split_name
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.verdicts import FigureWire

if TYPE_CHECKING:
    import numpy.typing as npt

#: Key of `RecordErrors` in the attachment of a row.
EXACT = "exact"
#: Elements that may be anything: what is next to a step of a function falls to either side of it.
_FEW = 2
_EXACT = ("Float64", "Complex128")
_SIDES: tuple[Farther, Farther] = ("target", "golden")

#: Of the target, of the golden run.
Pair = tuple[float, float]
_UNKNOWN = math.inf, math.inf
#: Roundoff and name of a dtype.
_Format = tuple[float, str]
_NO_FLOAT: _Format = (0.0, "")
#: Relative errors of both runs, the same without the few worst elements, and the distance of both.
_Figures = tuple[Pair, Pair, float]


@dataclass(frozen=True, slots=True)
class RecordErrors(FigureWire):
    """How far the output of a record that is farthest off is from the exact run.

    Attributes:
        record: of the target.
        order: its place in the order of execution.
        dtypes: the coarsest on the way.
        units: their roundoff.
        is_update: whether an optimizer calls it, which may divide what is rounding by itself.
        path: of the output, or of the other input.
        errors: roundings that it is off, in the target and in the golden run.
        inputs: the most roundings that anything is off that goes in.
        values: number of outputs that were compared.
        is_bound: whether only statistics were.
        leaves: which run leaves the exact one here.
        other_input: which run gets another input than the exact one, which no call made: its parameter or batch.
    """

    record: str
    order: int
    dtypes: tuple[str, str]
    units: Pair
    is_update: bool = False
    path: str = ""
    errors: Pair = (0.0, 0.0)
    inputs: Pair = (0.0, 0.0)
    values: int = 0
    is_bound: bool = False
    leaves: Farther = ""
    other_input: Farther = ""


@dataclass(frozen=True, slots=True)
class _Off:
    """How far a value of both runs is from the exact one.

    Attributes:
        path: of the value.
        errors: in roundings.
        bulk: the same without the few worst elements.
        apart: distance of the two runs, relative to the exact value.
        size: number of elements.
        is_bound: whether statistics alone say so.
    """

    path: str
    errors: Pair
    bulk: Pair
    apart: float
    size: int
    is_bound: bool

    def leaves(self, inputs: Pair, units: Pair, length: float) -> Farther:
        """Which run leaves the exact one, `inputs` being off so far, with sums of `length` terms."""
        growth = Times.GROWTH_BY_STATISTICS if self.is_bound else Times.GROWTH_OF_ROUNDING
        growth *= 1 + Times.ONE_ELEMENT / self.size
        sums = Relative.LONG_SUMS if self.is_bound else 0.0
        least = [max(1.0, math.sqrt(length), sums / unit) for unit in units]
        relative = [*map(mul, self.errors, units)]
        for side, other in ((0, 1), (1, 0)):
            is_far = self.bulk[side] > growth * max(least[side], *inputs, self.errors[other])
            # Of two dtypes the finer one, whose roundings are smaller, shows nothing where it is nearer all the same.
            if is_far and relative[other] < min(Relative.NO_DIGIT, self.bulk[side] * units[side] / Times.SURELY):
                return _SIDES[side]
        are_far = all(self.bulk[side] > growth * max(least[side], inputs[side]) for side in (0, 1))
        return "both" if are_far and min(relative) > max(self.apart * growth, Relative.OTHER_COMPUTATION) else ""

    def other_input(self, units: Pair) -> Farther:
        """Which run gets another value than the exact one; "" where that is not clear."""
        is_other = [error > Times.GROWTH_OF_ROUNDING for error in self.errors]
        if all(is_other):
            nearest = min(map(mul, self.errors, units))
            return "both" if self.apart * Times.GROWTH_OF_ROUNDING < nearest else ""
        return next((_SIDES[side] for side in (0, 1) if is_other[side] and self.errors[1 - side] <= 1), "")


class ExactRun:
    """The exact run of one pair of dumps."""

    def __init__(self, pair: DumpComparison, path: Path, settings: ComparisonSettings) -> None:
        """Read the exact run at `path`. Raises DumpError."""
        self._pair = pair
        self._exact = DumpComparison(pair.target.path, path, replace(settings, noise=None))
        self._records = [held_run(dump).records for dump in (pair.target, pair.golden, self._exact.golden)]
        self._ways = _coarsest(pair.target, self._records[0]), _coarsest(pair.golden, self._records[1])
        operations = pair.target.operations
        self._backwards = {record.call: record.index for record in operations if record.phase == "backward"}
        self._first_backward = min(self._backwards.values(), default=len(operations))
        #: How far the values of a forward are off, which its backward uses.
        self._forwards: dict[str, Pair] = {}

    def errors(self, operation: Operation) -> RecordErrors | None:
        """How far a record is from the exact run; None where one of the three runs holds nothing of it."""
        partner = self._pair.matching.partners.get(operation.record)
        if operation.phase not in DIRECTIONS or (operation.holds_calls and self._pair.target.has_calls):
            return None
        if partner is None or operation.record not in self._exact.matching.partners:
            return self._by_content(operation)
        result = self._record(operation, partner.record)
        inputs, outputs = self._values(operation, result.units)
        before = _most(getattr(off, "errors", _UNKNOWN) for _, off in inputs)
        if not _is_forward(operation):
            before = _most((before, self._of_forward(operation)))
        else:
            self._forwards[operation.call] = _most((before, *(off.errors for off in outputs)))
        result = replace(result, inputs=before)
        is_before = operation.index < self._first_backward
        for leaf, off in inputs:
            other: Farther = off.other_input(result.units) if off is not None and is_before else ""
            if off is not None and other and not leaf.provenance.made_by:
                return replace(result, path=off.path, errors=off.errors, other_input=other)
        sizes = sorted((math.prod(leaf.shape) for leaf, _ in inputs), reverse=True)
        leaves = [off.leaves(before, result.units, _length(sizes, off.size)) for off in outputs]
        return _with_outputs(result, outputs, leaves)

    def _by_content(self, operation: Operation) -> RecordErrors | None:
        """How far values are off that the other runs hold somewhere, as equals: the record does not leave them."""
        result, outputs = None, list[_Off]()
        for target in self._outputs(0, operation.record):
            golden = self._partner(self._pair, 1, operation, target)
            exact = self._partner(self._exact, 2, operation, target)
            if golden is not None and exact is not None and exact.unit == _format("Float64")[0]:
                result = result or self._record(operation, golden.record)
                figures = _of_statistics((target, golden, exact)) if all(result.units) else None
                if (off := _off(target.path, target.size, figures, result.units)) is not None:
                    outputs.append(off)
        return _with_outputs(result, outputs, [""] * len(outputs)) if result is not None else None

    def _partner(self, pair: DumpComparison, side: int, operation: Operation, target: HeldValue) -> HeldValue | None:
        """The value of another run that is `target`, by its place or by what it holds."""
        if pair.content is not None:
            return pair.content.partner(target.name)
        partner = pair.matching.partners.get(operation.record)
        values = self._outputs(side, partner.record) if partner is not None else []
        return next((value for value in values if value.path == target.path), None)

    def _outputs(self, side: int, record: str) -> list[HeldValue]:
        held = self._records[side].get(record)
        return held.outputs if held is not None else []

    def _record(self, operation: Operation, golden: str) -> RecordErrors:
        """What is known of a record before its values are compared."""
        ways = self._ways[0].get(operation.record, _NO_FLOAT), self._ways[1].get(golden, _NO_FLOAT)
        dtypes, units = (ways[0][1], ways[1][1]), (ways[0][0], ways[1][0])
        return RecordErrors(operation.record, operation.index, dtypes, units, self._is_update(operation))

    def _is_update(self, operation: Operation) -> bool:
        if not _is_forward(operation) or operation.index < self._first_backward or operation.call in self._backwards:
            return False
        frames = self._pair.target.stacks.frames(operation.record)
        return not frames or any("optim" in frame.file for frame in frames)

    def _of_forward(self, operation: Operation) -> Pair:
        """How far the values of the forward of a backward are off."""
        if operation.call not in self._forwards:
            self._forwards[operation.call] = (0.0, 0.0)
            for other in self._pair.target.operations:
                if other.record == f"{operation.call}.forward":
                    self._forwards[operation.call] = _UNKNOWN
                    self.errors(other)
        return self._forwards[operation.call]

    def _values(self, operation: Operation, units: Pair) -> tuple[list[tuple[Leaf, _Off | None]], list[_Off]]:
        """The inputs of a record, None where one run does not hold it; the outputs that all three hold."""
        exact_of = {leaf.path: other for leaf, other in self._exact.pairs(operation)}
        inputs: list[tuple[Leaf, _Off | None]] = []
        outputs: list[_Off] = []
        for target, golden in self._pair.pairs(operation) if all(units) else ():
            exact = exact_of.get(target.path)
            off = None
            if golden is not None and exact is not None:
                off = self._off(operation, (target, golden, exact), units)
            if not target.is_output:
                if target.is_tensor:
                    inputs.append((target, off))
            elif off is not None and exact is not None and canonical_dtype(exact.dtype) in _EXACT:
                outputs.append(off)
        return inputs, outputs

    def _off(self, operation: Operation, leaves: Sequence[Leaf], units: Pair) -> _Off | None:
        """How far a value is off; None where that cannot be said."""
        size, tensors = math.prod(leaves[0].shape), [leaf.tensor for leaf in leaves]
        kinds = {tensor.dtype.kind for tensor in tensors if tensor is not None and tensor.dtype is not None}
        if None in tensors or len(kinds) != 1 or len({_long_axes(leaf.shape) for leaf in leaves}) > 1:
            return None
        is_bound = not all(map(attrgetter("data_name"), leaves))
        if not is_bound:
            figures = self._of_tensors(leaves, units)
        else:
            figures = _of_statistics([held_value(leaf, operation) for leaf in leaves])
            statistics = [leaf.statistics for leaf in leaves]
            if figures is None and (len({*statistics}) == 1 or not kinds & {"float", "complex"}):
                figures = _of_equality(statistics)
        return _off(leaves[0].path, size, figures, units, is_bound=is_bound)

    def _of_tensors(self, leaves: Sequence[Leaf], units: Pair) -> _Figures | None:
        """Figures of the tensors of a value; None where one cannot be read."""
        dumps = self._pair.target, self._pair.golden, self._exact.golden
        try:
            pairs = zip(dumps, leaves)
            arrays = [dump.tensors.load(leaf.tensor, leaf.place) for dump, leaf in pairs if leaf.tensor]
        except DumpError:
            return None
        return _of_arrays(arrays, units)


def _is_forward(operation: Operation) -> bool:
    return operation.phase == "forward"


def _long_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _off(path: str, size: int, figures: _Figures | None, units: Pair, *, is_bound: bool = True) -> _Off | None:
    """`figures` in roundings; None where they say nothing."""
    if figures is None or Relative.NO_VALUE < min(figures[0]) < math.inf:
        return None
    errors, bulk = ((pair[0] / units[0], pair[1] / units[1]) for pair in figures[:2])
    return _Off(path, errors, bulk, apart=figures[2], size=max(size, 1), is_bound=is_bound)


def _of_arrays(arrays: Sequence[npt.NDArray[Any]], units: Pair) -> _Figures | None:
    """Figures of the elements of a target, a golden and an exact value."""
    import numpy as np

    if arrays[0].dtype.kind in "biu" or not arrays[0].size:
        return _of_equality([array.astype(np.int64).tobytes() for array in arrays])
    kind = np.complex128 if arrays[0].dtype.kind == "c" else np.float64
    values = [array.astype(kind).ravel() for array in arrays]
    marks = [_marks(value) for value in values]
    inside = marks[2] == 0
    scale = float(np.linalg.norm(values[2][inside]))
    if scale == 0:
        figures = _of_equality([(mark.tobytes(), value[inside].tobytes()) for mark, value in zip(marks, values)])
        return figures if max(figures[0]) == 0 else None
    errors, bulk = [], []
    for value, mark, unit in zip(values, marks, units):
        if not np.array_equal(mark, marks[2]):
            errors.append(math.inf)
            bulk.append(math.inf)
            continue
        off = np.abs(value[inside] - values[2][inside])
        errors.append(float(np.linalg.norm(off)) / scale)
        bulk.append(_bulk(off, errors[-1], scale, unit))
    are_comparable = np.array_equal(marks[0], marks[1])
    apart = float(np.linalg.norm(values[0][inside] - values[1][inside])) / scale if are_comparable else math.inf
    return (errors[0], errors[1]), (bulk[0], bulk[1]), apart


def _marks(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Where elements mask others: 1 and -1 for what is huge, 2 for NaN, 0 elsewhere."""
    import numpy as np

    signs: npt.NDArray[Any] = np.where(np.abs(values) < Absolute.MASK, 0.0, np.sign(values.real))
    return np.nan_to_num(signs, copy=False, nan=2.0)


def _bulk(off: npt.NDArray[Any], error: float, scale: float, unit: float) -> float:
    """The relative error without the worst elements, as many as rounding lets fall to the other side of a step."""
    import numpy as np

    count = _FEW + math.ceil(Times.GROWTH_OF_ROUNDING * unit * off.size)
    if error <= Times.GROWTH_OF_ROUNDING * unit or off.size == 1:
        return error
    return float(np.linalg.norm(np.partition(off, -count)[:-count])) / scale if count < off.size else 0.0


def _of_statistics(values: Sequence[HeldValue | None]) -> _Figures | None:
    target, golden, exact = values
    if target is None or golden is None or exact is None or not exact.norm:
        return None
    if not (target.is_finite and golden.is_finite and exact.is_finite):
        return None
    errors = target.distance(exact), golden.distance(exact)
    return errors, errors, target.distance(golden)


def _of_equality(values: Sequence[object]) -> _Figures:
    """Figures of what is equal or not."""
    target, golden, exact = values
    errors = _apart(target, exact), _apart(golden, exact)
    return errors, errors, _apart(target, golden)


def _apart(value: object, other: object) -> float:
    return 0.0 if value == other else math.inf


def _most(pairs: Iterable[Pair]) -> Pair:
    """The largest of each side."""
    targets, goldens = zip((0.0, 0.0), *pairs)
    return max(targets), max(goldens)


def _length(inputs: Sequence[int], output: int) -> float:
    """About how many terms the sums of an operation have, by the sizes of its `inputs`, the largest first."""
    rows = inputs[0] / output if inputs else 1.0
    return max(1.0, rows, math.sqrt(inputs[0] * inputs[1] / output) if len(inputs) > 1 else 1.0)


def _with_outputs(result: RecordErrors, outputs: Sequence[_Off], leaves: Sequence[Farther]) -> RecordErrors | None:
    """`result` with the output that leaves the exact run, or is farthest off; None without any."""
    if not outputs:
        return None
    at = max(range(len(outputs)), key=lambda place: (leaves[place] != "", max(outputs[place].errors)))
    path, errors, is_bound = outputs[at].path, outputs[at].errors, any(map(attrgetter("is_bound"), outputs))
    return replace(result, path=path, errors=errors, values=len(outputs), is_bound=is_bound, leaves=leaves[at])


def _coarsest(dump: ComparedDump, records: Mapping[str, HeldRecord]) -> dict[str, _Format]:
    """The coarsest dtype on the way to each record; of a backward and what comes behind it, of all before it."""
    rounded = rounded_operands(dump.manifest) if dump.manifest is not None else {}
    formats, most, has_backward = dict[str, _Format](), _NO_FLOAT, False
    for operation in dump.operations:
        try:
            leaves = dump.leaves(operation.record)
        except DumpError:
            continue
        held = records.get(operation.record)
        sources = sources_of(held, records) if held is not None else []
        met = [_format(leaf.dtype) for leaf in leaves if leaf.tensor is not None]
        met += [formats.get(split_name(name)[0], _NO_FLOAT) for name in sources]
        coarsest = max(_NO_FLOAT, *met, *_of_operands(operation, rounded))
        most = max(most, coarsest)
        has_backward = has_backward or operation.phase == "backward"
        formats[operation.record] = most if has_backward or held is None else coarsest
    return formats


def _of_operands(operation: Operation, rounded: Mapping[str, str]) -> Iterator[_Format]:
    """Formats to which an operation rounds operands, as a run allows it."""
    if rounded:
        from pytest_msprobe.cases.second_runs import has_rounded_operands, operand_roundoff

        for kind, name in rounded.items():
            if has_rounded_operands(operation.bare, kind):
                yield operand_roundoff(name), name


@cache
def _format(dtype_name: str) -> _Format:
    dtype = find_dtype(dtype_name)
    elements = array_dtype(dtype) if dtype is not None and dtype.kind in ("float", "complex") else None
    return (unit_roundoff(elements), elements.name) if elements is not None else _NO_FLOAT


def exact_of(records: Iterable[RecordErrors]) -> Exact:
    """What the errors of the records of a run amount to."""
    ordered = sorted(records, key=lambda errors: errors.order)
    judged = [errors for errors in ordered if errors.values and not errors.is_update]
    others = list(filter(attrgetter("other_input"), ordered))
    together = [errors for errors in judged if errors.leaves == "both"]
    lasting = next((errors for errors in (*others, *together) if _lasts(errors, judged)), None)
    alone = next((errors for errors in judged if errors.leaves in _SIDES), None)
    if lasting is not None and not (alone is not None and alone.order < lasting.order):
        before = [errors for errors in judged if errors.order < lasting.order]
        if lasting.other_input:
            return _exact("other input", lasting.other_input, lasting, before)
        return _exact("together", "both", lasting, before)
    if alone is not None:
        return _exact("left", alone.leaves, alone, judged)
    shown = [errors for errors in judged if max(map(mul, errors.errors, errors.units)) < Relative.NO_DIGIT]
    if not shown:
        return Exact(kind="nothing")
    target = max(shown, key=lambda errors: errors.errors[0])
    golden = max(shown, key=lambda errors: errors.errors[1])
    most = target.errors[0], golden.errors[1]
    for side in (0, 1):
        limit = Times.FARTHEST_VALUES * max(1.0, most[1 - side])
        first = next((errors for errors in shown if errors.errors[side] > limit and _is_farther(errors, side)), None)
        if first is not None:
            return _exact("drifted", _SIDES[side], first, judged)
    if together:
        return _exact("alike", "", together[0], judged)
    dtypes = _coarser(judged, 0), _coarser(judged, 1)
    both = replace(target if most[0] >= most[1] else golden, errors=most, dtypes=dtypes)
    return _exact("near" if max(most) < Roundoffs.FAR else "alike", "", both, judged)


def _exact(kind: ExactKind, farther: Farther, errors: RecordErrors, judged: Sequence[RecordErrors]) -> Exact:
    target, golden, target_input, golden_input = map(_shown, (*errors.errors, *errors.inputs))
    return Exact(
        kind=kind,
        farther=farther,
        record=errors.record,
        value=errors.path,
        target=target,
        golden=golden,
        target_input=target_input,
        golden_input=golden_input,
        target_dtype=errors.dtypes[0],
        golden_dtype=errors.dtypes[1],
        judged=sum(map(attrgetter("values"), judged)),
        basis="statistics" if errors.is_bound else "tensors",
    )


def _shown(number: float) -> float | None:
    return float(f"{number:.4g}") if math.isfinite(number) else None


def _lasts(place: RecordErrors, judged: Sequence[RecordErrors]) -> bool:
    """Whether most of what comes behind a place is off as it is: what cancels is off by itself alone."""
    later = [errors.errors for errors in judged if errors.order >= place.order]
    if place.other_input in _SIDES:
        side = _SIDES.index(place.other_input)
        later = [(pair[side], pair[side]) for pair in later]
    return median([*map(min, later)] or [math.inf]) > Times.GROWTH_OF_ROUNDING


def _is_farther(errors: RecordErrors, side: int) -> bool:
    """Whether one side is farther off whatever its dtype allows: a finer one has smaller roundings."""
    relative: list[float] = [*map(mul, errors.errors, errors.units)]
    return relative[side] > Times.SURELY * relative[1 - side]


def _coarser(judged: Sequence[RecordErrors], side: int) -> str:
    return max((errors.units[side], errors.dtypes[side]) for errors in judged)[1]
