"""MindSpore as an engine: the device under test (Ascend or CPU), or the float64 CPU benchmark where it has a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from typing import Any

from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, dtype_of_array
from pytest_msprobe.apis.operators import find_operator, unknown_operator
from pytest_msprobe.apis.spelling import writes_in_place
from pytest_msprobe.engines.float_environment import restore_subnormals
from pytest_msprobe.engines.loading import load_framework
from pytest_msprobe.engines.memory_filling import filled_memory
from pytest_msprobe.engines.mindspore_callables import in_mindspore, resolve
from pytest_msprobe.engines.mindspore_refusals import discard_left_errors, missing_kernel
from pytest_msprobe.engines.plain_arguments import plain_argument
from pytest_msprobe.engines.precision import argument_dtype, contiguous, copy_of, describes_dtype
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    LeafPath,
    NumpyArgument,
    Output,
    Unsupported,
    flatten_outputs,
    map_attributes,
    map_leaves,
    padded_incoming,
)
from pytest_msprobe.installing import how_to_install, is_installed

#: From this size on a tensor uses the memory of a NumPy array.
_LENT_BYTES = 1 << 20
_TYPES = ("Mint", "MintFunctional", "Functional", "Tensor", "Primitive")


class MindSporeEngine:
    """Runs API calls through MindSpore in PyNative mode, synchronously: a kernel's error belongs to its own item.

    Attributes:
        name: `mindspore`.
        target: `CPU` or `Ascend`.
        label: device and precision for people.
    """

    name = "mindspore"

    def __init__(self, target: str = "CPU", device_id: int | None = None, *, is_raised: bool) -> None:
        """An engine on `target`, in float64 when `is_raised`, else in the dump's dtypes."""
        self.target = target
        self._device_id = device_id
        self._is_raised = is_raised
        where = target if device_id is None else f"{target}:{device_id}"
        self.label = f"mindspore {where} {'float64' if is_raised else 'in the dump dtypes'}"

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Why MindSpore cannot run `api`, or None when it may."""
        if framework not in ("mindspore", "mindtorch"):
            return f"MindSpore cannot run the calls of a {framework} dump"
        api = in_mindspore(api, framework)
        if api.type not in _TYPES:
            return f"{api.type} calls cannot be run from a dump"
        if find_operator("mindspore", api.type, api.table_name) is None:
            return f"{api.type}.{api.table_name}: {unknown_operator('mindspore', api.type)}"
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> MindSporeExecution:
        """See `Engine.forward`."""
        refusal = self.refusal(call.api, call.framework)
        if refusal is not None:
            raise Unsupported(refusal)
        leaves: dict[LeafPath, Any] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            return self._convert(call, path, value, differentiate, leaves)

        function = resolve(self._mindspore, in_mindspore(call.api, call.framework), map_attributes(call, convert))
        arguments, keywords = map_leaves(call, convert)

        def run(*given: Any) -> Any:
            """The API call as a function of the leaves that are differentiated."""
            placed = {id(leaves[path]): value for path, value in zip(differentiate, given)}
            if writes_in_place(call.api):
                # An in-place API may not write to a leaf that is differentiated.
                placed = {key: value * 1 for key, value in placed.items()}
            return function(
                *[_with_leaves(value, placed) for value in arguments],
                **{key: _with_leaves(value, placed) for key, value in keywords.items()},
            )

        with _Guarded(self._mindspore, self.target), _fitting(call):
            return MindSporeExecution(self._mindspore, run, tuple(leaves[path] for path in differentiate), self.target)

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], MindSporeExecution]:
        """See `DeviceEngine.repeated`; each run gets tensors of its own."""
        return partial(self.forward, call, differentiate=differentiate)

    def close(self) -> None:
        """Nothing is held."""

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """See `DeviceEngine.fill_memory`."""
        mindspore = self._mindspore
        with _Guarded(mindspore, self.target):
            # mint.full has no kernel on CPUs.
            return filled_memory(sizes, lambda count: mindspore.ops.fill(mindspore.float32, (count,), value), _array)

    @cached_property
    def _mindspore(self) -> Any:
        try:
            mindspore = load_framework("mindspore")
        except ImportError as error:
            raise Unsupported(
                f"MindSpore cannot be imported: {error}" if is_installed("mindspore") else how_to_install("mindspore")
            ) from None
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        # The one place where Ascend and CPU differ. What is so already is not asked for: MindSpore refuses once it ran.
        if self._device_id is not None:
            mindspore.set_device(self.target, self._device_id)
        elif mindspore.get_context("device_target") != self.target:
            mindspore.set_device(self.target)
        mindspore.runtime.launch_blocking()
        return mindspore

    def _convert(
        self, call: Call, path: LeafPath, value: Any, differentiate: tuple[LeafPath, ...], leaves: dict[LeafPath, Any]
    ) -> Any:
        if isinstance(value, Dtype):
            raised = argument_dtype(value, call.api.short, is_raised=self._is_raised)
            return getattr(self._mindspore, raised.array_name or raised.name)
        if isinstance(value, NumpyArgument):
            return copy_of(value.array, is_raised=self._is_raised)
        if not hasattr(value, "__array_interface__"):
            return plain_argument(call.api, path, value)
        is_raised = self._is_raised and not describes_dtype(call.api.short)
        tensor = _tensor(self._mindspore, value, is_raised=is_raised)
        if call.is_strided and not self._is_raised and tensor.ndim > 1:
            tensor = tensor.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)
        if path in differentiate:
            leaves[path] = tensor
        return tensor


class MindSporeExecution:
    """A forward that MindSpore has run, with its graph when leaves are to be differentiated."""

    def __init__(self, mindspore: Any, run: Callable[..., Any], leaves: tuple[Any, ...], target: str) -> None:
        self._mindspore = mindspore
        self._leaves = leaves
        self._target = target
        self._cell = _graph_tools(mindspore)[0](run) if leaves else None
        self._take(run() if self._cell is None else self._cell.run_keeping_all(*leaves))

    def _take(self, returned: Any) -> None:
        tensor_type = self._mindspore.Tensor
        flat = list(flatten_outputs(returned, lambda item: isinstance(item, tensor_type)))
        self._tensors = [value for path, value in flat if len(path) == 1 and isinstance(value, tensor_type)]
        self.outputs = tuple(Output(path, _output(tensor_type, value)) for path, value in flat)

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`."""
        if self._cell is None:
            return ()
        padded = padded_incoming(incoming, len(self._tensors))
        # The graph returns only outputs that can carry a gradient; theirs are passed in the same order.
        sens = [
            self._like(gradient, out) for gradient, out in zip(padded, self._tensors) if _is_float(self._mindspore, out)
        ]
        if not sens:
            raise Unsupported("no output of the API can carry a gradient")
        operation = _graph_tools(self._mindspore)[1]
        with _Guarded(self._mindspore, self._target):
            found = operation(self._cell)(*self._leaves, sens[0] if len(sens) == 1 else tuple(sens))
            # MindSpore may have lost its graph and run the forward again: a random API has then drawn again.
            if (returned := self._cell.take_returned()) is not None:
                self._take(returned)
            return tuple(_array(gradient) for gradient in found)

    def _like(self, gradient: Array | None, output: Any) -> Any:
        if gradient is None:
            return self._mindspore.ops.zeros_like(output)
        if tuple(gradient.shape) != tuple(output.shape):
            raise ValueError(f"the incoming gradient has shape {gradient.shape}, the output {tuple(output.shape)}")
        tensor = _tensor(self._mindspore, gradient, is_raised=False)
        return tensor if tensor.dtype == output.dtype else tensor.astype(output.dtype)


