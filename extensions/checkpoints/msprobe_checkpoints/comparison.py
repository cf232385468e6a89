"""What differs between two checkpoints, tensor by tensor, in the memory of a few elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.layouts import Layout, find_layouts, is_turned
from msprobe_checkpoints.names import Matched, match_names
from msprobe_checkpoints.tensors import Array, Joined, Piece, ReadError, Tensor, Transposed
from msprobe_collector.dump_format.values import abbreviated
from pytest_msprobe.numerics.dtypes import kind_of, round_once

#: Bytes that are read at once from each side: what fits into a cache, and is not a new mapping for each array.
_BLOCK_BYTES = 1 << 19
#: Elements that are converted to float64 at once.
_CONVERTED = 1 << 17
#: A square matrix of equal name that is farther than this is looked at transposed.
_FAR = 0.5


@dataclass(frozen=True)
class Difference:
    """What was found of one tensor.

    Attributes:
        target, golden: its names on both sides; several where it is divided there.
        how: why they belong together, "" for equal names.
        dtypes: of both sides.
        shape: common to both, as they were compared.
        unequal: how many elements differ; NaN equals NaN.
        size: number of elements.
        max_abs: largest difference of two finite elements.
        relative: Euclidean norm of the difference of finite elements over that of the golden ones.
        not_finite: NaN and infinities of target and golden.
        is_cast: whether the wider side, rounded once to the dtype of the other, is equal to it.
        way: how the names were found to belong together, "" for equal ones.
    """

    target: tuple[str, ...]
    golden: tuple[str, ...]
    how: str
    dtypes: tuple[str, str]
    shape: tuple[int, ...]
    unequal: int
    size: int
    max_abs: float
    relative: float
    not_finite: tuple[tuple[int, int], tuple[int, int]]
    is_cast: bool = False
    way: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether dtype and all elements are equal."""
        return not self.unequal and self.dtypes[0] == self.dtypes[1]

    @property
    def name(self) -> str:
        """Its name on the target's side."""
        return self.target[0] if len(self.target) == 1 else self.golden[0]


@dataclass
class Result:
    """What a comparison found.

    Attributes:
        compared: the tensors of both sides.
        shapes: (name, shape of the target, shape of the golden, how the rows that both have compare) of tensors of
            different sizes.
        only: names in one side alone, by side: (name, dtype, shape).
        entries: (name, target's value, golden's) of other values that differ.
        entries_only: names of other values in one side alone.
        equal_entries: how many other values are equal.
        tied: (name, other name) of tensors in one side alone that are the same bytes as one that was compared.
        problems: what could not be read.
        nbytes: how much was compared.
    """

    compared: list[Difference] = field(default_factory=list)
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...], str]] = field(default_factory=list)
    only: tuple[list[tuple[str, str, tuple[int, ...]]], ...] = field(default_factory=lambda: ([], []))
    entries: list[tuple[str, object, object]] = field(default_factory=list)
    entries_only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    equal_entries: int = 0
    tied: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    nbytes: int = 0

    @property
    def differing(self) -> list[Difference]:
        """Tensors of which elements or dtypes differ, the largest difference first."""
        return sorted((one for one in self.compared if not one.is_equal), key=_severity, reverse=True)

    @property
    def exit_code(self) -> int:
        """0 for equal checkpoints, 1 where something differs, 2 where only what cannot be read may."""
        if any((self.differing, self.shapes, *self.only, self.entries)):
            return 1
        return 2 if self.problems else 0


def _severity(one: Difference) -> tuple[bool, float, int]:
    not_finite = one.not_finite[0] != one.not_finite[1]
    return not_finite, one.relative, one.unequal


def compare(target: Contents, golden: Contents, progress: Callable[[int, int], None]) -> Result:
    """What differs between two checkpoints.

    Args:
        target: what the first one holds.
        golden: the same of the one that differences are relative to.
        progress: called with the bytes that have been compared, of how many.
    """
    result = Result(problems=[*target.problems, *golden.problems])
    left, right = dict(target.tensors), dict(golden.tensors)
    watch = _Watch(progress, min(target.nbytes, golden.nbytes))
    layouts: list[Layout] = []
    unequal: list[Matched] = []
    for match in match_names(left, right):
        one, other = left[match.target], right[match.golden]
        try:
            layout = _of_names(match, one, other)
        except ReadError as error:
            result.problems.append(f"{abbreviated(match.target)}: {error}")
            continue
        finally:
            if match.how == "" or one.size == other.size:
                del left[match.target], right[match.golden]
        if layout is not None:
            layouts.append(layout)
            left.pop(match.target, None), right.pop(match.golden, None)
        elif match.target in left:
            unequal.append(match)  # perhaps one of several parts
        else:
            result.shapes.append((match.target, one.shape, other.shape, _common_rows(one, other)))
    for layout in layouts:
        _add(result, layout, watch)
    try:
        for layout in find_layouts(left, right, lambda: watch.add(0)):
            _add(result, layout, watch)
    except ReadError as error:
        result.problems.append(f"tensors of other names were not compared: {error}")
    for match in unequal:
        if match.target in left and match.golden in right:
            one, two = left.pop(match.target), right.pop(match.golden)
            result.shapes.append((match.target, one.shape, two.shape, _common_rows(one, two)))
    _leftovers(result, left, right, target, golden)
    _entries(result, target, golden)
    result.nbytes = watch.done
    return result


