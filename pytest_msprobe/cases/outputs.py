"""Outputs that may come in any order: both sides are put into one order before they are compared.

Outputs that are indices: under ties several answers are right, so they are judged by the values they select.

Gradients that may stand in several places: of selections (max, topk, ...) under ties, and of equal shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from pytest_msprobe.apis.topics import IndexOutput, index_output, sorted_position
from pytest_msprobe.cases.case import Case
from pytest_msprobe.engines.protocol import Argument, Array, Call, Output
from pytest_msprobe.engines.recorded import best_order
from pytest_msprobe.numerics.indices import scatter_by_index


def in_one_order(call: Call, outputs: Sequence[Output]) -> list[Output]:
    """`outputs`, in ascending order of the values where `call` asks for no order (`sorted=False`), else as they are.

    topk: values and their indices along the axis. unique: values, their counts, and inverse indices renumbered.
    """
    position = sorted_position(call.api)
    given = call.arguments[position] if position is not None and len(call.arguments) > position else True
    arrays = [cast("Array", output.value) for output in outputs if hasattr(output.value, "__array_interface__")]
    if position is None or call.named.get("sorted", given) is not False or len(arrays) < len(outputs) or not arrays:
        return list(outputs)
    ordered = _unique(call, arrays) if call.api.short == "unique" else _top(call, arrays)
    return [replace(output, value=array) for output, array in zip(outputs, ordered)]


def _top(call: Call, arrays: list[Array]) -> list[Array]:
    axis = call.arguments[2] if call.api.short != "top_k" and len(call.arguments) > 2 else None
    axis = call.keywords.get("dim", axis)
    if not arrays[0].ndim or any(array.shape != arrays[0].shape for array in arrays):
        return arrays
    along = axis if isinstance(axis, int) else -1
    order = np.argsort(_wide(arrays[0]), axis=along, kind="stable")
    return [np.take_along_axis(array, order, axis=along) for array in arrays]


def _unique(call: Call, arrays: list[Array]) -> list[Array]:
    dim = call.keywords.get("dim", call.arguments[4] if len(call.arguments) > 4 else None)
    values, *others = arrays
    if dim is not None or values.ndim != 1:
        return arrays
    order = np.argsort(_wide(values), kind="stable")
    has_inverse = call.keywords.get("return_inverse", call.arguments[2] if len(call.arguments) > 2 else False) is True
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    ordered: list[Any] = [values[order]]
    for number, array in enumerate(others):
        if number == 0 and has_inverse:
            is_index = bool(np.all((array >= 0) & (array < order.size)))
            ordered.append(place[array].astype(array.dtype) if is_index else array)
        else:
            ordered.append(array[order] if array.shape == values.shape else array)
    return ordered


def _wide(array: Array) -> Array:
    """Sortable: ml_dtypes sort as what they are, but not every NumPy can."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float64)


_AXIS_NAMES = ("dim", "axis")


@dataclass(frozen=True, slots=True)
class IndexSelection:
    """What the indices of one call select from; see `check_indices` for what its attributes do there.

    Attributes:
        source: the tensor.
        axis: along which; None for the flattened tensor.
        values: the tested values that the indices must select; None without any.
        is_stable: whether equal values must keep their order.
        described: the index output.
    """

    source: Array
    axis: int | None
    values: Array | None
    is_stable: bool
    described: IndexOutput

    def flattened(self, array: Array) -> Array:
        """`array`, of indices or gradients, with the axes as one that count as one."""
        return _flattened(array, self.described.flattened_axes)


def source_and_axis(call: Call, described: IndexOutput) -> tuple[Array, int | None] | None:
    """The tensor that the indices select from, and the axis; None when the call's arguments do not show them."""
    source = call.arguments[0] if call.arguments else call.keywords.get("input")
    if not hasattr(source, "__array_interface__"):
        return None
    axis = _argument(call, described.axis_position, *_AXIS_NAMES)
    if axis is None:  # mindspore.ops.topk(x, k, dim=None) takes the last axis
        axis = described.default_axis
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        return None
    if axis is None and described.values_position is not None:
        return None  # mindspore.ops.max(x) returns the maximum and always 0
    return _flattened(cast("Array", source), described.flattened_axes), axis


def selection(call: Call, tested: Sequence[Output]) -> IndexSelection | None:
    """What the index output among the `tested` outputs of `call` selects from, or None when it has none."""
    described = index_output(call.api)
    found = source_and_axis(call, described) if described is not None else None
    if described is None or found is None:
        return None
    values = _output_at(tested, described.values_position)
    return IndexSelection(
        found[0],
        found[1],
        None if values is None else _flattened(values, described.flattened_axes),
        described.stable_position is not None and _argument(call, described.stable_position, "stable") is True,
        described,
    )


def tested_indices(tested: Sequence[Output], described: IndexOutput) -> Array | None:
    """The index output among `tested`; None when there is none of integers."""
    indices = _output_at(tested, described.position)
    return indices if indices is not None and indices.dtype.kind in "iu" else None


def _argument(call: Call, position: int, *names: str) -> Argument:
    value = call.arguments[position] if len(call.arguments) > position else None
    for name in names:
        value = call.named.get(name, value)
    return value


def _output_at(outputs: Sequence[Output], position: int | None) -> Array | None:
    found = next((output.value for output in outputs if output.path == (position,)), None)
    return cast("Array", found) if hasattr(found, "__array_interface__") else None


def _flattened(array: Any, axes: int) -> Array:
    if axes == 0 or array.ndim < axes:
        return cast("Array", array)
    kept, flat = array.shape[: array.ndim - axes], array.shape[array.ndim - axes :]
    return cast("Array", array.reshape(*kept, math.prod(flat)))  # not -1, which an empty array does not know


_SOURCE_PATHS = (("input", 0), ("kwargs", "input"))


def follow_tested_indices(
    case: Case,
    reference: tuple[Array | None, ...],
    incoming: Sequence[Array | None],
    outputs: Callable[[], Sequence[Output] | None],
) -> tuple[Array | None, ...]:
    """The benchmark's gradients, that of the source replaced by `incoming` scattered to the tested indices.

    The forward judges the indices; if they are right, so is this gradient, also where the benchmark chose another of
    equal values. As it is where the call selects nothing, or its tested `outputs`, which are only asked for here, are
    not known.
    """
    described = index_output(case.api)
    if described is None or described.values_position is None or not incoming or incoming[0] is None:
        return reference
    tested = outputs() or ()
    chosen, indices = selection(case.call, tested), tested_indices(tested, described)
    if chosen is None or indices is None:
        return reference
    scattered = scatter_by_index(chosen.flattened(incoming[0]), chosen.source, chosen.flattened(indices), chosen.axis)
    if scattered is None:
        return reference
    return tuple(
        scattered.reshape(gradient.shape)
        if gradient is not None and path in _SOURCE_PATHS and gradient.size == scattered.size
        else gradient
        for path, gradient in zip(case.wanted, reference)
    )


def in_best_order(
    case: Case, tested: tuple[Array | None, ...], reference: tuple[Array | None, ...]
) -> tuple[Array | None, ...]:
    """`tested` with the gradients that nothing but their values tells apart put where they fit best."""
    ordered = list(tested)
    for group in case.pairing.interchangeable:
        places = [index for index, path in enumerate(case.wanted) if path in group and tested[index] is not None]
        found = [array for index in places if (array := tested[index]) is not None]
        expected = [array for index in places if (array := reference[index]) is not None]
        if len(found) == len(expected):
            for place, chosen in zip(places, best_order(found, expected)):
                ordered[place] = found[chosen]
    return tuple(ordered)
