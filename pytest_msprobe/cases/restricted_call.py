"""A call restricted to some elements or rows of one of its outputs, of which the benchmark makes what it made before.

Nothing says by name on which elements of the inputs an element hangs. Ways to restrict a call are tried instead, and
one holds where the benchmark's results for the small call are those for the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_msprobe.cases.call_run import Incoming
from pytest_msprobe.engines.protocol import Array, Call, arrays_in, with_leaves
from pytest_msprobe.numerics.expected import Relative, Share
from pytest_msprobe.numerics.measurement import is_same

#: So many elements, and so many rows where a row is longer, stand for all others.
_SAMPLE = 4096
_FEWEST_ROWS = 16


@dataclass(frozen=True, slots=True)
class SmallCall:
    """A small call and what the benchmark makes of it.

    Attributes:
        call, incoming: what the small call gets.
        places: flat positions in the whole output of the elements of the small one, in its shape.
        result: what the benchmark makes of it, in its shape, float64 or complex128 for floats.
        chosen: so many elements come first that were asked for, and what is in a row with them; others are a sample.
    """

    call: Call
    incoming: Incoming
    places: Array
    result: Array
    chosen: int


@dataclass(frozen=True, slots=True)
class _Way:
    """How elements of an output are reached in the tensors of a call.

    Attributes:
        leading: axes of the output whose elements are selected, as one axis.
        kept: axes of the output behind them, which are whole.
        least_rank: tensors of fewer axes are whole.
        is_flat: each element is made of one element of each tensor, so that all have one axis.
    """

    leading: tuple[int, ...]
    kept: tuple[int, ...]
    least_rank: int = 0
    is_flat: bool = False

    @property
    def rows(self) -> int:
        """How many rows the output has."""
        return math.prod(self.leading)

    @property
    def row_size(self) -> int:
        """How many elements a row of the output has."""
        return math.prod(self.kept)

    def sample(self) -> Array:
        """Numbers of the rows that stand for all."""
        fewest = _SAMPLE if self.is_flat else max(_FEWEST_ROWS, -(-_SAMPLE // max(1, self.row_size)))
        return np.random.default_rng(0).choice(self.rows, min(fewest, self.rows), replace=False)

    def taken(self, value: Any, rows: Array) -> Any:
        """The part of a tensor that makes these rows of the output; what takes part in every row as it is.

        Raises:
            ValueError: the tensor has no such part.
        """
        if not hasattr(value, "__array_interface__"):
            return value
        count = len(self.leading)
        if self.is_flat:
            spread = np.broadcast_to(value, self.leading)
        else:
            head = value.shape[:count]
            is_apart = len(head) == count and value.ndim >= self.least_rank and math.prod(head) > 1
            if not is_apart or any(length not in (1, full) for length, full in zip(head, self.leading)):
                return value
            spread = np.broadcast_to(value, self.leading + value.shape[count:])
        part: Array = spread[np.unravel_index(rows, self.leading)]
        return part if self.is_flat else part.reshape(rows.size, *(1,) * (count - 1), *part.shape[1:])


def _ways(shape: tuple[int, ...]) -> list[_Way]:
    """Elements; rows of the last axes, all axes but the first among them; the same with smaller tensors whole."""
    ranks = [rank for rank in dict.fromkeys((1, 0, 2, 3, len(shape) - 1)) if rank < len(shape)]
    return [_Way(shape, (), is_flat=True)] + [
        _Way(shape[: len(shape) - rank], shape[len(shape) - rank :], least)
        for rank in ranks
        for least in (0, len(shape))
    ]


class Restriction:
    """One output of a call in small calls."""

    def __init__(
        self, call: Call, incoming: Incoming, reference: Array, compute: Callable[[Call, Incoming], Any]
    ) -> None:
        """Of the output (or, given `incoming`, the gradient) for which the benchmark has found `reference`.

        `compute` is what the benchmark makes of it for another call: an array, or anything else where it fails.
        """
        self._call = call
        self._incoming = incoming
        self._reference = reference
        self._compute = compute
        self._size = self._elements(call, incoming) + reference.size

    def part(self, places: Sequence[int] | Array = ()) -> SmallCall | None:
        """A small call that makes the elements at these flat positions and a sample of others.

        None where no way to restrict the call holds, or the small call is not small.
        """
        if self._sample is None or not len(places):
            return None if self._sample is None else self._sample[1]
        way = self._sample[0]
        return self._made(way, np.unique(np.asarray(places) // way.row_size))

    @cached_property
    def _sample(self) -> tuple[_Way, SmallCall] | None:
        """The first way that holds for a sample."""
        none = np.zeros(0, np.intp)
        tried = ((way, self._made(way, none)) for way in _ways(self._reference.shape))
        return next(((way, part) for way, part in tried if part is not None), None)

    def _made(self, way: _Way, chosen: Array) -> SmallCall | None:
        rows = np.concatenate([chosen, np.setdiff1d(way.sample(), chosen)])
        if rows.size > Share.SMALL_CALL * way.rows:
            return None
        try:
            call = with_leaves(self._call, lambda path, value: way.taken(value, rows))
            incoming = tuple(way.taken(value, rows) for value in self._incoming)
        except ValueError:
            return None
        if self._elements(call, incoming) + rows.size * way.row_size > Share.SMALL_CALL * self._size:
            return None
        result = self._compute(call, incoming)
        shape = (rows.size, *(1,) * (0 if way.is_flat else len(way.leading) - 1), *way.kept)
        if getattr(result, "shape", None) != shape:
            return None
        places = (rows[:, None] * way.row_size + np.arange(way.row_size)).reshape(shape)
        if not _is_same(result, self._reference.reshape(-1)[places]):
            return None
        return SmallCall(call, incoming, places, result, chosen.size * way.row_size)

    @staticmethod
    def _elements(call: Call, incoming: Incoming) -> int:
        return sum(array.size for array in (*arrays_in(call).values(), *incoming) if array is not None)


def _is_same(result: Array, expected: Array) -> bool:
    with np.errstate(invalid="ignore"):
        is_near = np.abs(result - expected) <= Relative.FLOAT64_RESULTS * np.abs(expected)
    return bool(np.all(is_near | is_same(result, expected)))
