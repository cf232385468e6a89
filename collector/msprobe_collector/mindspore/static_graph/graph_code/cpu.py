"""Code that MindSpore compiles into graphs on CPU: values are copied out while the graph runs, and stay what they are.

Every function here is graph code: MindSpore reads its source, so it keeps to what the compiler knows. Values leave
through a Python function inside the graph (`ops.Custom`, CPU only). It returns the call's number, on which the values
are made to depend, so that it runs, and runs once. Gradients leave through `ops.Morph` (2.7.1 and later), an identity
that is gone when the graph runs. A Cell with a bprop of its own would not do: `jit` under PyNative then computes the
forward again in the backward, and draws other dropout masks.
"""

# The compiler knows neither unpacking in tuples, nor generators, nor iteration of a dict:
# ruff: noqa: PLW2901, RUF005

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.primitive import constexpr

from msprobe_collector.mindspore.static_graph.graph_code.saving import (
    FLOATS,
    described,
    is_whole,
    tensors_in,
    with_dimension,
)
from msprobe_collector.mindspore.static_graph.layouts import LAYOUTS


@constexpr  # type: ignore[untyped-decorator]  # MindSpore has no types
def _note(receiver: int, label: str, moment: str, description: Any, of_inputs: int, index: int) -> int:
    return LAYOUTS.note(receiver, label, moment, description, of_inputs, index)  # type: ignore[arg-type]


def _arrive(place: Any, number: Any, value: Any) -> Any:
    return LAYOUTS.arrive(place, number, value)


_leave = ops.Custom(_arrive, out_shape=(1,), out_dtype=mindspore.int32, func_type="pyfunc")
# Where a Cell is computed again in the backward (Cell.recompute), its values leave the first time only.
_leave.add_prim_attr("recompute", False)


def _seen(layout: Any, value: Any, number: Any) -> Any:
    tensors = tensors_in(value)
    for position in range(len(tensors)):
        number = _leave(Tensor([layout, position], mindspore.int32), number, tensors[position])
    return number


def _after(value: Any, number: Any) -> Any:
    if isinstance(value, Tensor):
        if is_whole(value):
            return ops.depend(value, number)
        return value
    if isinstance(value, (tuple, list)):
        items: Any = ()
        for item in value:
            items = items + (_after(item, number),)
        if isinstance(value, list):
            return list(items)
        return items
    return value


def _same(place: Any, number: Any, value: Any) -> Any:
    return value


def _gradient_leaves(place: Any, number: Any, value: Any, out: Any, gradient: Any) -> Any:
    token = _leave(place, number, with_dimension(ops.stop_gradient(gradient)))
    return ops.zeros_like(place), ops.zeros_like(number), ops.depend(gradient, token)


_with_gradient = ops.Morph(_same, _same, _same, bprop_fn=_gradient_leaves)


def _with_gradients(values: Any, number: Any, receiver: Any, label: Any, moment: Any) -> Any:
    tapped: Any = ()
    index = 0
    for value in values:
        if isinstance(value, Tensor):
            if value.dtype in FLOATS and is_whole(value):
                layout = _note(receiver, label, moment, described(value), -1, index)
                value = _with_gradient(Tensor([layout, 0], mindspore.int32), number, value)
            index = index + 1
        tapped = tapped + (value,)
    return tapped


def tapped_construct(cell: Any, label: str, *, receiver: int, gradients: bool) -> Callable[..., Any]:
    """A `construct` for `cell` that computes the same and lets its inputs, outputs and gradients leave.

    Args:
        cell: whose present `construct` it calls.
        label: `Cell.{path}.{Class}`.
        receiver: number of the receiver in `LAYOUTS`.
        gradients: whether gradients leave as well.
    """
    original = cell.construct

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = (args, kwargs)
        of_inputs = _note(receiver, label, "inputs", described(inputs), -1, -1)
        number = _seen(of_inputs, inputs, Tensor([-1], mindspore.int32))
        args = _after(args, number)
        if gradients:
            args = _with_gradients(args, number, receiver, label, "input_gradient")
        result = original(*args, **kwargs)
        outputs: Any = (result,)
        if isinstance(result, (tuple, list)):
            outputs = result
        layout = _note(receiver, label, "outputs", described(outputs), of_inputs, -1)
        number = _seen(layout, outputs, number)
        outputs = _after(outputs, number)
        if gradients:
            outputs = _with_gradients(outputs, number, receiver, label, "output_gradient")
        if isinstance(result, tuple):
            return outputs
        if isinstance(result, list):
            return list(outputs)
        return outputs[0]

    return types.MethodType(construct, cell)
