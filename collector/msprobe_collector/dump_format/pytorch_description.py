"""The description of a tensor in a `.pt` file: a pickle, evaluated by a stack machine that can only make inert values.

`pickle` is not used: it would have to be kept from calling, from setting attributes and from filling a memo of any
size. The operations here are those that torch.save writes for one tensor, in pickle protocols 2 to 5.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format.dtypes import Dtype, find_dtype
from msprobe_collector.dump_format.text import shown

#: torch.save writes about 60 for one tensor.
_MOST_OPERATIONS = 1000
#: Offsets, sizes and strides count elements; a file system holds fewer bytes than this.
_LARGEST_INTEGER = 1 << 62


class DescriptionError(ValueError):
    """Why a pickle does not describe one tensor."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the elements are.

    Attributes:
        dtype: of the elements.
        key: name of the member that holds them.
        size: how many there are.
    """

    dtype: Dtype
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor over a storage; offset and strides count elements, as in PyTorch."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_description(pickled: bytes) -> TensorDescription:
    """The tensor that `pickled` describes.

    Raises:
        DescriptionError: it names or does what a tensor does not need, or describes something else.
    """
    machine = _Machine()
    try:
        for count, (operation, argument, _) in enumerate(pickletools.genops(pickled)):
            if count == _MOST_OPERATIONS:
                raise DescriptionError(f"its description has more than {_MOST_OPERATIONS} operations")
            machine.step(operation.name, argument)
        found = machine.stack.pop()
    except DescriptionError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        raise DescriptionError("its description is damaged") from None
    if not isinstance(found, TensorDescription):
        raise DescriptionError(f"it holds a {type(found).__name__}, not a tensor")
    return found


class _Mark:
    """Where on the stack a tuple begins."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that may be called, and what a call of it gives."""

    call: Callable[..., object]


class _Hooks:
    """The empty OrderedDict of backward hooks."""


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[object] = []
        self._memo: dict[int, object] = {}

    def step(self, operation: str, argument: Any) -> None:
        """Do one operation.

        Raises:
            DescriptionError: the description of a tensor does not need this operation, or holds no number like this
                one.
        """
        if operation in _VALUES:
            self._push_value(argument)
        elif operation in _CONSTANTS:
            self.stack.append(_CONSTANTS[operation])
        elif operation in _TUPLES:
            self.stack.append(self._popped(_TUPLES[operation]))
        elif operation in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif operation in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif operation in _STEPS:
            _STEPS[operation](self, argument)
        elif operation not in _NO_EFFECT:
            raise DescriptionError(f"its description uses {operation}, which that of one tensor does not")

    def _push_value(self, argument: Any) -> None:
        if isinstance(argument, int) and not -_LARGEST_INTEGER < argument < _LARGEST_INTEGER:
            raise DescriptionError("its description holds a number that no tensor has")
        self.stack.append(argument)

    def _popped(self, count: int) -> tuple[object, ...]:
        if count > len(self.stack):
            raise IndexError
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return items

    def since_mark(self, _: None) -> None:
        """TUPLE: put a tuple of the values above the last mark in their place.

        Raises:
            IndexError: there is no mark.
        """
        for position in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[position], _Mark):
                items = self._popped(len(self.stack) - position)
                self.stack.append(items[1:])
                return
        raise IndexError

    def find_global(self, argument: str) -> None:
        """GLOBAL: a name, written as module and name with a space between."""
        module, _, name = argument.partition(" ")
        self.stack.append(_find(module, name))

    def find_stack_global(self, _: None) -> None:
        """STACK_GLOBAL: a name whose two parts are on the stack."""
        module, name = self._popped(2)
        self.stack.append(_find(str(module), str(name)))

    def call(self, _: None) -> None:
        """REDUCE: put the value of a name for its arguments in their place.

        Raises:
            TypeError: there is no such name below, or the arguments are not a tuple.
        """
        name, arguments = self._popped(2)
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(name.call(*arguments))

    def find_storage(self, _: None) -> None:
        """BINPERSID: put the storage in the place of the tuple that describes it.

        Raises:
            TypeError: the tuple does not describe a storage.
        """
        described = self.stack.pop()
        if not isinstance(described, tuple):
            raise TypeError
        kind, dtype, key, _location, size = described
        if kind != "storage" or not isinstance(dtype, Dtype) or not isinstance(key, str) or not _is_size(size):
            raise TypeError
        self.stack.append(Storage(dtype, key, size))


def _find(module: str, name: str) -> object:
    if module == "torch" and (name in _STORAGES or name in UNTYPED):
        return find_dtype(_STORAGES.get(name, name))
    if (module, name) == ("torch.storage", "UntypedStorage"):
        return find_dtype("UInt8")
    known = _KNOWN.get((module, name))
    if known is None:
        raise DescriptionError(f"it names {shown(f'{module}.{name}'[:100])}, which a tensor does not need; refused")
    return known


def _rebuild_tensor(
    storage: object, offset: object, shape: object, strides: object, *others: object
) -> TensorDescription:
    # After these come requires_grad, hooks and, for a conjugate view and the like, a dict, which EMPTY_DICT refuses.
    if not isinstance(storage, Storage) or not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(strides):
        raise TypeError
    return TensorDescription(storage, offset, shape, strides)  # type: ignore[arg-type]  # the lines above have seen to it


def _rebuild_untyped(
    storage: object, offset: object, shape: object, strides: object, _grad: object, _hooks: object, dtype: object
) -> TensorDescription:
    # Dtypes that came after the typed storages: the storage counts bytes, and the dtype stands beside it.
    if not isinstance(storage, Storage) or not isinstance(dtype, Dtype):
        raise TypeError
    typed = Storage(dtype, storage.key, storage.size // dtype.item_bytes)
    return _rebuild_tensor(typed, offset, shape, strides)


def _rebuild_parameter(tensor: object, *_others: object) -> object:
    return tensor


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_size, value))


_VALUES = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"})
_CONSTANTS: dict[str, object] = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None, "MARK": _Mark()}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": _Machine.since_mark,
    "GLOBAL": _Machine.find_global,
    "STACK_GLOBAL": _Machine.find_stack_global,
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.find_storage,
}
_NO_EFFECT = frozenset({"PROTO", "FRAME", "STOP"})
_STORAGES = {
    "BoolStorage": "Bool",
    "ByteStorage": "UInt8",
    "CharStorage": "Int8",
    "ShortStorage": "Int16",
    "IntStorage": "Int32",
    "LongStorage": "Int64",
    "HalfStorage": "Float16",
    "BFloat16Storage": "BFloat16",
    "FloatStorage": "Float32",
    "DoubleStorage": "Float64",
    "ComplexFloatStorage": "Complex64",
    "ComplexDoubleStorage": "Complex128",
}
#: Names in `torch` of dtypes without a typed storage.
UNTYPED = frozenset({"float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"})
_KNOWN = {
    ("torch._utils", "_rebuild_tensor_v3"): _Name(_rebuild_untyped),
    ("torch._utils", "_rebuild_tensor_v2"): _Name(_rebuild_tensor),
    ("torch._utils", "_rebuild_parameter"): _Name(_rebuild_parameter),
    ("collections", "OrderedDict"): _Name(_Hooks),
}
