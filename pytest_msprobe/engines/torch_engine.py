"""PyTorch as an engine: the float64 CPU benchmark, or a device in the dump's own dtype (CPU, CUDA or NPU)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import ApiName, Dtype
from pytest_msprobe.apis.spelling import writes_in_place
from pytest_msprobe.engines.loading import load_framework
from pytest_msprobe.engines.memory_filling import filled_memory
from pytest_msprobe.engines.npu import npu_function, use_npu
from pytest_msprobe.engines.plain_arguments import plain_argument
from pytest_msprobe.engines.precision import argument_dtype, copy_of, describes_dtype
from pytest_msprobe.engines.protocol import (
    Call,
    LeafPath,
    NumpyArgument,
    Unsupported,
    map_attributes,
    map_leaves,
)
from pytest_msprobe.engines.repetition import Repetition
from pytest_msprobe.engines.torch_execution import ReadyCall, TorchExecution, first_line, to_array, to_tensor
from pytest_msprobe.engines.torch_map import MissingAttributes, MissingInTorch, Refusal, lookup
from pytest_msprobe.engines.torch_saving import perturbed_saving
from pytest_msprobe.installing import how_to_install, is_installed

if TYPE_CHECKING:
    from torch import Tensor


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
        return self._run(call, self._made_ready(call, differentiate))

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], TorchExecution]:
        """See `DeviceEngine.repeated`."""
        return Repetition(partial(self._made_ready, call, differentiate), partial(self._run, call))

    def _made_ready(self, call: Call, differentiate: tuple[LeafPath, ...]) -> ReadyCall:
        binding = lookup(call.api.type, call.api.table_name, call.framework)
        if isinstance(binding, Refusal):
            raise Unsupported(binding.reason)
        leaves: dict[LeafPath, Tensor] = {}
        tensors: list[Tensor] = []

        def convert(path: LeafPath, value: Any) -> Any:
            converted = self._convert(call, path, value, differentiate, leaves)
            if isinstance(converted, self._torch.Tensor):
                tensors.append(converted)
            return converted

        arguments, keywords = map_leaves(call, convert)
        attributes = map_attributes(call, convert)
        with _Refusing(self._torch, binding.target, is_benchmark=self._is_raised):
            if self._device.startswith("npu") and call.api.type == "NPU":
                function: Callable[[], object] = partial(npu_function(call.api.api), *arguments, **keywords)
            else:
                function = binding.bound(arguments, keywords, self._roots, attributes)
        return ReadyCall(self._torch, function, binding.target, tensors, [leaves[path] for path in differentiate])

    def _run(self, call: Call, ready: ReadyCall) -> TorchExecution:
        torch = self._torch
        saving = perturbed_saving(torch, call, ready.tensors) if call.saved_roundoff else nullcontext()
        arithmetic = _rounded_arithmetic(call)
        refusing = _Refusing(torch, ready.target, is_benchmark=self._is_raised)
        with torch.set_grad_enabled(bool(ready.leaves)), saving, arithmetic, refusing:
            returned = ready.function()
        return TorchExecution(ready, returned, arithmetic)

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


class _Refusing:
    """Context of a PyTorch call: what it cannot do, and arguments that do not fit the benchmark, become Unsupported."""

    def __init__(self, torch: Any, target: str, *, is_benchmark: bool) -> None:
        self._version = torch.__version__
        self._target = target
        self._is_benchmark = is_benchmark

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TypeError) and self._is_benchmark:
            raise Unsupported(f"the recorded arguments do not fit {self._target}: {first_line(error)}") from None
        if isinstance(error, MissingAttributes):
            raise Unsupported(str(error)) from None
        if isinstance(error, MissingInTorch):
            raise Unsupported(f"{error} (PyTorch {self._version})") from None
        if isinstance(error, NotImplementedError):
            raise Unsupported(f"PyTorch {self._version} cannot compute this: {first_line(error)}") from None


def _rounded_arithmetic(call: Call) -> AbstractContextManager[object]:
    """The context that moves each arithmetic result, where `call` asks for that."""
    if not call.arithmetic_roundoff:
        return nullcontext()
    from pytest_msprobe.engines.torch_arithmetic import RoundedArithmetic

    return RoundedArithmetic(call.arithmetic_roundoff, call.saved_seed)


def _may_be_asked_to_write(call: Call) -> bool:  # by position any True may be `inplace`
    return call.keywords.get("inplace") is True or any(value is True for value in call.arguments)


def _unusable(error: ImportError) -> str:
    return how_to_install("torch") if not is_installed("torch") else f"PyTorch cannot be imported: {error}"
