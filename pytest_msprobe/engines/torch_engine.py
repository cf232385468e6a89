"""PyTorch as an engine: the float64 CPU benchmark, or a device in the dump's own dtype (CPU, CUDA or NPU).

- A forward that PyTorch has run, and values on their way between NumPy and PyTorch.
- What PyTorch keeps of a forward for its gradients, off by a rounding error as on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, find_dtype
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.engines.process import DeviceFailure, load_framework, npu_function, use_npu
from pytest_msprobe.engines.protocol import (
    CHANGED,
    Array,
    Call,
    Execution,
    LeafPath,
    NumpyArgument,
    Output,
    RepeatedCall,
    Seeds,
    Unsupported,
    argument_dtype,
    copy_of,
    describes_dtype,
    filled_memory,
    flatten_outputs,
    map_attributes,
    map_leaves,
    padded_incoming,
    plain_argument,
)
from pytest_msprobe.engines.slices import FEWEST_SLICED, run_sliced
from pytest_msprobe.engines.torch_bindings import MissingAttributes, MissingInTorch, NoCounterpart, is_misfit, lookup
from pytest_msprobe.support import how_to_install, is_installed

if TYPE_CHECKING:
    from torch import Tensor

#: How PyTorch says that a gradient is not implemented, in a RuntimeError.
_NO_DERIVATIVE = ("derivative for", "not differentiable")


@dataclass(frozen=True, slots=True)
class TorchCall:
    """A call with its arguments converted and bound, before it runs.

    Attributes:
        torch: the framework.
        function: its function, bound to the arguments.
        target: its name.
        tensors: those among the arguments.
        leaves: the tensors to differentiate; a call that writes in place gets clones of them as arguments.
        may_write: whether it may write into its arguments.
        seeds: the tensors of its incoming gradients.
        keeps_graph: whether its gradients are asked for again, by somebody else.
    """

    torch: Any
    function: Callable[[], object]
    target: str
    tensors: Sequence[Tensor]
    leaves: Sequence[Tensor]
    may_write: bool
    seeds: Seeds = field(default_factory=Seeds)
    keeps_graph: bool = False

    def watch(self) -> Callable[[], bool]:
        """See `Ready.watch`. PyTorch counts what is written into a tensor, but not every kernel takes part in that."""
        before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in self.tensors]
        return lambda: all(
            tensor._version == version and self.torch.equal(tensor.detach(), copy) for tensor, version, copy in before
        )


class TorchExecution:
    """A forward that PyTorch has run, with its graph."""

    def __init__(
        self,
        call: TorchCall,
        returned: object,
        arithmetic: AbstractContextManager[object],
        changed: Sequence[Tensor] = (),
    ) -> None:
        """What `call` has `returned`; `arithmetic` is the context in which its gradients are computed.

        `changed` are arguments that it wrote into; those that it does not return as well are further outputs.
        """
        torch = self._torch = call.torch
        self._arithmetic = arithmetic
        self._leaves: Sequence[Tensor] | None = call.leaves
        self._seeds, self._keeps_graph = call.seeds, call.keeps_graph
        self._tensors: list[Tensor | None] = []
        outputs = []
        for path, value in flatten_outputs(returned, torch.Size):
            if isinstance(value, torch.Tensor):
                # "top-level" as the collectors count: bare, or directly in the returned tuple.
                if len(path) == 1:
                    self._tensors.append(value)
                outputs.append(Output(path, to_array(torch, value)))
            else:
                if len(path) == 1 and value is None:
                    self._tensors.append(None)
                outputs.append(Output(path, _plain_output(torch, value)))
        self._changed: list[Tensor] = []
        if changed:
            given_back = {id(tensor) for tensor in _tensors(torch, returned)}
            self._changed = [tensor for tensor in changed if id(tensor) not in given_back]
            outputs += [Output((CHANGED, at), to_array(torch, tensor)) for at, tensor in enumerate(self._changed)]
        self.outputs = tuple(outputs)

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`. Lets go of the graph and of the inputs: it can be asked once.

        Raises:
            RuntimeError: the gradients were asked for before.
            Unsupported: no output can carry a gradient, or PyTorch has no derivative of a function that was used.
        """
        torch, leaves = self._torch, self._leaves
        if leaves is None:
            raise RuntimeError("the gradients of a forward can be computed once")
        pairs = [(out, gradient) for out, gradient in self._with_gradients(incoming) if out.requires_grad]
        if not pairs:
            raise Unsupported("the PyTorch counterpart has no gradient")
        seeds = self._seeds.of(incoming, lambda: [_like(torch, gradient, out) for out, gradient in pairs])
        try:
            with self._arithmetic:
                gradients = _backward(torch, [out for out, _ in pairs], seeds, leaves, retain_graph=self._keeps_graph)
        except RuntimeError as error:  # NotImplementedError is one
            if not (isinstance(error, NotImplementedError) or any(text in str(error) for text in _NO_DERIVATIVE)):
                raise
            raise Unsupported(f"the PyTorch counterpart has no gradient: {first_line(error)}") from None
        self._leaves = None
        self._tensors, self._changed = [], []
        arrays = []
        for gradient, leaf in zip(gradients, leaves):
            arrays.append(to_array(torch, torch.zeros_like(leaf) if gradient is None else gradient))
        return tuple(arrays)

    def _with_gradients(self, incoming: tuple[Array | None, ...]) -> list[tuple[Tensor, Array | None]]:
        """Each output tensor with its incoming gradient. None is an output that is left open, or no output at all."""
        tensors: list[Tensor | None] = [tensor for tensor in self._tensors if tensor is not None]
        if len(incoming) > len(tensors):
            tensors = [*tensors, *self._changed] if self._changed else self._tensors
        pairs = list(zip(tensors, padded_incoming(incoming, len(tensors))))
        if any(tensor is None and gradient is not None and gradient.any() for tensor, gradient in pairs):
            raise Unsupported("a gradient comes into an output that the benchmark leaves open")
        return [(tensor, gradient) for tensor, gradient in pairs if tensor is not None]


