"""Outputs that may come in any order: both sides are put into one order before they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from pytest_msprobe.apis.outputs import sorted_position
from pytest_msprobe.engines.protocol import Array, Call, Output


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
