"""MindSpore as an engine: the device under test (Ascend or CPU), or the float64 CPU benchmark where it has a kernel.

- The callable of MindSpore that a record names: a function, a method of Tensor, or an instance of
  a Primitive.
- A forward that MindSpore has run, and values on their way between NumPy and MindSpore.
- How MindSpore says that a backend has no kernel for an API or a dtype: not one way but twenty.

Those texts were seen on MindSpore 2.7 and 2.10, CPU, by calling every sampled API in float64,
float16 and bfloat16. What is not listed here stays an error, so that a wrong argument is never
taken for a missing kernel.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, cast

from msprobe_collector.dump_format import ApiName, Dtype, array_dtype, dtype_of_array
from pytest_msprobe.apis.fact_table import writes_in_place
from pytest_msprobe.apis.operators import find_operator, unknown_operator
from pytest_msprobe.engines.process import DeviceFailure, add_pool, give_pool_back, load_framework, restore_subnormals
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    LeafPath,
    NumpyArgument,
    Output,
    RepeatedCall,
    Seeds,
    Unsupported,
    argument_dtype,
    contiguous,
    copy_of,
    describes_dtype,
    filled_memory,
    flatten_outputs,
    map_attributes,
    map_leaves,
    mapped,
    padded_incoming,
    plain_argument,
)
from pytest_msprobe.engines.torch_bindings import is_misfit, missing_attributes
from pytest_msprobe.support import how_to_install, is_installed

#: API types of MSAdapter, which passes calls on to functions of mint of the same names and arguments.
_OF_MSADAPTER = {"Torch": "Mint", "Functional": "MintFunctional", "Tensor": "Tensor"}


def in_mindspore(api: ApiName, framework: str) -> ApiName:
    """`api` of a dump of `framework` under MindSpore's own name: `Mint.add` for `Torch.add` of MSAdapter."""
    if framework != "mindtorch":
        return api
    return ApiName(_OF_MSADAPTER.get(api.type, api.type), api.api, api.number)


