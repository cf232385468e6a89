"""Code that MindSpore compiles into graphs on Ascend: every value goes to a file of its own through TensorDump.

Not run so far on an Ascend device: only its compilation up to the choice of kernels, which a CPU does as well.
"""

# The compiler knows neither unpacking in tuples, nor generators:
# ruff: noqa: PLW2901, RUF005

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import Tensor, ops

from msprobe_collector.mindspore.static_graph.files import staged_name
from msprobe_collector.mindspore.static_graph.graph_code.saving import FLOATS

_dump = ops.TensorDump()
_dump_gradient = ops.DumpGradient()


def _dumped(values: Any, forward_paths: Any, gradient_paths: Any, side: Any, gradients: Any) -> Any:
    tapped: Any = ()
    index = 0
    place = 0
    for value in values:
        if isinstance(value, Tensor) and place < len(forward_paths):
            value = ops.depend(value, _dump(forward_paths[place], ops.stop_gradient(value)))
            if gradients and value.dtype in FLOATS:
                value = _dump_gradient(gradient_paths[index], value, side)
            index = index + 1
        place = place + 1
        tapped = tapped + (value,)
    return tapped


def tapped_construct(cell: Any, label: str, *, folder: Path, gradients: bool) -> Callable[..., Any]:
    """Return a `construct` for `cell` that computes the same and writes its tensors into `folder`.

    Args:
        cell: whose present `construct` it calls.
        label: `Cell.{path}.{Class}`.
        folder: where TensorDump puts its files.
        gradients: whether gradients are written as well.
    """
    original = cell.construct

    def paths(direction: str, part: str) -> tuple[str, ...]:
        # Arguments or outputs of a call that are seen; those beyond are passed over.
        return tuple(str(folder / staged_name(label, direction, part, index)) for index in range(32))

    inputs, outputs = paths("forward", "input"), paths("forward", "output")
    input_gradients, output_gradients = paths("backward", "output"), paths("backward", "input")

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = _dumped(args, inputs, input_gradients, "in", gradients)
        result = original(*args, **kwargs)
        if isinstance(result, tuple):
            return _dumped(result, outputs, output_gradients, "out", gradients)
        if isinstance(result, list):
            return list(_dumped(result, outputs, output_gradients, "out", gradients))
        return _dumped((result,), outputs, output_gradients, "out", gradients)[0]

    return types.MethodType(construct, cell)
