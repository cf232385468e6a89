"""What every engine promises, and the values that cross its border.

Values cross as NumPy arrays and plain Python values only; nothing of a framework leaks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from msprobe_collector.dump_format import ApiName, Dtype

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
    attributes: Mapping[str, Argument] | None = None
    is_strided: bool = False

    @property
    def named(self) -> dict[str, Argument]:
        """Keyword arguments, and attributes of a Primitive."""
        return {**(self.attributes or {}), **self.keywords}


@dataclass(frozen=True, slots=True)
class Output:
    """One leaf of what an API call returned; `path` is its position, with more steps inside nested tuples."""

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

    Raises:
        ValueError: there are more gradients than output tensors.
    """
    if len(incoming) > outputs:
        raise ValueError(f"{len(incoming)} incoming gradients for {outputs} output tensors")
    return incoming + (None,) * (outputs - len(incoming))


def map_leaves(call: Call, convert: Callable[[LeafPath, Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments and keywords of `call`, every leaf replaced by convert(path, leaf); tuples and dicts stay."""
    arguments = [_mapped(("input", index), value, convert) for index, value in enumerate(call.arguments)]
    return arguments, {key: _mapped(("kwargs", key), value, convert) for key, value in call.keywords.items()}


def map_attributes(call: Call, convert: Callable[[LeafPath, Any], Any]) -> dict[str, Any] | None:
    """Attributes of `call` as `map_leaves` converts arguments; None where the dump does not say."""
    if call.attributes is None:
        return None
    return {key: _mapped(("attributes", key), value, convert) for key, value in call.attributes.items()}


def flatten_outputs(returned: object, is_leaf: Callable[[object], bool]) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """(path, leaf) of everything an API returned; a bare value is output 0, nested tuples and dicts add steps."""
    is_sequence = not is_leaf(returned) and isinstance(returned, (tuple, list))
    return _flattened(() if is_sequence else (0,), returned, is_leaf)


# Functions of the module, not closures that call themselves: such a closure is a cycle, and keeps the tensors that it
# sees alive until the garbage collector comes by.


def _mapped(path: LeafPath, value: Argument, convert: Callable[[LeafPath, Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped((*path, index), item, convert) for index, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _mapped((*path, key), item, convert) for key, item in value.items()}
    return convert(path, value)


def _flattened(
    path: tuple[int | str, ...], value: object, is_leaf: Callable[[object], bool]
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    if not is_leaf(value) and isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _flattened((*path, index), item, is_leaf)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _flattened((*path, str(key)), item, is_leaf)
    else:
        yield path, value
