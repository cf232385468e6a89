"""Faults of a few elements of a large result, and how far rounding moves a large product."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import round_once, unit_roundoff
from quality.verdict_quality.recordings import Recording, is_float
from quality.verdict_quality.sizes import Envelopes, Size, envelopes, size_of
from quality.verdict_quality.target import Fault, Target
from quality.verdict_quality.wrong_results import one_element

#: The mean of the largest of four normal numbers' sizes: what the largest of four moved runs shows of an element.
_OF_FOUR_RUNS = 1.47
#: Runs of calls that are no product, in place of four: they cost as much as the benchmark.
_RUNS = 2
_TAIL = 16
_FLOAT32 = 2.0**-24
#: Axis along which the first argument is added up, and the incoming gradient for the gradients of the two arguments.
_ADDED_UP: dict[str, tuple[int, int, int]] = {
    "linear": (-1, -1, -2),
    "dense": (-1, -1, -2),
    "matmul": (-1, -1, -2),
    "bmm": (-1, -1, -2),
    "conv2d": (1, 1, -2),
}


def missing_term(target: Target) -> Array | None:
    """One row lacks one of the terms that its elements are the sum of."""
    count = _terms(target)
    if count is None:
        return None
    at = int(target.rng.integers(count))
    lost = _contribution(target, slice(at, at + 1))
    changed = np.array(target.right, np.float64)
    row = int(target.rng.integers(_rows(changed).shape[0]))
    _rows(changed)[row] -= _rows(lost)[row]
    return round_once(changed, target.right.dtype)


def scaled_row(target: Target) -> Array | None:
    """One row 2**-8 too large."""
    if target.right.ndim < 2 or target.right.shape[-1] < 2:
        return None
    changed = np.array(target.right, np.float64)
    row = int(target.rng.choice(np.flatnonzero(_rows(changed).any(axis=1))))
    _rows(changed)[row] *= 1 + 2.0**-8
    return round_once(changed, target.right.dtype)


def tile_edge(length: int) -> Fault:
    """The last row or column of one tile of `length` by `length` lacks as many terms; what adds up nothing is 0 there.

    None for results without such a tile, and for products whose sums are no longer than it.
    """

    def fault(target: Target) -> Array | None:
        if target.right.ndim < 2 or min(target.right.shape[-2:]) < length:
            return None
        count = _terms(target)
        if count is not None and count < 2 * length:
            return None
        changed = np.array(target.right, np.float64)
        edge = _edge_of_a_tile(target, changed, length)
        if count is None:
            changed[edge] = 0
        else:
            start = length * int(target.rng.integers(count // length))
            changed[edge] -= _contribution(target, slice(start, start + length))[edge]
        return round_once(changed, target.right.dtype)

    return fault


def dropped_tail(target: Target) -> Array | None:
    """Every sum lacks its last 16 terms."""
    count = _terms(target)
    if count is None or count < 4 * _TAIL:
        return None
    lost = _contribution(target, slice(count - _TAIL, count))
    return round_once(target.right.astype(np.float64) - lost, target.right.dtype)


#: The faults by name, in the order of the page.
PARTIAL_FAULTS: dict[str, Fault] = {
    "one element 5 % off": one_element(lambda value: 1.05 * value),
    "one element doubled": one_element(lambda value: 2 * value),
    "one element lost (0)": one_element(lambda value: 0.0),
    "one element of the other sign": one_element(lambda value: -value),
    "one row lacks one of its terms": missing_term,
    "one row 2^-8 too large": scaled_row,
    "edge of a 16 x 16 tile": tile_edge(16),
    "edge of a 32 x 32 tile": tile_edge(32),
    "edge of a 128 x 128 tile": tile_edge(128),
    "last 16 terms of all sums dropped": dropped_tail,
}


def partial_size(faulty: Array, right: Array, moved: Envelopes) -> Size:
    """`size_of` for a fault that leaves most elements as they are."""
    changed = faulty != right

    def there(envelope: Array | float) -> Array | float:
        return envelope[changed] if isinstance(envelope, np.ndarray) else envelope

    if not changed.any():
        return Size(0.0, 0.0, 0.0, 0.0)
    bounds = Envelopes(there(moved.inputs), there(moved.kept), there(moved.inside))
    return size_of(faulty[changed], right[changed], bounds)


def large_envelopes(target: Target) -> Envelopes:
    """How far rounding moves each element: of products from the norms of their terms, else from two moved runs.

    A term of a product moves by the square root of 2 roundings, in the root mean square, when both its factors move by
    one, up or down at random, and the sum of the terms by as many roundings of their norm; the largest of four runs is
    1.47 times that in the mean. Arithmetic inside moves each of n terms by 0.3 sqrt(n / 3) roundings of float32 and
    their sum by 0.24 sqrt(n / 3), as `pytest_msprobe.engines.torch_arithmetic` does.
    """
    count = _terms(target)
    if count is None or target.recording.call.api.short not in _ADDED_UP:
        return envelopes(target, runs=_RUNS)
    norms = np.sqrt(np.maximum(target.wide(_squared(target.recording)), 0))
    roundoff = unit_roundoff(target.right.dtype)
    inputs = _OF_FOUR_RUNS * math.sqrt(2) * roundoff * norms
    if roundoff != _FLOAT32:
        return Envelopes(inputs, inputs, inputs)
    length = math.sqrt(count * _taps(target))
    terms = max(1.0, 0.3 * length) / math.sqrt(3) * _FLOAT32 * norms
    sums = max(1.0, 0.24 * length) / math.sqrt(3) * _FLOAT32 * np.abs(target.right.astype(np.float64))
    inside = _OF_FOUR_RUNS * np.sqrt(2 * (roundoff * norms) ** 2 + terms**2 + sums**2)
    return Envelopes(inputs, inputs, np.fmax(inputs, inside))


def _taps(target: Target) -> int:
    """Terms of a convolution for each place on the axis that faults are planted along."""
    call = target.recording.call
    if call.api.short != "conv2d":
        return 1
    if _argument(target) == 1:
        images, _, _, width = target.recording.incoming[0].shape  # type: ignore[union-attr]
        return int(images * width)
    kernel: Any = call.arguments[1]
    return int(np.prod(kernel.shape[2:]))


def _argument(target: Target) -> int | None:
    """Number of the argument whose gradient it is; None for an output."""
    return None if target.direction == "forward" else int(target.recording.wanted[target.place][1])


def _operand(target: Target) -> tuple[Array, int] | None:
    """What is added up, and along which axis; None for what is no sum of its elements."""
    call = target.recording.call
    first: Any = call.arguments[0]
    if call.api.short in ("sum", "mean") and target.direction == "forward":
        return first, int(call.arguments[1]) if len(call.arguments) > 1 else 0  # type: ignore[call-overload]
    axes = _ADDED_UP.get(call.api.short)
    if axes is None:
        return None
    argument = _argument(target)
    if argument is None:
        return first, axes[0]
    incoming: Any = target.recording.incoming[0]
    return incoming, axes[min(argument, 1) + 1]


def _terms(target: Target) -> int | None:
    """How many parts the elements of a result are the sum of; None where it is no such sum."""
    found = _operand(target) if is_float(target.right) else None
    return None if found is None else int(found[0].shape[found[1]])


def _contribution(target: Target, part: slice) -> Array:
    """What a part of the terms adds to each element, float64."""
    operand, axis = _operand(target) or (target.right, 0)
    alone = np.zeros_like(operand)
    place = [slice(None)] * operand.ndim
    place[axis] = part
    alone[tuple(place)] = operand[tuple(place)]
    recording = target.recording
    if target.direction == "backward":
        changed = replace(recording, incoming=(alone,))
    else:
        others = [np.zeros_like(bias) for bias in recording.call.arguments[2:] if isinstance(bias, np.ndarray)]
        arguments = (alone, *recording.call.arguments[1:2], *others)
        changed = replace(recording, call=replace(recording.call, arguments=arguments))
    found: Array = target.wide(changed)
    return found


def _squared(recording: Recording) -> Recording:
    def squared(value: Any) -> Any:
        return np.square(value.astype(np.float64)) if isinstance(value, np.ndarray) and is_float(value) else value

    call = replace(recording.call, arguments=tuple(map(squared, recording.call.arguments)))
    return replace(recording, call=call, incoming=tuple(map(squared, recording.incoming)))


def _rows(array: Array) -> Array:
    """A view with one row for all leading axes; an array of fewer than two axes in rows of one element."""
    return array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1)


def _edge_of_a_tile(target: Target, values: Array, length: int) -> tuple[Any, ...]:
    """Index of the last row or column of a tile that is not all zero there."""
    draw: Callable[[int], int] = lambda size: int(target.rng.integers(size))  # noqa: E731
    found: tuple[Any, ...] = ()
    for _ in range(16):
        leading = tuple(map(draw, values.shape[:-2]))
        row, column = (length * draw(size // length) for size in values.shape[-2:])
        last = length - 1
        is_column = bool(draw(2))
        rows = slice(row, row + length) if is_column else slice(row + last, row + length)
        columns = slice(column + last, column + length) if is_column else slice(column, column + length)
        found = (*leading, rows, columns)
        if values[found].any():
            break
    return found