@contextmanager
def _fitting(call: Call) -> Iterator[None]:
    """Around a call of MSAdapter: what PyTorch accepts and mint does not says nothing of the device."""
    try:
        yield
    except TypeError as error:
        if call.framework != "mindtorch":
            raise
        raise Unsupported(f"the arguments do not fit mindspore.mint: {str(error).partition(chr(10))[0]}") from None


class _Guarded:
    """Around MindSpore's own code: its many ways of saying "no kernel for this" become Unsupported, an error stays
    with the call that caused it, and the floating-point mode is put back.
    """

    def __init__(self, mindspore: Any, target: str) -> None:
        self._mindspore = mindspore
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        restore_subnormals()
        if error is not None:
            discard_left_errors(self._mindspore)
        lacking = missing_kernel(error) if isinstance(error, Exception) else None
        if lacking is not None:
            raise Unsupported(f"MindSpore {self._target} has no {lacking}") from None


@cache
def _graph_tools(mindspore: Any) -> tuple[Any, Any]:
    """(class of a Cell around a function, gradient operation).

    MindSpore keeps the graph of a Cell with set_grad, so that GradOperation on it does not run the forward again
    (documented for `Cell.set_grad`; counted on 2.7 and 2.10).
    """

    class GraphCell(mindspore.nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
        def __init__(self, run: Callable[..., Any]) -> None:
            super().__init__(auto_prefix=False)
            self.run = run
            self.returned: Any = None
            self.set_grad()

        def construct(self, *leaves: Any) -> Any:
            self.returned = self.run(*leaves)
            flat = flatten_outputs(self.returned, lambda item: isinstance(item, mindspore.Tensor))
            carrying = tuple(value for path, value in flat if len(path) == 1 and _is_float(mindspore, value))
            return carrying[0] if len(carrying) == 1 else carrying

        def run_keeping_all(self, *leaves: Any) -> Any:
            self(*leaves)
            return self.take_returned()

        def take_returned(self) -> Any:
            returned, self.returned = self.returned, None
            return returned

    return GraphCell, mindspore.ops.GradOperation(get_all=True, sens_param=True)


def _tensor(mindspore: Any, array: Array, *, is_raised: bool) -> Any:
    """A tensor of its own with the values of `array`, in float64 when `is_raised`.

    `Tensor` copies an array for the host, and a CPU kernel copies that once more. A large array is copied once, here:
    `from_numpy` uses the memory of the copy for both.
    """
    if array.nbytes < _LENT_BYTES or array.dtype.isbuiltin != 1:  # from_numpy knows NumPy's own dtypes only
        return mindspore.Tensor(contiguous(array, is_raised=is_raised))
    return mindspore.Tensor.from_numpy(copy_of(array, is_raised=is_raised))


def _with_leaves(value: Any, placed: dict[int, Any]) -> Any:
    """`value` with the tensors put in that `placed` has for the identity of those in it."""
    if isinstance(value, tuple):
        return tuple(_with_leaves(item, placed) for item in value)
    if isinstance(value, dict):
        return {key: _with_leaves(item, placed) for key, item in value.items()}
    return placed.get(id(value), value)


def _is_float(mindspore: Any, value: Any) -> bool:
    return isinstance(value, mindspore.Tensor) and (value.is_floating_point() or value.is_complex())


def _output(tensor_type: type, value: Any) -> Any:
    import numpy as np

    if isinstance(value, tensor_type):
        return _array(value)
    if value is None or isinstance(value, (bool, int, float, str, np.ndarray)):
        return value
    return str(value)


def _array(tensor: Any) -> Array:
    """The values of `tensor`; MindSpore brings a NumPy bfloat16 of its own, which is seen as everybody else's."""
    array: Array = tensor.asnumpy()
    dtype = dtype_of_array(array.dtype)
    usual = array_dtype(dtype) if dtype is not None else None
    return array if usual is None or usual == array.dtype else array.view(usual)
