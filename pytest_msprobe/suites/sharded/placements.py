"""How the values of ranks make up one value of the logical run: found by trying, since the values tell it.

A value is replicated (R), sharded along a dimension (S), or the ranks hold terms of a sum (P), over each process group.
Distances are Euclidean, relative to the logical value, in float64.

Pure NumPy: nothing here knows dumps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations, product
from operator import attrgetter
from typing import Any, Literal, Protocol

import numpy as np

from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.numerics.pair import relative

Array = np.ndarray[Any, Any]
_ARRAYS = (np.ndarray, np.generic)
Kind = Literal["R", "S", "P"]
#: Numbers by which indices of a dimension are told apart.
_PROJECTIONS = 16


@dataclass(frozen=True, slots=True)
class Axis:
    """What a value is over one process group.

    Attributes:
        group: name of the group.
        size: how many ranks it has.
        kind: replicated, sharded, or terms of a sum.
        dimension: along which it is sharded; -1 for the flattened value.
        order: "" for shards in the order of the ranks; else in which other order, in words.
    """

    group: str
    size: int
    kind: Kind
    dimension: int = 0
    order: str = ""

    def __str__(self) -> str:
        dimension = "flat" if self.dimension < 0 else str(self.dimension)
        how = {"R": "R", "P": "P(sum)"}.get(self.kind, f"S({dimension})")
        return " ".join(filter(None, (how, self.order, "over", self.group)))

    def is_along(self, dimension: int) -> bool:
        """Whether it is sharded along a dimension."""
        return self.kind == "S" and self.dimension == dimension


@dataclass(frozen=True, slots=True)
class Placement:
    """One way to read the values of the ranks, and how far what it gives is from the logical value.

    Attributes:
        axes: over each process group; () for a value of one rank.
        distance: relative; infinite where NaN or infinities differ.
        factor: what the logical value must be multiplied with to give the ranks' value, by least squares.
        logical: what the value is over the process groups of a logical run of several ranks; () for one rank.
        apart: how far what it gives is from the logical value, of the size of that alone and with all elements.
        pair: what it gives and the logical value, in one order; None for what is known by sketches or statistics.
        orders: which index of the logical value stands at each place of the parts, along dimensions in another order.
    """

    axes: tuple[Axis, ...]
    distance: float
    factor: float = 1.0
    logical: tuple[Axis, ...] = ()
    apart: float = math.inf
    pair: tuple[Array, Array] | None = field(default=None, compare=False, repr=False)
    orders: Mapping[int, Sequence[int]] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        words = ", ".join(map(str, self.axes)) or "R"
        if self.logical:
            words += "; logical run: " + ", ".join(f"{axis} of {axis.size}" for axis in self.logical)
        return words

    @property
    def is_rank_by_rank(self) -> bool:
        """Whether each rank has a part of its own that the logical run has on a rank: it may be any part."""
        how = attrgetter("kind", "dimension", "size")
        return self.has_shards and [*map(how, self.axes)] == [*map(how, self.logical)]

    @property
    def held_as(self) -> Kind:
        """Terms of a sum over any group, else a shard of any, else all of it."""
        return max((axis.kind for axis in self.axes), key="RSP".index, default="R")

    @property
    def is_partial(self) -> bool:
        """Whether ranks hold terms of a sum."""
        return self.held_as == "P"

    @property
    def has_shards(self) -> bool:
        """Whether it is sharded over any group."""
        return bool(sharded_dimensions(self.axes))

    @property
    def is_doubtful(self) -> bool:
        """Whether it adds up what ranks of the logical run hold, and so many ranks have the sum: parts may be added."""
        added = Counter(_sizes(self.logical, "P")) - Counter(_sizes(self.axes, "P"))
        return not added.keys().isdisjoint(_sizes(self.axes, "R"))

    @property
    def has_others_beyond(self) -> bool:
        """Whether rows beyond the own share are not those of the logical value."""
        return UNUSED in map(attrgetter("order"), self.axes)

    @property
    def is_reordered(self) -> bool:
        """Whether the parts follow in an order that is not one of blocks."""
        return ANY_ORDER in map(attrgetter("order"), self.axes)


def sharded_dimensions(axes: Iterable[Axis]) -> list[int]:
    """The dimensions along which a value is sharded, one for each group that it is sharded over."""
    return [axis.dimension for axis in axes if axis.kind == "S"]


def sizes_along(axes: Iterable[Axis], dimension: int) -> list[int]:
    """How many ranks the groups have over which a value is sharded along a dimension."""
    return [axis.size for axis in axes if axis.is_along(dimension)]


def _sizes(axes: Iterable[Axis], kind: Kind) -> list[int]:
    return [axis.size for axis in axes if axis.kind == kind]


ANY_ORDER = "in another order of its indices"
#: Rows beyond the own share are what nothing of the result depends on: those at the end lack their neighbours.
UNUSED = "with overlap, of which the rows beyond are others"


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks that hold a value, by their coordinates in process groups.

    Attributes:
        names, sizes: of the groups.
        coordinates: of each rank, in the order of the values.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...]

    @classmethod
    def line(cls, count: int, name: str = "") -> Grid:
        """All ranks in one group."""
        return cls((name or f"{count} ranks",), (count,), tuple(zip(range(count))))

    @classmethod
    def guesses(cls, count: int) -> Iterator[Grid]:
        """What `count` ranks of unknown groups may be: one group, or rows and columns."""
        yield cls.line(count)
        for inner in range(2, count // 2 + 1):
            if count % inner == 0:
                outer = count // inner
                places = tuple(product(range(outer), range(inner)))
                yield cls((f"{outer} groups of {inner}", f"{inner} neighbours"), (outer, inner), places)

    def with_calls(self, calls: int) -> Grid:
        """The grid of ranks that each hold the values of several calls, one after the other."""
        if calls == 1:
            return self
        places = tuple((*place, call) for place in self.coordinates for call in range(calls))
        return Grid((*self.names, f"{calls} microbatches"), (*self.sizes, calls), places)

    def axes(self, *kinds: tuple[Any, ...]) -> tuple[Axis, ...]:
        """What a value is over each group: kind, dimension and order."""
        return tuple(Axis(name, size, *kind) for name, size, kind in zip(self.names, self.sizes, kinds))


class ValueSummary(Protocol):
    """What is known of a value in place of its elements: a sketch, or statistics."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths along the dimensions."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def norm(self) -> float:
        """Euclidean norm of the finite elements."""

    def __truediv__(self, factor: float) -> Any:
        """The same of the value divided by `factor`."""

    def joined(self, others: Any, kind: str, dimension: int) -> tuple[Any, float] | None:
        """This and what others know put together, and how far copies differ; None where that does not tell."""

    def away(self, whole: Any, scale: float) -> float:
        """How far this is from `whole`, of one shape; `scale` is what a distance of 1 means."""

    def factor(self, whole: Any) -> float:
        """What `whole` must be multiplied with to give this, by least squares; 1 where that is not known."""