def _of_names(match: Matched, left: Tensor, right: Tensor) -> Layout | None:
    """How two tensors of matching names are to be compared; None where their shapes do not allow it."""
    names = (match.target,), (match.golden,)
    if left.shape == right.shape:
        return Layout(*names, left, right, match.how, match.how)
    if is_turned(left, right):
        return Layout(*names, left, Transposed(right), _and(match.how, "transposed"), match.how)
    without = [tuple(size for size in tensor.shape if size != 1) for tensor in (left, right)]
    if without[0] == without[1]:
        how = _and(match.how, f"shapes {left.shape} and {right.shape}")
        return Layout(*names, left, right, how, match.how)
    return None


def _common_rows(left: Tensor, right: Tensor) -> str:
    """How the first rows compare where one side has more, as a vocabulary that was padded."""
    if not left.shape or not right.shape or left.shape[1:] != right.shape[1:] or not min(left.size, right.size):
        return ""
    rows = min(left.shape[0], right.shape[0])
    zeros = (0,) * (len(left.shape) - 1)
    first, second = (
        Joined(one.dtype, (rows, *one.shape[1:]), [Piece(one, (0, *zeros), 0, rows)]) for one in (left, right)
    )
    try:
        found = measure(Layout(("",), ("",), first, second, ""), _Watch(lambda done, total: None, 0))
    except ReadError as error:
        return str(error)
    return (
        f"the first {rows} rows {'are equal' if not found.unequal else f'differ by {found.relative:.3g} of their norm'}"
    )


def _and(how: str, more: str) -> str:
    return f"{how}, {more}" if how else more


def _add(result: Result, layout: Layout, watch: _Watch) -> None:
    try:
        found = measure(layout, watch)
        is_square = len(found.shape) == 2 and found.shape[0] == found.shape[1]
        if found.relative > _FAR and is_square and is_turned(layout.left, layout.right):
            turned = replace(layout, right=Transposed(layout.right), how=_and(layout.how, "transposed"))
            found = measure(turned, watch)
        result.compared.append(found)
    except ReadError as error:
        result.problems.append(f"{abbreviated(layout.target[0])}: {error}")
    finally:
        layout.left.release()
        layout.right.release()


