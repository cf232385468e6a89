"""A forward that PyTorch has run, and values on their way between NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from msprobe_collector.dump_format import array_dtype, find_dtype
from pytest_msprobe.engines.precision import copy_of
from pytest_msprobe.engines.protocol import Array, Output, Unsupported, flatten_outputs, padded_incoming
from pytest_msprobe.engines.repetition import Seeds

if TYPE_CHECKING:
    from torch import Tensor

#: How PyTorch says that a gradient is not implemented, in a RuntimeError.
_NO_DERIVATIVE = ("derivative for", "not differentiable")


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call with its arguments converted and bound, before it runs.

    Attributes:
        torch: the framework.
        function: its function, bound to the arguments.
        target: its name.
        tensors: those among the arguments.
        leaves: the tensors to differentiate; a call that writes in place gets clones of them as arguments.
        seeds: the tensors of its incoming gradients.
    """

    torch: Any
    function: Callable[[], object]
    target: str
    tensors: Sequence[Tensor]
    leaves: Sequence[Tensor]
    seeds: Seeds = field(default_factory=Seeds)

    def watch(self) -> Callable[[], bool]:
        """See `Ready.watch`. PyTorch counts what is written into a tensor, but not every kernel takes part in that."""
        before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in self.tensors]
        return lambda: all(
            tensor._version == version and self.torch.equal(tensor.detach(), copy) for tensor, version, copy in before
        )


class TorchExecution:
    """A forward that PyTorch has run, with its graph."""

    def __init__(self, call: ReadyCall, returned: object, arithmetic: AbstractContextManager[object]) -> None:
        """What `call` has `returned`; `arithmetic` is the context in which its gradients are computed."""
        torch = self._torch = call.torch
        self._arithmetic = arithmetic
        self._leaves = call.leaves
        self._seeds = call.seeds
        self._tensors: list[Tensor | None] = []
        outputs = []
        for path, value in flatten_outputs(returned, lambda item: isinstance(item, torch.Size)):
            if isinstance(value, torch.Tensor):
                # "top-level" as the collectors count: bare, or directly in the returned tuple.
                if len(path) == 1:
                    self._tensors.append(value)
                outputs.append(Output(path, to_array(torch, value)))
            else:
                if len(path) == 1 and value is None:
                    self._tensors.append(None)
                outputs.append(Output(path, _plain_output(torch, value)))
        self.outputs = tuple(outputs)

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`.

        Raises:
            Unsupported: no output can carry a gradient, or PyTorch has no derivative of a function that was used.
        """
        torch = self._torch
        pairs = [(out, gradient) for out, gradient in self._with_gradients(incoming) if out.requires_grad]
        if not pairs:
            raise Unsupported("the PyTorch counterpart has no gradient")
        seeds = self._seeds.of(incoming, lambda: [_like(torch, gradient, out) for out, gradient in pairs])
        try:
            with self._arithmetic:
                found = _backward(torch, [out for out, _ in pairs], seeds, self._leaves)
        except RuntimeError as error:  # NotImplementedError is one
            if not (isinstance(error, NotImplementedError) or any(text in str(error) for text in _NO_DERIVATIVE)):
                raise
            raise Unsupported(f"the PyTorch counterpart has no gradient: {first_line(error)}") from None
        return tuple(
            to_array(torch, torch.zeros_like(leaf) if gradient is None else gradient)
            for gradient, leaf in zip(found, self._leaves)
        )

    def _with_gradients(self, incoming: tuple[Array | None, ...]) -> list[tuple[Tensor, Array | None]]:
        """Each output tensor with its incoming gradient. None is an output that is left open, or no output at all."""
        tensors: list[Tensor | None] = [tensor for tensor in self._tensors if tensor is not None]
        if len(incoming) > len(tensors):
            tensors = self._tensors
        pairs = list(zip(tensors, padded_incoming(incoming, len(tensors))))
        if any(tensor is None and gradient is not None and gradient.any() for tensor, gradient in pairs):
            raise Unsupported("a gradient comes into an output that the benchmark leaves open")
        return [(tensor, gradient) for tensor, gradient in pairs if tensor is not None]


def _backward(
    torch: Any, outputs: Sequence[Tensor], seeds: Sequence[Tensor], leaves: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Gradients of `leaves`, None for one that no output depends on, as torch.autograd.grad gives them.

    Straight from PyTorch's backward engine: in torch.autograd.grad the check of shapes, which `_like` has made, imports
    SymPy (0.4 s and 487 modules) and costs as much as several small kernels in every run.
    """
    engine = torch.autograd.Variable._execution_engine
    retain_graph, create_graph, allow_unused = False, False, True
    found: Sequence[Tensor | None] = engine.run_backward(
        tuple(outputs), tuple(seeds), retain_graph, create_graph, tuple(leaves), allow_unused, accumulate_grad=False
    )
    return found


def to_tensor(torch: Any, array: Array) -> Tensor:
    """A tensor that shares memory with the writable `array`; bfloat16 and float8 by their bits.

    Raises:
        Unsupported: the installed PyTorch lacks the dtype.
    """
    if array.dtype.isbuiltin == 1:
        tensor: Tensor = torch.from_numpy(array)
        return tensor
    same_width = {1: "uint8", 2: "int16"}[array.dtype.itemsize]
    target = getattr(torch, array.dtype.name, None)
    if target is None:
        raise Unsupported(f"PyTorch {torch.__version__} has no dtype {array.dtype.name}")
    bits: Tensor = torch.from_numpy(array.view(same_width)).view(target)
    return bits


def to_array(torch: Any, tensor: Tensor) -> Array:
    """The values of `tensor` on the host; shares memory with it where it can.

    Raises:
        Unsupported: NumPy and ml_dtypes have no dtype for that of `tensor`.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
    try:
        array: Array = tensor.numpy(force=True)
    except TypeError:
        host = tensor.detach().cpu().resolve_conj().resolve_neg()
        dtype = find_dtype(str(host.dtype))
        target = array_dtype(dtype) if dtype is not None else None
        if target is None:
            raise Unsupported(f"there is no array type for {host.dtype}") from None
        array = host.contiguous().view({1: torch.uint8, 2: torch.int16}[host.element_size()]).numpy().view(target)
    return array


def _like(torch: Any, gradient: Array | None, output: Tensor) -> Tensor:
    if gradient is None:
        return cast("Tensor", torch.zeros_like(output))
    is_raised = output.dtype in (torch.float64, torch.complex128)  # then converted while it is copied
    tensor = to_tensor(torch, copy_of(gradient, is_raised=is_raised)).to(output.device, output.dtype)
    if tensor.shape != output.shape:
        raise ValueError(f"the incoming gradient has shape {tuple(tensor.shape)}, the output {tuple(output.shape)}")
    return tensor


def _plain_output(torch: Any, value: object) -> bool | int | float | str | None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.Size, torch.device, complex)):
        return str(value)
    raise Unsupported(f"an output of type {type(value).__name__} cannot be compared")


def first_line(error: Exception) -> str:
    """What an error says, as far as its first line goes."""
    return str(error).strip().partition("\n")[0][:300]
