"""What the compiler knows of a value when a graph is built, noted then and found again when the graph runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union

import numpy as np

from msprobe_collector.dump_format import array_dtype, find_dtype
from msprobe_collector.dump_format.writing.encoding import TensorValues
from msprobe_collector.mindspore.mindspore_internals import TENSOR

#: What a value looks like, in tuples, which compiled code can make: `("tensor", dtype, shape)`; `("items", (...))`;
#: `("keys", (key, ...), (...))` for a dict; `("value", constant)`; `("moving", dtype)` for a tensor whose shape changes
#: or whose dtype cannot leave a graph;
#: `("unseen", "")` for other values that are known only when the graph runs.
Description = tuple[Any, ...]
Moment = Literal["inputs", "outputs", "output_gradient", "input_gradient"]

#: Number of a call that is not collected: its later values are passed over as well.
NOT_COLLECTED = -2


@dataclass(frozen=True, slots=True)
class Layout:
    """One place in a graph where values are seen.

    Attributes:
        label: `Cell.{path}.{Class}`.
        moment: what is seen there.
        description: of the arguments and keywords, of the outputs, or of the one gradient.
        of_inputs: for outputs, the layout of the same call's inputs.
        index: for a gradient, its position among the tensors of the arguments or outputs.
        tensor_count: values that arrive in each run.
    """

    label: str
    moment: Moment
    description: Description
    of_inputs: int
    index: int
    tensor_count: int


class Receiver(Protocol):
    """Takes the values of a running graph."""

    def arrive(self, layout: Layout, position: int, number: int, value: np.ndarray[Any, Any]) -> int:
        """Take the `position`-th value of `layout`, of call `number` (-1: not yet known).

        Args:
            layout: where the value is seen.
            position: among the tensors of `layout`.
            number: of the call.
            value: its values; the array is the runtime's own and good during this call only. A 0-d tensor has one
                dimension here.

        Returns:
            The number of the call. Nothing is raised.
        """


class Layouts:
    """The layouts of all graphs of this process, by number, and who receives their values."""

    def __init__(self) -> None:
        self._layouts: list[tuple[Receiver, Layout]] = []
        self._receivers: list[Receiver] = []

    def add_receiver(self, receiver: Receiver) -> int:
        """Return a number for `receiver`, which compiled code can hold."""
        self._receivers.append(receiver)
        return len(self._receivers) - 1

    def note(
        self,
        receiver: int,
        label: str,
        moment: Moment,
        description: Description,
        of_inputs: int,
        index: int,
    ) -> int:
        """Note a layout; its number. Called by the compiler, once per place."""
        layout = Layout(label, moment, description, of_inputs, index, len(whole_tensors(description)))
        self._layouts.append((self._receivers[receiver], layout))
        return len(self._layouts) - 1

    def __getitem__(self, number: int) -> Layout:
        return self._layouts[number][1]

    def arrive(self, place: Any, number: Any, value: Any) -> np.ndarray[Any, Any]:
        """Hand a value on. Called by the running graph.

        Args:
            place: int32[2], the layout and the position among its tensors.
            number: int32[1], the call's number; -1 when this is its first value.
            value: as `Receiver.arrive` takes it.

        Returns:
            int32[1], the call's number.
        """
        receiver, layout = self._layouts[int(place[0])]
        call = int(number[0])
        if call != NOT_COLLECTED:
            call = receiver.arrive(layout, int(place[1]), call, value)
        return np.array([call], np.int32)


LAYOUTS = Layouts()


def copied(value: np.ndarray[Any, Any], description: Description) -> np.ndarray[Any, Any]:
    """Return a copy of what the runtime handed over for the tensor of this description."""
    array_type = _array_type(description)
    copy = value.copy().reshape(description[2])
    if array_type is None or copy.dtype == array_type:
        return copy
    # MindSpore's bfloat16 is not that of ml_dtypes, though the bits are the same; a 0-d one comes as float32.
    return copy.astype(array_type) if copy.dtype.isbuiltin == 1 else copy.view(array_type)


def whole_tensors(description: Description) -> list[Description]:
    """Descriptions of the tensors that arrive: those of known shape that hold elements, in order."""
    if description[0] == "tensor":
        return [description] if 0 not in description[2] else []
    if description[0] in ("items", "keys"):
        return [tensor for item in description[-1] for tensor in whole_tensors(item)]
    return []


def rebuilt(description: Description, arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    """Return the described value, as the recorder takes it; what was not seen is None."""
    waiting = iter(arrays)
    return _rebuilt(description, lambda: next(waiting, None))


def _rebuilt(description: Description, next_array: Callable[[], Union[np.ndarray[Any, Any], None]]) -> Any:
    if description[0] == "tensor":
        array = np.empty(description[2], _array_type(description)) if 0 in description[2] else next_array()
        return None if array is None else TensorValues(array, description[1], TENSOR)
    if description[0] == "items":
        return [_rebuilt(item, next_array) for item in description[1]]
    if description[0] == "keys":
        return {key: _rebuilt(item, next_array) for key, item in zip(description[1], description[2])}
    return description[1] if description[0] == "value" else None


def _array_type(description: Description) -> np.dtype[Any] | None:
    dtype = find_dtype(description[1])
    return None if dtype is None else array_dtype(dtype)


def gradient_places(items: Description) -> list[bool]:
    """Whether the gradient of each tensor directly among `items` can arrive (it is of floats, its shape known)."""
    places = []
    for kind, *of_tensor in items[1]:
        if kind in ("tensor", "moving"):
            dtype = find_dtype(of_tensor[0])
            places.append(kind == "tensor" and 0 not in of_tensor[1] and dtype is not None and dtype.kind == "float")
    return places
