"""Who made a value that no record made whole, told from its elements.

Views, casts and joins leave no record in many dumps. What they made still holds the elements of an output, which are
compared by a hash of each number, see `views`.

- The sum of these hashes is equal for a tensor in any order; k copies have k times the sum, joined parts the sum of
  sums. Zero counts 0, so that padding changes nothing.
- The lowest of these hashes are a sample that depends on the numbers alone: of a part, they are all found in the whole.
- A part is claimed only when each of its elements stands in the whole where a view would take it from.

Constants, masks and small whole numbers are equal by chance, and never matched. Nor are integers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product, repeat
from operator import attrgetter
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.values import array_dtype
from pytest_msprobe.numerics.dtypes import kind_of, part_dtype
from pytest_msprobe.numerics.expected import Absolute, Relative
from pytest_msprobe.suites.comparison.accounting.terms import load
from pytest_msprobe.suites.comparison.accounting.views import (
    CHUNK,
    OF_NEGATIVE,
    Array,
    Hashes,
    ViewSearch,
    hash_magnitudes,
    is_negative,
    real_numbers,
)
from pytest_msprobe.suites.comparison.sides import ComparedDump

How = Literal["permuted", "padded", "part", "joined", "copies", "cast", "negated", "extended"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An output that may have made a value; `place` is that of its record in the order of execution."""

    record: str
    path: str
    place: int


@dataclass(frozen=True, slots=True)
class ElementSource:
    """What a value was made from.

    Attributes:
        makers: the output that holds its elements, or several whose elements it joins.
        how: what became of them. `permuted`: all of them, in this or another order. `padded`: all, and zeros. `part`:
            a slice. `joined`: of several. `copies`: some or all more than once. `cast`: all of them, of another dtype.
            `negated`: all, of some the negative; parts and joined values may have other signs, too, where nothing else
            has their elements. `extended`: all of the makers, and no more numbers beside them of unknown origin, such
            as a class token.
    """

    makers: tuple[Candidate, ...]
    how: How


_LOWEST = 1024
_SORTED = 4 * _LOWEST
#: A value of fewer distinct numbers, zero left out, is like others by chance.
_FEWEST = 16
_MODULUS = 1 << 64
_NARROW = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32)))


