"""A benchmark that the user wrote: NumPy functions, from a hook of a conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, dtype_of_array
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    LeafPath,
    NumpyArgument,
    Output,
    OutputValue,
    Unsupported,
    argument_dtype,
    copy_of,
    flatten_outputs,
    map_leaves,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A float64 benchmark of an API, written in NumPy.

    Both functions get the arguments and keywords of the call as the script wrote them: float tensors as float64
    arrays, complex ones as complex128, integers and bools in their own dtype, lists as tuples, a dtype as a NumPy
    dtype (float32 as float64). The arrays are copies, free to be written to.

    Attributes:
        forward: `forward(*arguments, **keywords)` returns an array, or a tuple of them when the API returns several.
        backward: `backward(incoming, *arguments, **keywords)` returns the gradients. `incoming` is a tuple of the
            gradients of the outputs that are arrays, zeros where there is none. Returned is one entry per positional
            argument, None for what has no gradient; a single array when there is one positional argument; or a dict
            by position or keyword: `{0: dx, "weight": dw}`. A gradient has the shape of its argument. None: the
            gradients are left to PyTorch and MindSpore.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any] | None = None


class ReferenceEngine:
    """Runs one `Reference`.

    Attributes:
        name: `reference`.
        label: with the name of the user's function.
    """

    name = "reference"

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        function = getattr(reference.forward, "__qualname__", None) or type(reference.forward).__qualname__
        self.label = f"reference {function} of pytest_msprobe_reference"

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Always None: the hook chose this engine for this API."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> ReferenceExecution:
        """See `Engine.forward`."""
        return ReferenceExecution(self._reference, call, differentiate)

    def close(self) -> None:
        """Nothing is held."""


class ReferenceExecution:
    """A forward of the user's that has run."""

    def __init__(self, reference: Reference, call: Call, differentiate: tuple[LeafPath, ...]) -> None:
        self._backward = reference.backward
        self._call = call
        self._differentiate = differentiate
        arguments, keywords = map_leaves(call, _raised(call))
        returned = reference.forward(*arguments, **keywords)
        self.outputs = tuple(Output(path, _output_value(path, value)) for path, value in flatten_outputs(returned))

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`.

        Raises:
            Unsupported: the user's reference has no backward.
        """
        if self._backward is None:
            raise Unsupported("it has no backward")
        arguments, keywords = map_leaves(self._call, _raised(self._call))
        returned = self._backward(self._incoming(incoming), *arguments, **keywords)
        gradients = _by_argument(returned, len(arguments))
        values = {"input": dict(enumerate(arguments)), "kwargs": keywords}
        return tuple(_gradient(gradients, path, _leaf_at(values[str(path[0])], path)) for path in self._differentiate)

    def _incoming(self, incoming: tuple[Array | None, ...]) -> tuple[Array, ...]:
        import numpy as np

        outputs: list[Any] = [
            output.value
            for output in self.outputs
            if len(output.path) == 1 and hasattr(output.value, "__array_interface__")
        ]
        if len(incoming) > len(outputs):
            raise ValueError(f"forward returned {len(outputs)} arrays, but the call has {len(incoming)} output tensors")
        padded = incoming + (None,) * (len(outputs) - len(incoming))
        gradients = []
        for gradient, output in zip(padded, outputs):
            gradients.append(np.zeros_like(output) if gradient is None else copy_of(gradient, is_raised=True))
        return tuple(gradients)


def _raised(call: Call) -> Callable[[LeafPath, Any], Any]:
    def convert(path: LeafPath, value: Any) -> Any:
        if isinstance(value, Dtype):
            return array_dtype(argument_dtype(value, call.api.short, is_raised=True))
        if isinstance(value, NumpyArgument):
            value = value.array
        return copy_of(value, is_raised=True) if hasattr(value, "__array_interface__") else value

    return convert


def _output_value(path: tuple[int | str, ...], value: Any) -> OutputValue:
    # A NumPy scalar, what x.sum() gives, is treated as a 0-d array; np.float64 is a Python float as well.
    if not hasattr(value, "__array_interface__") and (value is None or isinstance(value, (bool, int, float, str))):
        return value
    return _float64(f"output {'.'.join(map(str, path))}", value)


def _float64(what: str, value: Any) -> Array:
    import numpy as np

    array = np.asarray(value)
    dtype = dtype_of_array(array.dtype)
    if dtype is None:
        raise TypeError(f"{what} is not an array of numbers but {type(value).__name__} (NumPy dtype {array.dtype})")
    wide = {"float": np.float64, "complex": np.complex128}.get(dtype.kind)
    return array if wide is None else array.astype(wide, copy=False)


def _by_argument(returned: Any, count: int) -> Mapping[int | str, Any]:
    if isinstance(returned, Mapping):
        return returned
    entries = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    if len(entries) != count:
        shown = f"{len(entries)} gradient{'' if len(entries) == 1 else 's'}"
        raise ValueError(
            f"backward returned {shown} for {count} positional arguments; "
            f"return one entry for each, None where there is no gradient"
        )
    return dict(enumerate(entries))


def _gradient(gradients: Mapping[int | str, Any], path: LeafPath, argument: Array) -> Array:
    what = f"argument {'.'.join(map(str, path[1:]))}"
    value = gradients.get(path[1])
    for step in path[2:]:
        value = None if value is None else value[step]
    if value is None:
        raise ValueError(f"backward returned no gradient of {what}, which the tested side has")
    gradient = _float64(f"the gradient of {what}", value)
    if gradient.shape != argument.shape:
        raise ValueError(f"backward returned a gradient of shape {gradient.shape} for {what} of shape {argument.shape}")
    return gradient


def _leaf_at(values: Any, path: LeafPath) -> Array:
    for step in path[1:]:
        values = values[step]
    array: Array = values
    return array