#: A value of a rank or of the logical run, and what may stand for it: all of one kind.
Value = Array | ValueSummary
_Values = Mapping[tuple[int, ...], Value]


def distance(value: Any, whole: Any, scale: float, room: Array | None = None) -> float:
    """How far `value` is from `whole`, of one shape; `scale` is what a distance of 1 means, `room` what elements may.

    NaN and equal infinities are equal; where one side alone has them, the distance is infinite.
    """
    if not isinstance(value, _ARRAYS):
        return float(value.away(whole, scale))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = value - whole
        if not np.isfinite(difference).all():
            is_same = (value == whole) | (np.isnan(value) & np.isnan(whole))
            difference = np.where(is_same, 0, difference)
        if room is not None:
            difference = np.maximum(abs(difference) - room, 0)
        size = float(np.linalg.norm(difference.ravel()))
    if not math.isfinite(size):
        return math.inf
    return relative(size, scale)


def norm_of(value: Value) -> float:
    """Euclidean norm of the finite elements."""
    if not isinstance(value, _ARRAYS):
        return value.norm
    return float(np.linalg.norm(np.where(np.isfinite(value), value, 0).ravel()))


def _are_of_rank(parts: Sequence[Value], dimensions: int) -> bool:
    """Whether all parts have so many dimensions."""
    return all(part.ndim == dimensions for part in parts)


def _within(placements: Iterable[Placement], tolerance: float) -> list[Placement]:
    """The placements that fit within a tolerance."""
    return [placement for placement in placements if placement.distance <= tolerance]


