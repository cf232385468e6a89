"""What every engine promises, and the values that cross its border.

- Values cross as NumPy arrays and plain Python values only; nothing of a framework leaks out.
- What of a dump may stand among the arguments of a call besides tensors and dtypes: plain values, and few strings.
- What the benchmark computes in: float64 in place of every smaller float, from exactly the values the device got.
- How users name engines: `recorded`, `mindspore:ascend:3`, `torch:cuda`.
- A call that runs again and again on the same tensors, as long as it does not write into them.
- Memory of a device, filled before an operation gets it, so that what it leaves unwritten or overwrites shows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, Union, cast

from msprobe_collector.dump_format import ApiName, Dtype, dtype_of_array, find_dtype
from pytest_msprobe.apis.operators import refused_argument
from pytest_msprobe.verdicts import RANDOM, UNREADABLE

if TYPE_CHECKING:
    import numpy as np

# NumPy is named, not imported: asking an engine whether it can run a call must stay cheap.
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
#: How to reach a tensor: ("input", 0), ("input", 0, 1) for the second of a list, ("kwargs", "weight").
LeafPath: TypeAlias = tuple[Union[str, int], ...]
Argument: TypeAlias = Union[
    "Array",
    Dtype,
    bool,
    int,
    float,
    str,
    slice,
    EllipsisType,
    tuple["Argument", ...],
    dict[str, "Argument"],
    "NumpyArgument",
    None,
]
OutputValue: TypeAlias = Union["Array", bool, int, float, str, None]


class Unsupported(Exception):
    """An API call that an engine cannot run; the text says why and what would help. Becomes a skip, never a failure."""


Ending = Literal["error", "skip"]


class NotJudged(Exception):
    """An API call cannot be judged: the verdict on it and why. Raised only where no array is held.

    Attributes:
        status: of the verdict.
        message: the reason, in one line.
        is_unreadable: whether the dump cannot be read there.
        properties: of the verdict: that the dump cannot be read there, or that the call draws inside.
    """

    def __init__(self, status: Ending, message: str, *, is_unreadable: bool = False, is_random: bool = False) -> None:
        super().__init__(message)
        self.status: Ending = status
        self.message = message
        self.is_unreadable = is_unreadable
        self.properties: tuple[tuple[str, str], ...] = ()
        if is_unreadable or is_random:
            self.properties = ((UNREADABLE, "dump") if is_unreadable else (RANDOM, "call"),)


def output_label(path: tuple[int | str, ...]) -> str:
    """Name of the output at `path` among those of a call: `output.0`."""
    return ".".join(("output", *map(str, path)))


def dtype_names(*arrays: Any) -> tuple[str, ...]:
    """The names that dumps have for the dtypes of arrays; NumPy's own where no dump can hold one."""
    return tuple(_dtype_name(array.dtype) for array in arrays)


def _dtype_name(numpy_dtype: np.dtype[Any]) -> str:
    dtype = dtype_of_array(numpy_dtype)
    return str(numpy_dtype) if dtype is None else dtype.name


@dataclass(frozen=True, slots=True)
class NumpyArgument:
    """An argument that was a NumPy array in the training script, and stays one instead of becoming a tensor."""

    array: Array


@dataclass(frozen=True, slots=True)
class Call:
    """One API call with the values it gets. Engines never write to the arrays.

    Attributes:
        api: name of the API call.
        framework: the dump's framework: `mindspore`, `mindtorch` or `pytorch`.
        arguments: positional arguments.
        keywords: keyword arguments.
        saved_roundoff: relative error to put on what a forward computes and its gradients use again, as a device does
            that keeps it in its own dtype; 0 for none. Engines that cannot reach such values ignore it.
        saved_seed: chooses whether up or down.
        arithmetic_roundoff: relative error to put on every result inside the operation; 0 for none. Only PyTorch can.
        total_roundoff: relative error to put on the total inside a log_softmax, which kernels keep in their own dtype:
            log(total) of a row whose right class stands out is then lost as a whole; 0 for none.
        attributes: what the class of a Primitive was called with; None where the dump does not say.
        is_strided: whether a device under test gets tensors of two and more dimensions as transposed views.
    """

    api: ApiName
    framework: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Argument]
    saved_roundoff: float = 0.0
    saved_seed: int = 0
    arithmetic_roundoff: float = 0.0
    total_roundoff: float = 0.0
    attributes: Mapping[str, Argument] | None = None
    is_strided: bool = False

    @property
    def named(self) -> dict[str, Argument]:
        """Keyword arguments, and attributes of a Primitive."""
        return {**(self.attributes or {}), **self.keywords}


