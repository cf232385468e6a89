"""Outputs that may come in any order: both sides are put into one order before they are compared.

- Outputs that are indices: under ties several answers are right, so they are judged by the values they select.
- Gradients that may stand in several places: of selections (max, topk, ...) under ties, and of equal shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from pytest_msprobe.apis.topics import IndexOutput, index_output, sorted_position
from pytest_msprobe.cases.case import Case
from pytest_msprobe.engines.protocol import CHANGED, Argument, Array, Call, Output, output_label
from pytest_msprobe.engines.recorded import best_order
from pytest_msprobe.numerics.indices import check_indices, scatter_by_index
from pytest_msprobe.numerics.measurement import Metrics


def paired_outputs(
    call: Call, tested: Sequence[Output], reference: Sequence[Output]
) -> tuple[list[Output], list[Output]]:
    """The outputs of both sides that are compared, in one order; their numbers may differ.

    None on the tested side is not an output. None in the reference is one that it leaves open, such as the softmax
    statistics of a fused attention: it is not judged. Arguments that the reference changed count where the tested side
    has them, too.
    """
    left_open = {output.path for output in reference if output.value is None}
    compared, expected = in_one_order(call, [output for output in tested if output.path not in left_open], reference)
    if len(compared) < len(expected):
        expected = [output for output in expected if output.path[0] != CHANGED]
    return compared, expected


def in_one_order(call: Call, *sides: Sequence[Output]) -> list[list[Output]]:
    """The outputs of each side that are not None, in ascending order of values where `call` asks for no order.

    That is for `sorted=False`; any other call has them as they are. topk: values and their indices along the axis.
    unique: values, their counts, and inverse indices renumbered.
    """
    position = sorted_position(call.api)
    is_open = position is not None and _argument(call, position, "sorted") is False
    present = list(map(present_outputs, sides))
    return [_ordered(call, outputs) for outputs in present] if is_open else present


def present_outputs(outputs: Sequence[Output]) -> list[Output]:
    """The outputs that are not None."""
    return [output for output in outputs if output.value is not None]


def arrays_of(outputs: Sequence[Output]) -> list[Array]:
    """The outputs that are arrays."""
    return [cast("Array", output.value) for output in outputs if hasattr(output.value, "__array_interface__")]


def _ordered(call: Call, outputs: list[Output]) -> list[Output]:
    arrays = arrays_of(outputs)
    if len(arrays) < len(outputs) or not arrays:
        return outputs
    ordered = _unique(call, arrays) if call.api.short == "unique" else _top(call, arrays)
    return [replace(output, value=array) for output, array in zip(outputs, ordered)]


def _top(call: Call, arrays: list[Array]) -> list[Array]:
    axis = call.keywords.get("dim") if call.api.short == "top_k" else _argument(call, 2, "dim")
    if not arrays[0].ndim or any(array.shape != arrays[0].shape for array in arrays):
        return arrays
    along = axis if isinstance(axis, int) else -1
    order = np.argsort(_wide(arrays[0]), axis=along, kind="stable")
    return [np.take_along_axis(array, order, axis=along) for array in arrays]


def _unique(call: Call, arrays: list[Array]) -> list[Array]:
    dim = _argument(call, 4, "dim")
    values, *others = arrays
    if dim is not None or values.ndim != 1:
        return arrays
    order = np.argsort(_wide(values), kind="stable")
    has_inverse = _argument(call, 2, "return_inverse") is True
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


def index_metrics(
    call: Call, label: str, actual: Array, expected: Array, tested: Callable[[], Sequence[Output]]
) -> Metrics | None:
    """What the values are off by that the indices `actual` select, compared with those that `expected` do.

    None where the output called `label` is not indices, or the call does not show what they select from. `tested`
    gives all outputs of the tested side.
    """
    if actual.dtype.kind not in "iu" or expected.dtype.kind not in "iu":
        return None
    described = index_output(call.api)
    if described is None or label != output_label((described.position,)):
        return None
    chosen = source_and_axis(call, described)
    if chosen is None:
        return None
    (source, axis), axes = chosen, described.flattened_axes
    values = _output_at(tested(), described.values_position)
    stable = described.stable_position
    return check_indices(
        source,
        _flattened(actual, axes),
        _flattened(expected, axes),
        axis,
        unique_along_axis=described.is_selection,
        values=None if values is None else _flattened(values, axes),
        is_stable=stable is not None and _argument(call, stable, "stable") is True,
    )


#: Keywords by which the value may be another one than any of the source.
_NOT_OF_SOURCE = frozenset({"initial", "where"})


def source_and_axis(call: Call, described: IndexOutput) -> tuple[Array, int | None] | None:
    """The tensor that the indices select from, and the axis; None when the call's arguments do not show them."""
    source = next(iter(call.arguments), call.keywords.get("input"))
    if not hasattr(source, "__array_interface__") or not _NOT_OF_SOURCE.isdisjoint(call.keywords):
        return None
    axis = _argument(call, described.axis_position, *_AXIS_NAMES)
    if axis is None:  # mindspore.ops.topk(x, k, dim=None) takes the last axis
        axis = described.default_axis
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        return None
    if axis is None and described.values_position is not None:
        return None  # mindspore.ops.max(x) returns the maximum and always 0
    return _flattened(cast("Array", source), described.flattened_axes), axis


