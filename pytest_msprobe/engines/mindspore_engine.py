"""MindSpore as an engine: the device under test (Ascend or CPU), or the float64 CPU benchmark where it has a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from msprobe_collector.dump_format import ApiName, Dtype
from pytest_msprobe.apis.operators import find_operator, unknown_operator
from pytest_msprobe.apis.spelling import writes_in_place
from pytest_msprobe.engines.loading import load_framework
from pytest_msprobe.engines.memory_filling import filled_memory
from pytest_msprobe.engines.mindspore_callables import in_mindspore, resolve
from pytest_msprobe.engines.mindspore_execution import Guarded, MindSporeExecution, ReadyCall, to_array, to_tensor
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
from pytest_msprobe.installing import how_to_install, is_installed

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
        return self._run(call, self._made_ready(call, differentiate))

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], MindSporeExecution]:
        """See `DeviceEngine.repeated`."""
        return Repetition(partial(self._made_ready, call, differentiate), partial(self._run, call))

    def _made_ready(self, call: Call, differentiate: tuple[LeafPath, ...]) -> ReadyCall:
        refusal = self.refusal(call.api, call.framework)
        if refusal is not None:
            raise Unsupported(refusal)
        leaves: dict[LeafPath, Any] = {}
        tensors: list[Any] = []

        def convert(path: LeafPath, value: Any) -> Any:
            converted = self._convert(call, path, value)
            if isinstance(converted, self._mindspore.Tensor):
                tensors.append(converted)
                if path in differentiate:
                    leaves[path] = converted
            return converted

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

        return ReadyCall(self._mindspore, self.target, run, tensors, tuple(leaves[path] for path in differentiate))

    def _run(self, call: Call, ready: ReadyCall) -> MindSporeExecution:
        with Guarded(self._mindspore, self.target), _fitting(call):
            return MindSporeExecution(ready)

    def close(self) -> None:
        """Nothing is held."""

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """See `DeviceEngine.fill_memory`."""
        mindspore = self._mindspore
        with Guarded(mindspore, self.target):
            # mint.full has no kernel on CPUs.
            return filled_memory(sizes, lambda count: mindspore.ops.fill(mindspore.float32, (count,), value), to_array)

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

    def _convert(self, call: Call, path: LeafPath, value: Any) -> Any:
        if isinstance(value, Dtype):
            raised = argument_dtype(value, call.api.short, is_raised=self._is_raised)
            return getattr(self._mindspore, raised.array_name or raised.name)
        if isinstance(value, NumpyArgument):
            return copy_of(value.array, is_raised=self._is_raised)
        if not hasattr(value, "__array_interface__"):
            return plain_argument(call.api, path, value)
        is_raised = self._is_raised and not describes_dtype(call.api.short)
        tensor = to_tensor(self._mindspore, value, is_raised=is_raised)
        if call.is_strided and not self._is_raised and tensor.ndim > 1:
            tensor = tensor.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)
        return tensor


@contextmanager
def _fitting(call: Call) -> Iterator[None]:
    """Turn a TypeError of a call of MSAdapter into Unsupported, for use around the call.

    What PyTorch accepts and mint does not says nothing of the device.
    """
    try:
        yield
    except TypeError as error:
        if call.framework != "mindtorch":
            raise
        raise Unsupported(f"the arguments do not fit mindspore.mint: {str(error).partition(chr(10))[0]}") from None


def _with_leaves(value: Any, placed: dict[int, Any]) -> Any:
    """`value` with the tensors put in that `placed` has for the identity of those in it."""
    if isinstance(value, tuple):
        return tuple(_with_leaves(item, placed) for item in value)
    if isinstance(value, dict):
        return {key: _with_leaves(item, placed) for key, item in value.items()}
    return placed.get(id(value), value)