def tried(
    whole: Value,
    parts: Sequence[Value],
    grid: Grid,
    tolerance: float,
    floor: float = 0.0,
    room: Array | None = None,
) -> list[Placement]:
    """The placements that the shapes allow, the nearest first; those in another order only where no other fits.

    Args:
        whole: the logical value, float64 or complex128, or what is known of it.
        parts: the values of the ranks in the order of `grid`.
        grid: the process groups of the ranks.
        tolerance: largest relative distance of one that fits.
        floor: what distances are relative to where the logical value is smaller: the norm of what cancels in it.
        room: how far each element may be off besides; None for not at all.
    """
    values = dict(zip(grid.coordinates, parts))
    scale = max(norm_of(whole), floor)
    placements: list[Placement] = []
    merged: list[tuple[tuple[Axis, ...], Any, float]] = []
    for axes, order in assignments(grid, whole, parts):
        result = _merged(values, axes, order, tolerance)
        if result is None or result[0].shape != whole.shape:
            continue
        merged.append((axes, *result))
        placements.append(_measured(axes, *result, whole, scale, room))
    if isinstance(whole, _ARRAYS):
        placements += _flat(whole, values, grid, scale, room)
        if not _within(placements, near(tolerance)):
            placements += _reordered(merged, whole, scale, tolerance, room)
        if not _within(placements, tolerance):
            placements += _within(_overlapping(whole, values, grid, scale, room), tolerance)
    return sorted(placements, key=attrgetter("has_others_beyond", "distance", "is_partial"))


def near(tolerance: float) -> float:
    """What leaves no doubt: what a coarse tolerance allows may be another order of what fits much better."""
    return min(tolerance, max(tolerance / Times.NO_DOUBT, Relative.NO_DOUBT))


def wholes(
    parts: Sequence[Value], grid: Grid, tolerance: float, *, may_be_partial: bool, are_calls: bool = False
) -> Iterator[tuple[tuple[Axis, ...], Any]]:
    """What the ranks of a logical run may hold together, each with how: all of it, parts along a dimension, terms.

    What is equal over a group, but for rounding, is no term of a sum over it: the sum would be a multiple. With
    `are_calls` the last group are calls of one rank, to which that does not apply.
    """
    if not _are_of_rank(parts, parts[0].ndim):
        return
    tolerance = min(max(tolerance, Relative.NO_DOUBT), Relative.COPIES)
    values = dict(zip(grid.coordinates, parts))
    for axes, orders in readings(grid, parts[0].ndim):
        sums = [place for place, axis in enumerate(axes) if axis.kind == "P"]
        groups = sums[:-1] if are_calls and len(axes) - 1 in sums else sums
        if (sums and not may_be_partial) or any(_is_equal(values, axes, place, tolerance) for place in groups):
            continue
        for order in orders:
            if (result := _merged(values, axes, order, tolerance)) is not None:
                yield axes, result[0]


def in_other_orders(axes: tuple[Axis, ...], whole: Array) -> Iterator[tuple[tuple[Axis, ...], Array]]:
    """The same in the order of the whole, where ranks have indices of a dimension in one that frameworks use."""
    for d in sorted(set(sharded_dimensions(axes))):
        sizes = sizes_along(axes, d)
        for shards in sorted({*sizes, math.prod(sizes)}):
            for places, words in _orders(whole.shape[d], shards):
                yield _in_order(axes, {d: words}), np.take(whole, np.argsort(places), d)


def readings(grid: Grid, dimensions: int) -> Iterator[tuple[tuple[Axis, ...], Iterator[tuple[int, ...]]]]:
    """What a value may be over each group, whatever the whole is, and the orders in which groups are put together."""
    kinds: list[tuple[Kind, int]] = [("R", 0), ("P", 0)]
    if dimensions:
        kinds.insert(1, ("S", 0))
        kinds += [("S", dimension) for dimension in range(1, dimensions)]
    for chosen in product(kinds, repeat=len(grid.names)):
        axes = grid.axes(*chosen)
        yield axes, _orders_of_groups(axes)


def _is_equal(values: _Values, axes: tuple[Axis, ...], place: int, tolerance: float) -> bool:
    """Whether the ranks of each row of a group hold one value."""
    replicas = replace(axes[place], kind="R")
    rows: dict[tuple[int, ...], list[Value]] = {}
    for coordinates, value in values.items():
        rows.setdefault((*coordinates[:place], *coordinates[place + 1 :]), []).append(value)
    joined = [_joined(row, replicas) for row in rows.values()]
    return all(pair is not None and pair[1] <= tolerance for pair in joined)