def resolve(mindspore: Any, api: ApiName, attributes: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The callable of `api`, which the table of operators has.

    Args:
        mindspore: the framework.
        api: name of the API call.
        attributes: what the class of a Primitive was called with; None where the dump does not say.

    Raises:
        Unsupported: this version lacks it, or it needs attributes that the dump does not hold.
    """
    path = find_operator("mindspore", api.type, api.table_name)
    assert path is not None  # MindSporeEngine.refusal has seen to it
    if api.type == "Tensor":
        return method_of(mindspore.Tensor, path.rpartition(".")[2])
    operator = found_at(mindspore, path)
    if operator is None or not callable(operator):
        raise Unsupported(f"MindSpore {mindspore.__version__} has no {path}")
    return instance_of(operator, attributes) if api.type == "Primitive" else cast(Callable[..., Any], operator)


def instance_of(primitive: Any, attributes: Mapping[str, Any] | None) -> Callable[..., Any]:
    """An instance of a Primitive's class, made with the `attributes` that its constructor takes.

    Raises:
        Unsupported: an argument of the constructor is not among the attributes, or has a value that it refuses.
    """
    taken, values = list(inspect.signature(primitive.__init__).parameters)[1:], attributes or {}
    if missing := [name for name in taken if name not in values]:
        raise Unsupported(f"{primitive.__name__}: {missing_attributes(missing)}")
    try:
        return cast(Callable[..., Any], primitive(**{name: values[name] for name in taken}))
    except (TypeError, ValueError) as error:  # of a constructor, which computes nothing
        raise Unsupported(f"{primitive.__name__} refuses its attributes: {str(error).partition(chr(10))[0]}") from None


def method_of(tensor_type: type, name: str) -> Callable[..., Any]:
    """The method or property `name` of a tensor, as a function of that tensor."""

    def call(tensor: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """Call the method of `tensor`, or read the property of that name.

        Raises:
            Unsupported: `tensor` is not a tensor, or has no such method in this MindSpore.
        """
        if not isinstance(tensor, tensor_type):
            raise Unsupported("the tensor whose method it is was not recorded")
        attribute = getattr(tensor, name, None)
        if attribute is None:
            raise Unsupported(f"this MindSpore's Tensor has no {name}")
        # Some names that PyTorch has as methods are properties here (`size`).
        return attribute(*arguments, **keywords) if callable(attribute) else attribute

    return call


def found_at(mindspore: Any, path: str) -> Any:
    """What stands at `path` of the table of operators; None when this version lacks it."""
    value = mindspore
    for step in path.split(".")[1:]:
        value = getattr(value, step, None)
    return value


#: How often an error is waited for again; two have been seen.
_MOST_LEFT_ERRORS = 10
_NO_KERNEL = re.compile(
    r"The kernel (?P<a>\w+) unregistered"
    r"|Unsupported op \[(?P<b>\w+)\]"
    r"|Create kernelmod for op (?P<c>\w+) failed"
    r"|Not found op (?P<d>\w+) on device"
    r"|'(?P<e>\w+)' is not supported on this device"
    r"|(?P<f>\w+) only supports? Ascend"
    r"|(?P<g>\w+) method supports? Ascend only"
    r"|should not come here for (?P<h>\w+) py_method"
    r"|'Registry' object has no attribute '(?P<i>\w+)'"
    r"|(?P<j>Not implement exception)"
)
_NO_DTYPE = re.compile(
    r"Select \w+ operator\[(?P<a>\w+)\] fail! Unsupported data type"
    r"|(?P<b>\w+) does not support this kernel data type"
    r"|KernelMod Init Failed: (?P<c>\w+)"
    r"|(?P<d>bad_function_call)"
)
#: Only for dtypes that are a question of precision: an integer where a float belongs is a wrong argument.
_PRECISION = r"(?:b?float16|float64|complex(?:64|128))"
_REFUSED_DTYPE = re.compile(
    rf"but got [^\n]*?\b(?:\w+[.:\[])?(?P<a>{_PRECISION})\b"
    rf"|must not be (?P<b>{_PRECISION})"
    rf"|(?:do not|doesn't|does not) support '?[\w/]*?(?P<c>{_PRECISION})",
    re.IGNORECASE,
)


def missing_kernel(error: BaseException) -> str | None:
    """What MindSpore lacks, `kernel LinalgVectorNorm` or `kernel MatMul for this dtype`; None for another error."""
    text = str(error)
    if match := _NO_KERNEL.search(text):
        return f"kernel {_name(match)}"
    if match := _NO_DTYPE.search(text):
        return f"kernel {_name(match)} for this dtype"
    if isinstance(error, (TypeError, ValueError)) and (match := _REFUSED_DTYPE.search(text)):
        return f"kernel for {_name(match)} here: {text.strip().partition(chr(10))[0][:200]}"
    return None


def _name(match: re.Match[str]) -> str:
    return match[match.lastindex or 0]


def discard_left_errors(mindspore: Any) -> None:
    """Run something that cannot fail until it does not: MindSpore's threads may raise an error once more after it was
    raised, and would do so from the next call.
    """
    for _ in range(_MOST_LEFT_ERRORS):
        with suppress(Exception):  # of any kind: it is the error that was raised already
            mindspore.runtime.synchronize()
            (mindspore.Tensor(1.0) + 1.0).asnumpy()
            return


#: From this size on a tensor uses the memory of a NumPy array.
_LENT_BYTES = 1 << 20


@dataclass
class MindSporeCall:
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

    def __init__(self, call: MindSporeCall) -> None:
        """Runs `call`, whose Cell keeps the graph of the last such run only."""
        self._mindspore = call.mindspore
        self._target = call.target
        self._seeds = call.seeds
        self._has_gradients = bool(call.leaves)
        self._graph = (call.cell, call.leaves) if call.leaves else None
        self._take(call.cell.run_keeping_all(*call.leaves) if call.leaves else call.run())

    def _take(self, returned: Any) -> None:
        tensor_type = self._mindspore.Tensor
        flat = list(flatten_outputs(returned))
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
        with guarded(self._mindspore, self._target):
            gradients = operation(cell)(*leaves, sens[0] if len(sens) == 1 else tuple(sens))
            # MindSpore may have lost its graph and run the forward again: a random API has then drawn again.
            if (returned := cell.take_returned()) is not None:
                self._take(returned)
            self._graph = None
            return tuple(to_array(gradient) for gradient in gradients)

    def _like(self, gradient: Array | None, output: Any) -> Any:
        if gradient is None:
            return self._mindspore.ops.zeros_like(output)
        if tuple(gradient.shape) != tuple(output.shape):
            raise ValueError(f"the incoming gradient has shape {gradient.shape}, the output {tuple(output.shape)}")
        tensor = to_tensor(self._mindspore, gradient, is_raised=False)
        return tensor if tensor.dtype == output.dtype else tensor.astype(output.dtype)


@contextmanager
def guarded(mindspore: Any, target: str) -> Iterator[None]:
    """Context of MindSpore's own code, which has many ways of saying "no kernel for this": they become Unsupported.

    An error stays with the call that caused it, and the floating-point mode is put back.

    Raises:
        Unsupported: `target` lacks a kernel.
    """
    try:
        yield
    except BaseException as error:
        discard_left_errors(mindspore)
        lacking = missing_kernel(error)
        if lacking is None or not isinstance(error, Exception):
            raise
        raise Unsupported(f"MindSpore {target} has no {lacking}") from None
    finally:
        restore_subnormals()


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
            flat = flatten_outputs(self.returned)
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

    Raises:
        Unsupported: the installed MindSpore lacks the dtype.
    """
    if array.nbytes < _LENT_BYTES or array.dtype.isbuiltin != 1:  # from_numpy knows NumPy's own dtypes only
        try:
            return mindspore.Tensor(contiguous(array, is_raised=is_raised))
        except TypeError:
            raise Unsupported(f"MindSpore {mindspore.__version__} has no tensors of dtype {array.dtype}") from None
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
    usual = array_dtype(dtype_of_array(array.dtype))
    return array if usual is None or usual == array.dtype else array.view(usual)


#: Methods of the pool of threads, as its library names them: SetMaxSpinCount(int), SetSpinCountMaxValue().
_SPINNING = ("15SetMaxSpinCountEi", "20SetSpinCountMaxValueEv")
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
        return RepeatedCall(partial(self._made_ready, call, differentiate), partial(self._run, call))

    def _made_ready(self, call: Call, differentiate: tuple[LeafPath, ...]) -> MindSporeCall:
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

        def run(*inputs: Any) -> Any:
            """The API call as a function of the leaves that are differentiated.

            Raises:
                Unsupported: this version does not take the arguments.
            """
            placed = {id(leaves[path]): value for path, value in zip(differentiate, inputs)}
            if writes_in_place(call.api):
                # An in-place API may not write to a leaf that is differentiated.
                placed = {key: value * 1 for key, value in placed.items()}
            positional, named = mapped((), (tuple(arguments), keywords), lambda _, value: placed.get(id(value), value))
            try:
                return function(*positional, **named)
            except TypeError as error:
                if call.framework != "mindtorch" and not is_misfit(error, partial(function, *positional, **named)):
                    raise
                raise Unsupported(self._misfit(call, error)) from None

        return MindSporeCall(self._mindspore, self.target, run, tensors, tuple(leaves[path] for path in differentiate))

    def _run(self, call: Call, ready: MindSporeCall) -> MindSporeExecution:
        with guarded(self._mindspore, self.target):
            return MindSporeExecution(ready)

    def _misfit(self, call: Call, error: TypeError) -> str:
        """Why a call does not fit: what PyTorch or another MindSpore accepts says nothing of the device."""
        version = "mindspore.mint" if call.framework == "mindtorch" else f"MindSpore {self._mindspore.__version__}"
        return f"the arguments do not fit {version}: {str(error).partition(chr(10))[0]}"

    def close(self) -> None:
        """Nothing is held."""

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """See `DeviceEngine.fill_memory`."""
        mindspore = self._mindspore
        with guarded(mindspore, self.target):
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
        try:
            self._open_device(mindspore)
        except Exception as error:
            if self.target == "CPU":
                raise
            raise DeviceFailure(self.label, str(error).strip()[:200]) from None
        if self.target == "CPU":
            add_pool(partial(give_pool_back, mindspore))
            _let_threads_sleep(Path(mindspore.__file__).parent / "lib")
        return mindspore

    def _open_device(self, mindspore: Any) -> None:
        # The one place where Ascend and CPU differ. What is so already is not asked for: MindSpore refuses once it ran.
        if self._device_id is not None:
            mindspore.set_device(self.target, self._device_id)
        elif mindspore.get_context("device_target") != self.target:
            mindspore.set_device(self.target)
        mindspore.runtime.launch_blocking()
        if self.target != "CPU":
            (mindspore.Tensor(1.0) + 1.0).asnumpy()

    def _convert(self, call: Call, path: LeafPath, value: Any) -> Any:
        if isinstance(value, Dtype):
            raised = argument_dtype(value, call.api.short, is_raised=self._is_raised)
            dtype = getattr(self._mindspore, raised.array_name or raised.name, None)
            if dtype is None:
                raise Unsupported(f"MindSpore {self._mindspore.__version__} has no dtype {raised.name}")
            return dtype
        if isinstance(value, NumpyArgument):
            return copy_of(value.array, is_raised=self._is_raised)
        if not hasattr(value, "__array_interface__"):
            return plain_argument(call.api, path, value)
        is_raised = self._is_raised and not describes_dtype(call.api.short)
        tensor = to_tensor(self._mindspore, value, is_raised=is_raised)
        if call.is_strided and not self._is_raised and tensor.ndim > 1:
            tensor = tensor.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)
        return tensor


def _let_threads_sleep(folder: Path) -> None:
    """Have MindSpore's threads sleep until there is work for them, where its libraries in `folder` can be asked.

    After each kernel they look for the next one 300,000 times, 70 ms and more, and yield the processor in between: as
    long as small calls follow each other, two threads do that all the time. No setting of MindSpore changes it.
    """
    with suppress(OSError, AttributeError):  # another version
        core = ctypes.CDLL(str(folder / "libmindspore_core.so"))
        kernels = ctypes.CDLL(str(folder / "plugin" / "libmindspore_ops_cpu.so"))
        set_most, use_most = (getattr(core, f"_ZN9mindspore10ThreadPool{name}") for name in _SPINNING)
        pool_of_kernels = kernels._ZN9mindspore6kernel26GetActorMgrInnerThreadPoolEv
        pool_of_kernels.restype = ctypes.c_void_p
        if pool := ctypes.c_void_p(pool_of_kernels()):
            set_most(pool, ctypes.c_int(1))
            use_most(pool)
