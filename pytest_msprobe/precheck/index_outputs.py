"""Outputs that are indices: under ties several answers are right, so they are judged by the values they select."""

from __future__ import annotations

from dataclasses import dataclass

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.protocol import Argument, Array, Call

_AXIS_NAMES = ("dim", "axis")


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """An output that selects from the first argument.

    Attributes:
        position: which output holds the indices.
        axis_position: positional argument that gives the axis, counted with the tensor as 0.
        default_axis: axis when the call gives none; None means the flattened tensor.
        is_selection: True when one line of the indices may not name an element twice (topk, sort).
    """

    position: int
    axis_position: int
    default_axis: int | None
    is_selection: bool


_SORTING = IndexOutput(1, 1, -1, True)
_EXTREME = IndexOutput(1, 1, None, False)
_SELECTED = IndexOutput(1, 1, -1, False)
_ARGUMENT = IndexOutput(0, 1, None, False)

_TABLE = {
    "topk": IndexOutput(1, 2, -1, True),
    "sort": _SORTING,
    "msort": IndexOutput(1, 1, 0, True),
    "argsort": IndexOutput(0, 1, -1, True),
    "argmax": _ARGUMENT,
    "argmin": _ARGUMENT,
    "max": _EXTREME,
    "min": _EXTREME,
    # torch gives indices only with an axis, mindspore always and along the last axis.
    "median": _SELECTED,
    "nanmedian": _SELECTED,
    "mode": _SELECTED,
    "kthvalue": IndexOutput(1, 2, -1, False),
    "cummax": IndexOutput(1, 1, None, False),
    "cummin": IndexOutput(1, 1, None, False),
}


def index_output(api: ApiName) -> IndexOutput | None:
    """Which output of `api` is indices into its first argument, or None. Primitives hide their axis and have none."""
    if api.type == "Primitive":
        return None
    return _TABLE.get(api.short)


def source_and_axis(call: Call, described: IndexOutput) -> tuple[Array, int | None] | None:
    """The tensor that the indices select from, and the axis; None when the call's arguments do not show them."""
    source = call.arguments[0] if call.arguments else call.keywords.get("input")
    if not hasattr(source, "__array_interface__"):
        return None
    axis: Argument = described.default_axis
    if len(call.arguments) > described.axis_position:
        axis = call.arguments[described.axis_position]
    for name in _AXIS_NAMES:
        axis = call.keywords.get(name, axis)
    if axis is None:  # mindspore.ops.topk(x, k, dim=None) takes the last axis
        axis = described.default_axis
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        return None
    return source, axis  # type: ignore[return-value]  # an argument with an array interface is an array
