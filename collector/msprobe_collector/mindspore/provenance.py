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
from typing import Any, NamedTuple

from msprobe_collector.dump_format import is_cell_record
from msprobe_collector.dump_format.values import CHANGED, GRADIENT_OF, LEAF, MADE_BY, UNINITIALIZED, VIEW
from msprobe_collector.dump_format.writing.files import quoted
from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps

#: Calls that write into their first argument where they return it (`x.add_(y)` gives a new tensor on CPU).
_WRITING = re.compile(
    r"\S*\.(__setitem__|__i(?!nvert)\w+__|[A-Za-z]\w*[^_]_)"
    r"|(Functional\.|Primitive\.\S+\.)(?i:assign|scatter_?(nd_?)?(add|div|max|min|mul|sub|update))\w*"
)
#: Places of the arguments that a call changes and does not return.
_LEFT_IN_ARGUMENTS = re.compile(r"Primitive\.\S+\.BatchNorm"), ("input.3", "input.4")
_FACTORIES = ("empty", "empty_like", "new_empty")
_UNNAMED = re.compile(r"Parameter(#\d+)?")

#: Offset, strides, lengths and dtype of a tensor in its memory.
_Place = tuple[int, tuple[int, ...], tuple[int, ...], Any]


class _Value:
    """A value that a record names, in memory.

    Attributes:
        described: its entry as the dump describes it; "" as long as that is not known.
    """

    __slots__ = ("described", "is_uninitialized", "name", "place")

    def __init__(self, name: str, place: _Place, *, is_uninitialized: bool = False) -> None:
        self.name = name
        self.place = place
        self.described = ""
        self.is_uninitialized = is_uninitialized


class _Memory:
    """What is known of the memory of some tensors.

    Attributes:
        values: by their places, since the last write.
        written: by the last write; None where that was not seen.
        tensors: that lie there, by weak reference.
    """

    __slots__ = ("tensors", "values", "written")

    def __init__(self) -> None:
        self.values: dict[_Place, _Value] = {}
        self.written: _Value | None = None
        self.tensors: list[weakref.ref[Any]] = []

    def is_at(self, address: int) -> bool:
        """Whether it is still the memory at `address`."""
        tensors = (tensor() for tensor in self.tensors)
        return any(tensor is not None and _address(tensor) == address for tensor in tensors)

    def add(self, value: _Value, tensor: Any, *, is_written: bool) -> None:
        """A record names `tensor`, which lies here."""
        if is_written:
            self.values.clear()
            self.written = value
        self.values[value.place] = value
        self.tensors = [other for other in self.tensors if other() is not None]
        self.tensors.append(weakref.ref(tensor))


class _Origin(NamedTuple):
    """See `Origin` of encoding."""

    own: _Value | None = None
    source: _Value | None = None
    place: _Place | None = None
    leaf: str | None = None
    gradient_of: str = ""

    def keys(self, described: str) -> str:
        """See `Origin`."""
        text = ""
        if self.own is not None:
            self.own.described = described
        for key, name in ((LEAF, self.leaf), (GRADIENT_OF, self.gradient_of or None)):
            if name is not None:
                text += f', "{key}": {quoted(name)}'
        if (source := self.source) is not None:
            text += f', "{MADE_BY}": {quoted(source.name)}'
            if source.place != self.place and self.place is not None:
                text += f', "{VIEW}": "{_view_text(self.place)}"'
            elif source.described and source.described != described:
                text += f', "{CHANGED}": true'
        if (value := self.own or self.source) is not None and value.is_uninitialized:
            text += f', "{UNINITIALIZED}": true'
        return text