@dataclass(frozen=True, slots=True)
class ElementFingerprint:
    """The elements of one value, whatever their order.

    Attributes:
        total: the sum of the hashes of their magnitudes modulo 2**64.
        negative: the same of those below zero.
        size, nonzero: how many numbers, and how many are not zero.
        lowest: the smallest hashes of distinct magnitudes but zero, ascending, up to 1,024.
        is_counting: whether all are whole numbers below 2**20.
    """

    total: int
    negative: int
    size: int
    nonzero: int
    lowest: Hashes
    is_counting: bool

    @classmethod
    def of(cls, array: Array, dtype: np.dtype[Any]) -> ElementFingerprint:
        """The fingerprint of an array of floats as numbers of `dtype`, in one pass."""
        total = negative = nonzero = 0
        lowest, bound, is_counting = np.empty(0, np.uint64), np.uint64(_MODULUS - 1), True
        flat = real_numbers(array).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            numbers = flat[start : start + CHUNK]
            hashes = hash_magnitudes(numbers, dtype)
            total += int(hashes.sum(dtype=np.uint64))
            negative += int(hashes[is_negative(numbers)].sum(dtype=np.uint64))
            nonzero += int(np.count_nonzero(hashes))
            is_counting = is_counting and _is_counting(numbers)
            low = hashes[(hashes <= bound) & (hashes > 0)]
            if low.size:
                lowest = _lowest_of(lowest, low)
                bound = lowest[-1] if lowest.size == _LOWEST else bound
        total, negative = total % _MODULUS, negative % _MODULUS
        return cls(total, negative, flat.size, nonzero, lowest=lowest, is_counting=is_counting)

    def key(self, *, is_signed: bool) -> int:
        """A number that is equal for equal elements, or magnitudes of elements, and adds up like them."""
        return (self.total + int(OF_NEGATIVE) * self.negative * is_signed) % _MODULUS

    @property
    def bound(self) -> int:
        """Hashes up to here are all in `lowest`."""
        return int(self.lowest[-1]) if self.lowest.size == _LOWEST else _MODULUS - 1

    @property
    def distinct(self) -> float:
        """How many distinct numbers but zero, estimated where there are more than 1,024."""
        return self.lowest.size * (_MODULUS / (self.bound + 1) if self.lowest.size == _LOWEST else 1.0)

    @property
    def is_weak(self) -> bool:
        """Whether other values may have the same elements by chance."""
        return self.lowest.size < _FEWEST or self.is_counting

    def found_in(self, whole: ElementFingerprint) -> int | None:
        """How many of the numbers sampled are in `whole`; None when one is not."""
        if not whole.lowest.size:
            return None
        sample = self.lowest[: int(np.searchsorted(self.lowest, np.uint64(whole.bound), side="right"))]
        if not sample.size:
            return 0
        # Samples are compared by their first hashes before all of them are.
        for some in (sample[:8], sample):
            at = np.minimum(np.searchsorted(whole.lowest, some), whole.lowest.size - 1)
            if not np.array_equal(whole.lowest[at], some):
                return None
        return sample.size

    def copies_of(self, other: ElementFingerprint, *, is_signed: bool = True) -> int:
        """How many copies of all of `other` this is; 0 when it is not made of copies."""
        count, rest = divmod(self.size, other.size or self.size + 1)
        is_copied = not rest and self.nonzero == count * other.nonzero
        theirs = count * other.key(is_signed=is_signed) % _MODULUS
        return count if is_copied and self.key(is_signed=is_signed) == theirs else 0


def _lowest_of(lowest: Hashes, hashes: Hashes) -> Hashes:
    """The smallest of distinct hashes, ascending; of many, only the lower ones are sorted where they suffice."""
    if hashes.size > _SORTED:
        parted = np.partition(hashes, _SORTED)
        merged = np.union1d(lowest, parted[:_SORTED])
        if merged.size >= _LOWEST and merged[_LOWEST - 1] <= parted[_SORTED]:
            return merged[:_LOWEST]
    return np.union1d(lowest, hashes)[:_LOWEST]


def _is_counting(numbers: Array) -> bool:
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float64)
        return bool(((np.rint(wide) == wide) & (np.abs(wide) < Absolute.COUNTING)).all())


def _narrowest(array: Array) -> np.dtype[Any]:
    """The narrowest dtype that holds all its numbers: a bfloat16 that became float32 is still one."""
    flat = real_numbers(array).reshape(-1)
    for dtype in (dtype for dtype in _NARROW if dtype.itemsize < flat.dtype.itemsize):
        if all(_is_held(flat[start : start + CHUNK], dtype) for start in range(0, flat.size, CHUNK)):
            return dtype
    return flat.dtype


def _is_held(numbers: Array, dtype: np.dtype[Any]) -> bool:
    with np.errstate(all="ignore"):
        back = numbers.astype(dtype).astype(numbers.dtype)
    return bool(((back == numbers) | np.isnan(numbers)).all())


#: A value of a narrow dtype may be in many outputs, as far as samples tell. It is looked up in so many of them, fewer
#: where they have more numbers than this together.
_MOST_LOOKED_UP = 12
_FEWEST_LOOKED_UP = 3
_MOST_NUMBERS = 1 << 24
_MOST_PIECES = 64
_MOST_TRIES = 20_000
Place = tuple[str, str]


@dataclass(slots=True)
class _Output:
    """A candidate with what the dump says of its tensor: `size` in real numbers, the extremes where it knows them."""

    candidate: Candidate
    leaf: Leaf
    dtype: np.dtype[Any]
    size: int
    extremes: tuple[float, float] | None


