"""Keys of tensor content: equal keys mean equal values, whatever the shape.

The difference of one output, split without remainder.

With the exact operation f in float64 as each side defines it, and the inputs of both sides::

    target - golden = [target - f_t(in_t)]          born in the target
                    + [f_t(in_t) - f_t(in_g)]       inherited
                    + [f_t(in_g) - f_g(in_g)]       defined differently
                    + [f_g(in_g) - golden]          born in the golden run

Whether an incoming gradient is the sum of the gradients of its uses: nothing records that addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import DumpError, TensorFolder
from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.dtypes import float_format, kind_of, unit_roundoff
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS, chunks, is_same, unravelled
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, PARTS, Step, ValueKey
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
    if leaf.data_name or any(number is None for number in leaf.statistics):
        return ""
    return f"s{'x'.join(map(str, leaf.shape))}:{','.join(map(str, leaf.statistics))}"


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One term of the sum.

    Attributes:
        size: its 2-norm over that of the golden output; inf where that is 0 and this is not.
        share: of the whole difference: its projection on it, so that the shares of all parts add up to 1.
        worst: index of its largest element; None when it is zero.
        value: that element.
        nonfinite: how many elements this term makes NaN or infinite, or another of these; not in the figures above.
        weight: size over that of the whole; inf for one of NaN or infinity, 0 for one of no size.
    """

    size: float
    share: float
    worst: tuple[int, ...] | None
    value: float
    nonfinite: int = 0
    weight: float = 0.0


#: From this relative size on a difference from the benchmark is no rounding, and two are alike up to this factor.
_FAR, _ALIKE = 0.02, 4


@dataclass(frozen=True, slots=True)
class Terms:
    """The whole difference and its parts.

    Attributes:
        size: 2-norm of target - golden over that of golden.
        parts: by the names of `PARTS`.
        born: size of both born parts together: an error that both sides make alike is no part of the difference.
        is_of_another_value: whether both runs hold something else than the benchmark computes, about as far off.
    """

    size: float
    parts: Mapping[str, Part]
    born: float
    is_of_another_value: bool = False

    def is_own(self, name: str) -> bool:
        """Whether a born part is not mostly what the other side makes as well."""
        part = self.parts[name]
        return bool(part.nonfinite) or self.born >= part.size / 2


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
    chain = [np.asarray(array).reshape(-1) for array in (target, from_target, from_golden, golden_reference, golden)]
    wide = np.complex128 if any(array.dtype.kind == "c" for array in chain) else np.float64
    sums = _Sums(sentinel=_largest(golden.dtype) / 2)
    for start in range(0, chain[0].size, CHUNK_ELEMENTS):
        sums.add(start, np.stack([array[start : start + CHUNK_ELEMENTS].astype(wide) for array in chain]))
    return sums.terms(np.asarray(golden).shape)


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """The largest finite number of a float dtype; infinity for others."""
    if dtype.kind in "iubc":
        return math.inf
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # ml_dtypes is half typed