#: First step of the path of an output that was not returned: an argument that the call changed.
CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Output:
    """One leaf of what an API call returned; `path` is its position, with more steps inside nested tuples.

    The benchmark lists behind what was returned the arguments that the call changed, as (`CHANGED`, number).
    """

    path: tuple[int | str, ...]
    value: OutputValue


class Execution(Protocol):
    """An API call whose forward has run, once."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every output leaf, in order."""

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """Gradients of the leaves that `forward` was asked to differentiate, in that order, from the same forward.

        Args:
            incoming: gradient of the i-th top-level tensor among the outputs; None or missing counts as zero.

        Raises:
            Unsupported: this engine has no gradient for the API.
        """


class Engine(Protocol):
    """Something that can execute an API call."""

    @property
    def name(self) -> str:
        """Short name: `torch`, `mindspore`, `recorded`."""

    @property
    def label(self) -> str:
        """Name, device and precision for people: `torch CPU float64`."""

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Why this engine cannot run `api`, or None when it may. Cheap, and imports no framework."""

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Execution:
        """Run `call` once, ready to differentiate it with respect to the named leaves.

        Raises:
            Unsupported: this engine has no such API, kernel or dtype.
            Exception: whatever the API itself raised.
        """

    def close(self) -> None:
        """Give back what the engine holds outside this process."""


class DeviceEngine(Engine, Protocol):
    """An engine that may stand for the device under test."""

    def repeated(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Callable[[], Execution]:
        """A function that does what `forward` does each time it is called; arguments may be made ready only once."""

    def fill_memory(self, sizes: Sequence[int], value: float) -> Callable[[], bool]:
        """Leave `value` in the memory that the next tensors will most likely get.

        Allocates a tensor filled with it for each of the `sizes` in bytes, between two small ones, and releases it.

        Returns:
            Whether the two small ones are still as they were; to be asked once, which releases them.
        """


def padded_incoming(incoming: tuple[Array | None, ...], outputs: int) -> tuple[Array | None, ...]:
    """`incoming` with None, which counts as zero, for each further one of the `outputs` tensors.

    None behind them belongs to what a kernel gives beside its outputs, such as the mean of a norm.

    Raises:
        ValueError: there are more gradients than output tensors.
    """
    while len(incoming) > outputs and incoming[-1] is None:
        incoming = incoming[:-1]
    if len(incoming) > outputs:
        raise ValueError(f"{len(incoming)} incoming gradients for {outputs} output tensors")
    return incoming + (None,) * (outputs - len(incoming))


def map_leaves(call: Call, convert: Callable[[LeafPath, Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of `call`, every leaf replaced by convert(path, leaf); tuples and dicts stay."""
    arguments = [mapped(("input", index), value, convert) for index, value in enumerate(call.arguments)]
    return arguments, {key: mapped(("kwargs", key), value, convert) for key, value in call.keywords.items()}


def with_leaves(call: Call, convert: Callable[[LeafPath, Any], Any]) -> Call:
    """`call` with every argument converted as `map_leaves` does."""
    arguments, keywords = map_leaves(call, convert)
    return replace(call, arguments=tuple(arguments), keywords=keywords)


def leaves(call: Call) -> list[tuple[LeafPath, Any]]:
    """Every argument of `call` with its place; those in sequences and dicts one by one."""
    pairs: list[tuple[LeafPath, Any]] = []
    map_leaves(call, lambda path, value: pairs.append((path, value)))
    return pairs


def arrays_in(call: Call) -> dict[LeafPath, Array]:
    """The tensors among the arguments of `call`, by their places."""
    return {path: value for path, value in leaves(call) if hasattr(value, "__array_interface__")}


def map_attributes(call: Call, convert: Callable[[LeafPath, Any], Any]) -> dict[str, Any] | None:
    """Attributes of `call` as `map_leaves` converts arguments; None where the dump does not say."""
    if call.attributes is None:
        return None
    return cast("dict[str, Any]", mapped(("attributes",), dict(call.attributes), convert))


