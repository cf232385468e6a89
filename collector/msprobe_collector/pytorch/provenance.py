"""Where tensors come from: which recorded value was written last to their memory.

Memory is known by its storage. A weak reference keeps nothing but the number of the storage, which PyTorch then gives
to no other one. Writes are known by the version counters of tensors, whoever writes: a version that no recorded call
left tells of one that no record shows. Tensors made by `.data` count versions of their own, so several are in order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from msprobe_collector.dump_format import is_cell_record
from msprobe_collector.dump_format.records import api_of
from msprobe_collector.dump_format.values import CHANGED, GRADIENT_OF, LEAF, MADE_BY, UNINITIALIZED, VIEW
from msprobe_collector.dump_format.writing.files import quoted
from msprobe_collector.pytorch.api_names import changes_first_argument
from msprobe_collector.pytorch.parameter_names import own_parameters
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.observing import as_sequence, communicates
from msprobe_collector.recording.recorder import view_text

_UNINITIALIZED = f', "{UNINITIALIZED}": true'
_CHANGED = f', "{CHANGED}": true'
#: Of a tensor made in inference mode, which counts none.
_NO_VERSION = -1
#: Storages that are kept before those that are gone are thrown out; names and writes of one storage.
_LEAST_STORAGES, _MOST_NAMES = 1024, 64
#: `Memory.writes` where nothing is known of them.
_UNKNOWN: list[tuple[Part | None, str]] = [(None, "")]
_OWN_TYPES = (torch.Tensor, torch.nn.Parameter)

#: Calls that change running statistics, and where those stand.
_RUNNING = ("input.1.", "input.2.", "kwargs.running_mean.", "kwargs.running_var.")
_RUNNING_LATER = ("input.3.", "input.4.", *_RUNNING[2:])
#: Where the running statistics of a norm are, and whether it writes into them by default.
_NORMS = {
    "Functional.batch_norm": (_RUNNING, False),
    "Functional.instance_norm": (_RUNNING, True),
    "Torch.batch_norm": (_RUNNING_LATER, False),
    "Torch.instance_norm": (_RUNNING_LATER, True),
}
#: Where communication puts what it receives.
_FIRST = ("input.0.", *(f"kwargs.{name}." for name in ("tensor", "tensor_list", "output", "output_tensor")))
_RECEIVED = {
    "Distributed.gather": ("input.1.", "kwargs.gather_list."),
    **dict.fromkeys(("Distributed.send", "Distributed.isend"), ()),
    **dict.fromkeys(
        ("Distributed.all_to_all", "Distributed.batch_isend_irecv"),
        (*_FIRST, "kwargs.output_tensor_list.", "kwargs.p2p_op_list."),
    ),
}

#: Offset, shape and strides of a tensor in its storage, in elements, and their dtype.
Part = tuple[int, Sequence[int], Sequence[int], Any]
#: Storage, version and part of a tensor.
Place = tuple[Any, int, Part]


class Memory:
    """What is known of one storage; all texts are JSON that begins with a comma.

    Attributes:
        names: the values that lie there whole, since they were written.
        writes: parts in the order in which they were written; None stands for all. "" is of unknown origin.
        versions: of the counters, when nobody but recorded calls had written.
        leaves, gradients: parameters and buffers that lie there, and gradients of parameters.
    """

    __slots__ = ("_reference", "gradients", "leaves", "names", "versions", "writes")

    def __init__(self, storage: Any, version: int, text: str = "", part: Part | None = None) -> None:
        """Written whole by what `text` says, or as far as it is `part`."""
        self._reference: int = storage._weak_ref()
        self.names: dict[Part, str] = {} if part is None else {part: text}
        self.writes: list[tuple[Part | None, str]] = [(part, text)]
        self.versions: tuple[int, ...] = (version,)
        self.leaves: dict[Part, str] = {}
        self.gradients: dict[Part, str] = {}

    def __del__(self, free: Callable[[int], None] = torch.UntypedStorage._free_weak_ref) -> None:
        """Let the number of the storage be given to another one."""
        free(self._reference)

    @property
    def is_gone(self) -> bool:
        """Whether no tensor lies there any more."""
        return bool(torch.UntypedStorage._expired(self._reference))

    def notice(self, version: int) -> None:
        """A tensor that lies here has this version: one that no recorded call left, and that is no new counter's."""
        if version not in self.versions:
            if version:
                self.change()
            self.versions = (*self.versions[-7:], version)

    def change(self) -> None:
        """Something that is no record has written here."""
        self.names = {part: _changed(text) for part, text in self.names.items()}
        self.writes = [(part, _changed(text)) for part, text in self.writes]

    def write(self, part: Part, text: str, before: int, version: int, front: str = "\n") -> None:
        """A recorded call has written `part`, and raised a counter from `before` to `version`.

        The names that it has given itself, which begin with `front`, stay.
        """
        names = self.names.items()
        self.names = {other: name for other, name in names if not may_overlap(other, part) or name.startswith(front)}
        self._bound_names()
        self.names[part] = text
        kept = [write for write in self.writes if write[0] is None or not _covers(part, write[0])]
        if len(kept) >= _MOST_NAMES:
            kept = [(None, ""), *kept[-_MOST_NAMES // 2 :]]
        self.writes = [*kept, (part, text)]
        self.rise(before, version)

    def rise(self, before: int, version: int) -> None:
        """A recorded call has raised a counter."""
        self.versions = (*(earlier for earlier in self.versions[-7:] if earlier not in (before, version)), version)

    def _bound_names(self) -> None:
        if len(self.names) >= _MOST_NAMES:
            self.names = dict(list(self.names.items())[_MOST_NAMES // 2 :])

    def name(self, part: Part, text: str) -> None:
        """A recorded call has returned `part`, into which it has not written."""
        self._bound_names()
        self.names[part] = text
        if self.writes[-1][0] == part:
            self.writes = [*self.writes[:-1], (part, text)]
        elif not any(other is None or may_overlap(other, part) for other, _ in self.writes):
            self.writes = [*self.writes, (part, text)]

    def text(self, part: Part) -> str:
        """What the dump says of the value at `part`."""
        made = self.names.get(part) if self.names or self.writes != _UNKNOWN else ""
        if made is None:
            source, made = self._source(part)
            made = made and _viewed(made, part, source)
        if self.leaves:
            made += _own(self.leaves, part, is_part=VIEW not in made)
        if self.gradients:
            made += _own(self.gradients, part, is_part=VIEW not in made)
        return made

    def _source(self, part: Part) -> tuple[Part | None, str]:
        """What holds all elements of `part`: a value made of them, else what was written last; "" for several."""
        for other, text in reversed(self.names.items()):
            if _elements(other) == _elements(part):
                return other, text
        for source, text in reversed(self.writes):
            if source is None or _covers(source, part):
                return source, text
            if may_overlap(source, part):
                break
        return None, ""


class Keys(str):
    """See `Origin` of encoding: keys that are known at once."""

    __slots__ = ()

    def keys(self, described: str) -> str:
        """See `Origin`."""
        return self


class TorchProvenances:
    """See `Provenances` of the recorder.

    Attributes:
        memory: what is known of storages, by their numbers.
    """

    def __init__(self, guard: Guard, backward_passes: Callable[[], int]) -> None:
        """Know nothing yet; `backward_passes` counts them: each may have given parameters other gradients."""
        self.guard = guard
        self._passes = backward_passes
        self._passes_seen = -1
        self.memory: dict[int, Memory] = {}
        self._most = _LEAST_STORAGES
        #: By id, which is another tensor's where that one is gone.
        self._parameters: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._with_gradients: list[Memory] = []

    def record(self, name: str) -> TorchOrigins:
        """See `Provenances`."""
        if self._passes_seen != self._passes():
            self._passes_seen = self._passes()
            self.guard.faults.guarded("gradients of parameters", self._find_gradients)
        return TorchOrigins(self, name)

    def passed(self, name: str, arguments: Sequence[Any]) -> None:
        """See `Provenances`. Versions tell of most writes, but not of those through `.data`."""
        api = api_of(name)
        if not (uncounted(api, arguments, {}) or (arguments and changes_first_argument(api))):
            return
        most = 5 if api in _NORMS else 1 + communicates(api)
        for value in arguments[:most]:
            for tensor in as_sequence(value):
                self.guard.faults.guarded(name, self._forget, tensor)

    def clear(self) -> None:
        """See `Provenances`."""
        self.memory = {}
        self._parameters, self._with_gradients = {}, []
        self._most, self._passes_seen = _LEAST_STORAGES, -1

    def watch(self, modules: Iterable[tuple[str, Any]]) -> None:
        """Know parameters and buffers by name, of several names by the first; `modules` come with their paths."""
        for path, module in modules:
            for last, parameter in own_parameters(module).items():
                name = f"{path}.{last}".removeprefix(".")
                self._add_leaf(name, parameter)
                self._parameters.setdefault(id(parameter), (weakref.ref(parameter), name))
            if module._buffers:
                for last, buffer in module.named_buffers(recurse=False):
                    self._add_leaf(f"{path}.{last}".removeprefix("."), buffer)

    def name_of(self, tensor: Any) -> str:
        """Of a parameter, wherever it lies now (`parameter.data = ...`); "" for one that is not watched."""
        reference, name = self._parameters.get(id(tensor), (None, ""))
        return name if reference is not None and reference() is tensor else ""

    def allocated(self, tensor: Any) -> None:
        """`tensor` is new, and nothing has been written to it."""
        place = place_of(tensor)
        if place is not None and place[0].nbytes() and place[0]._cdata not in self.memory:
            self.add(place, _UNINITIALIZED, None)

    def add(self, place: Place, text: str, part: Part | None) -> Memory:
        """Memory that is met for the first time, with its first write."""
        if len(self.memory) >= self._most:
            self.memory = {key: memory for key, memory in list(self.memory.items()) if not memory.is_gone}
            self._most = max(_LEAST_STORAGES, 2 * len(self.memory))
        memory = self.memory[place[0]._cdata] = Memory(place[0], place[1], text, part)
        return memory

    def _forget(self, tensor: Any) -> None:
        if (place := self._known(tensor)) is not None:
            place[0].change()

    def _known(self, tensor: Any) -> tuple[Memory, Part] | None:
        if (place := place_of(tensor)) is None:
            return None
        return self.memory.get(place[0]._cdata) or self.add(place, "", None), place[2]

    def _add_leaf(self, name: str, tensor: Any) -> None:
        if (place := self._known(tensor)) is not None:
            place[0].leaves.setdefault(place[1], f', "{LEAF}": {quoted(name)}')

    def _find_gradients(self) -> None:
        for memory in self._with_gradients:
            memory.gradients = {}
        self._with_gradients = []
        for reference, name in self._parameters.values():
            parameter = reference()
            gradient = parameter.grad if parameter is not None and parameter.is_leaf else None
            if gradient is not None and (place := self._known(gradient)) is not None:
                place[0].gradients.setdefault(place[1], f', "{GRADIENT_OF}": {quoted(name)}')
                self._with_gradients.append(place[0])


class TorchOrigins:
    """See `Origins` of encoding."""

    __slots__ = ("_inputs", "_is_layer", "_name", "_provenances", "_uncounted", "_versions", "_written")

    def __init__(self, provenances: TorchProvenances, name: str) -> None:
        """Follow the tensors of the forward record `name`."""
        self._provenances = provenances
        self._name = name
        #: Its name for a value yields to those of the calls inside.
        self._is_layer = is_cell_record(name)
        #: The arguments of a call, while it runs.
        self._inputs: list[_Input] = []
        #: Of the storages of the arguments, before the call.
        self._versions: dict[int, int] = {}
        self._written: dict[int, dict[tuple[Any, ...], _Input]] | None = None
        self._uncounted: tuple[str, ...] = ()

    def expect(self, api: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """These are the arguments of the call of `api` that is about to run."""
        self._uncounted = uncounted(api, args, kwargs)

    def of(self, tensor: Any, path: str) -> Keys | None:
        """See `Origins`."""
        try:
            if (place := place_of(tensor)) is not None:
                if not path.startswith("output"):
                    return self._taken(tensor, place, path)
                self._made(place, path)
        except Exception as error:
            self._provenances.guard.faults.note(self._name, error)
        return None

    def changed(self) -> list[Any]:
        """The arguments into which the call has written, in order."""
        written = [argument.tensor for argument in self._inputs if self._is_written(argument)]
        return list(dict(zip(map(id, written), written)).values())

    def end(self) -> None:
        """See `Origins`: name what the call has left in its arguments, unless a name is given already."""
        try:
            if self._arguments_written():
                self._leave()
        except Exception as error:
            self._provenances.guard.faults.note(self._name, error)
        self._inputs, self._written = [], None

    def _taken(self, tensor: Any, place: Place, path: str) -> Keys | None:
        storage, version, part = place
        key = storage._cdata
        self._versions.setdefault(key, version)
        if not self._is_layer:
            self._inputs.append(_input((path, tensor, version, key, part)))
        memory = self._provenances.memory.get(key)
        text = ""
        if memory is None:
            self._provenances.add(place, "", None)
        else:
            if version not in memory.versions:
                memory.notice(version)
            text = memory.text(part)
        if not text and tensor.requires_grad and tensor.is_leaf and not tensor._is_view():
            text = f', "{LEAF}": {quoted(self._provenances.name_of(tensor))}'
        return Keys(text) if text else None

    def _made(self, place: Place, path: str) -> None:
        storage, version, part = place
        text = f', "{MADE_BY}": {quoted(f"{self._name}.{path}")}'
        memory = self._provenances.memory.get(storage._cdata)
        if memory is None:
            self._provenances.add(place, text, part)
        elif storage._cdata not in self._versions or not self._write(memory, place, text):
            memory.notice(version)
            if not (self._is_layer and part in memory.names):
                memory.name(part, text)

    def _write(self, memory: Memory, place: Place, text: str) -> bool:
        """Whether the call has written `place` through an argument, and no record before has told of it."""
        storage, version, part = place
        if self._is_layer:
            before = self._versions[storage._cdata]
            is_told = before in (version, _NO_VERSION) or version in memory.versions
            if not is_told:
                memory.write(part, text, before, version)
            return not is_told
        written = self._arguments_written().get(storage._cdata)
        if not written:
            return False
        if (argument := written.pop(_elements(part), None)) is not None:
            memory.write(part, text, argument.version, version, self._own)
            return True
        # A view of what it has written.
        memory.rise(next(iter(written.values())).version, version)
        return False

    @property
    def _own(self) -> str:
        return f', "{MADE_BY}": "{self._name}.'

    def _leave(self) -> None:
        for key, arguments in self._arguments_written().items():
            if (memory := self._provenances.memory.get(key)) is None:  # cleared meanwhile
                continue
            for argument in arguments.values():
                text = f', "{MADE_BY}": {quoted(f"{self._name}.{argument.path}")}'
                is_counted = argument.version != _NO_VERSION
                now = int(_local(argument.tensor)._version) if is_counted else _NO_VERSION
                memory.write(argument.part, text, argument.version, now, self._own)

    def _arguments_written(self) -> dict[int, dict[tuple[Any, ...], _Input]]:
        """By storage and elements those into which the call, which has run, wrote."""
        if self._written is None:
            self._written = {}
            for argument in self._inputs:
                if self._is_written(argument):
                    self._written.setdefault(argument.storage, {})[_elements(argument.part)] = argument
        return self._written

    def _is_written(self, argument: _Input) -> bool:
        if self._uncounted and f"{argument.path}.".startswith(self._uncounted):
            return True
        if argument.version == _NO_VERSION:
            return argument is self._inputs[0] and changes_first_argument(api_of(self._name))
        tensor = argument.tensor
        is_plain = type(tensor) in _OWN_TYPES
        return bool((tensor if is_plain else _local(tensor))._version != argument.version)


class _Input(NamedTuple):
    """An argument of a call, as it was before."""

    path: str
    tensor: Any
    version: int
    storage: int
    part: Part


#: Makes an `_Input` of five values, without the cost of its own `__new__`.
_input: Callable[[tuple[str, Any, int, int, Part]], _Input] = partial(tuple.__new__, _Input)


def place_of(tensor: Any) -> Place | None:
    """Where a tensor lies; None for one without memory of its own (sparse, nested, inside vmap, fake, no tensor)."""
    if type(tensor) not in _OWN_TYPES:
        tensor = _local(tensor)
        if getattr(type(tensor), "__torch_dispatch__", None) is not torch._C._disabled_torch_dispatch_impl:
            return None
    try:
        dtype = tensor.dtype
        if tensor.is_conj() if dtype.is_complex else tensor.is_neg():  # other values than those in memory
            return None
        storage, part = tensor.untyped_storage(), (tensor.storage_offset(), tensor.shape, tensor.stride(), dtype)
        return storage, _NO_VERSION if tensor.is_inference() else tensor._version, part
    except (RuntimeError, NotImplementedError):
        return None


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor) if hasattr(tensor, "placements") else tensor


def uncounted(api: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """How the paths begin of the arguments into which a call writes although no version says so."""
    if communicates(api):
        return _RECEIVED.get(api, _FIRST)
    if api not in _NORMS:
        return ()
    running, by_default = _NORMS[api]
    named = kwargs.get("training", kwargs.get("use_input_stats", by_default))
    is_training = args[5] if len(args) > 5 else named
    return running if is_training else ()


def may_overlap(part: Part, other: Part) -> bool:
    """Whether two parts may share elements; False only where they cannot, like columns and their blocks."""
    if part[3] is not other[3]:  # counted in other elements
        return True
    for modulus in (0, *part[2]):
        first, last = _interval(part, modulus)
        other_first, other_last = _interval(other, modulus)
        is_whole = not modulus or max(last, other_last) < modulus
        if is_whole and (last < other_first or other_last < first):
            return False
    return True


def _interval(part: Part, modulus: int) -> tuple[int, int]:
    """First and last element of a part, in memory that is wound up in turns of `modulus`; 0 is no winding."""
    steps = ((size - 1) * stride for size, stride in zip(part[1], part[2]) if not modulus or stride % modulus)
    first = part[0] % modulus if modulus else part[0]
    return first, first + sum(steps)


def _covers(outer: Part, inner: Part) -> bool:
    """Whether every element of `inner` is known to be one of `outer`."""
    if _elements(outer) == _elements(inner):
        return True
    steps = _elements(outer)[2:]
    if len(steps) > 1 or (steps and steps[0][0] != 1):  # not every element in between
        return False
    (first, last), width = _interval(outer, 0), outer[3].itemsize
    (start, end), inner_width = _interval(inner, 0), inner[3].itemsize
    return bool(first * width <= start * inner_width and (end + 1) * inner_width <= (last + 1) * width)


@lru_cache(maxsize=4096)
def _elements(part: Part) -> tuple[Any, ...]:
    """Equal for parts that are made of the same elements, in whatever order and shape."""
    steps: list[tuple[int, int]] = []
    for stride, size in sorted(
        (stride, size) for size, stride in zip(part[1], part[2]) if size != 1 and (stride or not size)
    ):
        if steps and steps[-1][0] * steps[-1][1] == stride:
            steps[-1] = steps[-1][0], steps[-1][1] * size
        else:
            steps.append((stride, size))
    return part[0], part[3], *steps


def _changed(text: str) -> str:
    if not text or text == _UNINITIALIZED:
        return ""
    return text.removesuffix(_CHANGED) + _CHANGED


def _own(names: dict[Part, str], part: Part, *, is_part: bool) -> str:
    """The text of the tensor at `part`, or of the one that it is a part of."""
    if (text := names.get(part)) is not None:
        return text
    near = [(other, text) for other, text in names.items() if may_overlap(other, part)]
    if len(near) != 1:
        return ""
    return _viewed(near[0][1], part, near[0][0]) if is_part else near[0][1]


def _viewed(text: str, part: Part, source: Part | None) -> str:
    """`text` with the offset of `part` in `source`, and its shape and strides, in its own elements; "" for no such."""
    if source is None or part == source:
        return text
    distance, rest = divmod(part[0] * part[3].itemsize - source[0] * source[3].itemsize, part[3].itemsize)
    return "" if rest else f'{text}, "{VIEW}": "{view_text(distance, part[1], part[2])}"'
