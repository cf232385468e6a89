"""Which tensors of two checkpoints belong together by what they hold: renamed, transposed, fused, divided.

A layout is tried by some elements: the tensor that it gives must hold what the tensor on the other side holds at the
same places. Distances are Euclidean, relative to the larger norm; tensors without relation are at 1.4.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations
from math import prod
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from msprobe_checkpoints.names import likeness
from msprobe_checkpoints.tensors import Array, Joined, Piece, ReadError, Shaped, Tensor, Transposed

#: Rows of a sample, and neighbours in each.
_ROWS, _RUNS, _RUN = 12, 2, 8
#: A layout fits when it is nearer than this, and nearer than any other by the factor; or so near that none is tried.
_NEAR, _FACTOR, _SURE = 0.5, 3.0, 1e-2
#: Parts that a fused layer is made of, and siblings that are tried for it.
_MOST_PARTS, _MOST_SIBLINGS = 4, 8
#: Groups of parts that are tried for a tensor where no numbers of names say which.
_MOST_GROUPS = 16
#: Candidates of one shape that are compared with each tensor.
_MOST_CANDIDATES = 4096
#: Bytes of a row that is looked up by its hash, at least: the hashes take 16.
_FEWEST_ROW_BYTES = 32
_FEWEST_DISTINCT = 3

#: How names belong together of which one side has several.
_SEVERAL = "fused or divided layout"


@dataclass(frozen=True)
class Layout:
    """How tensors of one side make up one of the other.

    Attributes:
        target, golden: names; one of them has one element.
        left, right: tensors of one shape that are to be compared.
        how: in words.
        way: how the names were found to belong together, "" for equal ones.
    """

    target: tuple[str, ...]
    golden: tuple[str, ...]
    left: Tensor
    right: Tensor
    how: str
    way: str = ""


Names = Mapping[str, Tensor]


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
    found: Array = np.unique(places)
    return found


def sampled(tensor: Tensor) -> Array:
    """Elements of `tensor` at the places that every tensor of its shape is asked for, float64 or complex128."""
    values = tensor.at(_places(tensor.shape))
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def distance(one: Array, other: Array) -> float:
    """How far two samples are apart; places where both are not finite count nothing, where one is, everything."""
    finite = np.isfinite(one)
    if (finite != np.isfinite(other)).any():
        return float("inf")
    a, b = one[finite], other[finite]
    with np.errstate(over="ignore", invalid="ignore"):
        scale = float(max(np.linalg.norm(a), np.linalg.norm(b)))
        return float(np.linalg.norm(a - b)) / scale if scale else 0.0


def is_turned(left: Tensor, right: Tensor) -> bool:
    """Whether a matrix of the same name is the transposed one of the other side."""
    if len(left.shape) != 2 or left.shape != right.shape[::-1]:
        return False
    turned = distance(sampled(left), sampled(Transposed(right)))
    straight = distance(sampled(left), sampled(right)) if left.shape == right.shape else float("inf")
    return turned * _FACTOR < straight and (turned < _NEAR or left.shape != right.shape)


def find_layouts(
    target: dict[str, Tensor], golden: dict[str, Tensor], progress: Callable[[], None]
) -> Iterator[Layout]:
    """Layouts that join names of both sides; each name is taken from its dictionary.

    `progress` is called now and then.

    Raises:
        ReadError: a file ends early or cannot be opened.
    """
    yield from _single(target, golden)
    memory = _Memory()
    for wholes, parts, is_target in ((target, golden, True), (golden, target, False)):
        for name in list(wholes):
            progress()
            found = _fused(name, wholes[name], parts, memory)
            if found is None:
                continue
            chosen, layout, turned, how = found
            whole = wholes.pop(name)
            for part in chosen:
                del parts[part]
            yield _layout(name, Transposed(whole) if turned else whole, chosen, layout, how, is_target=is_target)
    for wholes, parts, is_target in ((target, golden, True), (golden, target, False)):
        yield from _by_rows(wholes, parts, progress, is_target=is_target)


def _layout(name: str, whole: Tensor, parts: tuple[str, ...], joined: Tensor, how: str, *, is_target: bool) -> Layout:
    if is_target:
        return Layout((name,), parts, whole, joined, how, _SEVERAL)
    return Layout(parts, (name,), joined, whole, how, _SEVERAL)


def _single(target: dict[str, Tensor], golden: dict[str, Tensor]) -> Iterator[Layout]:
    """Tensors of other names: of the same shape, or transposed."""
    for is_turned_ in (False, True):
        shapes: dict[tuple[int, ...], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for name, tensor in target.items():
            shapes[tensor.shape][0].append(name)
        for name, tensor in golden.items():
            if len(tensor.shape) == 2 or not is_turned_:
                shapes[tensor.shape[::-1] if is_turned_ else tensor.shape][1].append(name)
        for own, others in shapes.values():
            if own and others and max(len(own), len(others)) <= _MOST_CANDIDATES:
                yield from _nearest(target, golden, own, others, turned=is_turned_)


def _nearest(
    target: dict[str, Tensor], golden: dict[str, Tensor], own: list[str], others: list[str], *, turned: bool
) -> Iterator[Layout]:
    """Pairs of one shape that are nearest to each other, and near."""
    right = {name: Transposed(golden[name]) if turned else golden[name] for name in others}
    samples = {name: sampled(tensor) for name, tensor in right.items()}
    stacked = np.stack(list(samples.values()))
    for name in own:
        sample = sampled(target[name])
        with np.errstate(over="ignore", invalid="ignore"):
            away = np.linalg.norm(stacked - sample, axis=1)
            away /= np.maximum(np.maximum(np.linalg.norm(stacked, axis=1), np.linalg.norm(sample)), 1e-300)
        free = [index for index, other in enumerate(others) if other in golden]
        if not free:
            return
        ranked = sorted(free, key=lambda index: float(away[index]) if away[index] == away[index] else np.inf)
        best = float(away[ranked[0]])
        if not best <= _NEAR:
            continue
        # Weights of norms are all near one: where content does not tell, names must.
        near = [others[index] for index in ranked if away[index] <= best * _FACTOR + 1e-12]
        is_open = len(near) > 1 and best > 1e-12
        likely = sorted(((likeness(name, other), other) for other in near), key=lambda one: one[0], reverse=True)
        (words, chosen), *rest = likely
        if is_open and (not all(words) or (rest and rest[0][0] == words)):
            continue
        # What is constant is like others by chance: such a pair must have something of its names in common.
        if len(np.unique(sample)) < _FEWEST_DISTINCT and not words[1]:
            continue
        how = "transposed, found by content" if turned else "found by content"
        yield Layout((name,), (chosen,), target[name], right[chosen], how, "content")
        del target[name], golden[chosen]


class _Memory:
    """The layouts that were found, to be tried first: layers of a model are alike."""

    def __init__(self) -> None:
        self.first: list[tuple[object, ...]] = []

    def keep(self, key: tuple[object, ...]) -> None:
        """Try this one first."""
        if key in self.first:
            self.first.remove(key)
        self.first.insert(0, key)

    def rank(self, key: tuple[object, ...]) -> int:
        """Its place among those that were found."""
        return self.first.index(key) if key in self.first else len(self.first)


def _fused(
    name: str, whole: Tensor, parts: dict[str, Tensor], memory: _Memory
) -> tuple[tuple[str, ...], Tensor, bool, str] | None:
    """Names of the parts of `whole`, what they give, whether the whole is to be transposed for it, and in words."""
    if not whole.shape or whole.size < _FEWEST_DISTINCT:
        return None
    samples = {turned: sampled(Transposed(whole) if turned else whole) for turned in (False, *_turns(whole))}
    ranked = sorted(((likeness(name, template), group) for template, group in _groups(whole, parts)), reverse=True)
    # Of layers with numbers, those of the same number; of a model of other names, some.
    groups = [group for (is_same, _), group in ranked if is_same] or [group for _, group in ranked[:_MOST_GROUPS]]
    nearest: list[tuple[float, tuple[str, ...], Tensor, bool, str]] = []
    for group in groups:
        tried = sorted(_ways(whole, group, parts), key=lambda way: memory.rank(way[0]))
        for key, order, joined, turned, how in tried:
            away = distance(samples[turned], sampled(joined))
            if away <= _SURE and not _is_constant(samples[turned]):
                memory.keep(key)
                return order, joined, turned, how
            nearest.append((away, order, joined, turned, how))
    nearest.sort(key=lambda one: one[0])
    if not nearest or nearest[0][0] > _NEAR:
        return None
    # As far to the last bit is the same content, such as parts that are all zero.
    others = [one[0] for one in nearest if one[0] > nearest[0][0] * (1 + 1e-12)]
    if others and nearest[0][0] * _FACTOR > others[0]:
        return None
    return nearest[0][1:]


def _is_constant(sample: Array) -> bool:
    return len(np.unique(sample)) < _FEWEST_DISTINCT


def _turns(whole: Tensor) -> tuple[bool, ...]:
    return (True,) if len(whole.shape) == 2 else ()


_ANY = re.compile(r"[._]")


def _groups(whole: Tensor, parts: dict[str, Tensor]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(what is common, names) of names that differ in one word, and whose tensors are together as large as it."""
    templates: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, tensor in parts.items():
        if tensor.size < whole.size and tensor.shape:
            words = name.split(".")
            for place in range(len(words)):
                template = (*words[:place], "*", *words[place + 1 :])
                templates[template].append(name)
    given: set[tuple[str, ...]] = set()
    for words_of_group, names in templates.items():
        if len(names) < 2:
            continue
        ordered = tuple(sorted(names, key=_in_order))
        sizes = [parts[one].size for one in ordered]
        chosen = [ordered] if sum(sizes) == whole.size else []
        if len(ordered) <= _MOST_SIBLINGS:
            chosen += [
                some
                for count in range(2, min(_MOST_PARTS, len(ordered) - 1) + 1)
                for some in combinations(ordered, count)
                if sum(parts[one].size for one in some) == whole.size
            ]
        for one in chosen:
            if one not in given:
                given.add(one)
                yield ".".join(words_of_group), one