class _Sums:
    """Running sums over chunks."""

    def __init__(self, *, sentinel: float) -> None:
        self._sentinel = sentinel
        self.golden = self.target = self.whole = self.born = 0.0
        self.squares = np.zeros(len(PARTS))
        self.projections = np.zeros(len(PARTS))
        self.worst: list[tuple[float, int, float]] = [(0.0, -1, 0.0)] * len(PARTS)
        self.nonfinite = [0] * len(PARTS)

    def add(self, start: int, chain: Array) -> None:
        """Adds a chunk of all five arrays, one per row."""
        with np.errstate(all="ignore"):
            finite = np.isfinite(chain)
            is_whole = finite.all(axis=0)
            if not is_whole.all():
                for place, (left, right) in enumerate(pairwise(chain)):
                    changed = ~is_same(left, right) & ~(finite[place] & finite[place + 1])
                    self.nonfinite[place] += int(np.count_nonzero(changed))
                chain = np.where(is_whole, chain, 0)
            parts, whole = chain[:-1] - chain[1:], chain[0] - chain[-1]
            # The smallest number of a dtype masks elements; beside it all others have no size.
            ordinary = np.where(np.abs(chain[[0, -1]]) < self._sentinel, chain[[0, -1]], 0)
            # Complex numbers as their two parts, and no BLAS, whose threads fight with those of the engines.
            rows = np.stack([*parts, whole, parts[0] + parts[-1], *ordinary]).view(np.float64)
            *squares, whole_square, born, target, golden = np.einsum("ij,ij->i", rows, rows)
            self.squares += squares
            self.whole += float(whole_square)
            self.born += float(born)
            self.target += float(target)
            self.golden += float(golden)
            self.projections += np.einsum("ij,j->i", rows[: len(parts)], rows[len(parts)])
            for place, part in enumerate(parts):
                at = int(np.abs(part).argmax())
                if abs(part[at]) > self.worst[place][0]:
                    self.worst[place] = (float(abs(part[at])), start + at, float(part[at].real))

    def terms(self, shape: tuple[int, ...]) -> Terms:
        norm = math.sqrt(self.golden)
        whole = _over(math.sqrt(self.whole), norm)
        parts = {name: self._part(place, whole, shape) for place, name in enumerate(PARTS)}
        born, ends = _over(math.sqrt(self.born), norm), (parts[BORN_TARGET], parts[BORN_GOLDEN])
        # How far each run is off, by its own size.
        scale = _over(norm, math.sqrt(self.target))
        sizes = ends[0].size * scale if ends[0].size else 0.0, ends[1].size
        least, most = sorted(0.0 if end.nonfinite else size for end, size in zip(ends, sizes))
        return Terms(whole, parts, born, least >= _FAR and most < _ALIKE * least)

    def _part(self, place: int, whole: float, shape: tuple[int, ...]) -> Part:
        size, nonfinite = _over(math.sqrt(float(self.squares[place])), math.sqrt(self.golden)), self.nonfinite[place]
        share = float(self.projections[place]) / self.whole if self.whole else 0.0
        _, at, value = self.worst[place]
        worst = None if at < 0 else unravelled(at, shape)
        known = size / whole if 0 < whole < math.inf else math.inf
        weight = math.inf if nonfinite else known if size else 0.0
        return Part(size, share, worst, value, nonfinite, weight)


def _over(size: float, norm: float) -> float:
    if size == 0:
        return 0.0
    return size / norm if norm > 0 else math.inf


#: A sum that is farther off than this many times what rounding explains is another one; in between neither is shown.
_ANOTHER = 8.0


def is_sum(whole: Array, parts: Sequence[Array]) -> bool | None:
    """Whether `parts` add up to `whole` within the rounding of the coarsest dtype among them, element by element.

    They may be added in any order, with a rounding after each addition and each cast. A part of other shape has its
    elements in the same order, or is a transposed matrix. None where sizes differ, there are integers, or the sum is
    off by up to 8 times what rounding explains.
    """
    arrays = (whole, *parts)
    if any(part.size != whole.size or kind_of(array.dtype) != "float" for part in parts for array in (part, whole)):
        return None
    formats = [float_format(array.dtype) for array in arrays]
    unit = max(unit_roundoff(array.dtype) for array in arrays) * (len(parts) + 1)
    tiny = max(known.smallest_normal for known in formats)
    largest = min(known.largest for known in formats)
    worst = 0.0
    for _, (total, *terms) in chunks(whole, *(_oriented(part, whole.shape) for part in parts)):
        worst = max(worst, _excess(total, [term.astype(np.float64) for term in terms], unit, tiny, largest))
        if worst > _ANOTHER:
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
    mine, other = ([length for length in lengths if length > 1] for lengths in (part.shape, shape))
    return part.reshape(mine).T if len(mine) == 2 and mine != other and mine[::-1] == other else part


def is_wrong_sum(
    sides: tuple[ComparedDump, ComparedDump], step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]
) -> bool | None:
    """Whether `sources` are shown to add up to the incoming gradient on one of the two sides and not on the other.

    None where that cannot be shown of one side, or they add up on neither.
    """
    found = [_adds_up(side, step, key, sources, is_golden=side is sides[1]) for side in sides]
    return None if None in found or not any(found) else found[0] != found[1]


def _adds_up(
    side: ComparedDump, step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]], *, is_golden: bool
) -> bool | None:
    values = ((step, key), *sources)
    arrays = [_values(side, source, value, is_golden=is_golden) for source, value in values]
    known = [array for array in arrays if array is not None]
    return is_sum(known[0], known[1:]) if sources and len(known) == len(arrays) else None


def _values(side: ComparedDump, step: Step, key: ValueKey, *, is_golden: bool) -> Array | None:
    record = step.account.partner if is_golden else step.record
    if record not in side:
        return None
    leaf = next((leaf for leaf in side.leaves(record) if leaf.path == key.path), None)
    return load(leaf, side.tensors)
