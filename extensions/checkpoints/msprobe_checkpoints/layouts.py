"""Which tensors of two checkpoints belong together by what they hold: renamed, transposed, fused, divided.

A tensor is filled from its beginning: the part is looked for that begins with the elements that stand there, then the
part that begins behind it. Distances are Euclidean, relative to the larger norm; tensors without relation are at 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from msprobe_checkpoints.names import are_in_conflict, likeness
from msprobe_checkpoints.tensors import Array, Joined, Piece, Tensor, Transposed
from pytest_msprobe.numerics.expected import Absolute, Relative, Times

#: Rows of a sample, and neighbours in each.
_ROWS, _RUNS, _RUN = 12, 2, 8
#: Elements at the beginning of a part that it is looked for by, and candidates that are looked at and tried.
_HEAD, _MOST_CANDIDATES, _MOST_TRIED = 16, 64, 8
_FEWEST_DISTINCT = 3
#: The same of parts of vectors and of rows: as many as stand in a group, or in a row, of the smallest part.
_FEWEST_BLOCK = 4


@dataclass(frozen=True)
class Way:
    """How parts are put together, in the order of their names.

    Attributes:
        axes: the dimensions of what they fill, in this order, as of a transposed matrix; () for all as they are.
        axis: the dimension along which they stand.
        groups: how many groups of rows of all parts follow each other, as query, key and value of groups of heads.
        heads: of a single part, how many heads have the rows of their halves in turns, as other rotary embeddings
            need them; negative where the part has it so and the whole does not.
        gates: of a single part, the order of its gates, as of a recurrent layer of another library.
    """

    axes: tuple[int, ...] = ()
    axis: int = 0
    groups: int = 1
    heads: int = 0
    gates: tuple[int, ...] = ()

    def view(self, whole: Tensor) -> Tensor:
        """What the parts fill."""
        return Transposed(whole, self.axes) if len(self.axes) == len(whole.shape) > 1 else whole

    def joined(self, parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor | None:
        """What the parts give; None where that is no tensor of this shape."""
        if len(parts) == 1 and not self.heads and not self.gates:
            return parts[0] if parts[0].shape == shape else None
        axis, count = self.axis, 2 * abs(self.heads) or len(self.gates) or self.groups
        rest = {(*part.shape[:axis], 0, *part.shape[axis + 1 :]) for part in parts}
        if len(shape) <= axis or rest != {(*shape[:axis], 0, *shape[axis + 1 :])}:
            return None
        sizes = [part.shape[axis] for part in parts]
        if sum(sizes) != shape[axis] or any(size % count for size in sizes):
            return None
        pieces, at, zeros = [], 0, (0,) * (len(shape) - axis - 1)
        for part, first, rows in self._blocks(parts):
            pieces.append(Piece.whole(part, (0, at, *zeros)) if axis else Piece(part, (at, *zeros), first, rows))
            at += part.shape[1] if axis else rows
        return Joined(parts[0].dtype, shape, pieces)

    def _blocks(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, int, int]]:
        """(part, its first row, how many) of the blocks of rows that follow each other."""
        if self.heads:
            halves = (2, -1) if self.heads > 0 else (-1, 2)
            rows = np.arange(parts[0].shape[0]).reshape(abs(self.heads), *halves).transpose(0, 2, 1)
            yield from ((parts[0], int(row), 1) for row in rows.reshape(-1))
        elif self.gates:
            rows_of_gate = parts[0].shape[0] // len(self.gates)
            yield from ((parts[0], gate * rows_of_gate, rows_of_gate) for gate in self.gates)
        else:
            for group in range(self.groups):
                for part in parts:
                    rows_of_group = part.shape[0] // self.groups
                    yield part, group * rows_of_group, rows_of_group

    def said(self, count: int) -> str:
        """It in words, of so many parts."""
        if self.heads:
            return f"rows of {abs(self.heads)} heads ordered for another rotary embedding"
        if self.gates:
            return f"gates in the order {', '.join(map(str, self.gates))}"
        if count == 1:
            axes = f" to dimensions {', '.join(map(str, self.axes))}" if self.axes[2:] else ""
            return f"transposed{axes}" if self.axes else ""
        of = " of the transposed matrix" if self.axes else ""
        groups = f", in {self.groups} groups" if self.groups > 1 else ""
        return f"{count} parts along dimension {self.axis}{of}{groups}"


@dataclass(frozen=True)
class TensorLayout:
    """How tensors of one side make up one of the other.

    Attributes:
        target, golden: names; parts are in the order in which they stand.
        left, right: tensors of one shape that are to be compared.
        way: how the parts make up the whole.
        match: how the names were found to belong together, "" for equal ones.
        is_open: whether other tensors hold the same, so that nothing follows from this pair.
        rest: what one side alone has behind what is compared, as the rows that a vocabulary was padded with.
    """

    target: tuple[str, ...]
    golden: tuple[str, ...]
    left: Tensor
    right: Tensor
    way: Way = Way()
    match: str = ""
    is_open: bool = False
    rest: Tensor | None = None

    @property
    def how(self) -> str:
        """Way and match in words."""
        way = self.way.said(max(len(self.target), len(self.golden)))
        if self.left.shape == self.right.shape or self.rest is not None:
            shapes = ""
        else:
            shapes = f"shapes {self.left.shape} and {self.right.shape}"
        match = "" if len(self.target) + len(self.golden) > 2 else _MATCHES.get(self.match, self.match)
        return ", ".join(filter(None, (way, shapes, match)))

    @classmethod
    def of_side(
        cls, side: int, name: str, whole: Tensor, names: tuple[str, ...], joined: Tensor, *more: Any
    ) -> TensorLayout:
        """Return that of a tensor of one side, and of the parts on the other that are joined to it."""
        if side:
            return cls(names, (name,), joined, whole, *more)
        return cls((name,), names, whole, joined, *more)

    def with_names(self, side: int, names: tuple[str, ...], **more: Any) -> TensorLayout:
        """Return it with other names on one side."""
        return replace(self, golden=names, **more) if side else replace(self, target=names, **more)

    def names(self, side: int) -> tuple[str, ...]:
        """The names of side 0, the target, or 1, the golden one."""
        return self.golden if side else self.target


#: What a match is called in the line of one tensor.
_MATCHES = {"content": "found by content"}


@lru_cache(maxsize=1024)
def _places(shape: tuple[int, ...]) -> Array:
    """Some places of a tensor of a shape, ascending: runs of neighbours in rows all over it."""
    size, last = prod(shape), shape[-1] if shape else 1
    if size <= _ROWS * _RUNS * _RUN:
        return np.arange(size)
    random = np.random.default_rng(0)
    rows = random.choice(size // last, min(size // last, _ROWS), replace=False)
    runs = [row * last + random.integers(0, max(1, last - _RUN + 1), _RUNS) for row in rows]
    places = np.concatenate(runs)[:, None] + np.arange(min(_RUN, last))
    distinct: Array = np.unique(places)
    return distinct


def wide(values: Array) -> Array:
    """The values as float64 or complex128, without a word about signalling NaNs of a damaged file."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def sampled(tensor: Tensor) -> Array:
    """Elements of `tensor` at the places that every tensor of its shape is asked for, float64 or complex128."""
    return wide(tensor.at(_places(tensor.shape)))


