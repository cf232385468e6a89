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
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format import DumpError, TensorFolder
from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS, inner, is_same, unravelled
from pytest_msprobe.suites.comparison.accounting.account import PARTS, Step, ValueKey
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


@dataclass(frozen=True, slots=True)
class Terms:
    """The whole difference and its parts.

    Attributes:
        size: 2-norm of target - golden over that of golden.
        parts: by the names of `PARTS`.
        born: size of both born parts together: an error that both sides make alike is no part of the difference.
    """

    size: float
    parts: Mapping[str, Part]
    born: float

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
        golden: recorded values of the golden run.
    """
    chain = [np.asarray(array).reshape(-1) for array in (target, from_target, from_golden, golden_reference, golden)]
    wide = np.complex128 if any(array.dtype.kind == "c" for array in chain) else np.float64
    sums = _Sums()
    for start in range(0, chain[0].size, CHUNK_ELEMENTS):
        sums.add(start, [array[start : start + CHUNK_ELEMENTS].astype(wide) for array in chain])
    return sums.terms(np.asarray(golden).shape)


class _Sums:
    """Running sums over chunks."""

    def __init__(self) -> None:
        self.golden = self.whole = self.born = 0.0
        self.squares = [0.0] * len(PARTS)
        self.projections = [0.0] * len(PARTS)
        self.worst: list[tuple[float, int, float]] = [(0.0, -1, 0.0)] * len(PARTS)
        self.nonfinite = [0] * len(PARTS)

    def add(self, start: int, chain: list[Array]) -> None:
        with np.errstate(all="ignore"):
            finite = [np.isfinite(array) for array in chain]
            is_whole = np.logical_and.reduce(finite)
            if not is_whole.all():
                for place, (left, right) in enumerate(pairwise(chain)):
                    changed = ~is_same(left, right) & ~(finite[place] & finite[place + 1])
                    self.nonfinite[place] += int(np.count_nonzero(changed))
                chain = [np.where(is_whole, array, 0) for array in chain]
            whole = chain[0] - chain[-1]
            self.whole += inner(whole, whole)
            self.golden += inner(chain[-1], chain[-1])
            born = (chain[0] - chain[1]) + (chain[3] - chain[4])
            self.born += inner(born, born)
            for place, (left, right) in enumerate(pairwise(chain)):
                part = left - right
                self.squares[place] += inner(part, part)
                self.projections[place] += inner(part, whole)
                magnitude = np.abs(part)
                at = int(magnitude.argmax())
                if magnitude[at] > self.worst[place][0]:
                    self.worst[place] = (float(magnitude[at]), start + at, float(part[at].real))

    def terms(self, shape: tuple[int, ...]) -> Terms:
        norm = math.sqrt(self.golden)
        whole = _over(math.sqrt(self.whole), norm)
        parts = {name: self._part(place, whole, shape) for place, name in enumerate(PARTS)}
        return Terms(whole, parts, _over(math.sqrt(self.born), norm))

    def _part(self, place: int, whole: float, shape: tuple[int, ...]) -> Part:
        size, nonfinite = _over(math.sqrt(self.squares[place]), math.sqrt(self.golden)), self.nonfinite[place]
        share = self.projections[place] / self.whole if self.whole else 0.0
        _, at, value = self.worst[place]
        worst = None if at < 0 else unravelled(at, shape)
        known = size / whole if 0 < whole < math.inf else math.inf
        weight = math.inf if nonfinite else known if size else 0.0
        return Part(size, share, worst, value, nonfinite, weight)


def _over(size: float, norm: float) -> float:
    if size == 0:
        return 0.0
    return size / norm if norm > 0 else math.inf


#: A sum of a few gradients in bfloat16 is off by less.
_ROUNDING = 0.02


def is_wrong_sum(
    sides: tuple[ComparedDump, ComparedDump], step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]]
) -> bool:
    """Whether `sources` add up to the incoming gradient on exactly one of the two sides."""
    return _adds_up(sides[0], step, key, sources, is_golden=False) != _adds_up(
        sides[1], step, key, sources, is_golden=True
    )


def _adds_up(
    side: ComparedDump, step: Step, key: ValueKey, sources: list[tuple[Step, ValueKey]], *, is_golden: bool
) -> bool:
    whole = _values(side, step, key, is_golden=is_golden)
    if whole is None:
        return False
    left = whole.astype(np.float64)
    for source, value in sources:
        part = _values(side, source, value, is_golden=is_golden)
        if part is None or part.shape != left.shape:
            return False
        left -= part
    return bool(np.linalg.norm(left) <= _ROUNDING * np.linalg.norm(whole.astype(np.float64)))


def _values(side: ComparedDump, step: Step, key: ValueKey, *, is_golden: bool) -> npt.NDArray[Any] | None:
    record = step.account.partner if is_golden else step.record
    if record not in side:
        return None
    leaf = next((leaf for leaf in side.leaves(record) if leaf.path == key.path), None)
    return load(leaf, side.tensors)
