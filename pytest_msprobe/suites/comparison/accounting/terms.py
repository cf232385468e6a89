"""The difference of one output, split without remainder.

With the exact operation f in float64 as each side defines it, and the inputs of both sides::

    target - golden = [target - f_t(in_t)]          arises in the target
                    + [f_t(in_t) - f_t(in_g)]       inherited
                    + [f_t(in_g) - f_g(in_g)]       defined differently
                    + [f_g(in_g) - golden]          arises in the golden run

Equal keys of tensor content mean equal values, whatever the shape. Whether an incoming gradient is
the sum of the gradients of its uses is computed, since nothing records that addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import DumpError, TensorFolder
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.sketches import distance, merged
from pytest_msprobe.numerics.dtypes import float_format, kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS, chunks, is_same, unravelled, widened
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, PARTS, AccountStep, ValueKey
from pytest_msprobe.suites.comparison.figures import content_key
from pytest_msprobe.suites.comparison.sides import ComparedDump


def load(leaf: Leaf | None, folder: TensorFolder) -> npt.NDArray[Any] | None:
    """The values of a tensor; None where the dump holds none, or none that can be read."""
    if leaf is None or leaf.tensor is None or not leaf.data_name:
        return None
    try:
        return folder.load(leaf.tensor, leaf.place)
    except DumpError:
        return None


def content_of(leaf: Leaf | None, array: npt.NDArray[Any] | None) -> str:
    """The key of a tensor: of its values, else its checksum, else its statistics, marked by the first letter.

    "" where there is no tensor, or none that can be read.
    """
    if leaf is None or leaf.tensor is None:
        return ""
    if array is not None:
        return content_key(array)
    if leaf.md5:
        return f"m{leaf.md5}"
    if leaf.data_name or None in leaf.statistics:
        return ""
    return f"s{'x'.join(map(str, leaf.shape))}:{','.join(map(str, leaf.statistics))}"


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SumTerm:
    """One term of the sum.

    Attributes:
        size: its 2-norm over that of the golden output; inf where that is 0 and this is not, and for one of NaN or
            infinity.
        share: of the whole difference: its projection on it, so that the shares of all parts add up to 1. Where parts
            make NaN or infinity, each has its share of these elements, and what is finite beside them none.
        nonfinite: how many elements this term makes NaN or infinite, or another of these.
        weight: size over that of the whole, by the finite elements; inf for one of NaN or infinity, 0 for one of no
            size.
    """

    size: float
    share: float
    nonfinite: int = 0
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Terms:
    """The whole difference and its parts.

    Attributes:
        size: 2-norm of target - golden over that of golden.
        parts: by the names of `PARTS`.
        born: size of both born parts together: an error that both sides make alike is no part of the difference.
        is_of_another_value: whether both runs hold something else than the benchmark computes, about as far off.
        chain: the five arrays that the parts lie between.
    """

    size: float
    parts: Mapping[str, SumTerm]
    born: float
    is_of_another_value: bool
    chain: Sequence[Array]

    def is_own(self, name: str) -> bool:
        """Whether a born part is not mostly what the other side makes as well."""
        part = self.parts[name]
        return bool(part.nonfinite) or self.born >= part.size / 2

    def worst(self, name: str) -> tuple[int, ...] | None:
        """Index of the largest element of a part, one that it makes NaN or infinite first; None when it is zero."""
        place, largest, flat = PARTS.index(name), 0.0, None
        for start, chain in chunks(*self.chain):
            with np.errstate(all="ignore"):
                before, after = (widened(array) for array in chain[place : place + 2])
                magnitude = np.where(is_same(before, after), 0, np.nan_to_num(np.abs(before - after), nan=np.inf))
            at = int(magnitude.argmax())
            if magnitude[at] > largest:
                largest, flat = float(magnitude[at]), start + at
        return None if flat is None else unravelled(flat, self.chain[-1].shape)


def split(target: Array, from_target: Array, from_golden: Array, golden_reference: Array, golden: Array) -> Terms:
    """The terms of one output, from arrays of one shape.

    Args:
        target: recorded values of the target.
        from_target: f_t of the inputs of the target.
        from_golden: f_t of the inputs of the golden run.
        golden_reference: f_g of the inputs of the golden run.
        golden: recorded values of the golden run; the largest numbers of their dtype, which mask others, count for
            nothing in its norm.
    """
    chain = [np.asarray(array) for array in (target, from_target, from_golden, golden_reference, golden)]
    sums = _RunningSums(chain)
    for _, parts in chunks(*chain):
        sums.add(parts)
    return sums.terms(chain)


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """The largest finite number of a float dtype; infinity for others."""
    if dtype.kind in "iubc":
        return math.inf
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # ml_dtypes is half typed


def _whole(chain: Sequence[Array]) -> Array:
    """Five arrays as rows, with 0 for elements that are not finite in all of them."""
    rows = np.stack(chain)
    return np.where(np.isfinite(rows).all(axis=0), rows, 0)


class _RunningSums:
    """Running sums over chunks of the chain.

    Each chunk is subtracted into the rows of one buffer. What is not finite, or masks others, shows in the squares, and
    only then is it looked for.
    """

    def __init__(self, chain: Sequence[Array]) -> None:
        is_complex = "c" in {array.dtype.kind for array in chain}
        wide = np.complex128 if is_complex else np.float64
        # The four parts, the whole, both born parts together, target and golden.
        self._rows = np.empty((len(PARTS) + 4, min(chain[0].size, CHUNK_ELEMENTS)), wide)
        # The smallest number of a dtype masks elements; beside it all others have no size.
        self._sentinel = _largest(chain[-1].dtype) / 2
        self.squares = np.zeros(len(self._rows))
        self.projections = np.zeros(len(PARTS))
        self.nonfinite = [0] * len(PARTS)

    def add(self, chain: Sequence[Array]) -> None:
        """Adds a chunk of all five arrays."""
        with np.errstate(all="ignore"):
            rows = self._rows[:, : chain[0].size]
            rows[-2:] = chain[0], chain[-1]
            middle = (array.astype(rows.dtype, copy=False) for array in chain[1:-1])
            wide = (rows[-2], *middle, rows[-1])
            squares = _squared(rows, wide)
            *others, target, golden = squares.tolist()
            if not (sum(others) < math.inf and max(target, golden) < self._sentinel * self._sentinel):
                squares = self._squared_again(rows, wide)
            # Complex numbers as their two parts, and no BLAS, whose threads fight with those of the engines.
            numbers = rows.view(np.float64)
            self.squares += squares
            self.projections += np.einsum("ij,j->i", numbers[: len(PARTS)], numbers[len(PARTS)])

    def _squared_again(self, rows: Array, wide: Sequence[Array]) -> Array:
        """The same of elements that are finite throughout, target and golden without what masks others."""
        finite = np.isfinite(wide)
        for place, (before, after) in enumerate(pairwise(wide)):
            changed = ~is_same(before, after) & ~(finite[place] & finite[place + 1])
            self.nonfinite[place] += int(np.count_nonzero(changed))
        chain = _whole(wide)
        rows[-2:] = np.where(np.abs(chain[[0, -1]]) < self._sentinel, chain[[0, -1]], 0)
        return _squared(rows, tuple(chain))

    def terms(self, chain: Sequence[Array]) -> Terms:
        """What the sums of all chunks of `chain` amount to."""
        whole_size, born_size, target, golden = map(math.sqrt, self.squares[len(PARTS) :].tolist())
        whole = _over(whole_size, golden)
        parts = {name: self._part(place, whole, golden) for place, name in enumerate(PARTS)}
        size = math.inf if any(self.nonfinite) else whole
        # How far each run is off, by its own size.
        mine, theirs = parts[BORN_TARGET], parts[BORN_GOLDEN]
        far = [0.0 if part.nonfinite else part.size for part in (mine, theirs)]
        if far[0]:
            far[0] *= _over(golden, target)
        is_of_another_value = min(far) >= Relative.NO_ROUNDING and max(far) < Times.ALIKE * min(far)
        return Terms(size, parts, _over(born_size, golden), is_of_another_value, chain)

    def _part(self, place: int, whole: float, norm: float) -> SumTerm:
        nonfinite, all_nonfinite = self.nonfinite[place], sum(self.nonfinite)
        square = float(self.squares[len(PARTS)])
        share = float(self.projections[place]) / square if square else 0.0
        if all_nonfinite:
            share = nonfinite / all_nonfinite
        if nonfinite:
            return SumTerm(math.inf, share, nonfinite, math.inf)
        size = _over(math.sqrt(float(self.squares[place])), norm)
        weight = size / whole if 0 < whole < math.inf else math.inf
        return SumTerm(size, share, 0, weight if size else 0.0)


def _squared(rows: Array, chain: Sequence[Array]) -> Array:
    """The sums of squares of all rows, once these hold the differences of `chain`; the last two are as they are."""
    for row, (before, after) in zip(rows, pairwise(chain)):
        np.subtract(before, after, out=row)
    np.subtract(chain[0], chain[-1], out=rows[len(PARTS)])
    np.add(rows[0], rows[len(PARTS) - 1], out=rows[len(PARTS) + 1])
    numbers = rows.view(np.float64)
    sums: Array = np.einsum("ij,ij->i", numbers, numbers)
    return sums


def _over(size: float, norm: float) -> float:
    if size == 0:
        return 0.0
    return size / norm if norm > 0 else math.inf


def is_sum(whole: Array, parts: Sequence[Array]) -> bool | None:
    """Whether `parts` add up to `whole` within the rounding of the coarsest dtype among them, element by element.

    They may be added in any order, with a rounding after each addition and each cast. A part of other shape has its
    elements in the same order, or is a transposed matrix. None where sizes differ, there are integers, or the sum is
    off by up to 8 times what rounding explains.
    """
    arrays = (whole, *parts)
    if any(array.size != whole.size or kind_of(array.dtype) != "float" for array in arrays):
        return None
    dtypes = {array.dtype for array in arrays}
    unit = max(map(unit_roundoff, dtypes)) * (len(parts) + 1)
    tiny = max(float_format(dtype).smallest_normal for dtype in dtypes)
    largest = min(float_format(dtype).largest for dtype in dtypes)
    worst = 0.0
    for _, (total, *terms) in chunks(whole, *(_oriented(part, whole.shape) for part in parts)):
        worst = max(worst, _excess(total, [widened(term) for term in terms], unit, tiny, largest))
        if worst > Times.OTHER_SUM:
            return False
    return True if worst <= 1 else None


def _excess(whole: Array, terms: Sequence[Array], unit: float, tiny: float, largest: float) -> float:
    """How many times the rounding of a sum its largest error is; inf where a NaN or infinity has no reason."""
    with np.errstate(all="ignore"):
        exact = np.sum(terms, axis=0)
        scale = np.sum(np.abs(terms), axis=0)
        same = is_same(whole.astype(np.float64), exact) | ((scale > largest) & ~np.isfinite(whole))
        error = np.where(same, 0, np.abs(whole.astype(np.float64) - exact) / (unit * scale + tiny))
    return float(np.where(np.isnan(error), np.inf, error).max())


def _oriented(part: Array, shape: tuple[int, ...]) -> Array:
    """The part, transposed where it is a matrix whose lengths are those of `shape` the other way round."""
    mine = [length for length in part.shape if length > 1]
    other = [length for length in shape if length > 1]
    return part.reshape(mine).T if len(mine) == 2 and mine != other and mine[::-1] == other else part


def is_wrong_sum(
    sides: tuple[ComparedDump, ComparedDump], step: AccountStep, key: ValueKey, sources: Sequence[_Value]
) -> bool | None:
    """Whether `sources` are shown to add up to the incoming gradient on one of the two sides and not on the other.

    None where that cannot be shown of one side, or they add up on neither.
    """
    is_sum_of = [_adds_up(side, (step, key), sources, is_golden=side is sides[1]) for side in sides]
    return None if None in is_sum_of or not any(is_sum_of) else is_sum_of[0] != is_sum_of[1]


#: A value of a record.
_Value: TypeAlias = tuple[AccountStep, ValueKey]


def _adds_up(side: ComparedDump, whole: _Value, sources: Sequence[_Value], *, is_golden: bool) -> bool | None:
    leaves = [_leaf(side, source, value, is_golden=is_golden) for source, value in (whole, *sources)]
    step, key = whole
    if not sources or None in leaves:
        return None
    if step.account.basis == "sketches":
        return _sketches_add_up(side, list(filter(None, leaves)), max(key.limits))
    arrays = [array for leaf in leaves if (array := load(leaf, side.tensors)) is not None]
    return is_sum(arrays[0], arrays[1:]) if len(arrays) == len(leaves) else None


def _sketches_add_up(side: ComparedDump, leaves: list[Leaf], limit: float) -> bool | None:
    """Whether the first value is the sum of the others by their sketches; None in between, and where they lack."""
    try:
        whole, *parts = filter(None, map(side.sketch, leaves))
        apart = distance(merged(parts, None), whole)
    except (DumpError, ValueError):
        return None
    if len(parts) + 1 < len(leaves):
        return None
    share = apart.value / max(sum(part.norm for part in parts), whole.norm, apart.resolution)
    if share <= limit:
        return True
    return False if share > Times.NO_SUM_OF_SKETCHES * limit else None


def _leaf(side: ComparedDump, step: AccountStep, key: ValueKey, *, is_golden: bool) -> Leaf | None:
    record = step.account.partner if is_golden else step.record
    leaves = side.leaves(record) if record in side else []
    return next((leaf for leaf in leaves if leaf.path == key.path), None)