def distance(sample: Array, other: Array) -> float:
    """How far two samples are apart; places where both are not finite count nothing, where one is, everything."""
    finite = np.isfinite(sample)
    if (finite != np.isfinite(other)).any():
        return float("inf")
    a, b = sample[finite], other[finite]
    with np.errstate(over="ignore", invalid="ignore"):
        scale = float(max(np.linalg.norm(a), np.linalg.norm(b)))
        return float(np.linalg.norm(a - b)) / scale if scale else 0.0


def is_constant(sample: Array) -> bool:
    """Whether a sample has too few values to tell one tensor from another."""
    return len(np.unique(sample)) < _FEWEST_DISTINCT


class Pool:
    """Tensors of one side that have no partner yet, and the elements that each begins with."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        """The tensors, which are taken from the dictionary as they find their partners."""
        self.tensors = tensors
        self._heads: dict[object, tuple[list[str], Array, Array, Array]] = {}

    def near(self, shape: tuple[int, ...], axis: int, groups: int, values: Array, like: str) -> list[str]:
        """Names of parts of a tensor of this shape that begin with these elements, the nearest and likest first."""
        rest = (axis, *shape[:axis], 0, *shape[axis + 1 :])
        if rest not in self._heads:
            self._heads[rest] = self._begin(rest)
        names, heads, squares, sizes = self._heads[rest]
        if not names or not len(values):
            return []
        count = len(values)
        with np.errstate(over="ignore", invalid="ignore"):
            square, whole = squares[:, count - 1], float(np.vdot(values, values).real)
            apart = square + whole - 2 * (heads[:, :count] @ values.conj()).real
            away = np.sqrt(np.maximum(apart, 0) / np.maximum(np.maximum(square, whole), Absolute.ZERO_OF_FLOAT64))
        fits = (away <= Relative.LAYOUT) & (sizes % groups == 0) & (sizes <= shape[axis])
        free = [int(place) for place in np.flatnonzero(fits) if names[place] in self.tensors]
        if len(free) > _MOST_CANDIDATES:
            alike = [place for place in free if likeness(names[place], like)[0]]
            free = (alike or sorted(free, key=lambda place: float(away[place])))[:_MOST_CANDIDATES]
        free.sort(key=lambda place: _preferred(round(away[place], 6), names[place], like))
        return [names[place] for place in free]

    def _begin(self, rest: tuple[int, ...]) -> tuple[list[str], Array, Array, Array]:
        axis, inner = rest[0], rest[1:]
        names = []
        for name, tensor in self.tensors.items():
            shape = tensor.shape
            if len(shape) == len(inner) and tensor.size and (*shape[:axis], 0, *shape[axis + 1 :]) == inner:
                names.append(name)
        read = [_head(self.tensors[name], axis, 0) for name in names]
        heads = np.zeros((len(names), _HEAD), np.result_type(np.float64, *read))
        for row, values in zip(heads, read):
            row[: len(values)] = np.nan_to_num(values, posinf=0, neginf=0)
        sizes = np.array([self.tensors[name].shape[axis] for name in names], np.int64)
        return names, heads, np.cumsum(np.abs(heads) ** 2, axis=1), sizes


def _preferred(away: float, name: str, like: str) -> tuple[float, bool, bool, int]:
    """For sorting: the nearest, of these whose names contradict nothing, whose numbers agree, that have most words."""
    is_same, words = likeness(name, like)
    return away, are_in_conflict(name, like), not is_same, -words


def find_parts(name: str, whole: Tensor, parts: Pool) -> tuple[tuple[str, ...], Way, Tensor, Tensor, bool] | None:
    """(names of the parts of `whole`, how they make it up, it, what they give, whether others hold the same).

    Raises:
        ReadError: a file ends early or cannot be opened.
    """
    if not whole.shape or not whole.size:
        return None
    tried: list[tuple[float, tuple[str, ...], Way, Tensor, Tensor]] = []
    is_flat = True
    for axes in ((), *orders(len(whole.shape))):
        view = Way(axes).view(whole)
        sample: Array | None = None
        for names, way in _walks(name, view, parts, axes):
            joined = way.joined([parts.tensors[name] for name in names], view.shape)
            if joined is not None:
                sample = sampled(view) if sample is None else sample
                is_flat = is_constant(sample)
                tried.append((distance(sample, sampled(joined)), names, way, view, joined))
        if any(fit[0] <= Relative.SURE_LAYOUT for fit in tried) and not is_flat:
            break
    tried.sort(key=lambda fit: fit[0])
    if not tried or tried[0][0] > Relative.LAYOUT:
        return None
    best = tried[0][0]
    same = [fit for fit in tried if fit[0] <= best * (1 + Relative.EXACT_RESULTS) + Relative.EXACT_RESULTS]
    near = [fit for fit in tried if fit[0] <= best * Times.OTHER_LAYOUT + Relative.EXACT_RESULTS]
    preferred = [_preferred(0.0, fit[1][0], name) for fit in near]
    chosen = near[preferred.index(min(preferred))]
    # Weights of norms are all near one: where content does not tell, names must.
    is_told = preferred.count(min(preferred)) == 1 and not min(preferred)[2]
    if len(near) > len(same) and not is_told:
        return None
    # What is constant is like others by chance: such a pair must have something of its names in common.
    if is_flat and not (min(preferred)[3] and (not min(preferred)[2])):
        return None
    return (*chosen[1:], len(same) > 1 or is_flat)


@lru_cache
def orders(dimensions: int) -> tuple[tuple[int, ...], ...]:
    """The orders of dimensions between layouts of matrices and kernels: O is the outputs, I the inputs.

    PyTorch has O, I and the window, channels last is O, window, I, and Flax and TensorFlow have the window, I, O.
    """
    window = range(2, dimensions)
    layouts = [(0, 1, *window), (0, *window, 1), (*window, 1, 0)] if dimensions > 1 else []
    changes = [tuple(map(layout.index, other)) for layout, other in product(layouts, repeat=2)]
    return tuple(dict.fromkeys(changes))[1:]


def _walks(name: str, view: Tensor, parts: Pool, axes: tuple[int, ...]) -> Iterator[tuple[tuple[str, ...], Way]]:
    """Names of parts that follow each other in a tensor, by the elements that they begin with."""
    shape = view.shape
    for axis in range(min(2, len(shape))):
        begin = _head(view, axis, 0)
        for first in parts.near(shape, axis, 1, begin, name)[:_MOST_TRIED]:
            size = parts.tensors[first].shape[axis]
            if size == shape[axis]:
                if not axis:
                    yield (first,), Way(axes)
                continue
            for groups in range(1, 2 if axis else size + 1):
                if size % groups or shape[axis] % groups:
                    continue
                names, at, stop = [first], size // groups, shape[axis] // groups
                while at < stop:
                    for near in parts.near(shape, axis, groups, _head(view, axis, at), first):
                        rows = parts.tensors[near].shape[axis] // groups
                        if near not in names and rows <= stop - at:
                            break
                    else:
                        break
                    names.append(near)
                    at += rows
                else:
                    yield tuple(names), Way(axes, axis, groups)


def _head(tensor: Tensor, axis: int, at: int) -> Array:
    """The first elements of what begins at index `at` of a dimension: of a row, or of the first rows of a column."""
    width = tensor.shape[-1]
    if not axis:
        count = min(_HEAD, width) if len(tensor.shape) > 1 else min(_FEWEST_BLOCK, width - at)
        return wide(tensor.at(np.arange(at * tensor.width, at * tensor.width + count)))
    inner = tensor.size // tensor.shape[0]
    rows = np.arange(min(_HEAD // _FEWEST_BLOCK, tensor.shape[0]))[:, None] * inner
    start = at * (inner // tensor.shape[1])
    return wide(tensor.at((rows + np.arange(start, min(start + _FEWEST_BLOCK, inner))).reshape(-1)))


def reordered(whole: Tensor, part: Tensor, *, is_recurrent: bool) -> Way | None:
    """The way in which the rows of heads, or gates, have another order, where that is what is different.

    All libraries have the input gate of four first, and the new gate of three last.
    """
    sample = sampled(whole)
    if whole.shape != part.shape or not whole.shape or is_constant(sample):
        return None
    rows = whole.shape[0]
    if is_recurrent:
        ways = [Way(gates=(1, 0, 2)), *(Way(gates=(0, *rest)) for rest in permutations((1, 2, 3)))]
    else:
        counts = [count for count in range(1, rows // 4 + 1) if rows % (2 * count) == 0]
        ways = [Way(heads=sign * count) for count, sign in product(counts, (1, -1))]
    for way in ways:
        joined = way.joined([part], whole.shape)
        if joined is not None and distance(sample, sampled(joined)) <= Relative.SURE_LAYOUT:
            return way
    return None
