"""How the values of ranks make up one value of the logical run: found by trying, since the values tell it.

A value is replicated (R), sharded along a dimension (S), or the ranks hold terms of a sum (P), over each process group.
Distances are Euclidean, relative to the logical value, in float64.

Pure NumPy: nothing here knows dumps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations, product
from typing import Any, Literal, Protocol

import numpy as np

from pytest_msprobe.numerics.expected import Relative, Times

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
        how = {"R": "R", "P": "P(sum)"}.get(self.kind) or ("S(flat)" if self.dimension < 0 else f"S({self.dimension})")
        return f"{how}{f' {self.order}' if self.order else ''} over {self.group}"


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
        own = ", ".join(map(str, self.axes)) or "R"
        return "; logical run: ".join(
            [own, *(", ".join(f"{axis} of {axis.size}" for axis in one) for one in [self.logical] if one)]
        )

    @property
    def is_rank_by_rank(self) -> bool:
        """Whether each rank has a part of its own that the logical run has on a rank: it may be any part."""
        own, other = ([(one.kind, one.dimension, one.size) for one in axes] for axes in (self.axes, self.logical))
        return own == other and any(kind == "S" for kind, _, _ in own)

    @property
    def held_as(self) -> Kind:
        """Terms of a sum over any group, else a shard of any, else all of it."""
        kinds = {axis.kind for axis in self.axes}
        return "P" if "P" in kinds else "S" if "S" in kinds else "R"

    @property
    def is_partial(self) -> bool:
        """Whether ranks hold terms of a sum."""
        return self.held_as == "P"

    @property
    def is_doubtful(self) -> bool:
        """Whether it adds up what ranks of the logical run hold, and so many ranks have the sum: parts may be added."""
        added = [axis.size for axis in self.logical if axis.kind == "P"]
        for axis in self.axes:
            if axis.kind == "P" and axis.size in added:
                added.remove(axis.size)
        return any(axis.kind == "R" and axis.size in added for axis in self.axes)

    @property
    def has_others_beyond(self) -> bool:
        """Whether rows beyond the own share are not those of the logical value."""
        return any(axis.order == UNUSED for axis in self.axes)

    @property
    def is_reordered(self) -> bool:
        """Whether the parts follow in an order that is not one of blocks."""
        return any(axis.order == ANY_ORDER for axis in self.axes)


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
        return cls((name or f"{count} ranks",), (count,), tuple((index,) for index in range(count)))

    @classmethod
    def guesses(cls, count: int) -> Iterator[Grid]:
        """What `count` ranks of unknown groups may be: one group, or rows and columns."""
        yield cls.line(count)
        for inner in range(2, count // 2 + 1):
            if count % inner == 0:
                outer = count // inner
                places = tuple(divmod(index, inner) for index in range(count))
                yield cls((f"{outer} groups of {inner}", f"{inner} neighbours"), (outer, inner), places)

    def with_calls(self, calls: int) -> Grid:
        """The grid of ranks that each hold the values of several calls, one after the other."""
        if calls == 1:
            return self
        places = tuple((*place, call) for place in self.coordinates for call in range(calls))
        return Grid((*self.names, f"{calls} microbatches"), (*self.sizes, calls), places)


class Known(Protocol):
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
Value = Array | Known
_Values = Mapping[tuple[int, ...], Value]


def distance(found: Any, whole: Any, scale: float, room: Array | None = None) -> float:
    """How far `found` is from `whole`, of one shape; `scale` is what a distance of 1 means, `room` what elements may.

    NaN and equal infinities are equal; where one side alone has them, the distance is infinite.
    """
    if not isinstance(found, _ARRAYS):
        return float(found.away(whole, scale))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = found - whole
        if not np.isfinite(difference).all():
            is_same = (found == whole) | (np.isnan(found) & np.isnan(whole))
            difference = np.where(is_same, 0, difference)
        if room is not None:
            difference = np.maximum(abs(difference) - room, 0)
        size = float(np.linalg.norm(difference.ravel()))
    if not math.isfinite(size):
        return math.inf
    return size / scale if scale else (math.inf if size else 0.0)


def norm_of(value: Value) -> float:
    """Euclidean norm of the finite elements."""
    if not isinstance(value, _ARRAYS):
        return value.norm
    return float(np.linalg.norm(np.where(np.isfinite(value), value, 0).ravel()))


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
    found: list[Placement] = []
    merged: list[tuple[tuple[Axis, ...], Any, float]] = []
    for axes, order in assignments(grid, whole, parts):
        result = _merged(values, axes, order, tolerance)
        if result is None or result[0].shape != whole.shape:
            continue
        merged.append((axes, *result))
        found.append(_measured(axes, *result, whole, scale, room))
    if isinstance(whole, _ARRAYS):
        found += _flat(whole, values, grid, scale, room)
        if not any(placement.distance <= near(tolerance) for placement in found):
            found += _reordered(merged, whole, scale, tolerance, room)
        if not any(placement.distance <= tolerance for placement in found):
            overlapping = _overlapping(whole, values, grid, scale, room)
            found += [one for one in overlapping if one.distance <= tolerance]
    return sorted(found, key=lambda one: (one.has_others_beyond, one.distance, one.is_partial))


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
    tolerance = min(max(tolerance, Relative.NO_DOUBT), Relative.COPIES)
    values = dict(zip(grid.coordinates, parts))
    for axes, orders in readings(grid, parts[0].ndim):
        sums = [place for place, axis in enumerate(axes) if axis.kind == "P"]
        groups = sums[:-1] if are_calls and len(axes) - 1 in sums else sums
        if (sums and not may_be_partial) or any(_is_equal(values, axes, place, tolerance) for place in groups):
            continue
        for order in orders if all(part.ndim == parts[0].ndim for part in parts) else ():
            if (result := _merged(values, axes, order, tolerance)) is not None:
                yield axes, result[0]


def in_other_orders(axes: tuple[Axis, ...], whole: Array) -> Iterator[tuple[tuple[Axis, ...], Array]]:
    """The same in the order of the whole, where ranks have indices of a dimension in one that frameworks use."""
    for d in sorted({axis.dimension for axis in axes if axis.kind == "S"}):
        sizes = [axis.size for axis in axes if axis.kind == "S" and axis.dimension == d]
        for shards in sorted({*sizes, math.prod(sizes)}):
            for places, words in _orders(whole.shape[d], shards):
                yield _in_order(axes, {d: words}), np.take(whole, np.argsort(places), d)


def readings(grid: Grid, dimensions: int) -> Iterator[tuple[tuple[Axis, ...], Iterator[tuple[int, ...]]]]:
    """What a value may be over each group, whatever the whole is, and the orders in which groups are put together."""
    first: list[tuple[Kind, int]] = [("R", 0), ("S", 0), ("P", 0)]
    kinds = [*first, *(("S", d) for d in range(1, dimensions))] if dimensions else [first[0], first[2]]
    for chosen in product(kinds, repeat=len(grid.names)):
        axes = tuple(Axis(name, size, *how) for name, size, how in zip(grid.names, grid.sizes, chosen))
        yield axes, _orders_of_groups(axes)


def _is_equal(values: _Values, axes: tuple[Axis, ...], place: int, tolerance: float) -> bool:
    """Whether the ranks of each row of a group hold one value."""
    replicas = replace(axes[place], kind="R")
    rows: dict[tuple[int, ...], list[Value]] = {}
    for coordinates, value in values.items():
        rows.setdefault((*coordinates[:place], *coordinates[place + 1 :]), []).append(value)
    joined = [_joined(row, replicas) for row in rows.values()]
    return all(one is not None and one[1] <= tolerance for one in joined)


def _measured(
    axes: tuple[Axis, ...], value: Any, spread: float, whole: Any, scale: float, room: Array | None
) -> Placement:
    away, factor = distance(value, whole, scale), 1.0
    size, own = norm_of(whole), away
    pair: tuple[Any, Any] | None = None
    if not isinstance(value, _ARRAYS):
        factor = value.factor(whole)
    else:
        pair = value, whole
        if scale and math.isfinite(away):
            flat = np.where(np.isfinite(value), value, 0).ravel(), np.where(np.isfinite(whole), whole, 0).ravel()
            factor = float(np.real(np.vdot(flat[1], flat[0]))) / scale**2
        if room is not None and room.shape == whole.shape:
            away = distance(value, whole, scale, room)
    apart = max(own * scale / size if size else own and math.inf, spread)
    return Placement(axes, max(away, spread), factor, apart=apart, pair=pair)


def assignments(grid: Grid, whole: Value, parts: Sequence[Value]) -> Iterator[tuple[tuple[Axis, ...], tuple[int, ...]]]:
    """What each group may be, and in which order groups are put together, as far as shapes allow it."""
    if any(part.ndim != whole.ndim for part in parts):
        return
    split = [d for d in range(whole.ndim) if any(part.shape[d] != whole.shape[d] for part in parts)]
    kinds: list[tuple[Kind, int]] = [("R", 0), ("P", 0), *(("S", d) for d in split)]
    for chosen in product(kinds, repeat=len(grid.names)):
        if {d for kind, d in chosen if kind == "S"} != set(split):
            continue
        axes = tuple(Axis(name, size, *how) for name, size, how in zip(grid.names, grid.sizes, chosen))
        if all(_length(axes, d, grid, parts) == whole.shape[d] for d in split):
            yield from ((axes, order) for order in _orders_of_groups(axes))


def _length(axes: tuple[Axis, ...], dimension: int, grid: Grid, parts: Sequence[Value]) -> int:
    """How long the parts of one row of the ranks are along a dimension, put together."""
    along = [axis.kind == "S" and axis.dimension == dimension for axis in axes]
    first = grid.coordinates[0]
    return sum(
        part.shape[dimension]
        for place, part in zip(grid.coordinates, parts)
        if all(at == start or is_along for at, start, is_along in zip(place, first, along))
    )


def _orders_of_groups(axes: tuple[Axis, ...]) -> Iterator[tuple[int, ...]]:
    """In which order groups are put together: of two along one dimension either may hold the larger blocks."""
    together = [axis.dimension for axis in axes if axis.kind == "S"]
    places = tuple(range(len(axes)))
    yield from permutations(places) if len(set(together)) < len(together) else (places[::-1],)


def _merged(
    values: _Values, axes: tuple[Axis, ...], order: Sequence[int], tolerance: float
) -> tuple[Any, float] | None:
    """The values put together, and how far replicas differ; None where shapes or replicas do not allow it."""
    left, spread = list(range(len(axes))), 0.0
    for place in order:
        at = left.index(place)
        rows: dict[tuple[int, ...], list[tuple[int, Value]]] = {}
        for coordinates, value in values.items():
            rows.setdefault((*coordinates[:at], *coordinates[at + 1 :]), []).append((coordinates[at], value))
        joined = {}
        for key, members in rows.items():
            one = _joined([value for _, value in sorted(members, key=lambda member: member[0])], axes[place])
            if one is None:
                return None
            joined[key], apart = one
            spread = max(spread, apart)
        if spread > max(tolerance, Relative.COPIES):
            return None
        values = joined
        left.remove(place)
    return values[()], spread


def _joined(members: list[Any], axis: Axis) -> tuple[Any, float] | None:
    if len(members) != axis.size:
        return None
    if not isinstance(members[0], _ARRAYS):
        known: Known = members[0]
        return known.joined(members[1:], axis.kind, axis.dimension)
    first, shapes = members[0], {member.shape for member in members}
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
    if whole.ndim < 2 or any(part.ndim != 1 for part in parts) or len(grid.sizes) != 1:
        return
    joined = np.concatenate(parts)
    if joined.size >= whole.size and not joined[whole.size :].any():
        axes = (Axis(grid.names[0], grid.sizes[0], "S", -1),)
        yield _measured(axes, joined[: whole.size].reshape(whole.shape), 0.0, whole, scale, room)


def _overlapping(
    whole: Array, values: Mapping[tuple[int, ...], Any], grid: Grid, scale: float, room: Array | None
) -> Iterator[Placement]:
    """Parts that go beyond their own share along a dimension: rows beyond it repeat, are not used, or add gradients."""
    parts = list(values.values())
    if len(grid.sizes) != 1 or any(part.ndim != whole.ndim for part in parts):
        return
    split = [d for d in range(whole.ndim) if any(part.shape[d] != whole.shape[d] for part in parts)]
    lengths = [part.shape[split[0]] for part in parts] if len(split) == 1 else []
    if sum(lengths) <= (whole.shape[split[0]] if lengths else 0):
        return
    d, rows, size = split[0], np.moveaxis(whole, split[0], 0), norm_of(whole)
    moved = [np.moveaxis(part, d, 0) for part in parts]
    shares = np.array_split(np.arange(len(rows)), len(parts))
    for starts in _starts(len(rows), lengths):
        copied, added, own, apart = np.zeros_like(rows), np.zeros_like(rows), np.zeros_like(rows), 0.0
        for start, part, share in zip(starts, moved, shares):
            first, end = max(0, -start), min(len(part), len(rows) - start)
            there = slice(start + first, start + end)
            apart = max(
                apart, distance(part[first:end], rows[there], size or 1.0), norm_of(part[:first]), norm_of(part[end:])
            )
            copied[there] = part[first:end]
            added[there] += part[first:end]
            within = share[(share >= there.start) & (share < there.stop)]
            own[within] = part[within - start]
        readings = (copied, "with overlap", apart), (added, "of which overlaps are added", 0.0), (own, UNUSED, 0.0)
        for value, words, spread in readings:
            axes = (Axis(grid.names[0], grid.sizes[0], "S", d, words),)
            yield _measured(axes, np.moveaxis(value, 0, d), spread, whole, scale, room)


def _starts(count: int, lengths: Sequence[int]) -> list[list[int]]:
    """Where parts begin in a whole of `count` rows, of which each has a share and rows before or behind it."""
    own = [len(part) for part in np.array_split(np.arange(count), len(lengths))]
    extra = [length - share for length, share in zip(lengths, own)]
    before = ([one // 2 for one in extra], [0, *[extra[0]] * (len(extra) - 1)], extra, [0] * len(extra))
    at = np.cumsum([0, *own[:-1]]).tolist()
    found = [[place - one for place, one in zip(at, rows)] for rows in before if min(extra) >= 0]
    if len(set(lengths)) == 1 < len(lengths) and (count - lengths[0]) % (len(lengths) - 1) == 0:
        found.append([place * (count - lengths[0]) // (len(lengths) - 1) for place in range(len(lengths))])
    return [one for one in found if all(-length < start < count for start, length in zip(one, lengths))]


def _reordered(
    merged: Sequence[tuple[tuple[Axis, ...], Any, float]],
    whole: Array,
    scale: float,
    tolerance: float,
    room: Array | None,
) -> Iterator[Placement]:
    """Placements of which the indices of the sharded dimension follow in another order."""
    for axes, value, spread in merged:
        dimensions = list(dict.fromkeys(axis.dimension for axis in axes if axis.kind == "S")) or [0]
        if not whole.ndim or spread > tolerance:
            continue
        choices = []
        for d in dimensions:
            shards = math.prod(axis.size for axis in axes if axis.kind == "S" and axis.dimension == d)
            as_they_are: tuple[Sequence[int], str] = range(whole.shape[d]), ""
            # Contents tell the order along one dimension, where the others are in theirs.
            found = [*_orders(whole.shape[d], shards)]
            by_content = matching_indices(value, whole, d, tolerance * scale) if len(dimensions) == 1 else None
            if by_content is not None and by_content != [*as_they_are[0]]:
                found.append((by_content, _order_words(by_content, shards=shards)))
            choices.append([as_they_are, *found] if len(dimensions) > 1 else found)
        fitting = []
        for chosen in product(*choices):
            ordered = value
            for d, (places, _) in zip(dimensions, chosen):
                ordered = np.take(ordered, np.argsort(places), d)
            words = dict(zip(dimensions, (text for _, text in chosen)))
            one = _measured(_in_order(axes, words), ordered, spread, whole, scale, room)
            if one.distance <= tolerance:
                fitting.append(replace(one, orders=dict(zip(dimensions, (places for places, _ in chosen)))))
        # Any order at all has more freedom to come near than one that frameworks use.
        yield from sorted(fitting, key=lambda one: one.distance * (Times.NO_DOUBT if one.is_reordered else 1))[:1]


def _in_order(axes: tuple[Axis, ...], words: Mapping[int, str]) -> tuple[Axis, ...]:
    """The axes, of which the first along each dimension says in which order its indices are."""
    left, found = dict(words), []
    for axis in axes:
        is_along = axis.kind == "S" or not any(one.kind == "S" for one in axes)
        order = left.pop(axis.dimension, "") if is_along else ""
        found.append(replace(axis, order=order) if order else axis)
    return tuple(found)


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
            pairs = [place for shard in range(shards) for place in (shard, 2 * shards - 1 - shard)]
            yield blocks[pairs].ravel().tolist(), "in zigzag"


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
    left, right = (np.moveaxis(one, dimension, 0).reshape(count, rest) @ signs for one in (value, whole))
    limit = 4 * allowed / math.sqrt(count) + np.finfo(np.float64).tiny
    is_free = np.ones(count, np.bool_)
    found: list[int] = []
    for row in left:
        following = found[-1] + 1 if found else 0
        free = np.flatnonzero(is_free)
        away = np.linalg.norm(right[free] - row, axis=1)
        nearest = float(away.min())
        if nearest > limit:
            return None
        if not (following < count and is_free[following] and _norm(row - right[following]) <= 2 * nearest):
            following = int(free[np.argmin(away)])
        is_free[following] = False
        found.append(following)
    return found


def _norm(row: Array) -> float:
    return float(np.linalg.norm(row))