@dataclass(slots=True)
class _Wanted:
    """A value whose makers are searched, as numbers of the narrowest dtype that holds them."""

    leaf: Leaf
    array: Array
    dtype: np.dtype[Any]
    fingerprint: ElementFingerprint
    extremes: tuple[float, float] | None
    is_signed: bool = True

    def dtype_of(self, output: _Output) -> np.dtype[Any]:
        """The dtype that an output is cast to before it is compared: its own, where that is the narrower one."""
        is_wide = self.dtype.itemsize <= output.dtype.itemsize
        return self.dtype if is_wide else output.dtype

    def views(self) -> ViewSearch:
        """A search for what this value is a view of."""
        return ViewSearch(self.array, self.dtype, self.fingerprint.distinct, is_signed=self.is_signed)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.fingerprint.size

    def count_copies(self, other: ElementFingerprint) -> int:
        """How many copies of all of `other` it is; 0 when it is not made of copies."""
        return self.fingerprint.copies_of(other, is_signed=self.is_signed)

    def parts(self, outputs: Iterable[_Output]) -> Iterator[_Output]:
        """Outputs that may be a part of this value."""
        return (output for output in outputs if output.size < self.size and self.may_contain(output))

    def may_contain(self, output: _Output) -> bool:
        """Whether the extremes allow that an output is a part of this value."""
        return self._is_within(output.extremes, self.extremes)

    def may_be_in(self, output: _Output) -> bool:
        """Whether the extremes allow that this value is a part of an output."""
        return self._is_within(self.extremes, output.extremes)

    def may_equal(self, output: _Output) -> bool:
        """Whether the extremes allow that this value has the numbers of an output."""
        return self.may_contain(output) and self.may_be_in(output)

    def _is_within(self, inner: tuple[float, float] | None, outer: tuple[float, float] | None) -> bool:
        if inner is None or outer is None:
            return True
        peaks = [max(map(abs, pair)) for pair in (inner, outer)]
        slack = Relative.CAST_EXTREMES * max(peaks)
        if not self.is_signed:
            return peaks[0] <= peaks[1] + slack
        return inner[0] >= outer[0] - slack and inner[1] <= outer[1] + slack


def _float_dtype(leaf: Leaf | None) -> np.dtype[Any] | None:
    """The NumPy dtype of the real numbers in a tensor of floats; None of anything else."""
    value = leaf.tensor if leaf is not None else None
    dtype = array_dtype(value.dtype) if value is not None else None
    return part_dtype(dtype) if dtype is not None and kind_of(dtype) in ("float", "complex") else None


def _affordable(outputs: Sequence[_Output]) -> Iterator[_Output]:
    """The first outputs that a value is looked up in."""
    numbers = 0
    for count, output in enumerate(outputs[:_MOST_LOOKED_UP]):
        numbers += output.size
        if count >= _FEWEST_LOOKED_UP and numbers > _MOST_NUMBERS:
            break
        yield output


def _described(leaf: Leaf) -> tuple[object, ...]:
    """What the dump says of a tensor, equal for equal values; its shape is left out."""
    return leaf.dtype, math.prod(leaf.shape), *map(str, leaf.statistics)


