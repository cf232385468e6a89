"""A forward that MindSpore has run, and values on their way between NumPy and MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from msprobe_collector.dump_format import array_dtype, dtype_of_array
from pytest_msprobe.engines.float_environment import restore_subnormals
from pytest_msprobe.engines.mindspore_refusals import discard_left_errors, missing_kernel
from pytest_msprobe.engines.precision import contiguous, copy_of
from pytest_msprobe.engines.protocol import Array, Output, Unsupported, flatten_outputs, padded_incoming
from pytest_msprobe.engines.repetition import Seeds

#: From this size on a tensor uses the memory of a NumPy array.
_LENT_BYTES = 1 << 20


@dataclass
class ReadyCall:
    """A call with its arguments converted, before it runs.

    Attributes:
        mindspore: the framework.
        target: `CPU` or `Ascend`.
        run: the call as a function of the leaves.
        tensors: those among the arguments.
        leaves: the tensors to differentiate.
        seeds: the tensors of its incoming gradients.
    """

    mindspore: Any
    target: str
    run: Callable[..., Any]
    tensors: Sequence[Any]
    leaves: Sequence[Any]
    seeds: Seeds = field(default_factory=Seeds)

    @cached_property
    def cell(self) -> Any:
        """The Cell that keeps the graph of the last forward."""
        return _graph_tools(self.mindspore)[0](self.run)

    def watch(self) -> Callable[[], bool]:
        """See `Ready.watch`."""
        before = [(tensor, to_array(tensor).tobytes()) for tensor in self.tensors]
        return lambda: all(to_array(tensor).tobytes() == held for tensor, held in before)


class MindSporeExecution:
    """A forward that MindSpore has run, with its graph when leaves are to be differentiated."""

    def __init__(self, call: ReadyCall) -> None:
        """Runs `call`, whose Cell keeps the graph of the last such run only."""
        self._mindspore = call.mindspore
        self._target = call.target
        self._seeds = call.seeds
        self._has_gradients = bool(call.leaves)
        self._graph = (call.cell, call.leaves) if call.leaves else None
        self._take(call.cell.run_keeping_all(*call.leaves) if call.leaves else call.run())

    def _take(self, returned: Any) -> None:
        tensor_type = self._mindspore.Tensor
        flat = list(flatten_outputs(returned, lambda item: isinstance(item, tensor_type)))
        self._tensors = [value for path, value in flat if len(path) == 1 and isinstance(value, tensor_type)]
        self.outputs = tuple(Output(path, _output(tensor_type, value)) for path, value in flat)

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`. Lets go of the graph, which keeps the inputs: it can be asked once.

        Raises:
            RuntimeError: the gradients were asked for before.
            Unsupported: no output of the API can carry a gradient, or MindSpore has no kernel for the backward.
        """
        if not self._has_gradients:
            return ()
        if self._graph is None:
            raise RuntimeError("the gradients of a forward can be computed once")
        cell, leaves = self._graph
        padded = padded_incoming(incoming, len(self._tensors))
        # The graph returns only outputs that can carry a gradient; theirs are passed in the same order.
        pairs = [(gradient, out) for gradient, out in zip(padded, self._tensors) if _is_float(self._mindspore, out)]
        sens = self._seeds.of(incoming, lambda: [self._like(gradient, out) for gradient, out in pairs])
        if not sens:
            raise Unsupported("no output of the API can carry a gradient")
        operation = _graph_tools(self._mindspore)[1]
        with Guarded(self._mindspore, self._target):
            found = operation(cell)(*leaves, sens[0] if len(sens) == 1 else tuple(sens))
            # MindSpore may have lost its graph and run the forward again: a random API has then drawn again.
            if (returned := cell.take_returned()) is not None:
                self._take(returned)
            self._graph = None
            return tuple(to_array(gradient) for gradient in found)

    def _like(self, gradient: Array | None, output: Any) -> Any:
        if gradient is None:
            return self._mindspore.ops.zeros_like(output)
        if tuple(gradient.shape) != tuple(output.shape):
            raise ValueError(f"the incoming gradient has shape {gradient.shape}, the output {tuple(output.shape)}")
        tensor = to_tensor(self._mindspore, gradient, is_raised=False)
        return tensor if tensor.dtype == output.dtype else tensor.astype(output.dtype)


class Guarded:
    """Context of MindSpore's own code, which has many ways of saying "no kernel for this": they become Unsupported.

    An error stays with the call that caused it, and the floating-point mode is put back.
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


def to_tensor(mindspore: Any, array: Array, *, is_raised: bool) -> Any:
    """A tensor of its own with the values of `array`, in float64 when `is_raised`.

    `Tensor` copies an array for the host, and a CPU kernel copies that once more. A large array is copied once, here:
    `from_numpy` uses the memory of the copy for both.
    """
    if array.nbytes < _LENT_BYTES or array.dtype.isbuiltin != 1:  # from_numpy knows NumPy's own dtypes only
        return mindspore.Tensor(contiguous(array, is_raised=is_raised))
    return mindspore.Tensor.from_numpy(copy_of(array, is_raised=is_raised))


def _is_float(mindspore: Any, value: Any) -> bool:
    return isinstance(value, mindspore.Tensor) and (value.is_floating_point() or value.is_complex())


def _output(tensor_type: type, value: Any) -> Any:
    import numpy as np

    if isinstance(value, tensor_type):
        return to_array(value)
    if value is None or isinstance(value, (bool, int, float, str, np.ndarray)):
        return value
    return str(value)


def to_array(tensor: Any) -> Array:
    """The values of `tensor`; MindSpore brings a NumPy bfloat16 of its own, which is seen as everybody else's."""
    array: Array = tensor.asnumpy()
    dtype = dtype_of_array(array.dtype)
    usual = array_dtype(dtype) if dtype is not None else None
    return array if usual is None or usual == array.dtype else array.view(usual)
