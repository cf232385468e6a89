"""PyTorch as an engine: the float64 CPU benchmark, or a device in the dump's own dtype (CPU, CUDA or NPU)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, find_dtype
from pytest_msprobe.apis.spelling import writes_in_place
from pytest_msprobe.engines.loading import load_framework
from pytest_msprobe.engines.memory_filling import filled_memory
from pytest_msprobe.engines.npu import npu_function, use_npu
from pytest_msprobe.engines.plain_arguments import plain_argument
from pytest_msprobe.engines.precision import argument_dtype, copy_of, describes_dtype
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
from pytest_msprobe.engines.torch_map import MissingAttributes, MissingInTorch, Refusal, lookup
from pytest_msprobe.engines.torch_saving import perturbed_saving
from pytest_msprobe.installing import how_to_install, is_installed

if TYPE_CHECKING:
    from torch import Tensor


#: How PyTorch says that a gradient is not implemented, in a RuntimeError.
_NO_DERIVATIVE = ("derivative for", "not differentiable")


class TorchEngine:
    """Runs API calls through their PyTorch counterparts.

    Attributes:
        name: `torch`.
        label: device and precision for people.
    """

    name = "torch"

    def __init__(self, device: str = "cpu", *, is_raised: bool) -> None:
        """An engine on `device` (`cpu`, `cuda:1`, `npu`), in float64 when `is_raised`, else in the dump's dtypes."""
        self._device = device
        self._is_raised = is_raised
        self.label = f"torch {device.upper()} {'float64' if is_raised else 'in the dump dtypes'}"

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Why PyTorch has no counterpart of `api`, or None."""
        binding = lookup(api.type, api.table_name, framework)
        return binding.reason if isinstance(binding, Refusal) else None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> TorchExecution:
        """See `Engine.forward`."""
        binding = lookup(call.api.type, call.api.table_name, call.framework)
        if isinstance(binding, Refusal):
            raise Unsupported(binding.reason)
        leaves: dict[LeafPath, Tensor] = {}

        def convert(path: LeafPath, value: Any) -> Any:
            return self._convert(call, path, value, differentiate, leaves)

        arguments, keywords = map_leaves(call, convert)
        attributes = map_attributes(call, convert)
        given = (*arguments, *keywords.values())
        saving = perturbed_saving(self._torch, call, given) if call.saved_roundoff else nullcontext()
        arithmetic = _rounded_arithmetic(call)
        with self._torch.set_grad_enabled(bool(differentiate)), saving, arithmetic:
            try:
                if self._device.startswith("npu") and call.api.type == "NPU":
                    returned = npu_function(call.api.api)(*arguments, **keywords)
                else:
                    returned = binding.call(arguments, keywords, self._roots, attributes)
            except TypeError as error:
                if not self._is_raised:
                    raise
                raise Unsupported(f"the recorded arguments do not fit {binding.target}: {_first_line(error)}") from None
            except MissingAttributes as error:
                raise Unsupported(str(error)) from None
            except MissingInTorch as error:
                raise Unsupported(f"{error} (PyTorch {self._torch.__version__})") from None
            except NotImplementedError as error:
                version = self._torch.__version__
                raise Unsupported(f"PyTorch {version} cannot compute this: {_first_line(error)}") from None
        return TorchExecution(self._torch, returned, [leaves[path] for path in differentiate], arithmetic)

    def close(self) -> None:
        """Nothing is held."""

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """See `DeviceEngine.fill_memory`."""
        return filled_memory(
            sizes,
            lambda count: self._torch.full((count,), value, dtype=self._torch.float32, device=self._device),
            lambda tensor: to_array(self._torch, tensor),
        )

    @cached_property
    def _torch(self) -> Any:
        try:
            torch = load_framework("torch")
            if self._device.startswith("npu"):
                use_npu(torch, self._device)
            return torch
        except ImportError as error:
            raise Unsupported(_unusable(error)) from None

    @cached_property
    def _roots(self) -> dict[str, object]:
        from pytest_msprobe.engines.torch_map import adapters

        return {"torch": self._torch, "adapters": adapters}

    def _convert(
        self,
        call: Call,
        path: LeafPath,
        value: Any,
        differentiate: tuple[LeafPath, ...],
        leaves: dict[LeafPath, Tensor],
    ) -> Any:
        if isinstance(value, Dtype):
            return self._dtype(argument_dtype(value, call.api.short, is_raised=self._is_raised))
        if isinstance(value, NumpyArgument):
            return copy_of(value.array, is_raised=self._is_raised)
        if not hasattr(value, "__array_interface__"):
            return plain_argument(call.api, path, value)
        is_raised = self._is_raised and not describes_dtype(call.api.short)
        tensor = to_tensor(self._torch, copy_of(value, is_raised=is_raised)).to(self._device)
        if call.is_strided and not self._is_raised and tensor.ndim > 1:
            tensor = tensor.mT.contiguous().mT
        if path not in differentiate:
            return tensor
        leaves[path] = tensor.requires_grad_()
        # An in-place API may not write to a leaf that needs a gradient; its clone is not a leaf.
        return tensor.clone() if writes_in_place(call.api) or _may_be_asked_to_write(call) else tensor

    def _dtype(self, dtype: Dtype) -> Any:
        found = getattr(self._torch, dtype.array_name or dtype.name, None)
        if found is None:
            raise Unsupported(f"PyTorch {self._torch.__version__} has no dtype {dtype.name}")
        return found


class TorchExecution:
    """A forward that PyTorch has run, with its graph."""

    def __init__(
        self, torch: Any, returned: object, leaves: list[Tensor], arithmetic: AbstractContextManager[object]
    ) -> None:
        """What `torch` has `returned`; `arithmetic` is the context in which its gradients are computed."""
        self._torch = torch
        self._arithmetic = arithmetic
        self._leaves = leaves
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
        """See `Execution.gradients`."""
        torch = self._torch
        pairs = [(out, gradient) for out, gradient in self._with_gradients(incoming) if out.requires_grad]
        if not pairs:
            raise Unsupported("the PyTorch counterpart has no gradient")
        seeds = [_like(torch, gradient, out) for out, gradient in pairs]
        try:
            with self._arithmetic:
                found = _backward(torch, [out for out, _ in pairs], seeds, self._leaves)
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(text in str(error) for text in _NO_DERIVATIVE):
                raise
            raise Unsupported(f"the PyTorch counterpart has no gradient: {_first_line(error)}") from None
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


def _rounded_arithmetic(call: Call) -> AbstractContextManager[object]:
    """The context that moves each arithmetic result, where `call` asks for that."""
    if not call.arithmetic_roundoff:
        return nullcontext()
    from pytest_msprobe.engines.torch_arithmetic import RoundedArithmetic

    return RoundedArithmetic(call.arithmetic_roundoff, call.saved_seed)


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


def _may_be_asked_to_write(call: Call) -> bool:  # by position any True may be `inplace`
    return call.keywords.get("inplace") is True or any(value is True for value in call.arguments)


def to_tensor(torch: Any, array: Array) -> Tensor:
    """A tensor that shares memory with the writable `array`; bfloat16 and float8 by their bits."""
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
    """The values of `tensor` on the host; shares memory with it where it can."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        array: Array = host.numpy()
    except TypeError:
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


def _unusable(error: ImportError) -> str:
    return how_to_install("torch") if not is_installed("torch") else f"PyTorch cannot be imported: {error}"
