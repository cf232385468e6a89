"""Which of two runs is nearer to a third one, the same step in float64.

How far a value is off, |x - exact| / |exact| in the 2-norm, is counted in *roundings*: in units of the roundoff of the
coarsest dtype on the way to it. A run *leaves* the exact run at a record whose output is many times farther off than
what went in, and than the same output of the other run: that one has the same operation, so that what cancels, or sums
up long rows, is far off in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DIRECTIONS, DumpError, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import array_dtype
from pytest_msprobe.answers import Exact, ExactKind, Farther, Place
from pytest_msprobe.manifests.rounded_operands import rounded_operands
from pytest_msprobe.numerics import unit_roundoff
from pytest_msprobe.suites.comparison.content.regions import sources_of
from pytest_msprobe.suites.comparison.content.values import HeldValue, held_records, held_value, split_name
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.sides import ComparedDump, find_files
from pytest_msprobe.verdicts import FigureWire

if TYPE_CHECKING:
    import numpy.typing as npt

#: Key of `RecordErrors` in the attachment of a row.
EXACT = "exact"
#: So many times as far off as what it is made of, and as the other run, a value may be; more by statistics, which show
#: less than the difference.
_GROWTH, _OF_STATISTICS = 8.0, 64.0
#: Values of few elements may be near by chance: of one element so many times as much.
_OF_ONE = 16
#: What statistics, sums of thousands of terms in float32, may be off by themselves.
_LONG_SUMS = 50 * 2.0**-24
#: So many times farther off is not chance.
_SURELY = 2.0
#: From this relative error on a value has no digit of the exact one, and shows nothing of the other run.
_NO_DIGIT = 0.1
#: Elements that may be anything: what is next to a step of a function falls to either side of it.
_FEW = 2
_EXACT = ("Float64", "Complex128")
_SIDES: tuple[Farther, Farther] = ("target", "golden")

#: Of the target, of the golden run.
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RecordErrors(FigureWire):
    """How far the output of a record that is farthest off is from the exact run.

    Attributes:
        record: of the target.
        order: its place in the order of execution.
        path: of the output, or of the other input.
        errors: roundings that it is off, in the target and in the golden run.
        inputs: the most roundings that anything is off that goes in.
        dtypes: the coarsest on the way.
        units: their roundoff.
        values: number of outputs that were compared.
        is_bound: whether only statistics were.
        leaves: which run leaves the exact one here.
        other_input: which run gets another input than the exact one, which no call made: its parameter or batch.
        is_update: whether it comes behind the gradients.
    """

    record: str
    order: int
    path: str = ""
    errors: Pair = (0.0, 0.0)
    inputs: Pair = (0.0, 0.0)
    dtypes: tuple[str, str] = ("", "")
    units: Pair = (0.0, 0.0)
    values: int = 0
    is_bound: bool = False
    leaves: Farther = ""
    other_input: Farther = ""
    is_update: bool = False


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
    is_bound: bool = False

    def leaves(self, inputs: Pair, units: Pair, length: float) -> Farther:
        """Which run leaves the exact one, `inputs` being off so far, with sums of `length` terms."""
        growth = (_OF_STATISTICS if self.is_bound else _GROWTH) * (1 + _OF_ONE / self.size)
        least = [max(1.0, math.sqrt(length), _LONG_SUMS / unit if self.is_bound else 0.0) for unit in units]
        relative = [error * unit for error, unit in zip(self.errors, units)]
        for side, other in ((0, 1), (1, 0)):
            is_far = self.bulk[side] > growth * max(least[side], *inputs, self.errors[other])
            # Of two dtypes the finer one, whose roundings are smaller, shows nothing where it is nearer all the same.
            if is_far and relative[other] < min(_NO_DIGIT, self.bulk[side] * units[side] / _SURELY):
                return _SIDES[side]
        are_far = all(self.bulk[side] > growth * max(least[side], inputs[side]) for side in (0, 1))
        return "both" if are_far and self.apart * growth < min(relative) else ""


    def other_input(self, units: Pair) -> Farther:
        """Which run gets another value than the exact one, where neither or the other one does."""
        is_other = [error > _GROWTH for error in self.errors]
        if all(is_other):
            nearest = min(error * unit for error, unit in zip(self.errors, units))
            return "both" if self.apart * _GROWTH < nearest else ""
        for side, other in ((0, 1), (1, 0)):
            if is_other[side] and self.errors[other] <= 1:
                return _SIDES[side]
        return ""


def why_not_exact(root: Path) -> str:
    """Why the dumps at `root` are no exact run; "" where they may be. Raises OSError."""
    paths = find_files(root)
    if not paths:
        return "holds no dump.json; give a dump, step or rank folder"
    if b"float64" in paths[0].read_bytes().lower():
        return ""
    return "computes nothing in float64; make it by python -m msprobe_collector collect --dtype=float64 SCRIPT"


class ExactRun:
    """The exact run of one pair of dumps."""

    def __init__(self, pair: DumpComparison, path: Path, settings: ComparisonSettings) -> None:
        """Read the exact run at `path`. Raises DumpError."""
        self._pair = pair
        self._exact = DumpComparison(pair.target.path, path, replace(settings, noise=None))
        self._ways = _coarsest(pair.target), _coarsest(pair.golden)
        backwards = (one.index for one in pair.target.operations if one.phase == "backward")
        self._last_backward = max(backwards, default=len(pair.target.operations))
        #: How far the values of a forward are off, which its backward uses.
        self._forwards: dict[str, Pair] = {}

    def errors(self, operation: Operation) -> RecordErrors | None:
        """How far a record is from the exact run; None where one of the three runs does not hold it."""
        partner = self._pair.matching.partners.get(operation.record)
        if partner is None or operation.phase not in DIRECTIONS:
            return None
        ways = self._ways[0].get(operation.record, _NO_FLOAT), self._ways[1].get(partner.record, _NO_FLOAT)
        units = ways[0][0], ways[1][0]
        if not all(units):
            return None
        inputs, outputs = self._values(operation, units)
        before = _most(off.errors for _, off in inputs)
        if operation.phase == "backward":
            before = _most((before, self._of_forward(operation)))
        elif operation.phase == "forward":
            self._forwards[operation.call] = _most((before, *(off.errors for _, off in outputs)))
        result = RecordErrors(
            operation.record,
            operation.index,
            inputs=before,
            dtypes=(ways[0][1], ways[1][1]),
            units=units,
            is_update=operation.index > self._last_backward,
        )
        for leaf, off in inputs:
            if (other := off.other_input(units)) and not leaf.provenance.made_by:
                return replace(result, path=off.path, errors=off.errors, other_input=other)
        if not outputs:
            return None
        sizes = sorted((off.size for _, off in inputs), reverse=True)
        worst, leaves = max(
            ((off, off.leaves(before, units, _length(sizes, off.size))) for _, off in outputs),
            key=lambda judged: (judged[1] != "", max(judged[0].errors)),
        )
        return replace(
            result,
            path=worst.path,
            errors=worst.errors,
            values=len(outputs),
            is_bound=any(off.is_bound for _, off in outputs),
            leaves=leaves,
        )

    def _of_forward(self, operation: Operation) -> Pair:
        """How far the values of the forward of a backward are off."""
        if operation.call not in self._forwards:
            record = f"{operation.call}.forward"
            forward = next((other for other in self._pair.target.operations if other.record == record), None)
            if forward is not None:
                self.errors(forward)
        return self._forwards.get(operation.call, (0.0, 0.0))

    def _values(self, operation: Operation, units: Pair) -> tuple[list[tuple[Leaf, _Off]], list[tuple[Leaf, _Off]]]:
        """Inputs and outputs of a record that all three runs hold."""
        exact = {leaf.path: other for leaf, other in self._exact.pairs(operation)}
        inputs, outputs = [], []
        for target, golden in self._pair.pairs(operation):
            other = exact.get(target.path)
            off = self._off(operation, (target, golden, other), units) if other is not None else None
            if off is None:
                continue
            if not target.is_output:
                inputs.append((target, off))
            elif canonical_dtype(exact[target.path].dtype) in _EXACT:
                outputs.append((target, off))
        return inputs, outputs

    def _off(self, operation: Operation, leaves: Sequence[Leaf], units: Pair) -> _Off | None:
        """How far a value is off; None where that cannot be said."""
        size, tensors = math.prod(leaves[0].shape), [leaf.tensor for leaf in leaves]
        kinds = {tensor.dtype.kind for tensor in tensors if tensor is not None and tensor.dtype is not None}
        shapes = {tuple(length for length in leaf.shape if length != 1) for leaf in leaves}
        if not size or None in tensors or len(kinds) > 1 or len(shapes) > 1:
            return None
        is_bound = not all(leaf.data_name for leaf in leaves)
        if not is_bound:
            dumps = self._pair.target, self._pair.golden, self._exact.golden
            try:
                arrays = [dump.tensors.load(leaf.tensor, leaf.place) for dump, leaf in zip(dumps, leaves) if leaf.tensor]
            except DumpError:
                return None
            figures = _of_arrays(arrays, units)
        elif kinds & {"float", "complex"}:
            figures = _of_statistics([held_value(operation, leaf) for leaf in leaves])
        else:
            figures = _of_equality(leaves, lambda one, other: one.statistics == other.statistics)
        if figures is None:
            return None
        errors, bulk, apart = figures
        return _Off(
            leaves[0].path,
            (errors[0] / units[0], errors[1] / units[1]),
            (bulk[0] / units[0], bulk[1] / units[1]),
            apart,
            size,
            is_bound,
        )


#: Relative errors of both runs, the same without the few worst elements, and the distance of both.
_Figures = tuple[Pair, Pair, float]


def _of_arrays(arrays: Sequence[npt.NDArray[Any]], units: Pair) -> _Figures | None:
    import numpy as np

    if arrays[0].dtype.kind in "biu":
        return _of_equality(arrays, lambda one, other: np.array_equal(one.ravel(), other.ravel()))
    kind = np.complex128 if arrays[0].dtype.kind == "c" else np.float64
    target, golden, exact = (array.astype(kind).ravel() for array in arrays)
    scale = float(np.linalg.norm(exact))
    if not 0 < scale < math.inf:
        return None
    with np.errstate(all="ignore"):
        off = [np.abs(side - exact) for side in (target, golden)]
        errors = [_finite(float(np.linalg.norm(side)) / scale) for side in off]
        apart = _finite(float(np.linalg.norm(target - golden)) / scale)
    bulk = [_bulk(side, error, scale, unit) for side, error, unit in zip(off, errors, units)]
    return (errors[0], errors[1]), (bulk[0], bulk[1]), apart


def _bulk(off: npt.NDArray[Any], error: float, scale: float, unit: float) -> float:
    """The relative error without the worst elements; as many as rounding lets fall to the other side of a step."""
    import numpy as np

    count = _FEW + math.ceil(_GROWTH * unit * off.size)
    if error <= _GROWTH * unit or math.isinf(error):
        return error
    if count >= off.size:
        return error if off.size == 1 else 0.0
    return float(np.linalg.norm(np.partition(off, off.size - count)[: off.size - count])) / scale


def _of_statistics(values: Sequence[HeldValue | None]) -> _Figures | None:
    target, golden, exact = values
    if target is None or golden is None or exact is None or not exact.norm:
        return None
    errors = target.distance(exact), golden.distance(exact)
    return errors, errors, target.distance(golden)


def _of_equality(values: Sequence[Any], are_equal: Callable[[Any, Any], bool]) -> _Figures:
    """Figures of whole numbers, which are equal or not."""
    target, golden, exact = values
    errors = (0.0 if are_equal(target, exact) else math.inf), (0.0 if are_equal(golden, exact) else math.inf)
    return errors, errors, (0.0 if are_equal(target, golden) else math.inf)


def _finite(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _most(pairs: Iterable[Pair]) -> Pair:
    """The largest of each side."""
    targets, goldens = zip((0.0, 0.0), *pairs)
    return max(targets), max(goldens)


def _length(inputs: Sequence[int], output: int) -> float:
    """About how many terms the sums of an operation have, by the sizes of its `inputs`, the largest first."""
    rows = inputs[0] / output if inputs else 1.0
    return max(1.0, rows, math.sqrt(inputs[0] * inputs[1] / output) if len(inputs) > 1 else 1.0)


#: Roundoff and name of a dtype.
_Format = tuple[float, str]
_NO_FLOAT: _Format = (0.0, "")


def _coarsest(dump: ComparedDump) -> dict[str, _Format]:
    """The coarsest dtype on the way to each record; of a backward and what comes behind it, of all before it."""
    rounded = rounded_operands(dump.manifest) if dump.manifest is not None else {}
    records, formats, most, is_forward = held_records(dump), dict[str, _Format](), _NO_FLOAT, True
    for operation in dump.operations:
        try:
            leaves = dump.leaves(operation.record)
        except DumpError:
            continue
        held = records.get(operation.record)
        sources = sources_of(held, records) if held is not None else []
        coarsest = max(
            _NO_FLOAT,
            *(_format(leaf.dtype) for leaf in leaves if leaf.tensor is not None),
            *(formats.get(split_name(name)[0], _NO_FLOAT) for name in sources),
            *_of_operands(operation, rounded),
        )
        most = max(most, coarsest)
        is_forward = is_forward and operation.phase != "backward"
        formats[operation.record] = coarsest if is_forward and held is not None else most
    return formats


def _of_operands(operation: Operation, rounded: Mapping[str, str]) -> list[_Format]:
    if not rounded:
        return []
    from pytest_msprobe.cases.second_runs import has_rounded_operands, operand_roundoff

    return [(operand_roundoff(name), name) for kind, name in rounded.items() if has_rounded_operands(operation.bare, kind)]


@cache
def _format(dtype_name: str) -> _Format:
    dtype = find_dtype(dtype_name)
    elements = array_dtype(dtype) if dtype is not None and dtype.kind in ("float", "complex") else None
    return (unit_roundoff(elements), elements.name) if elements is not None else _NO_FLOAT


def exact_of(records: Iterable[RecordErrors]) -> Exact:
    """What the errors of the records of a run amount to."""
    ordered = sorted(records, key=lambda errors: errors.order)
    judged = [errors for errors in ordered if errors.values]
    together = [errors for errors in ordered if errors.other_input or (errors.leaves == "both" and not errors.is_update)]
    alone = next((errors for errors in judged if errors.leaves in _SIDES), None)
    lasting = next((errors for errors in together if _lasts(errors, judged)), None)
    if lasting is not None and not (alone is not None and alone.order < lasting.order):
        before = [errors for errors in judged if errors.order < lasting.order]
        return _exact(*(("other input", lasting.other_input) if lasting.other_input else ("together", "both")), lasting, before)
    if alone is not None:
        return _exact("left", alone.leaves, alone, judged)
    shown = [errors for errors in judged if _has_digits(errors) and not errors.is_update]
    if not shown:
        return Exact(kind="nothing")
    if together:
        return _exact("alike", "", together[0], judged)
    target, golden = (max(shown, key=lambda errors, side=side: errors.errors[side]) for side in (0, 1))
    for farther, most, least in ((_SIDES[0], target, golden.errors[1]), (_SIDES[1], golden, target.errors[0])):
        side = _SIDES.index(farther)
        if most.errors[side] > _GROWTH * max(1.0, least):
            return _exact("drifted", farther, most, judged)
    both = replace(
        target if target.errors[0] >= golden.errors[1] else golden,
        errors=(target.errors[0], golden.errors[1]),
        dtypes=(_coarser(judged, 0), _coarser(judged, 1)),
    )
    return _exact("near", "", both, judged)


def _exact(kind: ExactKind, farther: Farther, errors: RecordErrors, judged: Sequence[RecordErrors]) -> Exact:
    operation = Operation.of(errors.record, errors.order)
    return Exact(
        kind=kind,
        farther=farther,
        place=Place(
            record=errors.record, operation=operation.call, directions=(operation.phase,), value=errors.path
        ),
        target=_shown(errors.errors[0]),
        golden=_shown(errors.errors[1]),
        target_input=_shown(errors.inputs[0]),
        golden_input=_shown(errors.inputs[1]),
        target_dtype=errors.dtypes[0],
        golden_dtype=errors.dtypes[1],
        judged=sum(record.values for record in judged),
        basis="statistics" if errors.is_bound else "tensors",
    )


def _shown(number: float) -> float | None:
    return float(f"{number:.4g}") if math.isfinite(number) else None


def _lasts(place: RecordErrors, judged: Sequence[RecordErrors]) -> bool:
    """Whether most of what comes behind a place is off as it is: what cancels is off by itself alone."""
    sides = [side for side, name in enumerate(_SIDES) if place.other_input in ("", "both", name)]
    later = [errors for errors in judged if errors.order >= place.order and not errors.is_update]
    return median([min(errors.errors[side] for side in sides) for errors in later] or [math.inf]) > _GROWTH


def _has_digits(errors: RecordErrors) -> bool:
    return all(error * unit < _NO_DIGIT for error, unit in zip(errors.errors, errors.units))


def _coarser(judged: Sequence[RecordErrors], side: int) -> str:
    return max((errors.units[side], errors.dtypes[side]) for errors in judged)[1]
