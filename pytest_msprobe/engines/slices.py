"""The benchmark of a large call slice by slice, where its elements or its rows do not depend on each other.

In float64 every input, output and gradient takes 8 bytes an element. Of a call in slices only the results are whole:
what they are made of stays in the cache of a core, which also takes less time, as nothing of it is got from the system.
The bits of the results are those of the whole call on one thread: slices end where vectors of a processor do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any, TypeAlias, cast

from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.engines.protocol import (
    Argument,
    Array,
    Call,
    Execution,
    LeafPath,
    NumpyArgument,
    Output,
    leaves,
    with_leaves,
)

#: Elements of a tensor from which on slices are worth it, and elements of a slice.
FEWEST_SLICED = 1 << 18
_SLICE = 1 << 17
#: Slices end after so many elements of an axis, or a multiple.
_VECTORS = 64
_ARRAY = "__array_interface__"
#: (a call, places of arguments to differentiate) -> the call, run.
Run = Callable[[Call, tuple[LeafPath, ...]], Execution]
#: The index of a slice in an array.
Place: TypeAlias = "tuple[slice | EllipsisType, ...]"


@dataclass(frozen=True, slots=True)
class Slicing:
    """How the tensors of a call are cut.

    Attributes:
        shape: of the output.
        folded: the shape in which tensors are cut that have the shape of the output.
        axis: where they are cut, counted from the end: -1 is the last axis. All have that axis, in its full length.
        length: of a slice along that axis.
    """

    shape: tuple[int, ...]
    folded: tuple[int, ...]
    axis: int
    length: int

    def places(self) -> Iterator[Place]:
        """The index of each slice."""
        behind = (slice(None),) * (-1 - self.axis)
        for start in range(0, self.folded[self.axis], self.length):
            yield (..., slice(start, start + self.length), *behind)

    def call(self, call: Call, place: Place) -> Call:
        """`call` with a slice of each tensor."""
        return with_leaves(call, lambda path, value: self.part(value, place))

    def part(self, value: Any, place: Place) -> Any:
        """The slice of a contiguous array, which shares its memory; anything else as it is."""
        if not hasattr(value, _ARRAY):
            return value
        return (value.reshape(self.folded) if value.shape == self.shape else value)[place]


def run_sliced(run: Run, call: Call, differentiate: tuple[LeafPath, ...]) -> Execution:
    """`call`, run by `run` slice by slice, or as a whole where it cannot be cut.

    Raises:
        Exception: whatever `run` raises.
    """
    slicing = _slicing_of(call)
    if slicing is not None:
        with suppress(NotSlicedError):
            return SlicedExecution(run, call, differentiate, slicing)
    return run(call, differentiate)


def _slicing_of(call: Call) -> Slicing | None:
    """How to cut `call`; None where its arithmetic is to be moved, or nothing says that it can be cut."""
    fact = facts("slices").of(call.api, call.framework)
    if fact is None or fact.reason or call.saved_roundoff or call.arithmetic_roundoff:
        return None
    values = [value for _, value in leaves(call)]
    arrays = [value for value in values if hasattr(value, _ARRAY)]
    # By position any True may be `inplace`.
    is_plain = not any(value is True or isinstance(value, NumpyArgument) for value in values)
    if not is_plain or writes_in_place(call.api) or not all(array.flags.c_contiguous for array in arrays):
        return None
    shapes = {array.shape for array in arrays}
    return _along_elements(shapes) if fact.text == "elements" else _along_rows(shapes, _axis(call))


def _along_elements(shapes: set[tuple[int, ...]]) -> Slicing | None:
    """Tensors of one shape are cut anywhere, those that are broadcast along the longest axis that all have."""
    import numpy as np

    first = next(iter(shapes))
    if len(shapes) == 1:
        return Slicing(first, (1,) * (len(first) - 1) + (math.prod(first),), -1, _SLICE)
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:  # the call itself says it better
        return None
    common = range(-min(map(len, shapes)), 0)

    def is_whole(axis: int) -> bool:
        return all(other[axis] == shape[axis] for other in shapes)

    axis = max(filter(is_whole, common), key=shape.__getitem__, default=None)
    if axis is None or shape[axis] < _VECTORS:
        return None
    length = _SLICE * shape[axis] // math.prod(shape)
    return Slicing(shape, shape, axis, max(1, length // _VECTORS) * _VECTORS)


def _along_rows(shapes: set[tuple[int, ...]], axis: Argument) -> Slicing | None:
    """One tensor is cut between rows of its last axis, where the function is one of these."""
    (shape,) = shapes if len(shapes) == 1 else ((),)
    if len(shape) < 2 or axis not in (-1, len(shape) - 1):
        return None
    length = shape[-1]
    folded = (1,) * (len(shape) - 2) + (math.prod(shape) // length, length)
    return Slicing(shape, folded, -2, max(1, _SLICE // length))


def _axis(call: Call) -> Argument:
    """The axis of a function of rows: its second argument, or one of that name."""
    axis = call.arguments[1] if len(call.arguments) > 1 else call.named.get("dim", call.named.get("axis"))
    return axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis


class SlicedExecution:
    """A call that runs slice by slice: its outputs at once, and again where its gradients are asked for."""

    def __init__(self, run: Run, call: Call, differentiate: tuple[LeafPath, ...], slicing: Slicing) -> None:
        """Runs `call` by `run`.

        Raises:
            NotSlicedError: its results are not made as its name says.
            Exception: whatever `run` raises.
        """
        self._run = run
        self._call = call
        self._differentiate = differentiate
        self._slicing = slicing
        self._outputs: tuple[Output, ...] | None = self._computed()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """See `Execution.outputs`. Computed again when they are asked for after the gradients, which let go of them."""
        if self._outputs is None:
            self._outputs = self._computed()
        return self._outputs

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`."""
        self._outputs = None
        first = incoming[0] if len(incoming) == 1 else None
        if first is not None and first.shape == self._slicing.shape and first.flags.c_contiguous:
            values = dict(leaves(self._call))
            shapes = [cast("Array", values[path]).shape for path in self._differentiate]
            with suppress(NotSlicedError):
                return self._put_together(partial(self._gradients_of, first), shapes)
        return self._run(self._call, self._differentiate).gradients(incoming)

    def _gradients_of(self, incoming: Array, place: Place) -> Sequence[Array | None]:
        run = self._run(self._slicing.call(self._call, place), self._differentiate)
        return run.gradients((self._slicing.part(incoming, place),))

    def _computed(self) -> tuple[Output, ...]:
        (whole,) = self._put_together(self._output_of, [self._slicing.shape])
        return (Output((0,), whole),)

    def _output_of(self, place: Place) -> Sequence[Any]:
        return [output.value for output in self._run(self._slicing.call(self._call, place), ()).outputs]

    def _put_together(
        self, computed: Callable[[Place], Sequence[Any]], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Array, ...]:
        """The results of all slices as one array for each of the `shapes`."""
        import numpy as np

        wholes: list[Array] = []
        for place in self._slicing.places():
            parts = computed(place)
            if len(parts) != len(shapes):
                raise NotSlicedError
            if not wholes:
                wholes = [np.empty(shape, getattr(part, "dtype", None)) for shape, part in zip(shapes, parts)]
            targets = [self._slicing.part(whole, place) for whole in wholes]
            for target, part in zip(targets, parts):
                if target.shape != getattr(part, "shape", None):
                    raise NotSlicedError
                target[...] = part
        return tuple(wholes)


class NotSlicedError(Exception):
    """A call whose results do not have the shape of its tensors; it is to be run as a whole."""