def _by_place(makers: Iterable[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(makers, key=attrgetter("place")))


def _extremes(leaf: Leaf) -> tuple[float, float] | None:
    """The recorded extremes of real numbers; None where they are missing or not finite."""
    value = leaf.tensor
    if value is None or value.dtype is None or value.dtype.kind != "float":
        return None
    low, high = value.minimum, value.maximum
    if not (isinstance(low, (int, float)) and isinstance(high, (int, float))):
        return None
    return (float(low), float(high)) if math.isfinite(low) and math.isfinite(high) else None


def _adding_up(
    whole: ElementFingerprint, pieces: Sequence[tuple[_Output, ElementFingerprint]], *, is_signed: bool
) -> list[_Output]:
    """The first outputs, in their order, whose elements together are those of a value; [] for none."""
    tries = 0

    def rest(start: int, total: int, nonzero: int, size: int) -> list[_Output] | None:
        nonlocal tries
        if not nonzero:
            return [] if not total else None
        for index in range(start, len(pieces)):
            output, piece = pieces[index]
            tries += 1
            if tries > _MOST_TRIES:
                return None
            if piece.nonzero <= nonzero and piece.size <= size:
                remaining = (total - piece.key(is_signed=is_signed)) % _MODULUS
                others = rest(index + 1, remaining, nonzero - piece.nonzero, size - piece.size)
                if others is not None:
                    return [output, *others]
        return None

    return rest(0, whole.key(is_signed=is_signed), whole.nonzero, whole.size) or []


class ElementSearch:
    """Finds the outputs of one dump whose elements a value holds. Loads what the recorded extremes do not rule out."""

    def __init__(self, side: ComparedDump, outputs: Sequence[Candidate]) -> None:
        """A search among `outputs`; nothing is loaded yet, and fingerprints are kept."""
        self._side = side
        self._candidates = sorted(outputs, key=lambda output: -output.place)

        self._leaves: dict[str, dict[str, Leaf]] = {}
        self._fingerprints: dict[tuple[str, str, np.dtype[Any]], ElementFingerprint | None] = {}

    @cached_property
    def _outputs(self) -> list[_Output]:
        """Outputs of floats that are large enough to be told apart, latest first."""
        return list(filter(None, map(self._output, self._candidates)))

    def _output(self, candidate: Candidate) -> _Output | None:
        leaf = self._all_leaves(candidate.record).get(candidate.path)
        dtype = _float_dtype(leaf)
        if leaf is None or dtype is None or math.prod(leaf.shape) < _FEWEST:
            return None
        size = math.prod(leaf.shape) * (2 if "complex" in leaf.dtype.lower() else 1)
        return _Output(candidate, leaf, dtype, size, _extremes(leaf))

    def source(self, record: str, path: str, place: int) -> ElementSource | None:
        """The latest outputs before `place` that a value was made from; None when that is not shown.

        Args:
            record: name of the record that has the value.
            path: where, as `Leaf.path`.
            place: of the record, in the order of execution.
        """
        value = self._output(Candidate(record, path, place))
        array = load(value.leaf, self._side.tensors) if value is not None else None
        if value is None or array is None:
            return None
        dtype = _narrowest(array)
        wanted = _Wanted(value.leaf, array, dtype, ElementFingerprint.of(array, dtype), value.extremes)
        if wanted.fingerprint.is_weak:
            return None
        outputs = [output for output in self._outputs if output.candidate.place < place]
        return self._original(self._likely(wanted, outputs))

    def _likely(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[tuple[_Wanted, ElementSource]]:
        ways = (self._whole, self._joined, self._repeated, self._viewed)
        either = (wanted, replace(wanted, is_signed=False))
        for value, look in (*product(either, ways), (wanted, self._extended)):
            yield from zip(repeat(value), look(value, outputs))

    def _original(self, sources: Iterator[tuple[_Wanted, ElementSource]]) -> ElementSource | None:
        """The first source that does not come from the value: a parameter is no view of what a call made of it."""
        for wanted, source in sources:
            first = min(maker.place for maker in source.makers)
            if not any(self._gets(maker.record, wanted) for maker in source.makers) or first < self._first_use(wanted):
                return source
        return None

    def _gets(self, record: str, wanted: _Wanted) -> bool:
        """Whether a record gets a value, or one that it is a view of."""
        arguments = filter(wanted.may_be_in, self._inputs(record))
        for argument, other in self._with_fingerprints(arguments, wanted):
            if wanted.fingerprint.nonzero > other.nonzero or not wanted.fingerprint.found_in(other):
                continue
            if wanted.count_copies(other) == 1:
                return True
            array = load(argument.leaf, self._side.tensors)
            if array is not None and wanted.views().in_whole(array, wanted.dtype_of(argument)) is not None:
                return True
        return False

    def _first_use(self, wanted: _Wanted) -> float:
        """The place of the first record with outputs that gets a value, the same numbers in the same order; else inf.

        -1 where the dump does not describe values, so that all would have to be loaded.
        """
        if None in wanted.leaf.statistics:
            return -1
        for leaf, place in self._uses.get(_described(wanted.leaf), ()):
            array = load(leaf, self._side.tensors)
            if array is None or np.array_equal(array.reshape(-1), wanted.array.reshape(-1), equal_nan=True):
                return place
        return math.inf

    @cached_property
    def _uses(self) -> dict[tuple[object, ...], list[tuple[Leaf, int]]]:
        """Inputs of the records that have outputs, in their order, by what the dump says of them."""
        uses = defaultdict[tuple[object, ...], list[tuple[Leaf, int]]](list)
        places = {candidate.record: candidate.place for candidate in reversed(self._candidates)}
        for record, place in places.items():
            for argument in self._inputs(record):
                uses[_described(argument.leaf)].append((argument.leaf, place))
        return dict(uses)

    def _inputs(self, record: str) -> list[_Output]:
        """The inputs of a record that are floats and large enough."""
        arguments = (Candidate(record, path, -1) for path in self._all_leaves(record) if path.startswith("input"))
        return list(filter(None, map(self._output, arguments)))

    def _with_fingerprints(
        self, outputs: Iterable[_Output], wanted: _Wanted | None = None
    ) -> Iterator[tuple[_Output, ElementFingerprint]]:
        """Outputs whose values can be read, with their fingerprints, cast as they are compared with a value."""
        for output in outputs:
            dtype = output.dtype if wanted is None else wanted.dtype_of(output)
            fingerprint = self._fingerprint(output, dtype)
            if fingerprint is not None:
                yield output, fingerprint

    def _whole(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[ElementSource]:
        """All elements of one output, in some order; those of the same dtype first."""
        of_another: list[ElementSource] = []
        alike = (output for output in outputs if output.size == wanted.size and wanted.may_equal(output))
        for output, other in self._with_fingerprints(alike, wanted):
            if not wanted.count_copies(other):
                continue
            if output.dtype != _float_dtype(wanted.leaf):
                of_another.append(ElementSource((output.candidate,), "cast"))
                continue
            exact = self._fingerprint(output, output.dtype)
            how: How = "permuted" if wanted.is_signed else "negated"
            if exact is None or exact.total != other.total:
                how = "cast"
            yield ElementSource((output.candidate,), how)
        yield from of_another

    def _joined(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[ElementSource]:
        """All elements of several outputs, or of one, and perhaps zeros."""
        pieces: dict[tuple[int, int], tuple[_Output, ElementFingerprint]] = {}
        for output, other in self._with_fingerprints(wanted.parts(outputs), wanted):
            if other.is_weak or other.nonzero > wanted.fingerprint.nonzero or len(pieces) >= _MOST_PIECES:
                continue
            if other.found_in(wanted.fingerprint):
                pieces.setdefault((other.key(is_signed=wanted.is_signed), other.nonzero), (output, other))
        chosen = _adding_up(wanted.fingerprint, list(pieces.values()), is_signed=wanted.is_signed)
        makers = _by_place(output.candidate for output in chosen)
        if makers:
            yield ElementSource(makers, "joined" if len(makers) > 1 else "padded")

    def _repeated(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[ElementSource]:
        """Several copies of all of one output."""
        smaller = (output for output in outputs if output.size < wanted.size and not wanted.size % output.size)
        for output, other in self._with_fingerprints(filter(wanted.may_equal, smaller), wanted):
            if wanted.count_copies(other):
                yield ElementSource((output.candidate,), "copies")

    def _viewed(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[ElementSource]:
        """A slice of one output, permuted, reshaped or repeated."""
        likely: dict[bool, list[_Output]] = {True: [], False: []}
        for output, other in self._with_fingerprints(filter(wanted.may_be_in, outputs), wanted):
            sampled = None if other.is_weak else wanted.fingerprint.found_in(other)
            if sampled is not None:
                likely[bool(sampled)].append(output)
        search = wanted.views()
        for output in _affordable((*likely[True], *likely[False])):
            array = load(output.leaf, self._side.tensors)
            how = search.in_whole(array, wanted.dtype_of(output)) if array is not None else None
            if how is not None:
                yield ElementSource((output.candidate,), how)

    def _extended(self, wanted: _Wanted, outputs: Sequence[_Output]) -> Iterator[ElementSource]:
        """All of some outputs, beside a slice of another one, or beside no more numbers that no record made."""
        makers: list[Candidate] = []
        numbers = real_numbers(wanted.array)
        is_open = np.ones(numbers.size, np.bool_)
        remaining, looked_up = wanted.fingerprint.nonzero, 0
        most = min(max(_MOST_NUMBERS // wanted.size, _FEWEST_LOOKED_UP), _MOST_LOOKED_UP)
        for output, other in self._with_fingerprints(wanted.parts(outputs), wanted):
            if looked_up == most:
                break
            if other.is_weak or other.nonzero > remaining or not other.found_in(wanted.fingerprint):
                continue
            if not self._is_computed(output):
                continue
            array = load(output.leaf, self._side.tensors)
            looked_up += 1
            search = ViewSearch(array, wanted.dtype_of(output), other.distinct) if array is not None else None
            if search is not None and search.in_whole(wanted.array, wanted.dtype) == "part":
                for _, positions in search.positions():
                    is_open[positions] = False
                makers.append(output.candidate)
                remaining -= other.nonzero
        rest = self._box(wanted, numbers, is_open.reshape(numbers.shape), outputs) if makers else None
        if rest is not None:
            yield ElementSource(_by_place({*makers, *rest.makers}), "joined")
        elif makers and 2 * remaining <= wanted.fingerprint.nonzero:
            yield ElementSource(tuple(makers[::-1]), "extended")

    def _box(
        self, wanted: _Wanted, numbers: Array, is_open: npt.NDArray[np.bool_], outputs: Sequence[_Output]
    ) -> ElementSource | None:
        """What the numbers that are left of a value were made from, where they are a block of it."""
        block = []
        for axis in range(is_open.ndim):
            others = tuple(other for other in range(is_open.ndim) if other != axis)
            indices = np.flatnonzero(is_open.any(axis=others))
            block.append(slice(int(indices[0]), int(indices[-1]) + 1) if indices.size else slice(0))
        rest = numbers[tuple(block)]
        if rest.size != np.count_nonzero(is_open):
            return None
        part = _Wanted(wanted.leaf, rest, wanted.dtype, ElementFingerprint.of(rest, wanted.dtype), None)
        if part.fingerprint.is_weak:
            return None
        sources = chain(self._whole(part, outputs), self._viewed(part, outputs))
        return self._original(zip(repeat(part), sources))

    def _is_computed(self, output: _Output) -> bool:
        """Whether no input of its record holds all numbers of an output, as a parameter that is cut does."""
        whole = self._fingerprint(output, output.dtype)
        if whole is None:
            return False
        inputs = self._inputs(output.candidate.record)
        others = [other for _, other in self._with_fingerprints(inputs)]
        return len(others) == len(inputs) and not any(map(whole.found_in, others))

    def _fingerprint(self, output: _Output, dtype: np.dtype[Any]) -> ElementFingerprint | None:
        """That of an output cast to `dtype`; None where its values cannot be read."""
        key = output.candidate.record, output.candidate.path, dtype
        if key not in self._fingerprints:
            array = load(output.leaf, self._side.tensors)
            self._fingerprints[key] = ElementFingerprint.of(array, dtype) if array is not None else None
        return self._fingerprints[key]

    def _all_leaves(self, record: str) -> dict[str, Leaf]:
        if record not in self._leaves:
            self._leaves[record] = {leaf.path: leaf for leaf in self._side.readable_leaves(record)}
        return self._leaves[record]