class _Watch:
    """Counts the bytes of one side that were compared."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self._progress, self._total = progress, total
        self.done = 0

    def add(self, nbytes: int) -> None:
        """So many more."""
        self.done += nbytes
        self._progress(self.done, self._total)


def measure(layout: Layout, watch: _Watch) -> Difference:
    """What differs between two tensors of as many elements.

    Raises:
        ReadError: a file ends early.
    """
    left, right = layout.left, layout.right
    sums = _Sums(left.array_dtype, right.array_dtype)
    equal = []
    for start, stop in _blocks(left, right):
        if sums.add(left.read(start, stop), right.read(start, stop)):
            equal.append((start, stop))
        watch.add((stop - start) * max(left.array_dtype.itemsize, right.array_dtype.itemsize))
    if sums.unequal:  # only then the norm of what is equal matters
        for start, stop in equal:
            sums.add_norm(right.read(start, stop))
    dtypes = (left.dtype.name, right.dtype.name)
    return Difference(
        layout.target,
        layout.golden,
        layout.how,
        dtypes,
        left.shape,
        sums.unequal,
        left.size,
        sums.max_abs,
        sums.relative,
        sums.not_finite,
        is_cast=sums.is_cast,
        way=layout.way,
    )


def _blocks(left: Tensor, right: Tensor) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end that both sides read well."""
    itemsize = max(left.array_dtype.itemsize, right.array_dtype.itemsize)
    step = math.lcm(left.step, right.step)
    if step > left.size:
        step = max(left.step, right.step)
    count = max(1, _BLOCK_BYTES // itemsize // step) * step
    for start in range(0, left.size, count):
        yield start, min(start + count, left.size)


class _Sums:
    """What is counted and added up over the blocks of two tensors."""

    def __init__(self, left: np.dtype[Any], right: np.dtype[Any]) -> None:
        self._dtypes = (left, right)
        self._narrow = min(left, right, key=lambda one: one.itemsize)
        self.is_cast = left != right and {kind_of(left), kind_of(right)} in ({"float"}, {"complex"})
        self.unequal, self.max_abs, self._off, self._whole = 0, 0.0, 0.0, 0.0
        self.not_finite = ((0, 0), (0, 0))

    @property
    def relative(self) -> float:
        """Norm of the difference over that of the golden values; infinite where these are zero and others are not."""
        if self._whole:
            return math.sqrt(self._off / self._whole)
        return math.inf if self._off else 0.0

    def add(self, left: Array, right: Array) -> bool:
        """Two blocks of as many elements; whether their bytes are equal, and the norm is without the second one."""
        first = _not_finite(left)
        is_same = self._dtypes[0] == self._dtypes[1] and _same_bytes(left, right)
        second = first if is_same else _not_finite(right)
        self.not_finite = _sum(self.not_finite[0], first), _sum(self.not_finite[1], second)
        if not is_same:
            for start in range(0, left.size, _CONVERTED):
                self._add_different(left[start : start + _CONVERTED], right[start : start + _CONVERTED])
        return is_same

    def add_norm(self, right: Array) -> None:
        """A block of the golden side that is equal on the other one."""
        for start in range(0, right.size, _CONVERTED):
            values = _wide(right[start : start + _CONVERTED])
            values = values[np.isfinite(values)]
            self._whole += float(np.vdot(values, values).real)

    def _add_different(self, left: Array, right: Array) -> None:
        a, b = _wide(left), _wide(right)
        with np.errstate(all="ignore"):
            is_off = a != b
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                is_off &= ~(np.isnan(a) & np.isnan(b))
            self.unequal += int(np.count_nonzero(is_off))
            if self.is_cast:
                wide, narrow = (left, b) if self._dtypes[1] == self._narrow else (right, a)
                rounded = _wide(round_once(wide, self._narrow))
                self.is_cast = bool(((rounded == narrow) | (np.isnan(rounded) & np.isnan(narrow))).all())
            if not finite.all():
                a, b = np.where(finite, a, 0), np.where(finite, b, 0)
            self._whole += float(np.vdot(b, b).real)
            off = np.abs(np.subtract(a, b, out=a))
            self.max_abs = max(self.max_abs, float(off.max(initial=0.0)))
            self._off += float(np.dot(off, off))


def _not_finite(values: Array) -> tuple[int, int]:
    """NaN and infinities in a block; a test of exponents tells whether there are any."""
    if kind_of(values.dtype) not in ("float", "complex"):
        return 0, 0
    mask = _mask(values.dtype)
    if mask is not None and not _has_exponent(values.view(mask.dtype), mask):
        return 0, 0
    nan = int(np.count_nonzero(np.isnan(values)))
    return nan, values.size - nan - int(np.count_nonzero(np.isfinite(values)))


def _has_exponent(bits: Array, mask: Any) -> bool:
    """Whether all bits of the mask are set in an element."""
    return any(
        bool((bits[start : start + _CONVERTED] & mask == mask).any()) for start in range(0, bits.size, _CONVERTED)
    )


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


@cache
def _mask(dtype: np.dtype[Any]) -> Any:
    """The bits of the exponent, all of which are set in NaN and infinity alone; None where that is not so."""
    if kind_of(dtype) != "float" or dtype.itemsize == 1:
        return None
    return np.array([np.inf]).astype(dtype).view(f"u{dtype.itemsize}")[0]


def _same_bytes(left: Array, right: Array) -> bool:
    words = f"u{math.gcd(left.nbytes, 8)}" if left.nbytes else "u1"
    return bool(np.array_equal(left.view(np.uint8).view(words), right.view(np.uint8).view(words)))


def _wide(values: Array) -> Array:
    if values.dtype.kind in "iub" and values.dtype.itemsize == 8:
        return values.astype(np.longdouble)  # 64 bits: float64 would make neighbours equal
    with np.errstate(invalid="ignore"):  # signalling NaNs of a damaged file
        return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _leftovers(
    result: Result,
    left: dict[str, Tensor],
    right: dict[str, Tensor],
    target: Contents,
    golden: Contents,
) -> None:
    """What one side alone has; a tied parameter that the other side saved once is no difference."""
    for side, (names, contents) in enumerate(((left, target), (right, golden))):
        kept = {contents.tensors[name].key: name for name in contents.tensors if name not in names}
        for name, tensor in names.items():
            if tensor.key is not None and tensor.key in kept:
                result.tied.append((name, kept[tensor.key]))
            else:
                result.only[side].append((name, tensor.dtype.name, tensor.shape))


def _entries(result: Result, target: Contents, golden: Contents) -> None:
    """Numbers and texts that differ; what a form cannot hold is not missing."""
    left, right = target.entries, golden.entries
    matched = {match.target: match.golden for match in match_names(left, right)}
    for name, other in matched.items():
        if _is_same(left[name], right[other]):
            result.equal_entries += 1
        else:
            result.entries.append((name, left[name], right[other]))
    used = set(matched.values())
    result.entries_only[0].extend(name for name in left if name not in matched)
    result.entries_only[1].extend(name for name in right if name not in used)


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and one != one and other != other:
        return True
    if type(one) is bool or type(other) is bool:
        return one is other
    return one == other