def _backward(
    torch: Any, outputs: Sequence[Tensor], seeds: Sequence[Tensor], leaves: Sequence[Tensor], *, retain_graph: bool
) -> Sequence[Tensor | None]:
    """Gradients of `leaves`, None for one that no output depends on, as torch.autograd.grad gives them.

    Straight from PyTorch's backward engine: in torch.autograd.grad the check of shapes, which `_like` has made, imports
    SymPy (0.4 s and 487 modules) and costs as much as several small kernels in every run.
    """
    engine = torch.autograd.Variable._execution_engine
    create_graph, allow_unused = False, True
    gradients: Sequence[Tensor | None] = engine.run_backward(
        tuple(outputs), tuple(seeds), retain_graph, create_graph, tuple(leaves), allow_unused, accumulate_grad=False
    )
    return gradients


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
        target = array_dtype(find_dtype(str(host.dtype)))
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


def perturbed_saving(torch: Any, call: Call, inputs: Iterable[Any]) -> AbstractContextManager[None]:
    """Context in which what is saved is off by `call.saved_roundoff`, up or down at random, except what was `inputs`.

    The gradient of tanh is 1 - y * y from the rounded y: an exact y would forgive nothing of what every device loses.
    """
    if not call.saved_roundoff:
        return nullcontext()
    generator = torch.Generator().manual_seed(call.saved_seed)
    untouched = {tensor.data_ptr() for value in inputs for tensor in _tensors(torch, value)}

    def pack(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.data_ptr() in untouched:
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.int8).to(tensor)
        return cast("Tensor", tensor.detach() * (1 + call.saved_roundoff * (2 * signs - 1)))

    hooks: AbstractContextManager[None] = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
    return hooks