def _measured(
    axes: tuple[Axis, ...], value: Any, spread: float, whole: Any, scale: float, room: Array | None
) -> Placement:
    away, factor, size = distance(value, whole, scale), 1.0, norm_of(whole)
    apart = relative(away * scale, size) if scale else away
    pair: tuple[Any, Any] | None = None
    if not isinstance(value, _ARRAYS):
        factor = value.factor(whole)
    else:
        pair = value, whole
        if scale and math.isfinite(away):
            finite = np.where(np.isfinite(value), value, 0).ravel()
            finite_whole = np.where(np.isfinite(whole), whole, 0).ravel()
            factor = float(np.real(np.vdot(finite_whole, finite))) / scale**2
        if room is not None and room.shape == whole.shape:
            away = distance(value, whole, scale, room)
    return Placement(axes, max(away, spread), factor, apart=max(apart, spread), pair=pair)


def assignments(grid: Grid, whole: Value, parts: Sequence[Value]) -> Iterator[tuple[tuple[Axis, ...], tuple[int, ...]]]:
    """What each group may be, and in which order groups are put together, as far as shapes allow it."""
    if not _are_of_rank(parts, whole.ndim):
        return
    split = _split_dimensions(whole, parts)
    kinds: list[tuple[Kind, int]] = [("R", 0), ("P", 0)]
    kinds += [("S", dimension) for dimension in split]
    for chosen in product(kinds, repeat=len(grid.names)):
        axes = grid.axes(*chosen)
        if set(sharded_dimensions(axes)) != set(split):
            continue
        if all(_length(axes, dimension, grid, parts) == whole.shape[dimension] for dimension in split):
            for order in _orders_of_groups(axes):
                yield axes, order


def _split_dimensions(whole: Value, parts: Sequence[Value]) -> list[int]:
    """The dimensions along which a part has another length than the whole."""
    split: set[int] = set()
    for part in parts:
        split.update(d for d in range(whole.ndim) if part.shape[d] != whole.shape[d])
    return sorted(split)


def _length(axes: tuple[Axis, ...], dimension: int, grid: Grid, parts: Sequence[Value]) -> int:
    """How long the parts of one row of the ranks are along a dimension, put together."""
    others = [at for at, axis in enumerate(axes) if not axis.is_along(dimension)]
    first, length = grid.coordinates[0], 0
    for place, part in zip(grid.coordinates, parts):
        if all(place[at] == first[at] for at in others):
            length += part.shape[dimension]
    return length


def _orders_of_groups(axes: tuple[Axis, ...]) -> Iterator[tuple[int, ...]]:
    """In which order groups are put together: of two along one dimension either may hold the larger blocks."""
    together = sharded_dimensions(axes)
    places = range(len(axes))
    if len(set(together)) < len(together):
        yield from permutations(places)
    else:
        yield tuple(reversed(places))


def _merged(
    values: _Values, axes: tuple[Axis, ...], order: Sequence[int], tolerance: float
) -> tuple[Any, float] | None:
    """The values put together, and how far replicas differ; None where shapes or replicas do not allow it."""
    remaining, spread = list(range(len(axes))), 0.0
    for place in order:
        at = remaining.index(place)
        rows: dict[tuple[int, ...], list[tuple[int, Value]]] = {}
        for coordinates, value in values.items():
            rows.setdefault((*coordinates[:at], *coordinates[at + 1 :]), []).append((coordinates[at], value))
        joined = {}
        for key, members in rows.items():
            members.sort(key=lambda member: member[0])
            result = _joined([value for _, value in members], axes[place])
            if result is None:
                return None
            joined[key], apart = result
            spread = max(spread, apart)
        if spread > max(tolerance, Relative.COPIES):
            return None
        values = joined
        remaining.remove(place)
    return values[()], spread


def _joined(members: list[Any], axis: Axis) -> tuple[Any, float] | None:
    if len(members) != axis.size:
        return None
    first = members[0]
    if not isinstance(first, _ARRAYS):
        result: tuple[Any, float] | None = first.joined(members[1:], axis.kind, axis.dimension)
        return result
    shapes = {member.shape for member in members}
    if axis.kind == "S":
        d = axis.dimension
        rest = {(*shape[:d], *shape[d + 1 :]) for shape in shapes}
        return (np.concatenate(members, d), 0.0) if len(rest) == 1 else None
    if len(shapes) > 1:
        return None
    if axis.kind == "P":
        with np.errstate(invalid="ignore", over="ignore"):
            return np.sum(members, axis=0), 0.0
    scale = max(map(norm_of, members))
    return first, max((distance(member, first, scale) for member in members[1:]), default=0.0)


