"""Outputs that are indices: under ties several answers are right, so they are judged by the values they select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.protocol import Argument, Array, Call, Output

_AXIS_NAMES = ("dim", "axis")
#: For APIs whose axis no argument gives.
_NOWHERE = 99


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """An output that selects from the first argument.

    Attributes:
        position: which output holds the indices.
        axis_position: positional argument that gives the axis, counted with the tensor as 0.
        default_axis: axis when the call gives none; None means the flattened tensor.
        is_selection: True when one line of the indices may not name an element twice (topk, sort).
        values_position: which output holds the values that the indices must select; None without one.
        flattened_axes: trailing axes of source and indices that count as one, as in pooling; 0 for none.
        stable_position: positional argument `stable`; None for APIs that do not promise the order of equals.
    """

    position: int
    axis_position: int
    default_axis: int | None
    is_selection: bool = False
    values_position: int | None = 0
    flattened_axes: int = 0
    stable_position: int | None = None


_ARGUMENT = IndexOutput(0, 1, None, values_position=None)
_SORTED = IndexOutput(1, 1, -1, is_selection=True, stable_position=3)
_ARGSORTED = IndexOutput(0, 1, -1, is_selection=True, values_position=None, stable_position=3)
_TOP = IndexOutput(1, 2, -1, is_selection=True)
_EXTREME = IndexOutput(1, 1, None)
_SELECTED = IndexOutput(1, 1, -1)
_KTH = IndexOutput(1, 2, -1)
_FIRST_AXIS = IndexOutput(1, 1, 0)
#: mindspore and torch count pooling indices in the flattened plane (torch.nn.functional.max_pool2d, return_indices).
_POOLED = {axes: IndexOutput(1, _NOWHERE, -1, flattened_axes=axes) for axes in (1, 2, 3)}

_TABLE = {
    "topk": _TOP,
    "top_k": replace(_TOP, axis_position=_NOWHERE),
    "sort": _SORTED,
    "msort": IndexOutput(1, _NOWHERE, 0, is_selection=True),
    "argsort": _ARGSORTED,
    "argmax": _ARGUMENT,
    "argmin": _ARGUMENT,
    "max": _EXTREME,
    "min": _EXTREME,
    "argmax_with_value": _FIRST_AXIS,
    "argmin_with_value": _FIRST_AXIS,
    # torch gives indices only with an axis, mindspore always and along the last axis.
    "median": _SELECTED,
    "nanmedian": _SELECTED,
    "mode": _SELECTED,
    "kthvalue": _KTH,
    "cummax": _EXTREME,
    "cummin": _EXTREME,
} | {
    f"{prefix}max_pool{axes}d{suffix}": described
    for axes, described in _POOLED.items()
    for prefix in ("", "adaptive_", "fractional_")
    for suffix in ("", "_with_indices")
}

#: By class. Those that take their axis in the constructor hide it from the dump and are not here.
_PRIMITIVES = {
    "TopK": replace(_TOP, axis_position=_NOWHERE),
    "TopkExt": _TOP,
    "SortExt": _SORTED,
    "ArgSort": _ARGSORTED,
    "ArgMaxExt": _ARGUMENT,
    "ArgMinExt": _ARGUMENT,
    "MaxDim": _EXTREME,
    "MinDim": _EXTREME,
    "MedianDim": _SELECTED,
    "Kthvalue": _KTH,
    "CumminExt": _EXTREME,
    "FuncMaxPool2D": _POOLED[2],
    "AdaptiveMaxPool1D": _POOLED[1],
    "AdaptiveMaxPool2D": _POOLED[2],
    "AdaptiveMaxPool3D": _POOLED[3],
}


@dataclass(frozen=True, slots=True)
class Selection:
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


def index_output(api: ApiName) -> IndexOutput | None:
    """Which output of `api` is indices into its first argument, or None."""
    return (_PRIMITIVES if api.type == "Primitive" else _TABLE).get(api.short)


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


def selection(call: Call, tested: Sequence[Output]) -> Selection | None:
    """What the index output among the `tested` outputs of `call` selects from, or None when it has none."""
    described = index_output(call.api)
    found = source_and_axis(call, described) if described is not None else None
    if described is None or found is None:
        return None
    values = _output_at(tested, described.values_position)
    return Selection(
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
        value = call.keywords.get(name, value)
    return value


def _output_at(outputs: Sequence[Output], position: int | None) -> Array | None:
    found = next((output.value for output in outputs if output.path == (position,)), None)
    return cast("Array", found) if hasattr(found, "__array_interface__") else None


def _flattened(array: Any, axes: int) -> Array:
    if axes == 0 or array.ndim < axes:
        return cast("Array", array)
    return cast("Array", array.reshape(*array.shape[: array.ndim - axes], -1))
