"""Outputs that are indices: under ties several answers are right, so they are judged by the values they select."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from pytest_msprobe.apis.outputs import IndexOutput, index_output
from pytest_msprobe.engines.protocol import Argument, Array, Call, Output

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