def _argument(call: Call, position: int, *names: str) -> Argument:
    value = next(iter(call.arguments[position:]), None)
    for name in names:
        value = call.named.get(name, value)
    return value


def _output_at(outputs: Sequence[Output], position: int | None) -> Array | None:
    value = next((output.value for output in outputs if output.path == (position,)), None)
    return cast("Array", value) if hasattr(value, "__array_interface__") else None


def _flattened(array: Any, axes: int) -> Array:
    if axes == 0 or array.ndim < axes:
        return cast("Array", array)
    kept, flat = array.shape[: array.ndim - axes], array.shape[array.ndim - axes :]
    return cast("Array", array.reshape(*kept, math.prod(flat)))  # not -1, which an empty array does not know


#: One per argument that is differentiated, in the order of `Case.wanted`, or per output that they come in by.
Gradients = tuple["Array | None", ...]
_SOURCE_PATHS = (("input", 0), ("kwargs", "input"))


def paired_gradients(
    case: Case,
    tested: Gradients,
    reference: Gradients,
    incoming: Gradients,
    outputs: Callable[[], Sequence[Output] | None],
    *,
    are_recorded: bool,
) -> tuple[Gradients, Gradients]:
    """(tested, reference) gradients, each at the place where it is compared.

    The benchmark's gradient of a tensor that the call selects from is `incoming` scattered to the tested indices: the
    forward judges these, and if they are right, so is this gradient, also where the benchmark chose another of equal
    values. Tested gradients that `are_recorded` and that nothing but values tells apart stand where they fit best.

    `outputs` gives the tested ones, where they are known, and is asked only for a call that selects.
    """
    reference = _following_tested_indices(case, reference, incoming, outputs)
    if are_recorded:
        tested = _in_best_order(case, tested, reference)
    return tested, reference


def _following_tested_indices(
    case: Case, reference: Gradients, incoming: Gradients, outputs: Callable[[], Sequence[Output] | None]
) -> Gradients:
    described = index_output(case.api)
    if described is None or described.values_position is None or not incoming or incoming[0] is None:
        return reference
    tested = outputs() or ()
    chosen, indices = source_and_axis(case.call, described), _output_at(tested, described.position)
    if chosen is None or indices is None or indices.dtype.kind not in "iu":
        return reference
    (source, axis), axes = chosen, described.flattened_axes
    scattered = scatter_by_index(_flattened(incoming[0], axes), source, _flattened(indices, axes), axis)
    if scattered is None:
        return reference
    gradients = list(reference)
    for place, (path, gradient) in enumerate(zip(case.wanted, reference)):
        if gradient is not None and path in _SOURCE_PATHS and gradient.size == scattered.size:
            gradients[place] = scattered.reshape(gradient.shape)
    return tuple(gradients)


def _in_best_order(case: Case, tested: Gradients, reference: Gradients) -> Gradients:
    ordered = list(tested)
    for group in case.pairing.interchangeable:
        places = [index for index, path in enumerate(case.wanted) if path in group and tested[index] is not None]
        gradients = [array for index in places if (array := tested[index]) is not None]
        expected = [array for index in places if (array := reference[index]) is not None]
        if len(gradients) == len(expected):
            for place, chosen in zip(places, best_order(gradients, expected)):
                ordered[place] = gradients[chosen]
    return tuple(ordered)