def _in_order(name: str) -> tuple[object, ...]:
    """Numbers by their size; query, key, value and gate, up in the order in which layers fuse them."""
    known = {"q": 0, "query": 0, "gate": 0, "w1": 0, "k": 1, "key": 1, "up": 1, "w3": 1, "v": 2, "value": 2}
    return tuple(
        (0, int(word[:18]), "") if word.isdecimal() else (1, known.get(word, 9), word) for word in _ANY.split(name)
    )


_Way = tuple[tuple[object, ...], tuple[str, ...], Tensor, bool, str]


def _ways(whole: Tensor, group: tuple[str, ...], parts: dict[str, Tensor]) -> Iterator[_Way]:
    """Ways to put parts together: (key of the way, names, tensor, whether the whole is transposed for it, words)."""
    for turned in (False, *_turns(whole)):
        shape = whole.shape[::-1] if turned else whole.shape
        words = " of the transposed matrix" if turned else ""
        orders = permutations(range(len(group))) if len(group) <= _MOST_PARTS else [range(len(group))]
        for order in map(tuple, orders):
            names = tuple(group[index] for index in order)
            tensors = [parts[name] for name in names]
            rows = _as_rows(tensors, shape)
            if rows is not None:
                sizes = [tensor.shape[0] for tensor in rows]
                for groups in _divisors(sizes):
                    how = f"{len(rows)} parts along dimension 0{words}"
                    how += f", in {groups} groups" if groups > 1 else ""
                    joined = _interleaved(rows, shape, groups)
                    yield ("rows", order, sizes[0] // groups, turned), names, joined, turned, how
            if not turned and _stand_beside([tensor.shape for tensor in tensors], shape):
                joined = _beside(tensors, shape)
                yield ("columns", order, 0, turned), names, joined, turned, f"{len(names)} parts along dimension 1"


def _stand_beside(parts: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> bool:
    """Whether tensors of these shapes fill a whole along its second dimension."""
    if len(whole) < 2 or any(len(part) != len(whole) for part in parts):
        return False
    are_alike = all(part[0] == whole[0] and part[2:] == whole[2:] for part in parts)
    return are_alike and sum(part[1] for part in parts) == whole[1]


def _as_rows(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> list[Tensor] | None:
    """Tensors that fill a shape along its first dimension; those of one dimension less are one index each."""
    inner = shape[1:]
    if all(tensor.shape[1:] == inner and len(tensor.shape) == len(shape) for tensor in tensors):
        return list(tensors) if sum(tensor.shape[0] for tensor in tensors) == shape[0] else None
    if all(tensor.shape == inner for tensor in tensors) and len(tensors) == shape[0]:
        return [Shaped(tensor, (1, *inner)) for tensor in tensors]
    return None


def _divisors(sizes: Sequence[int]) -> Iterator[int]:
    """Into how many equal groups all of these can be divided: heads of attention, or 1."""
    if len(sizes) > _MOST_PARTS:
        yield 1
        return
    least = min(sizes)
    yield from (count for count in range(1, least + 1) if all(size % count == 0 for size in sizes))


def _interleaved(tensors: Sequence[Tensor], shape: tuple[int, ...], groups: int) -> Joined:
    """Parts one behind the other in each of so many groups."""
    pieces, at, zeros = [], 0, (0,) * (len(shape) - 1)
    for group in range(groups):
        for tensor in tensors:
            rows = tensor.shape[0] // groups
            pieces.append(Piece(tensor, (at, *zeros), group * rows, rows))
            at += rows
    return Joined(tensors[0].dtype, shape, pieces)


def _beside(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Joined:
    pieces, at, zeros = [], 0, (0,) * (len(shape) - 2)
    for tensor in tensors:
        pieces.append(Piece.whole(tensor, (0, at, *zeros)))
        at += tensor.shape[1]
    return Joined(tensors[0].dtype, shape, pieces)


def _by_rows(
    wholes: dict[str, Tensor], parts: dict[str, Tensor], progress: Callable[[], None], *, is_target: bool
) -> Iterator[Layout]:
    """Matrices whose rows are those of several others, in any order, told by hashes of the rows."""
    for name in list(wholes):
        progress()
        whole = wholes[name]
        width = whole.shape[-1] if len(whole.shape) > 1 else 0
        if width * whole.array_dtype.itemsize < _FEWEST_ROW_BYTES or whole.size <= width:
            continue
        smaller = [
            one
            for one, part in parts.items()
            if len(part.shape) > 1 and part.shape[-1] == width and 0 < part.size <= whole.size
        ]
        if not smaller:
            continue
        narrow = min((whole, *(parts[one] for one in smaller)), key=lambda one: one.array_dtype.itemsize).array_dtype
        index = _RowIndex(whole, narrow)
        pieces, chosen, filled = [], [], 0
        for one in sorted(smaller, key=lambda one: likeness(name, one), reverse=True):
            found = index.places(parts[one])
            if found is None:
                continue
            flat = Shaped(parts[one], (parts[one].size // width, width))
            pieces += [Piece(flat, (found[first], 0), first, count) for first, count in _runs(found)]
            chosen.append(one)
            filled += len(found)
        if filled == whole.size // width and len({piece.at for piece in pieces}) == len(pieces):
            joined = Shaped(Joined(parts[chosen[0]].dtype, (filled, width), pieces), whole.shape)
            del wholes[name]
            for one in chosen:
                del parts[one]
            how = f"{len(chosen)} parts, rows in {len(pieces)} blocks, found by content"
            yield _layout(name, whole, tuple(chosen), joined, how, is_target=is_target)


def _first_row(tensor: Tensor) -> Tensor:
    width = tensor.shape[-1]
    flat = Shaped(tensor, (tensor.size // width, width))
    return Joined(tensor.dtype, (1, width), [Piece(flat, (0, 0), 0, 1)])


class _RowIndex:
    """Where rows of a matrix stand in it, by their hashes."""

    def __init__(self, whole: Tensor, dtype: np.dtype[Any]) -> None:
        """The rows of `whole` as elements of `dtype`; it is read once."""
        hashes = np.fromiter(_row_hashes(whole, dtype), np.uint64)
        self._dtype = dtype
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def places(self, part: Tensor) -> list[int] | None:
        """The row of the whole that each row of `part` is; None where one is not there, or stands twice.

        A part of another tensor costs the reading of its first row.
        """
        if self._find(np.fromiter(_row_hashes(_first_row(part), self._dtype), np.uint64)) is None:
            return None
        return self._find(np.fromiter(_row_hashes(part, self._dtype), np.uint64))

    def _find(self, hashes: Array) -> list[int] | None:
        at = np.minimum(np.searchsorted(self._sorted, hashes), self._sorted.size - 1)
        if (self._sorted[at] != hashes).any():
            return None
        found: list[int] = self._order[at].tolist()
        return found if len(set(found)) == len(found) else None


def _row_hashes(tensor: Tensor, dtype: np.dtype[Any]) -> Iterator[int]:
    """A hash of each row along the last dimension, of its elements in `dtype`."""
    width = tensor.shape[-1]
    step = max(1, (1 << 20) // width) * width
    for start in range(0, tensor.size, step):
        block = tensor.read(start, min(start + step, tensor.size))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = block.astype(dtype, copy=False).reshape(-1, width).view(np.uint8)
        yield from (xxh3_64_intdigest(row.data) for row in rows)
    tensor.release()


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, length) of each run of places that follow each other."""
    first = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[index - 1] + 1:
            yield first, index - first
            first = index


__all__ = ["Layout", "ReadError", "find_layouts", "is_turned", "sampled"]