def _tensors(torch: Any, value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(torch, item)


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
        return binding.reason if isinstance(binding, NoCounterpart) else None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Execution:
        """See `Engine.forward`. The benchmark of a large call runs in slices where it can.

        Raises:
            DeviceFailure: the call has an error, and the device computes nothing any more.
        """
        for value in call.arguments if self._is_raised else ():
            if getattr(value, "size", 0) >= FEWEST_SLICED:
                return run_sliced(self._whole, call, differentiate)
        try:
            return self._run(call, self._made_ready(call, differentiate))
        except RuntimeError:
            self._try_device(self._torch)
            raise

    def _whole(self, call: Call, differentiate: tuple[LeafPath, ...]) -> TorchExecution:
        return self._run(call, self._made_ready(call, differentiate))

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], TorchExecution]:
        """See `DeviceEngine.repeated`."""
        return RepeatedCall(partial(self._made_ready, call, differentiate), partial(self._run, call))

    def _made_ready(self, call: Call, differentiate: tuple[LeafPath, ...]) -> TorchCall:
        binding = lookup(call.api.type, call.api.table_name, call.framework)
        if isinstance(binding, NoCounterpart):
            raise Unsupported(binding.reason)
        leaves: dict[LeafPath, Tensor] = {}
        tensors: list[Tensor] = []

        # By position any True may be `inplace`.
        may_write = (
            writes_in_place(call.api)
            or call.keywords.get("inplace") is True
            or any(value is True for value in call.arguments)
        )
        is_raised = self._is_raised and not describes_dtype(call.api.short)

        def convert(path: LeafPath, value: Any) -> Any:
            converted = self._convert(call, path, value, is_raised=is_raised)
            if not isinstance(converted, self._torch.Tensor):
                return converted
            if path in differentiate:
                leaves[path] = converted.requires_grad_()
                # An in-place API may not write to a leaf that needs a gradient; its clone is not a leaf.
                converted = converted.clone() if may_write else converted
            tensors.append(converted)
            return converted

        arguments, keywords = map_leaves(call, convert)
        attributes = map_attributes(call, convert)
        with _refusing(self._torch, binding.target, is_benchmark=self._is_raised):
            if self._device.startswith("npu") and call.api.type == "NPU":
                function: Callable[[], object] = partial(npu_function(call.api.api), *arguments, **keywords)
            else:
                function = binding.bound(arguments, keywords, self._roots, attributes)
        wanted = [leaves[path] for path in differentiate]
        return TorchCall(self._torch, function, binding.target, tensors, wanted, may_write=may_write)

    def _run(self, call: Call, ready: TorchCall) -> TorchExecution:
        torch = self._torch
        saving, arithmetic = perturbed_saving(torch, call, ready.tensors), _rounded_arithmetic(call)
        refusing = _refusing(torch, ready.target, is_benchmark=self._is_raised, call=ready.function)
        versions = [tensor._version for tensor in ready.tensors if ready.may_write]
        with torch.set_grad_enabled(bool(ready.leaves)), saving, arithmetic, refusing:
            returned = ready.function()
        if not (versions and self._is_raised):
            return TorchExecution(ready, returned, arithmetic)
        changed = [tensor for tensor, version in zip(ready.tensors, versions) if tensor._version != version]
        return TorchExecution(ready, returned, arithmetic, changed)

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
        except ImportError as error:
            reason = f"PyTorch cannot be imported: {error}" if is_installed("torch") else how_to_install("torch")
            raise Unsupported(reason) if self._device == "cpu" else DeviceFailure(self.label, reason) from None
        self._try_device(torch)
        return torch

    def _try_device(self, torch: Any) -> None:
        """Open the device, or see whether it still computes after an error.

        Raises:
            DeviceFailure: it does not.
        """
        if self._device == "cpu":
            return
        try:
            (torch.zeros(1).to(self._device) + 1).cpu()
        except Exception as error:  # of any kind: an AssertionError of a PyTorch without CUDA is one
            raise DeviceFailure(self.label, first_line(error)) from None

    @cached_property
    def _roots(self) -> dict[str, object]:
        from pytest_msprobe.engines import adapters

        return {"torch": self._torch, "adapters": adapters}

    def _convert(self, call: Call, path: LeafPath, value: Any, *, is_raised: bool) -> Any:
        if isinstance(value, Dtype):
            return self._dtype(argument_dtype(value, call.api.short, is_raised=self._is_raised))
        if isinstance(value, NumpyArgument):
            return copy_of(value.array, is_raised=self._is_raised)
        if not hasattr(value, "__array_interface__"):
            return plain_argument(call.api, path, value)
        if is_raised and self._device != "cpu":  # raised there: float64 takes four times as long to get there
            tensor = to_tensor(self._torch, copy_of(value, is_raised=False)).to(self._device)
            tensor = tensor.to(_raised(self._torch, tensor.dtype))
        else:
            tensor = to_tensor(self._torch, copy_of(value, is_raised=is_raised)).to(self._device)
        if call.is_strided and not self._is_raised and tensor.ndim > 1:
            tensor = tensor.mT.contiguous().mT
        return tensor

    def _dtype(self, dtype: Dtype) -> Any:
        torch_dtype = getattr(self._torch, dtype.array_name or dtype.name, None)
        if torch_dtype is None:
            raise Unsupported(f"PyTorch {self._torch.__version__} has no dtype {dtype.name}")
        return torch_dtype


@contextmanager
def _refusing(torch: Any, target: str, *, is_benchmark: bool, call: Callable[[], object] = tuple) -> Iterator[None]:
    """Context of a PyTorch call: what it cannot do, and arguments that do not fit the benchmark, become Unsupported.

    `call` is what is called inside, where it is bound to its arguments before.

    Raises:
        Unsupported: with the reason.
    """
    try:
        yield
    except TypeError as error:
        if not (is_benchmark or is_misfit(error, call)):
            raise
        raise Unsupported(f"the recorded arguments do not fit {target}: {first_line(error)}") from None
    except MissingAttributes as error:
        raise Unsupported(str(error)) from None
    except MissingInTorch as error:
        raise Unsupported(f"{error} (PyTorch {torch.__version__})") from None
    except NotImplementedError as error:
        raise Unsupported(f"PyTorch {torch.__version__} cannot compute this: {first_line(error)}") from None


def _raised(torch: Any, dtype: Any) -> Any:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def _rounded_arithmetic(call: Call) -> AbstractContextManager[object]:
    """The context that moves each arithmetic result, where `call` asks for that."""
    if not call.arithmetic_roundoff:
        return nullcontext()
    from pytest_msprobe.engines.torch_arithmetic import RoundedArithmetic

    return RoundedArithmetic(call.arithmetic_roundoff, call.saved_seed, totals=call.total_roundoff)
