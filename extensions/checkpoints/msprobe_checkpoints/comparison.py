"""What differs between two checkpoints, tensor by tensor, in the memory of a few elements."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.layouts import TensorLayout, is_constant, sampled, wide
from msprobe_checkpoints.names import match_names, parted, roles
from msprobe_checkpoints.pairing import Pairing, is_order
from msprobe_checkpoints.rules import RuleMismatch, Rules
from msprobe_checkpoints.tensors import Array, ReadError, Scaled, Tensor
from msprobe_collector.dump_format.values import abbreviated
from pytest_msprobe.numerics.dtypes import kind_of, round_once
from pytest_msprobe.numerics.pair import relative

#: Bytes that are read at once from each side: what fits into a cache, and is not a new mapping for each array.
_BLOCK_BYTES = 1 << 19
#: Elements that are converted to float64 at once.
_CONVERTED = 1 << 17
#: Names of what models compute when they are made.
_BUFFERS = re.compile(r"inv_freq|rotary|rope|freqs|(?:cos|sin)_cache|masked_bias|[.]pe$|slopes|_extra_state")


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
        match: how the names were found to belong together, "" for equal ones.
        padding: the shape of what one side alone has behind what was compared; None where it has nothing.
        is_rounded: whether one side is numbers of few bits with a scale, to which the other one is rounded.
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
    match: str = ""
    padding: tuple[int, ...] | None = None
    is_rounded: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether all elements are equal, or are when they are rounded to the narrower dtype."""
        return not self.unequal or self.is_cast

    @property
    def name(self) -> str:
        """Its name on the target's side."""
        return self.target[0] if len(self.target) == 1 else self.golden[0]


