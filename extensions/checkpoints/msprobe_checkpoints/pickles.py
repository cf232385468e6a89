"""What a pickle of a checkpoint describes: dictionaries, lists, numbers and tensors, without running what it says.

`pickle` is not used, see `pytorch_files`. A call or an object of a class becomes an inert `Made`, which holds what
the pickle gives it; nothing is called but the functions of this module.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, BinaryIO

import numpy as np

from msprobe_collector.dump_format.pytorch_files import (
    DescriptionError,
    KnownCall,
    Mark,
    PickleMachine,
    Storage,
    TensorDescription,
    find_known,
)
from msprobe_collector.dump_format.values import Dtype, abbreviated, find_dtype, printable

#: Some 40 for each tensor; more take minutes.
_MOST_OPERATIONS = 20_000_000
#: Values and levels of what a pickle describes. Lists that hold each other several times are larger than their pickle.
_MOST_LEAVES, _MOST_DEPTH = 1_000_000, 64
_LONGEST_TEXT = 200


@dataclass(eq=False, slots=True)
class Made:
    """What a call or a class would have made; compares by identity.

    Attributes:
        name: of the function or class, with its module.
        arguments: what it would have got.
        state: what its attributes would have been set to; None for nothing.
    """

    name: str
    arguments: tuple[object, ...] = ()
    state: object = None
    items: list[object] = field(default_factory=list)

    @property
    def needs_code(self) -> bool:
        """Whether only code can tell what it is: it is neither a plain container nor a mere holder of attributes."""
        return self.name not in _HARMLESS and not self.name.startswith(("numpy.dtypes.", "torch.distributed."))


@dataclass(frozen=True, slots=True)
class Name:
    """A function or class that is named, and may stand as a value."""

    name: str


#: Plain values: what stands for them in a pickle says all of them.
_HARMLESS = frozenset(
    {
        "argparse.Namespace",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.range",
        "builtins.slice",
        "_codecs.encode",
        "_io.BytesIO",
        "collections.Counter",
        "collections.deque",
        "datetime.date",
        "datetime.datetime",
        "datetime.timedelta",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.dtype",
        "numpy.ndarray",
        "pathlib.Path",
        "pathlib.PosixPath",
        "torch.device",
        "torch._C.Generator",
        "torch.serialization._get_layout",
        "types.SimpleNamespace",
        "uuid.UUID",
    }
)


def read_objects(file: BinaryIO) -> object:
    """The value of the pickle that begins where `file` stands; it stands behind it then.

    Raises:
        DescriptionError: it is damaged, too large, or of no kind that a checkpoint is.
    """
    machine = _ObjectMachine()
    try:
        for place, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if place == _MOST_OPERATIONS:
                raise DescriptionError(f"its description has more than {_MOST_OPERATIONS} operations")
            machine.step(operation.name, argument)
        return machine.stack.pop()
    except DescriptionError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError, AttributeError):
        raise DescriptionError("its description is damaged or cut off") from None


class _ObjectMachine(PickleMachine):
    """The stack and the memo, for dictionaries and lists of tensors."""

    def step(self, operation: str, argument: Any) -> None:
        """Do one operation.

        Raises:
            DescriptionError: no checkpoint needs it.
        """
        if operation in _PUSHED:
            self.stack.append(argument)
        elif operation in _CONTAINERS:
            self.stack.append(_CONTAINERS[operation]())
        elif operation in _OWN:
            _OWN[operation](self, argument)
        elif operation == "PUT":
            super().step("BINPUT", argument)
        elif operation == "GET":
            super().step("BINGET", argument)
        elif operation in _REFUSED:
            raise DescriptionError(f"its description uses {operation}, which no checkpoint does")
        else:
            super().step(operation, argument)

    def values(self) -> tuple[object, ...]:
        """Take the values since the mark."""
        self.since_mark(None)
        values = self.stack.pop()
        assert isinstance(values, tuple)
        return values

    def name_of(self, argument: str) -> None:
        """GLOBAL: a name, written as module and name."""
        module, _, name = argument.partition(" ")
        self.stack.append(_found(module, name))

    def name_on_stack(self, _: None) -> None:
        """STACK_GLOBAL: a name whose two parts are on the stack."""
        module, name = self.popped(2)
        self.stack.append(_found(str(module), str(name)))

    def reduced(self, _: None) -> None:
        """REDUCE: what stands for a call.

        Raises:
            TypeError: the pickle is damaged.
        """
        made, arguments = self.popped(2)
        if not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(_made(made, arguments))

    def new_object_with_keywords(self, _: None) -> None:
        """NEWOBJ_EX: the same with arguments by name.

        Raises:
            TypeError: the pickle is damaged.
        """
        made, arguments, keywords = self.popped(3)
        if not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(_made(made, (*arguments, keywords) if keywords else arguments))

    def built(self, _: None) -> None:
        """BUILD: give an object its attributes.

        Raises:
            TypeError: the pickle is damaged.
        """
        state = self.stack.pop()
        top = self.stack[-1]
        if isinstance(top, Made):
            top.state = state
        elif not isinstance(top, (dict, TensorDescription)):  # attributes of an OrderedDict or a tensor: `_metadata`
            raise TypeError

    def stored(self, _: None) -> None:
        """BINPERSID: the storage that a tuple describes."""
        described = self.stack.pop()
        if isinstance(described, tuple) and len(described) in (5, 6) and described[0] == "storage":
            self.stack.append(described[:5])
            self.find_storage(None)
        else:
            self.stack.append(Made("persistent", (described,)))

    def set_items(self, items: tuple[object, ...]) -> None:
        """Set keys of the dictionary on the stack.

        Raises:
            TypeError: there is none.
        """
        target = self.stack[-1]
        if isinstance(target, Made):
            target.items.extend(items)
            return
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError
        plain = (str, int, float, bool, bytes, Made, Name, type(None))
        for key, value in zip(items[::2], items[1::2]):
            target[key if isinstance(key, plain) else repr(key)] = value

    def append(self, items: tuple[object, ...]) -> None:
        """Append to the list on the stack.

        Raises:
            TypeError: there is none.
        """
        target = self.stack[-1]
        if not isinstance(target, (list, Made)):
            raise TypeError
        (target if isinstance(target, list) else target.items).extend(items)

    def dict_since_mark(self, _: None) -> None:
        """DICT: a dictionary of the values since the mark."""
        items = self.values()
        self.stack.append({})
        self.set_items(items)


def _found(module: str, name: str) -> object:
    module = "builtins" if module == "__builtin__" else module  # as pickles of protocol 2 write it
    meaning = find_known(module, name)
    if isinstance(meaning, Dtype) or (isinstance(meaning, KnownCall) and module != "collections"):
        return meaning
    dtype = find_dtype(name) if module == "torch" and name.islower() else None
    return dtype or Name(printable(f"{module}.{name}"[:_LONGEST_TEXT]))


def _made(made: object, arguments: tuple[object, ...]) -> object:
    """The value of a call, where it is one of a container or a tensor; else what stands for it."""
    if isinstance(made, KnownCall):
        return made.call(*arguments)
    name = made.name if isinstance(made, Name) else type(made).__name__
    if name == "torch._tensor._rebuild_from_type_v2" and isinstance(arguments[0], KnownCall):
        return _made(arguments[0], arguments[2] if isinstance(arguments[2], tuple) else ())
    if name == "torch._utils._rebuild_parameter_with_state":
        return arguments[0]
    if name == "collections.OrderedDict" and arguments and isinstance(arguments[0], list):
        return dict(arguments[0])
    if name == "collections.defaultdict" or (name == "collections.OrderedDict" and not any(arguments)):
        return {}
    if name == "torch.Size" and len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        return tuple(arguments[0])
    if name == "_codecs.encode" and len(arguments) == 2 and isinstance(arguments[0], str):
        return arguments[0].encode("latin-1")  # bytes in pickles of protocol 2
    if name in ("builtins.set", "builtins.frozenset", "builtins.list", "builtins.tuple") and len(arguments) <= 1:
        held = list(arguments[0]) if arguments and isinstance(arguments[0], (list, tuple)) else []
        return sorted(held, key=repr) if name.endswith("set") else held
    return Made(name, arguments)


_PUSHED = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split()
)
_CONTAINERS: dict[str, Callable[[], object]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
_REFUSED = frozenset("PERSID EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER INST OBJ".split())
_OWN: dict[str, Callable[[_ObjectMachine, Any], object]] = {
    "GLOBAL": _ObjectMachine.name_of,
    "STACK_GLOBAL": _ObjectMachine.name_on_stack,
    "REDUCE": _ObjectMachine.reduced,
    "NEWOBJ": _ObjectMachine.reduced,
    "NEWOBJ_EX": _ObjectMachine.new_object_with_keywords,
    "BUILD": _ObjectMachine.built,
    "BINPERSID": _ObjectMachine.stored,
    "SETITEM": lambda machine, _: machine.set_items(machine.popped(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.values()),
    "APPEND": lambda machine, _: machine.append(machine.popped(1)),
    "APPENDS": lambda machine, _: machine.append(machine.values()),
    "ADDITEMS": lambda machine, _: machine.append(machine.values()),
    "LIST": lambda machine, _: machine.stack.append(list(machine.values())),
    "FROZENSET": lambda machine, _: machine.stack.append(list(machine.values())),
    "DICT": _ObjectMachine.dict_since_mark,
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.values(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
}


def flattened(value: object) -> Iterator[tuple[str, object]]:
    """(dotted name, leaf) of everything in a nested value: tensors, arrays, numbers, texts, and what needs code.

    Raises:
        DescriptionError: there are too many, too deep.
    """
    yield from _walk(value, "", 0, count())


def _walk(value: object, name: str, depth: int, visited: Iterator[int]) -> Iterator[tuple[str, object]]:
    if next(visited) > _MOST_LEAVES:
        raise DescriptionError(f"it describes more than {_MOST_LEAVES} values")
    if depth > _MOST_DEPTH:
        raise DescriptionError(f"its dictionaries are nested more than {_MOST_DEPTH} deep")
    inner = f"{name}." if name else ""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{inner}{key.name if isinstance(key, (Made, Name)) else key}", depth + 1, visited)
    elif isinstance(value, (list, tuple)):
        is_plain = all(type(item) in (int, float, bool, str) for item in value)
        if len(value) > 8 and "param_groups" not in name and is_plain:
            yield name, _shortened(repr(value))
            return
        for index, item in enumerate(value):
            yield from _walk(item, f"{inner}{index}", depth + 1, visited)
    elif isinstance(value, Made):
        local = _local_part(value)
        if local is not None:
            yield name, local
            return
        array = _array_of(value)
        if array is not None:
            yield name, array
            return
        yield name, value
        if isinstance(value.state, dict):
            yield from _walk(value.state, name, depth + 1, visited)
        elif value.state is not None:
            yield from _walk(value.state, f"{inner}state", depth + 1, visited)
        for part, held in (("arguments", list(value.arguments)), ("items", value.items)):
            if held:
                yield from _walk(held, f"{inner}{part}", depth + 1, visited)
    elif isinstance(value, (Dtype, Name)):
        yield name, value.name
    elif isinstance(value, (bytes, bytearray)):
        yield name, _shortened(bytes(value).hex())
    elif isinstance(value, (Mark, KnownCall)):
        raise DescriptionError("its description is damaged")
    else:
        yield name, _shortened(value) if isinstance(value, str) else value


def _shortened(text: str) -> str:
    """A text that is equal for equal texts, of a length that can be kept and shown."""
    if len(text) <= _LONGEST_TEXT:
        return text
    from xxhash import xxh3_64_hexdigest

    digest = xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
    return f"{text[:60]}... ({len(text)} characters, XXH3 {digest})"


def _local_part(made: Made) -> TensorDescription | None:
    """The part of its rank that a DTensor in a file of one rank holds; None for anything else."""
    arguments = made.arguments
    if made.name != "torch._tensor._rebuild_from_type_v2" or len(arguments) != 4:
        return None
    is_distributed = isinstance(arguments[1], Name) and arguments[1].name == "torch.distributed.tensor.DTensor"
    states = arguments[3] if isinstance(arguments[3], tuple) else (arguments[3],)
    tensors = [state["_local_tensor"] for state in states if isinstance(state, dict) and "_local_tensor" in state]
    return tensors[0] if is_distributed and tensors and isinstance(tensors[0], TensorDescription) else None


def _array_of(made: Made) -> object | None:
    """The NumPy array or scalar that `made` stands for; None for anything else."""
    if made.name.endswith("multiarray.scalar") and len(made.arguments) == 2:
        dtype, raw = _numpy_dtype(made.arguments[0]), made.arguments[1]
        if dtype is not None and isinstance(raw, bytes) and len(raw) == dtype.itemsize:
            number: object = np.frombuffer(raw, dtype)[0].item()
            return number
    state = made.state
    if made.name.endswith("multiarray._reconstruct") and isinstance(state, tuple) and len(state) == 5:
        _, shape, written, is_fortran, raw = state
        dtype = _numpy_dtype(written)
        if dtype is not None and isinstance(raw, bytes) and isinstance(shape, tuple):
            if len(raw) != dtype.itemsize * int(np.prod(shape, dtype=object)):
                raise DescriptionError("an array in it is not as long as its shape says")
            return np.frombuffer(raw, dtype).reshape(shape, order="F" if is_fortran else "C")
    return None


def _numpy_dtype(written: object) -> np.dtype[Any] | None:
    if not isinstance(written, Made) or written.name != "numpy.dtype" or not written.arguments:
        return None
    code = written.arguments[0]
    if not isinstance(code, str) or code[:1] not in "biufc" or not code[1:].isdecimal():
        return None
    try:
        return np.dtype(code)
    except TypeError:
        return None


def find_storages(value: object) -> Iterator[Storage]:
    """Storages in the arguments of what needs code to load: their elements are not compared."""
    if isinstance(value, Storage):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_storages(item)


def shown(made: Made) -> str:
    """What it is called in a message."""
    return abbreviated(made.name)[1:-1]