def _flat(
    whole: Array, values: Mapping[tuple[int, ...], Any], grid: Grid, scale: float, room: Array | None
) -> Iterator[Placement]:
    """Shards of the flattened value, the last ones padded or empty."""
    parts = list(values.values())
    if whole.ndim < 2 or not _are_of_rank(parts, 1) or len(grid.sizes) != 1:
        return
    joined = np.concatenate(parts)
    if joined.size >= whole.size and not joined[whole.size :].any():
        axes = grid.axes(("S", -1))
        yield _measured(axes, joined[: whole.size].reshape(whole.shape), 0.0, whole, scale, room)


def _overlapping(
    whole: Array, values: Mapping[tuple[int, ...], Any], grid: Grid, scale: float, room: Array | None
) -> Iterator[Placement]:
    """Parts that go beyond their own share along a dimension: rows beyond it repeat, are not used, or add gradients."""
    parts = list(values.values())
    if len(grid.sizes) != 1 or not _are_of_rank(parts, whole.ndim):
        return
    split = _split_dimensions(whole, parts)
    if len(split) != 1 or sum(part.shape[split[0]] for part in parts) <= whole.shape[split[0]]:
        return
    d, rows, size = split[0], np.moveaxis(whole, split[0], 0), norm_of(whole)
    moved = [np.moveaxis(part, d, 0) for part in parts]
    lengths = list(map(len, moved))
    shares = np.array_split(np.arange(len(rows)), len(parts))
    for starts in _starts(len(rows), lengths):
        copied, added, used, apart = np.zeros_like(rows), np.zeros_like(rows), np.zeros_like(rows), 0.0
        for start, part, share in zip(starts, moved, shares):
            first, end = max(0, -start), min(len(part), len(rows) - start)
            there = slice(start + first, start + end)
            apart = max(
                apart, distance(part[first:end], rows[there], size or 1.0), norm_of(part[:first]), norm_of(part[end:])
            )
            copied[there] = part[first:end]
            added[there] += part[first:end]
            within = share[(share >= there.start) & (share < there.stop)]
            used[within] = part[within - start]
        readings = (copied, "with overlap", apart), (added, "of which overlaps are added", 0.0), (used, UNUSED, 0.0)
        for value, words, spread in readings:
            axes = grid.axes(("S", d, words))
            yield _measured(axes, np.moveaxis(value, 0, d), spread, whole, scale, room)