@dataclass
class ComparedTensor:
    """What a comparison found.

    Attributes:
        compared: the tensors of both sides.
        shapes: (name, shape of the target, shape of the golden) of tensors of different sizes.
        only: names in one side alone, by side: (name, dtype, shape).
        entries: (name, target's value, golden's) of other values that differ.
        entries_only: names of other values in one side alone.
        equal_entries: how many other values are equal.
        tied: (name, other name) of tensors in one side alone that are the same bytes as one that was compared.
        buffers: names of tensors in one side alone that a model computes itself, by side.
        states: names of what optimizers hold, by side, where the other side holds nothing of an optimizer.
        findings: tensors of another layout than their siblings.
        problems: what could not be read.
        nbytes: how much was compared.
    """

    compared: list[Difference] = field(default_factory=list)
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    only: tuple[list[tuple[str, str, tuple[int, ...]]], ...] = field(default_factory=lambda: ([], []))
    entries: list[tuple[str, object, object]] = field(default_factory=list)
    entries_only: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    equal_entries: int = 0
    tied: list[tuple[str, str]] = field(default_factory=list)
    buffers: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    states: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    findings: list[RuleMismatch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    nbytes: int = 0

    @property
    def differing(self) -> list[Difference]:
        """Tensors of which elements or dtypes differ, the largest difference first."""
        differing = [difference for difference in self.compared if not difference.is_equal]
        return sorted(
            differing,
            key=lambda difference: (len({*difference.not_finite}), difference.relative, difference.unequal),
            reverse=True,
        )

    @property
    def exit_code(self) -> int:
        """0 for equal checkpoints, 1 where something differs, 5 where only what cannot be read may, or nothing was."""
        if any((self.findings, self.differing, self.shapes, *self.only, self.entries)):
            return 1
        return 5 if self.problems or not (self.compared or self.equal_entries) else 0


def compare(target: Contents, golden: Contents, progress: Callable[[int, int], None]) -> ComparedTensor:
    """What differs between two checkpoints.

    Args:
        target: what the first one holds.
        golden: the same of the one that differences are relative to.
        progress: called with the bytes that have been compared, of how many.
    """
    result = ComparedTensor(problems=[*target.problems, *golden.problems])
    watch = _Watch(progress, min(target.nbytes, golden.nbytes))
    pairing = Pairing(target, golden, lambda: watch.add(0))
    try:
        pairing.run()
    except ReadError as error:
        result.problems.append(f"tensors of other names were not compared: {error}")
    result.findings = Rules(pairing.layouts, target, golden).broken()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        measured = list(threads.map(lambda layout: _measured(layout, watch), pairing.layouts))
    result.compared = [outcome for outcome in measured if isinstance(outcome, Difference)]
    result.problems += [outcome for outcome in measured if isinstance(outcome, str)]
    pairs = zip(pairing.layouts, measured)
    try:
        result.findings += _misplaced(
            [layout for layout, how in pairs if isinstance(how, Difference) and not how.is_equal]
        )
        _leftovers(result, pairing)
    except ReadError as error:
        result.problems.append(f"tensors of one side alone were not compared: {error}")
    _entries(result, target, golden)
    result.nbytes = watch.done
    return result


def _misplaced(layouts: list[TensorLayout]) -> Iterator[RuleMismatch]:
    """Tensors that differ, and hold what another one of them holds on the golden side."""
    held = {(layout.right.shape, sampled(layout.right).tobytes()): layout for layout in layouts}
    for layout in layouts:
        sample = sampled(layout.left)
        other = held.get((layout.left.shape, sample.tobytes()), layout)
        if other is not layout and not is_constant(sample):
            yield RuleMismatch("names", layout, other.golden, (), layout.way)


def _measured(layout: TensorLayout, watch: _Watch) -> Difference | str:
    """What differs, or why that cannot be read."""
    try:
        return measure(layout, watch)
    except ReadError as error:
        return f"{abbreviated(layout.target[0])}: {error}"
    finally:
        layout.left.release()
        layout.right.release()


class _Watch:
    """Counts the bytes of one side that were compared."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self._progress, self._total = progress, total
        self.done = 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        """So many more; threads take turns."""
        with self._lock:
            self.done += nbytes
            self._progress(self.done, self._total)


def measure(layout: TensorLayout, watch: _Watch) -> Difference:
    """What differs between two tensors of as many elements.

    Raises:
        ReadError: a file ends early.
    """
    ours, theirs = layout.left, layout.right
    sums = _BlockSums(ours.array_dtype, theirs.array_dtype)
    scaled = next((tensor for tensor in (ours, theirs) if isinstance(tensor, Scaled)), None)
    equal = []
    for start, stop in _blocks(ours, theirs):
        allowed = scaled.allowed(start, stop) if scaled is not None else None
        if sums.add(ours.read(start, stop), theirs.read(start, stop), allowed):
            equal.append((start, stop))
        watch.add((stop - start) * max(ours.array_dtype.itemsize, theirs.array_dtype.itemsize))
    if sums.unequal:  # only then the norm of what is equal matters
        for start, stop in equal:
            sums.add_norm(theirs.read(start, stop))
    unequal = sums.unequal
    if layout.rest is not None and not _is_padding(layout.rest):
        unequal += layout.rest.size
    return Difference(
        target=layout.target,
        golden=layout.golden,
        how=layout.how,
        dtypes=(ours.dtype.name, theirs.dtype.name),
        shape=ours.shape,
        unequal=unequal,
        size=ours.size,
        max_abs=sums.max_abs,
        relative=sums.relative,
        not_finite=sums.not_finite,
        is_cast=sums.is_cast and unequal == sums.unequal and sums.not_finite[0] == sums.not_finite[1],
        match=layout.match,
        padding=layout.rest.shape if layout.rest is not None else None,
        is_rounded=scaled is not None,
    )


def _is_padding(rest: Tensor) -> bool:
    """Whether rows are all zero, or alike, as those that nothing has been trained with."""
    first = rest.read(0, rest.width)
    return (rest.shape[0] > 1 or not _wide(first).any()) and all(
        _same_bytes(rest.read(row * rest.width, (row + 1) * rest.width), first) for row in range(rest.shape[0])
    )


def _blocks(ours: Tensor, theirs: Tensor) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end that both sides read well."""
    itemsize = max(ours.array_dtype.itemsize, theirs.array_dtype.itemsize)
    step = math.lcm(ours.step, theirs.step)
    if step > ours.size:
        step = max(ours.step, theirs.step)
    count = max(1, _BLOCK_BYTES // itemsize // step) * step
    for start in range(0, ours.size, count):
        yield start, min(start + count, ours.size)


class _BlockSums:
    """What is counted and added up over the blocks of two tensors."""

    def __init__(self, target: np.dtype[Any], golden: np.dtype[Any]) -> None:
        self._dtypes = (target, golden)
        self._narrow = min(target, golden, key=lambda dtype: dtype.itemsize)
        self.is_cast = target != golden and {kind_of(target), kind_of(golden)} in ({"float"}, {"complex"})
        self.unequal, self.max_abs, self._off, self._whole = 0, 0.0, 0.0, 0.0
        self.not_finite = ((0, 0), (0, 0))

    @property
    def relative(self) -> float:
        """Norm of the difference over that of the golden values; infinite where these are zero and others are not."""
        return math.sqrt(relative(self._off, self._whole))

    def add(self, ours: Array, theirs: Array, allowed: Array | None = None) -> bool:
        """Two blocks of as many elements; whether their bytes are equal, and the norm is without the second one.

        `allowed` is how far each of them may be from the other.
        """
        first = _not_finite(ours)
        is_same = self._dtypes[0] == self._dtypes[1] and _same_bytes(ours, theirs)
        second = first if is_same else _not_finite(theirs)
        self.not_finite = _sum(self.not_finite[0], first), _sum(self.not_finite[1], second)
        if not is_same:
            for start in range(0, ours.size, _CONVERTED):
                places = slice(start, start + _CONVERTED)
                self._add_different(ours[places], theirs[places], allowed[places] if allowed is not None else 0)
        return is_same

    def add_norm(self, right: Array) -> None:
        """A block of the golden side that is equal on the other one."""
        for start in range(0, right.size, _CONVERTED):
            values = _wide(right[start : start + _CONVERTED])
            values = values[np.isfinite(values)]
            self._whole += float(np.vdot(values, values).real)

    def _add_different(self, ours: Array, theirs: Array, allowed: Array | int) -> None:
        a, b = _wide(ours), _wide(theirs)
        with np.errstate(all="ignore"):
            is_off = ~(np.abs(a - b) <= allowed) & (a != b)
            finite = np.isfinite(a) & np.isfinite(b)
            if not finite.all():
                is_off &= ~(np.isnan(a) & np.isnan(b))
            self.unequal += int(np.count_nonzero(is_off))
            if self.is_cast and is_off.any():
                wider, narrower = (ours, b) if self._dtypes[1] == self._narrow else (theirs, a)
                rounded = _wide(round_once(wider, self._narrow))
                self.is_cast = bool(((rounded == narrower) | (np.isnan(rounded) & np.isnan(narrower))).all())
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


def _sum(counts: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return counts[0] + other[0], counts[1] + other[1]


@cache
def _mask(dtype: np.dtype[Any]) -> Any:
    """The bits of the exponent, all of which are set in NaN and infinity alone; None where that is not so."""
    if kind_of(dtype) != "float" or dtype.itemsize == 1:
        return None
    return np.array([np.inf]).astype(dtype).view(f"u{dtype.itemsize}")[0]


def _same_bytes(ours: Array, theirs: Array) -> bool:
    words = f"u{math.gcd(ours.nbytes, 8)}" if ours.nbytes else "u1"
    return bool(np.array_equal(ours.view(np.uint8).view(words), theirs.view(np.uint8).view(words)))


def _wide(values: Array) -> Array:
    if values.dtype.kind in "iub" and values.dtype.itemsize == 8:
        return values.astype(np.longdouble)  # 64 bits: float64 would make neighbours equal
    return wide(values)


def _leftovers(result: ComparedTensor, pairing: Pairing) -> None:
    """What one side alone has: tied parameters and buffers that the other side does not save are no difference."""
    ours, theirs = (pool.tensors for pool in pairing.pools)
    for name, other in pairing.named:
        if name in ours and other in theirs:
            result.shapes.append((name, ours.pop(name).shape, theirs.pop(other).shape))
    for side, contents in enumerate(pairing.sides):
        alone = pairing.pools[side].tensors
        tied = _tied(contents, alone)
        states: set[str] = set()
        if not pairing.states[1 - side]:
            states.update(*(kinds.values() for kinds in pairing.states[side].values()))
        for name, tensor in alone.items():
            if name in tied:
                result.tied.append((name, tied[name]))
            elif name in states:
                result.states[side].append(name)
            elif _is_buffer(name, tensor):
                result.buffers[side].append(name)
            else:
                result.only[side].append((name, tensor.dtype.name, tensor.shape))


def _tied(contents: Contents, alone: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that have no partner, and of those of the same bytes, not by chance, that have one."""
    tied: dict[str, str] = {}
    shapes = {contents.tensors[name].shape for name in contents.tensors.keys() & alone.keys()}
    partners: dict[object, str] = {}
    for name, tensor in contents.tensors.items():
        if name not in alone and tensor.shape in shapes:
            partners.setdefault(tensor.key or name, name)
            partners.setdefault((tensor.shape, tensor.dtype, sampled(tensor).tobytes()), name)
    for name in contents.tensors.keys() & alone.keys():
        tensor = contents.tensors[name]
        sample = sampled(tensor)
        other = partners.get(tensor.key, "") or partners.get((tensor.shape, tensor.dtype, sample.tobytes()), "")
        is_shared = "vocabulary" in roles(name) or not parted(name)[1]  # a layer may be saved twice by mistake
        is_same = bool(other) and tensor.key == contents.tensors[other].key
        if other and is_shared and (is_same or not is_constant(sample)):
            layout = TensorLayout((), (), tensor, contents.tensors[other])
            if not measure(layout, _Watch(lambda done, total: None, 0)).unequal:
                tied[name] = other
    return tied


def _is_buffer(name: str, tensor: Tensor) -> bool:
    """Whether a model computes a tensor itself: masks, positions, frequencies; or a bias that adds nothing."""
    is_count = tensor.dtype.name == "Bool" or (tensor.array_dtype.kind in "iu" and tensor.array_dtype.itemsize > 1)
    is_mask = name.endswith("attn.bias") and len(tensor.shape) > 1
    if "weight" not in name and (is_count or is_mask or _BUFFERS.search(name.lower())):
        return True
    if roles(name).get("affine") == "bias":
        starts = range(0, tensor.size, _CONVERTED)
        return not any(_wide(tensor.read(at, min(at + _CONVERTED, tensor.size))).any() for at in starts)
    return False


def _entries(result: ComparedTensor, target: Contents, golden: Contents) -> None:
    """Numbers and texts that differ; what a form cannot hold is not missing."""
    ours, theirs = _compared_entries(target), _compared_entries(golden)
    matched = {match.target: match.golden for match in match_names(ours, theirs)}
    for name, other in matched.items():
        if _is_same(ours[name], theirs[other]):
            result.equal_entries += 1
        else:
            result.entries.append((name, ours[name], theirs[other]))
    used = set(matched.values())
    result.entries_only[0].extend(name for name in ours if name not in matched)
    result.entries_only[1].extend(name for name in theirs if name not in used)


def _compared_entries(contents: Contents) -> dict[str, object]:
    return {name: value for name, value in contents.entries.items() if not is_order(name)}


def _is_same(value: object, other: object) -> bool:
    if isinstance(value, float) and isinstance(other, float) and value != value and other != other:
        return True
    if type(value) is bool or type(other) is bool:
        return value is other
    return value == other