def flatten_outputs(
    returned: object, leaf: type | tuple[type, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """(path, leaf) of everything an API returned; a bare value is output 0, nested tuples and dicts add steps.

    A tuple of the type `leaf` is one leaf.
    """
    is_sequence = isinstance(returned, (tuple, list)) and not isinstance(returned, leaf)
    return _flattened(() if is_sequence else (0,), returned, leaf)


# Functions of the module, not closures that call themselves: such a closure is a cycle, and keeps the tensors that it
# sees alive until the garbage collector comes by.


def mapped(path: LeafPath, value: Any, convert: Callable[[LeafPath, Any], Any]) -> Any:
    """`value`, which stands at `path`, with every leaf replaced by convert(path, leaf); tuples and dicts stay."""
    if isinstance(value, tuple):
        return tuple(mapped((*path, index), item, convert) for index, item in enumerate(value))
    if isinstance(value, dict):
        return {key: mapped((*path, key), item, convert) for key, item in value.items()}
    return convert(path, value)


def _flattened(
    path: tuple[int | str, ...], value: object, leaf: type | tuple[type, ...]
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    if isinstance(value, (tuple, list)) and not isinstance(value, leaf):
        for index, item in enumerate(value):
            yield from _flattened((*path, index), item, leaf)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _flattened((*path, str(key)), item, leaf)
    else:
        yield path, value


def plain_argument(api: ApiName, path: LeafPath, value: Any) -> Any:
    """`value`, a leaf at `path` that is neither an array nor a dtype.

    Raises:
        Unsupported: it is a string that is not among those which the operator takes, or stands in a dict.
    """
    if len(path) > 2 and any(isinstance(step, str) for step in path[2:]):
        raise Unsupported(f"{_place(path)} is in a dict, which no operator takes")
    if isinstance(value, str) and (reason := refused_argument(api.short, value)) is not None:
        raise Unsupported(f"{_place(path)}: {reason}")
    return value


def _place(path: LeafPath) -> str:
    return f"{path[0]}{''.join(f'[{step!a}]' for step in path[1:])}"


#: APIs whose whole purpose is the dtype that they are given: in float64 they would do nothing.
_CASTS = frozenset({"to", "type", "astype", "cast", "half", "bfloat16", "float", "double", "Cast", "ToDtype"})
#: APIs that answer about the dtype of their argument, which must then keep it.
_ABOUT_DTYPE = frozenset({"dtype", "type", "typeof", "element_size", "itemsize", "nbytes", "result_type"})


def copy_of(array: Array, *, is_raised: bool) -> Array:
    """A writable copy of `array`; with `is_raised`, floats as float64 and complex as complex128, which is exact."""
    import numpy as np

    return np.array(array, dtype=_dtype(array, is_raised=is_raised), order="C")


def contiguous(array: Array, *, is_raised: bool) -> Array:
    """What `copy_of` returns, or `array` itself where that is the same: for a framework that copies it."""
    import numpy as np

    return np.asarray(array, dtype=_dtype(array, is_raised=is_raised), order="C")


def _dtype(array: Array, *, is_raised: bool) -> Any:
    dtype = dtype_of_array(array.dtype) if is_raised else None
    wide = {"float": "float64", "complex": "complex128"}
    return array.dtype if dtype is None else wide.get(dtype.kind, array.dtype)


def argument_dtype(dtype: Dtype, api: str, *, is_raised: bool) -> Dtype:
    """The dtype to pass where the dump has the argument `dtype`.

    A sum with dtype=float32 accumulates in float64 in the benchmark; a cast to float32 stays a cast to float32.
    """
    if is_raised and dtype.kind in ("float", "complex") and api not in _CASTS:
        raised = find_dtype("Float64" if dtype.kind == "float" else "Complex128")
        assert raised is not None
        return raised
    return dtype


def describes_dtype(api: str) -> bool:
    """Whether the API of this short name answers about a dtype."""
    return api in _ABOUT_DTYPE


def is_differentiable(array: Array) -> bool:
    """Whether gradients with respect to `array` exist: floats and complex numbers."""
    dtype = dtype_of_array(array.dtype)
    return dtype is not None and dtype.kind in ("float", "complex")


_DEVICE_ID = re.compile(r"[0-9]{1,4}")
_TARGETS = {
    "auto": (),
    "recorded": (),
    "mindspore": ("cpu", "ascend"),
    "torch": ("cpu", "cuda", "npu"),
}
#: How a worker process learns which physical device it has; inside its process that device is number 0.
DEVICE_VARIABLE = "PYTEST_MSPROBE_DEVICE"
#: Variables that say which devices a process may use, by target; containers and schedulers set them.
VISIBLE = {
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
DEVICE_FORMS = "auto, recorded, mindspore[:cpu|:ascend[:ID]] or torch[:cpu|:cuda[:ID]|:npu[:ID]]"
BENCH_FORMS = "auto, torch, torch:cuda or mindspore"


@dataclass(frozen=True, slots=True)
class DeviceSpecification:
    """A device under test as the user named it; `target` and `index` are None where left to us."""

    engine: str
    target: str | None = None
    index: int | None = None

    def __str__(self) -> str:
        """As the option is written: `mindspore:ascend:3`."""
        return ":".join(str(part) for part in (self.engine, self.target, self.index) if part is not None)


def parse_device(text: str) -> DeviceSpecification:
    """The device that `text` names.

    Raises:
        ValueError: it names none; the text lists the allowed forms.
    """
    engine, *rest = text.strip().lower().split(":")
    targets = _TARGETS.get(engine)
    if targets is None or len(rest) > 2 or (rest and rest[0] not in targets):
        raise ValueError(f"{text!r} is not a device; use {DEVICE_FORMS}")
    if len(rest) == 2 and (rest[0] == "cpu" or not (_DEVICE_ID.fullmatch(rest[1]) and int(rest[1]) <= 4095)):
        raise ValueError(f"{text!r} has no valid device id; use {DEVICE_FORMS} with ID from 0 to 4095")
    target, identifier = (*rest, None, None)[:2]
    return DeviceSpecification(engine, target, None if identifier is None else int(identifier))


def parse_bench(text: str) -> str:
    """The benchmark that `text` names.

    Raises:
        ValueError: it names none; the text lists the allowed forms.
    """
    name = text.strip().lower()
    if name not in ("auto", "torch", "torch:cuda", "mindspore"):
        raise ValueError(f"{text!r} is not a benchmark; use {BENCH_FORMS}")
    return name


def own_device() -> str | None:
    """Physical id of this worker process's device, or None outside a worker."""
    return os.environ.get(DEVICE_VARIABLE)


_Execution = TypeVar("_Execution")
_Ready = TypeVar("_Ready", bound="Ready")


@dataclass(slots=True)
class Seeds:
    """Incoming gradients as tensors of a framework, made for each run, or kept from one run to the next.

    Attributes:
        are_kept: whether the next run with the same `incoming` gets the same tensors.
        incoming, tensors: of the last run, when they are kept.
    """

    are_kept: bool = False
    incoming: tuple[Array | None, ...] | None = None
    tensors: Sequence[Any] = ()

    def of(self, incoming: tuple[Array | None, ...], make: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The tensors of `incoming`, which `make` makes."""
        if not self.are_kept:
            return make()
        if self.incoming is not incoming:
            self.incoming, self.tensors = incoming, make()
        return self.tensors


class Ready(Protocol):
    """A call with its arguments converted, before it runs."""

    @property
    def seeds(self) -> Seeds:
        """The tensors of its incoming gradients."""

    def watch(self) -> Callable[[], bool]:
        """A function that says whether the tensors among the arguments are as they are now."""


class RepeatedCall(Generic[_Ready, _Execution]):
    """Runs a call each time it is called: on the same tensors, unless the first run has written into them."""

    def __init__(self, make: Callable[[], _Ready], run: Callable[[_Ready], _Execution]) -> None:
        """`make` makes the call ready, which costs as much as a small kernel; `run` runs it once."""
        self._make = make
        self._run = run
        self._kept: _Ready | None = None
        self._has_run = False

    def __call__(self) -> _Execution:
        """The next run."""
        if self._kept is not None:
            return self._run(self._kept)
        ready = self._make()
        if self._has_run:
            return self._run(ready)
        are_unwritten = ready.watch()
        execution = self._run(ready)
        self._has_run = True
        if are_unwritten():
            ready.seeds.are_kept = True
            self._kept = ready
        return execution


#: Elements of the tensors that stay, before and behind the released ones.
_GUARD = 128
_BYTES = 4


def filled_memory(sizes: Sequence[int], full: Callable[[int], Any], read: Callable[[Any], Array]) -> Callable[[], bool]:
    """What `DeviceEngine.fill_memory` does, by functions of one framework.

    Args:
        sizes: bytes of the tensors that are released.
        full: (number of elements) -> a filled float32 tensor of the device.
        read: a tensor -> its values.
    """
    guards = [full(_GUARD)]
    released = [full(-(-size // _BYTES)) for size in sizes]
    guards.append(full(_GUARD))
    before = read(guards[0]).tobytes()
    released.clear()

    def are_intact() -> bool:
        is_intact = all(read(guard).tobytes() == before for guard in guards)
        guards.clear()
        return is_intact

    return are_intact