class TensorProvenances:
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
        self._gradients: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See the gradients of parameters from now on."""
        if self.is_supported and not self._swaps.are_in:
            self._swaps.put(type(graph_executors()._pynative_executor), "grad", self._grad)

    def uninstall(self) -> None:
        """Put the original back."""
        self._swaps.uninstall()

    def record(self, name: str) -> RecordOrigins:
        """See `Provenances`."""
        return RecordOrigins(self, name)

    def passed(self, name: str, arguments: Sequence[Any]) -> None:
        """Forget the memory that a call writes to of which there is no record."""
        if self._memory and _WRITING.fullmatch(_call(name)) and arguments and isinstance(arguments[0], self.tensor):
            self.guard.faults.guarded(name, lambda: self._memory.pop(_address(arguments[0]), None))

    def clear(self) -> None:
        """See `Provenances`."""
        self._memory.clear()
        self._gradients.clear()

    def known(self, address: int) -> _Memory | None:
        """What is known of the memory at `address`."""
        memory = self._memory.get(address)
        if memory is not None and not memory.is_at(address):
            del self._memory[address]
            return None
        return memory

    def new(self, address: int) -> _Memory:
        """Memory of which nothing is known."""
        memory = self._memory[address] = _Memory()
        return memory

    def gradient_of(self, tensor: Any) -> str:
        """The parameter whose gradient `tensor` is, or ""."""
        known = self._gradients.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else ""

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def grad(executor: Any, function: Any, operation: Any, weights: Any, *args: Any) -> Any:
            result = original(executor, function, operation, weights, *args)
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


class RecordOrigins:
    """See `Origins` of encoding."""

    __slots__ = ("_changed", "_inputs", "_is_layer", "_is_writing", "_left", "_name", "_provenances")

    def __init__(self, provenances: TensorProvenances, name: str) -> None:
        """Follow the tensors of the forward record `name`."""
        call = _call(name)
        self._provenances = provenances
        self._name = name
        self._is_layer = is_cell_record(name)
        self._is_writing = not self._is_layer and _WRITING.fullmatch(call) is not None
        leaves, places = _LEFT_IN_ARGUMENTS
        self._left = ("input.0",) if self._is_writing else places if leaves.fullmatch(call) else ()
        #: Addresses of the arguments, the first one's first.
        self._inputs: list[int] = []
        #: Arguments that the call changes.
        self._changed: list[tuple[str, Any]] = []

    def of(self, tensor: Any, path: str) -> _Origin | None:
        """See `Origins`."""
        try:
            return self._made(tensor, path) if path.startswith("output") else self._taken(tensor, path)
        except Exception as error:
            self._provenances.guard.faults.note(self._name, error)
            return None

    def end(self) -> None:
        """Name what the call left in its arguments."""
        for path, tensor in self._changed:
            self._provenances.guard.faults.guarded(self._name, self._leave, path, tensor)

    def _taken(self, tensor: Any, path: str) -> _Origin:
        provenances = self._provenances
        leaf = None
        if isinstance(tensor, provenances.parameter):
            leaf = "" if _UNNAMED.fullmatch(tensor.name) else tensor.name
        address = _address(tensor)
        self._inputs.append(address)
        if path in self._left:
            self._changed.append((path, tensor))
        memory = provenances.known(address)
        if memory is None:
            return _Origin(leaf=leaf, gradient_of=provenances.gradient_of(tensor))
        place = _place(tensor)
        source = memory.values.get(place)
        if source is None and provenances.sees_writes:
            source = memory.written
        if leaf is not None and memory.written is None:  # a call that returned the parameter did not make it
            source = None
        return _Origin(source=source, place=place, leaf=leaf)

    def _made(self, tensor: Any, path: str) -> _Origin:
        address, place = _address(tensor), _place(tensor)
        memory = self._provenances.known(address)
        if self._is_layer and memory is not None and place in memory.values:
            return _Origin(source=memory.values[place], place=place)
        is_argument = address in self._inputs
        is_written = not is_argument or (self._is_writing and address == self._inputs[0])
        bare = _call(self._name).rpartition(".")[2]
        value = _Value(f"{self._name}.{path}", place, is_uninitialized=bare in _FACTORIES)
        if memory is None:
            memory = self._provenances.new(address)
        elif not is_argument:  # a view of what the call did not get as an argument
            is_written = False
        memory.add(value, tensor, is_written=is_written)
        return _Origin(own=value)

    def _leave(self, path: str, tensor: Any) -> None:
        address, place = _address(tensor), _place(tensor)
        memory = self._provenances.known(address)
        value = None if memory is None else memory.values.get(place)
        if value is None or not value.name.startswith(f"{self._name}."):
            memory = memory or self._provenances.new(address)
            memory.add(_Value(f"{self._name}.{path}", place), tensor, is_written=True)


def _call(record: str) -> str:
    """`Tensor.add_` of `Tensor.add_.0.forward`."""
    return record.rsplit(".", 2)[0]


def _address(tensor: Any) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


def _place(tensor: Any) -> _Place:
    return tensor.storage_offset(), tuple(tensor.stride()), tuple(tensor.shape), tensor.dtype


def _view_text(place: _Place) -> str:
    offset, strides, shape, _ = place
    return ",".join((str(offset), " ".join(f"{length}x{stride}" for length, stride in zip(shape, strides))))
