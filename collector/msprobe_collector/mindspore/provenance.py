"""Where tensors come from: which recorded value was written last to their memory.

Memory is known by its address, as long as a tensor that was recorded there is alive and still lies there: addresses
are used again at once. MindSpore 2.10 counts no versions that tell of writes (`x[0] = y`, `assign` and optimizers leave
`_version` as it is on CPU), so writes are known by the names of calls, and those that no record shows by the content.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from msprobe_collector.dump_format import is_cell_record, is_communication
from msprobe_collector.dump_format.records import api_of
from msprobe_collector.dump_format.values import CHANGED, GRADIENT_OF, LEAF, MADE_BY, UNINITIALIZED, VIEW
from msprobe_collector.dump_format.writing.files import quoted
from msprobe_collector.dump_format.writing.statistics import without_slot
from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import as_sequence
from msprobe_collector.recording.recorder import view_text
from msprobe_collector.recording.swaps import MethodSwaps

#: Calls that write into their first argument where they return it (`x.add_(y)` gives a new tensor on CPU).
_WRITING = re.compile(
    r"\S*\.(__setitem__|__i(?!nvert)\w+__|[A-Za-z]\w*[^_]_)"
    r"|(Functional\.|Primitive\.\S+\.)(?i:assign|scatter_?(nd_?)?(add|div|max|min|mul|sub|update))\w*"
)
#: Places of the arguments that a call changes and does not return.
_LEFT_IN_ARGUMENTS = re.compile(r"Primitive\.\S+\.BatchNorm"), ("input.3.", "input.4.")
_FACTORIES = ("empty", "empty_like", "new_empty")
_UNNAMED = re.compile(r"Parameter(#\d+)?")

#: Offset, strides, lengths and dtype of a tensor in its memory.
_Place = tuple[int, tuple[int, ...], tuple[int, ...], Any]


class _Value:
    """A value that a record names, in memory.

    Attributes:
        tensor: that holds it, by weak reference.
        writes: into its memory, until it was named.
        described: its entry as the dump describes it; "" as long as that is not known.
        mark: the key of memory to which nothing was written; "" for others.
    """

    __slots__ = ("_place", "described", "mark", "memory", "name", "tensor", "writes")

    def __init__(self, name: str, tensor: Any, memory: _Memory) -> None:
        self.name = name
        self.tensor = weakref.ref(tensor)
        self.memory = memory
        self.writes = memory.writes
        self.described = self.mark = ""
        self._place: _Place | None = None

    def place(self) -> _Place | None:
        """Where it lies; None where nobody has asked before its tensor was gone. Few are ever asked."""
        if self._place is None and (tensor := self.tensor()) is not None:
            self._place = _place(tensor)
        return self._place


class _Memory:
    """What is known of the memory of some tensors.

    Attributes:
        values: that records have named, the last one last.
        written: by the last write; None where that was not seen.
        writes: that were seen.
    """

    __slots__ = ("_most", "address", "values", "writes", "written")

    def __init__(self, address: int) -> None:
        self.address = address
        self.values: list[_Value] = []
        self.written: _Value | None = None
        self.writes = 0
        self._most = 8

    def is_there(self) -> bool:
        """Whether a tensor whose value is known still lies there, so that nobody else can have the address."""
        for value in reversed(self.values):
            tensor = value.tensor()
            if tensor is not None and _address(tensor) == self.address:
                return True
        return False

    def add(self, value: _Value) -> None:
        """A record names a value that lies here."""
        self.values.append(value)
        if len(self.values) >= self._most:
            self.values = [other for other in self.values if other.writes == self.writes and other.tensor() is not None]
            self._most = 2 * len(self.values) + 8

    def write(self) -> None:
        """Something else stands there now: the names of what was there before are no longer those of its parts."""
        self.writes += 1
        self.written = None

    def value_at(self, place: _Place) -> _Value | None:
        """Return what a record has named just there since the last write."""
        there = (value for value in reversed(self.values) if value.writes == self.writes and value.place() == place)
        return next(there, None)


@dataclass(slots=True, eq=False)
class _Origin:
    """See `Origin` of encoding."""

    value: _Value | None
    source: _Value | None = None
    view: str = ""
    leaf: str | None = None
    gradient_of: str = ""

    def keys(self, described: str) -> str:
        """See `Origin`."""
        if (value := self.value) is not None:
            value.described = described
            return value.mark
        text = "" if self.leaf is None else f', "{LEAF}": {quoted(self.leaf)}'
        if self.gradient_of:
            text += f', "{GRADIENT_OF}": {quoted(self.gradient_of)}'
        if (source := self.source) is not None:
            text += f', "{MADE_BY}": {quoted(source.name)}'
            if self.view:
                text += f', "{VIEW}": "{self.view}"'
            elif source.described:
                text += _change(source.described, described)
            text += source.mark
        return text


def _change(before: str, now: str) -> str:
    """Return the key that tells that an entry is another one now, or a slot where that turns out later."""
    (fields_before, number_before), (fields, number) = without_slot(before), without_slot(now)
    key = f', "{CHANGED}": true'
    if fields_before != fields:
        return key
    pending = mindspore_values().statistics_of_step
    if pending is None or number_before is None or number is None:
        return ""
    return pending.compared(number_before, number, key)


class _Facts(NamedTuple):
    """What is known of a call by its name.

    Attributes:
        is_layer: whether it is one of a Cell.
        is_writing: whether it writes into its first argument where it returns it.
        is_factory: whether it makes memory without writing to it.
        changed: how the paths begin of the arguments that it changes, perhaps without returning them.
    """

    is_layer: bool
    is_writing: bool
    is_factory: bool
    changed: tuple[str, ...]


@functools.cache
def _facts(call: str) -> _Facts:
    if is_cell_record(f"{call}.forward.0"):
        return _Facts(True, False, False, ())
    is_sending = is_communication(call) and call.rpartition(".")[2] in ("send", "isend")
    is_writing = _WRITING.fullmatch(call) is not None or (is_communication(call) and not is_sending)
    changing, places = _LEFT_IN_ARGUMENTS
    changed: tuple[str, ...] = ("input.0.",) if is_writing else ()
    if not is_writing and changing.fullmatch(call):
        changed = places
    return _Facts(False, is_writing, call.rpartition(".")[2] in _FACTORIES, changed)


class MindSporeProvenances:
    """See `Provenances` of the recorder; gradients are known by the call that returns them."""

    def __init__(self, guard: Guard, *, sees_writes: bool) -> None:
        """Know nothing yet; with `sees_writes` the calls that write into tensors are recorded."""
        import mindspore

        self.guard = guard
        self.sees_writes = sees_writes
        self.parameter = mindspore.Parameter
        self.tensor = mindspore.Tensor
        self.is_supported = hasattr(mindspore.Tensor, "untyped_storage")
        self._memory: dict[int, _Memory] = {}
        #: By the id of the tensor, which is another tensor's where that one is gone.
        self._values: dict[int, _Value] = {}
        self._gradients: dict[int, tuple[weakref.ref[Any], str]] = {}
        #: Into which calls have written of which there is no record; asking where they lie would wait for a device.
        self._unrecorded: list[weakref.ref[Any]] = []
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See the gradients of parameters from now on."""
        if self.is_supported and not self._swaps.are_in:
            self._swaps.put(type(graph_executors()._pynative_executor), "grad", self._grad)

    def uninstall(self) -> None:
        """Put the original back."""
        self._swaps.uninstall()

    def record(self, name: str) -> MindSporeOrigins:
        """See `Provenances`."""
        return MindSporeOrigins(self, name)

    def passed(self, name: str, arguments: Sequence[Any]) -> None:
        """Forget what stood in the memory that a call writes to of which there is no record."""
        if self._memory and _facts(api_of(name)).is_writing and arguments:
            values = as_sequence(arguments[0])
            self._unrecorded += [weakref.ref(value) for value in values if isinstance(value, self.tensor)]

    def settle(self) -> None:
        """Forget what was written over; of a tensor that is gone nobody knows where it lay."""
        unrecorded, self._unrecorded = self._unrecorded, []
        for reference in unrecorded:
            if (tensor := reference()) is None:
                self._memory.clear()
                self._values.clear()
            elif (memory := self.known(_address(tensor))) is not None:
                memory.write()

    def clear(self) -> None:
        """See `Provenances`."""
        self._unrecorded = []
        self._memory.clear()
        self._values.clear()
        self._gradients.clear()
        if (pending := mindspore_values().statistics_of_step) is not None:
            pending.forget()

    def known(self, address: int) -> _Memory | None:
        """Return what is known of the memory at `address`."""
        memory = self._memory.get(address)
        return memory if memory is not None and memory.is_there() else None

    def value(self, tensor: Any, address: int) -> _Value | None:
        """What a record has named last of this very tensor, if it has been nothing else since."""
        value = self._values.get(id(tensor))
        if value is None or value.tensor() is not tensor:
            return None
        memory = value.memory
        return value if memory.address == address and memory.writes == value.writes else None

    def name(self, name: str, tensor: Any, address: int, *, memory: _Memory | None, is_written: bool) -> _Value:
        """Return a record names `tensor`."""
        if memory is None:
            memory = self._memory[address] = _Memory(address)
        if is_written:
            memory.write()
        value = self._values[id(tensor)] = _Value(name, tensor, memory)
        if is_written:
            memory.written = value
        memory.add(value)
        return value

    def gradient_of(self, tensor: Any) -> str:
        """Return the parameter whose gradient `tensor` is, or ""."""
        gradient = self._gradients.get(id(tensor))
        return gradient[1] if gradient is not None and gradient[0]() is tensor else ""

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(executor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(executor, *args, **kwargs)
            weights = kwargs.get("weights", *args[2:3])
            self.guard.enter("gradients of parameters", self._take_gradients, weights, result)
            return result

        return grad

    def _take_gradients(self, weights: Any, result: Any) -> None:
        """Those of a list of weights are a tuple, alone or behind the gradients of inputs."""
        if not (isinstance(weights, (list, tuple)) and isinstance(result, (list, tuple)) and result):
            return
        gradients = result[-1] if isinstance(result[-1], (list, tuple)) else result
        if len(gradients) == len(weights):
            for weight, gradient in zip(weights, gradients):
                if isinstance(gradient, self.tensor):
                    self._gradients[id(gradient)] = weakref.ref(gradient), weight.name


class MindSporeOrigins:
    """See `Origins` of encoding."""

    __slots__ = ("_changed", "_facts", "_inputs", "_name", "_provenances")

    def __init__(self, provenances: MindSporeProvenances, name: str) -> None:
        """Follow the tensors of the forward record `name`."""
        self._provenances = provenances
        self._name = name
        self._facts = _facts(api_of(name))
        #: Addresses of the arguments, the first one's first.
        self._inputs: list[int] = []
        #: Arguments that the call changes, and where they lay before.
        self._changed: list[tuple[str, Any, int]] = []

    def of(self, tensor: Any, path: str) -> _Origin | None:
        """See `Origins`."""
        try:
            self._provenances.settle()
            return self._made(tensor, path) if path.startswith("output") else self._taken(tensor, path)
        except Exception as error:
            self._provenances.guard.faults.note(self._name, error)
            return None

    def end(self) -> None:
        """Name what the call left in its arguments."""
        for path, tensor, _ in self._changed:
            self._provenances.guard.faults.guarded(self._name, self._leave, path, tensor)
        self._changed = []

    def _taken(self, tensor: Any, path: str) -> _Origin | None:
        provenances = self._provenances
        address = _address(tensor)
        self._inputs.append(address)
        if f"{path}.".startswith(self._facts.changed):
            self._changed.append((path, tensor, address))
        source = provenances.value(tensor, address)
        is_parameter = isinstance(tensor, provenances.parameter)
        if source is not None and not is_parameter:
            return _Origin(None, source)
        leaf = None
        if is_parameter:
            leaf = "" if _UNNAMED.fullmatch(tensor.name) else tensor.name
        memory = provenances.known(address)
        if memory is None:
            gradient_of = provenances.gradient_of(tensor)
            return _Origin(None, None, "", leaf, gradient_of) if is_parameter or gradient_of else None
        if is_parameter and memory.written is None:  # a call that returned the parameter did not make it
            return _Origin(None, None, "", leaf)
        place = _place(tensor)
        view = ""
        if source is None and (source := memory.value_at(place)) is None and provenances.sees_writes:
            source, view = memory.written, view_text(place[0], place[2], place[1])
        return _Origin(None, source, view, leaf)

    def _made(self, tensor: Any, path: str) -> _Origin:
        provenances, facts = self._provenances, self._facts
        address = _address(tensor)
        if facts.is_layer and (source := provenances.value(tensor, address)) is not None:
            return _Origin(None, source)
        memory, is_argument = provenances.known(address), address in self._inputs
        # Other memory that is known is a view of what the call did not get as an argument.
        is_changed = facts.is_writing and any(address == changed for *_, changed in self._changed)
        is_written = is_changed if is_argument else memory is None
        value = provenances.name(f"{self._name}.{path}", tensor, address, memory=memory, is_written=is_written)
        value.mark = facts.is_factory * f', "{UNINITIALIZED}": true'
        return _Origin(value)

    def _leave(self, path: str, tensor: Any) -> None:
        provenances, address = self._provenances, _address(tensor)
        value = provenances.value(tensor, address)
        if value is None or not value.name.startswith(f"{self._name}."):
            memory = provenances.known(address)
            provenances.name(f"{self._name}.{path}", tensor, address, memory=memory, is_written=True)


def _address(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _place(tensor: Any) -> _Place:
    return tensor.storage_offset(), tuple(tensor.stride()), tuple(tensor.shape), tensor.dtype