def _starts(count: int, lengths: Sequence[int]) -> list[list[int]]:
    """Where parts begin in a whole of `count` rows, of which each has a share and rows before or behind it."""
    shares = [len(part) for part in np.array_split(np.arange(count), len(lengths))]
    extra = np.subtract(lengths, shares)
    others = len(lengths) - 1
    choices = []
    if extra.min() >= 0:
        at = np.cumsum([0, *shares[:-1]])
        before = (extra // 2, [0, *[extra[0]] * others], extra, 0)
        choices = [(at - rows).tolist() for rows in before]
    if len(set(lengths)) == 1 <= others and (count - lengths[0]) % others == 0:
        choices.append([place * (count - lengths[0]) // others for place in range(len(lengths))])
    return [starts for starts in choices if max(starts) < count and np.add(starts, lengths).min() > 0]


def _reordered(
    merged: Sequence[tuple[tuple[Axis, ...], Any, float]],
    whole: Array,
    scale: float,
    tolerance: float,
    room: Array | None,
) -> Iterator[Placement]:
    """Placements of which the indices of the sharded dimension follow in another order."""
    for axes, value, spread in merged:
        dimensions = list(dict.fromkeys(sharded_dimensions(axes))) or [0]
        if not whole.ndim or spread > tolerance:
            continue
        choices = []
        for d in dimensions:
            shards = math.prod(sizes_along(axes, d))
            as_they_are: tuple[Sequence[int], str] = range(whole.shape[d]), ""
            # Contents tell the order along one dimension, where the others are in theirs.
            orders = [*_orders(whole.shape[d], shards)]
            if len(dimensions) > 1:
                orders.insert(0, as_they_are)
            else:
                by_content = matching_indices(value, whole, d, tolerance * scale)
                if by_content is not None and by_content != [*as_they_are[0]]:
                    orders.append((by_content, _order_words(by_content, shards=shards)))
            choices.append(orders)
        fitting = []
        for chosen in product(*choices):
            ordered, words, places_along = value, {}, {}
            for d, (places, text) in zip(dimensions, chosen):
                ordered = np.take(ordered, np.argsort(places), d)
                words[d], places_along[d] = text, places
            placement = _measured(_in_order(axes, words), ordered, spread, whole, scale, room)
            if placement.distance <= tolerance:
                fitting.append(replace(placement, orders=places_along))
        if fitting:
            # Any order at all has more freedom to come near than one that frameworks use.
            yield min(fitting, key=lambda it: it.distance * (Times.NO_DOUBT if it.is_reordered else 1))


def _in_order(axes: tuple[Axis, ...], words: Mapping[int, str]) -> tuple[Axis, ...]:
    """The axes, of which the first along each dimension says in which order its indices are."""
    remaining, ordered, has_shards = dict(words), [*axes], bool(sharded_dimensions(axes))
    for place, axis in enumerate(axes):
        if axis.kind == "S" or not has_shards:
            ordered[place] = replace(axis, order=remaining.pop(axis.dimension, "") or axis.order)
    return tuple(ordered)


def _orders(count: int, shards: int) -> Iterator[tuple[Sequence[int], str]]:
    """Orders in which shards may put `count` indices: chunks of fused layers, zigzag."""
    if shards > 1 and count % shards == 0:
        # Into how many chunks fused layers may put what each rank has: gate and up; query, key and
        # value.
        for chunks in (2, 3, 4):
            if count % (shards * chunks) == 0:
                blocks = np.arange(count).reshape(chunks, shards, -1)
                yield blocks.swapaxes(0, 1).ravel().tolist(), f"in {chunks} chunks"
        if count % (2 * shards) == 0:
            blocks = np.arange(count).reshape(2 * shards, -1)
            pairs = np.stack([np.arange(shards), np.arange(2 * shards)[: -shards - 1 : -1]], axis=1)
            yield blocks[pairs.ravel()].ravel().tolist(), "in zigzag"


def _order_words(places: Sequence[int], *, shards: int) -> str:
    """In which order indices follow: `in 3 chunks` for blocks, a few on each shard."""
    blocks = 1 + sum(after != before + 1 for before, after in pairwise(places))
    if shards > 1 and blocks <= 8 * shards and 2 * blocks <= len(places):
        return f"in {blocks} blocks"
    return ANY_ORDER


def matching_indices(value: Array, whole: Array, dimension: int, allowed: float) -> list[int] | None:
    """For each index of `value` along `dimension` the index of `whole` that holds the same, each once; None for none.

    Indices are told apart by random projections of what they hold, whose distance is near that of the contents;
    `allowed` is how far both may be apart.
    """
    count = whole.shape[dimension]
    # Dimensions with more indices are put together in the order of the ranks only: matching
    # indices is quadratic.
    if not 1 < count <= 4096 or not np.isfinite(value).all() or not np.isfinite(whole).all():
        return None
    rest = whole.size // count
    signs = np.random.default_rng(0).standard_normal((rest, _PROJECTIONS)) / math.sqrt(_PROJECTIONS)
    rows = np.moveaxis(value, dimension, 0).reshape(count, rest) @ signs
    rows_of_whole = np.moveaxis(whole, dimension, 0).reshape(count, rest) @ signs
    limit = Times.INDEX * allowed / math.sqrt(count) + np.finfo(np.float64).tiny
    is_free = np.ones(count, np.bool_)
    indices: list[int] = []
    for row in rows:
        following = indices[-1] + 1 if indices else 0
        free = np.flatnonzero(is_free)
        away = np.linalg.norm(rows_of_whole[free] - row, axis=1)
        nearest = float(away.min())
        if nearest > limit:
            return None
        if not (following < count and is_free[following] and _norm(row - rows_of_whole[following]) <= 2 * nearest):
            following = int(free[np.argmin(away)])
        is_free[following] = False
        indices.append(following)
    return indices


def _norm(row: Array) -> float:
    return float(np.linalg.norm(row))
