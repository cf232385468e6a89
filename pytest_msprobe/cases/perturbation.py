"""Inputs that are off by about one rounding error of their dtype each, up or down at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, takewhile
from typing import Any, TypeGuard

import numpy as np

from msprobe_collector.dump_format import Dtype, array_dtype
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, arrays_in, leaves, with_leaves
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Relative, Roundoffs

#: Number of an incoming gradient among the tensors of a call: behind all its arguments.
_FIRST_INCOMING = 10_000
_MAGNITUDES = np.linspace(0.5, 1.5, 256)


@dataclass(frozen=True, slots=True)
class RoundingPerturbation:
    """One way to move every element of the inputs by a rounding error; equal ones move them alike.

    Attributes:
        number: from 1 on. In the second, tensors as large as the first one move against it where they moved with it in
            the first, so that the effects of two factors never cancel in both; and all move by far less than a rounding
            error, to which only jumps answer as if they had moved more. From the third on every element moves by
            exactly one rounding error, all signs independent.
        operands: what stands for the rounding of float32, on devices that round float32 operands further.
        held: numbers of arguments that stay as they are, counted among the tensors of floats.
        is_clipped: no element leaves its tensor's own range, for APIs that refuse what lies beyond (probabilities).
    """

    number: int
    is_clipped: bool = False
    held: frozenset[int] = frozenset()
    operands: float | None = None

    def size(self, dtype: np.dtype[Any]) -> float:
        """Distance by which elements of `dtype` move on average, relative to them."""
        roundoff = unit_roundoff(dtype)
        if self.operands is not None and roundoff == FLOAT32_ROUNDOFF:
            roundoff = self.operands
        return roundoff * self.relative_size if roundoff > Relative.FLOAT64_LIKE else roundoff

    @property
    def relative_size(self) -> float:
        """`size` in rounding errors, for all dtypes but float64, whose neighbours are the smallest visible change."""
        return Roundoffs.SMALL_MOVE if self.number == 2 else 1.0

    def call(self, call: Call) -> Call:
        """`call` with its float and complex tensors moved; what its gradients use again is to be moved as well.

        Moved tensors are float64 or complex128, in their shapes; tensors that are `held` keep their dtype.
        """
        first_shape = _first_shape(call)
        roundoffs: list[float] = []

        def change(path: LeafPath, value: Any) -> Any:
            if not _is_inexact(value):
                return value
            roundoffs.append(self.size(value.dtype))
            number = len(roundoffs) - 1
            return value if number in self.held else self._moved(value, number, first_shape)

        moved = with_leaves(call, change)
        return replace(moved, saved_roundoff=max(roundoffs, default=0.0), saved_seed=self.number)

    def inside(self, call: Call, *, saves_exactly: bool = False, is_composite: bool = False) -> Call:
        """`call` with its inputs as they are and the results of all arithmetic inside moved, as float32 rounds them.

        Of a call that `is_composite` they are moved as its own dtype rounds them, and so is what its gradients use
        again, unless it `saves_exactly`. No array changes.
        """
        dtypes = [array.dtype for array in _inexact(call)] or _asked_dtypes(call)
        largest = max(map(unit_roundoff, dtypes), default=FLOAT32_ROUNDOFF)
        arithmetic = largest if is_composite else min(largest, FLOAT32_ROUNDOFF)
        if largest > Relative.FLOAT64_LIKE:
            largest, arithmetic = largest * self.relative_size, arithmetic * self.relative_size
        saved = 0.0 if saves_exactly else largest
        return replace(
            call,
            saved_roundoff=saved,
            saved_seed=self.number,
            arithmetic_roundoff=arithmetic,
            total_roundoff=largest if largest > arithmetic else 0.0,
        )

    def incoming(self, call: Call, incoming: Sequence[Array | None]) -> tuple[Array | None, ...]:
        """Incoming gradients of `call`, moved: float64 or complex128, in their shapes; others and None as they are."""
        first_shape = _first_shape(call)
        moved = list(incoming)
        for number, array in enumerate(incoming):
            if _is_inexact(array):
                moved[number] = self._moved(array, _FIRST_INCOMING + number, first_shape)
        return tuple(moved)

    def _moved(self, array: Any, number: int, first_shape: tuple[int, ...]) -> Array:
        wide = array.astype(np.complex128 if kind_of(array.dtype) == "complex" else np.float64)
        distance = np.asarray(self.size(array.dtype))
        if self.number <= 2:  # the same magnitudes in both
            drawn = np.frombuffer(np.random.default_rng((0, number)).bytes(wide.size), np.uint8)
            distance = distance * _MAGNITUDES[drawn.reshape(wide.shape)]
        is_down = self._is_down(number, wide.shape, first_shape)
        moved: Array = wide * np.where(is_down, 1 - distance, 1 + distance)
        if self.is_clipped and wide.size and kind_of(array.dtype) == "float":
            moved = np.clip(moved, wide.min(), wide.max())
        return moved

    def _is_down(self, number: int, shape: tuple[int, ...], first_shape: tuple[int, ...]) -> Array:
        """Where elements move towards zero."""
        if self.number != 2 or number == 0 or shape != first_shape:
            return _random_bits(self.number, number, shape)
        same_before = _random_bits(1, 0, shape) ^ _random_bits(1, number, shape)
        return ~(_random_bits(2, 0, shape) ^ same_before)


def accumulated_terms(
    call: Call, incoming: Sequence[Array | None], output_sizes: Sequence[int], *, is_elementwise: bool = False
) -> int:
    """How many terms one element of the outputs, or of the gradients for `incoming`, may sum up; at least 1.

    A reduction sums input size / output size terms, and so does the gradient of what was broadcast. What is not
    elementwise may be a product of matrices as well, (m, k) by (k, n), k = sqrt(mk * kn / mn), or a normalisation,
    which sums as many as a dimension is long. The largest of all such figures.

    Args:
        call: whose float and complex tensors are counted.
        incoming: gradients of its outputs in any dtype, each in the shape of its output.
        output_sizes: in elements.
        is_elementwise: whether only reductions and broadcasts sum up.
    """
    arrays = [*_inexact(call), *filter(_is_inexact, incoming)]
    smallest = max(1, min(output_sizes, default=1))
    reduced = max((array.size for array in arrays), default=1) / smallest
    if is_elementwise:
        return max(1, math.ceil(reduced))
    longest = max((length for array in arrays for length in array.shape), default=1)
    contracted = max((_contracted(*pair, smallest) for pair in combinations(arrays, 2)), default=1.0)
    return max(1, longest, math.ceil(reduced), math.ceil(contracted))


def _contracted(first: Array, second: Array, size: int) -> float:
    """How many terms an element of a product of (batches of) matrices sums up, given the size of the product."""
    leading = zip(first.shape[:-2], second.shape[:-2])
    batch = math.prod(a for a, _ in takewhile(lambda lengths: lengths[0] == lengths[1], leading))
    return math.sqrt(first.size * second.size / (size * max(1, batch)))


def float_elements(call: Call) -> int:
    """How many floats or complex numbers `call` has in the tensors among its arguments."""
    return sum(array.size for array in _inexact(call))


def float_tensors(call: Call) -> int:
    """How many tensors of floats or complex numbers `call` has among its arguments."""
    return len(_inexact(call))


def label_tensors(call: Call) -> list[int]:
    """Numbers of the float and complex tensors that hold nothing but 1, 0 and -1, some not 0.

    They may be labels or truth values.
    """
    return [
        number
        for number, array in enumerate(_inexact(call))
        if array.size and array.any() and bool(np.isin(array.astype(np.complex128).reshape(-1), (-1, 0, 1)).all())
    ]


def has_jumped(exact: Array, moved: Array) -> bool:
    """Whether most elements of an output that are not 0 before or after changed by more than a sixteenth.

    The two are float arrays; outputs of different shapes have jumped.
    """
    if exact.shape != moved.shape:
        return True
    with np.errstate(invalid="ignore"):
        is_near = np.abs(moved - exact) <= Relative.JUMP * np.abs(exact)
    present = (exact != 0) | (moved != 0)
    return bool(2 * np.count_nonzero(present & ~is_near) > np.count_nonzero(present))


def _first_shape(call: Call) -> tuple[int, ...]:
    return next((array.shape for array in _inexact(call)), ())


def _inexact(call: Call) -> list[Array]:
    return list(filter(_is_inexact, arrays_in(call).values()))


def _asked_dtypes(call: Call) -> list[np.dtype[Any]]:
    """The float dtypes among the arguments, as of `linspace(-2, 1, 50, dtype=float32)`."""
    dtypes = [array_dtype(value) for _, value in leaves(call) if isinstance(value, Dtype)]
    return [dtype for dtype in dtypes if dtype is not None and kind_of(dtype) in ("float", "complex")]


def _random_bits(run: int, number: int, shape: tuple[int, ...]) -> Array:
    size = math.prod(shape)
    packed = np.frombuffer(np.random.default_rng((run, number)).bytes((size + 7) // 8), np.uint8)
    return np.unpackbits(packed, count=size).reshape(shape).view(np.bool_)


def _is_inexact(value: Any) -> TypeGuard[Array]:
    return hasattr(value, "__array_interface__") and kind_of(value.dtype) in ("float", "complex")
