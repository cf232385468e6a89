"""Parts of values, read without running code of theirs: their tensors, and what JSON has for plain ones."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MemberDescriptorType, ModuleType
from typing import Any, Union

#: Containers deeper than this, and values in one object beyond this many, are not looked into.
_MAX_DEPTH, _MOST_IN_OBJECT = 50, 10_000
Parts = Union[Mapping[Any, Any], Sequence[Any]]


class ValueParts:
    """Takes values apart.

    Lists, tuples, deques, mappings, named tuples, dataclasses and attrs classes are made of all their parts. Of other
    objects (a KV cache) only what leads to tensors is taken, where the object keeps it: its dictionary and its slots.
    So no property and no `__getattr__` runs. What can be called (a layer, a function) is never looked into.
    """

    def __init__(
        self,
        tensor_types: tuple[type, ...],
        *,
        opaque: tuple[type, ...] = (),
        registered: Callable[[Any], Sequence[Any] | None] | None = None,
    ) -> None:
        """Take apart values of one framework.

        Args:
            tensor_types: the classes of its tensors, which are whole.
            opaque: classes that are whole besides.
            registered: the parts that a class has declared to the framework, None for a class that has not.
        """
        self._tensors = tensor_types
        self._opaque = (*opaque, type, ModuleType)
        self._registered = registered
        #: Types that hold nothing, met so far.
        self._bare: set[type] = {type(None), bool, int, float, complex, str, bytes, slice, range}

    def of(self, value: Any) -> Parts | None:
        """The parts of a container or a record by position or name; None of any other value."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return dict(zip(value._fields, value))
        if isinstance(value, (list, tuple, deque, Mapping)):
            return value
        if isinstance(value, self._opaque):
            return None
        if dataclasses.is_dataclass(value):
            return _read(value, [field.name for field in dataclasses.fields(value)])
        if (fields := getattr(type(value), "__attrs_attrs__", None)) is not None:
            return _read(value, [field.name for field in fields])
        return None

    def tree(self, value: Any) -> Any:
        """`value` as dicts, lists and tensors alone, None in lists where no tensor is; None when it holds none.

        An object that is met twice, or stands inside itself, is taken once.
        """
        return None if type(value) in self._bare else _Walk(self).tree(value)

    def tensors(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """(path, tensor) of `value` and of all inside it: `kwargs.cache.layers.0.keys`."""
        if type(value) not in self._bare:
            yield from _flat(path, self.tree(value))

    def is_tensor(self, value: Any) -> bool:
        """Whether `value` is a tensor of the framework."""
        return isinstance(value, self._tensors)

    def is_whole(self, value: Any) -> bool:
        """Whether an object that is no container is not looked into."""
        kind: Any = type(value)
        if kind in self._bare or isinstance(value, self._opaque) or callable(value):
            return True
        slots, has_dictionary = _kept(kind)
        if not slots and not has_dictionary and self.registered(value) is None:
            self._bare.add(kind)
            return True
        return False

    def kept(self, value: Any) -> dict[str, Any]:
        """What an object keeps, by name, whether it holds a tensor or not."""
        kind: Any = type(value)
        slots, has_dictionary = _kept(kind)
        held = object.__getattribute__(value, "__dict__") if has_dictionary else {}
        held = dict(held) if type(held) is dict else {}
        for name, slot in slots:
            with suppress(AttributeError):
                held[name] = slot.__get__(value)
        return held

    def registered(self, value: Any) -> Sequence[Any] | None:
        """The parts that the class of `value` has declared to the framework; None where it has not."""
        return None if self._registered is None else self._registered(value)


class _Walk:
    """One look into a value, however its parts hang together."""

    def __init__(self, parts: ValueParts) -> None:
        self._parts = parts
        self._open: set[int] = set()
        self._objects: set[int] = set()
        self._left = _MOST_IN_OBJECT

    def tree(self, value: Any) -> Any:
        """See `ValueParts.tree`."""
        if self._parts.is_tensor(value):
            return value
        if type(value) in self._parts._bare or id(value) in self._open or len(self._open) > _MAX_DEPTH:
            return None
        parts = self._parts.of(value)
        if parts is not None:
            return self._of(value, parts)
        if id(value) in self._objects or self._left <= 0 or self._parts.is_whole(value):
            return None
        self._objects.add(id(value))
        return self._of(value, self._parts.kept(value)) or self._of(value, self._parts.registered(value) or ())

    def _of(self, value: Any, parts: Parts) -> Any:
        """The tree of `value`, which has `parts`."""
        if self._objects:
            self._left -= len(parts)
        self._open.add(id(value))
        try:
            if isinstance(parts, Mapping):
                trees = {str(name): self.tree(item) for name, item in parts.items()}
                return {name: tree for name, tree in trees.items() if tree is not None} or None
            items = [self.tree(item) for item in parts]
            return items if any(item is not None for item in items) else None
        finally:
            self._open.discard(id(value))


def _flat(path: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, (dict, list)):
        for step, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _flat(f"{path}.{step}", item)
    elif tree is not None:
        yield path, tree


def _read(value: Any, names: Sequence[str]) -> dict[str, Any]:
    held = {}
    for name in names:
        with suppress(AttributeError):  # a field that has no value yet
            held[name] = object.__getattribute__(value, name)
    return held


@lru_cache(maxsize=1024)
def _kept(kind: type) -> tuple[tuple[tuple[str, MemberDescriptorType], ...], bool]:
    """(slots of a class by name, whether its instances have a dictionary)."""
    slots = {
        name: slot
        for owner in reversed(kind.__mro__)
        for name, slot in vars(owner).items()
        if type(slot) is MemberDescriptorType and not name.startswith("__")
    }
    return tuple(slots.items()), kind.__dictoffset__ != 0


#: Stands for a value that is not written: a tensor with several elements, a parameter.
OMITTED: Any = object()

#: Entries of a list or dict that are kept, and levels of them in each other.
_MOST_ENTRIES, _DEEPEST = 256, 4


def plain(value: Any, number_of: Callable[[Any], Any], depth: int = 0) -> Any:
    """`value` in None, bool, int, float, str, lists and dicts of these; `OMITTED` where it has no such form.

    Args:
        value: anything.
        number_of: gives the number of a tensor with one element, `OMITTED` for other tensors, and None for what is no
            tensor.
        depth: lists that it is in.

    Returns:
        Numbers keep their type, tuples become lists, of functions and classes the name is given, of other objects the
        name of the class.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return _base(value)
    if (number := number_of(value)) is not None:
        return number
    if isinstance(value, (tuple, list)):
        items = [] if depth >= _DEEPEST else [plain(item, number_of, depth + 1) for item in value[:_MOST_ENTRIES]]
        return OMITTED if (not items and value) or OMITTED in items else items
    if isinstance(value, Mapping):
        if depth >= _DEEPEST or len(value) > _MOST_ENTRIES:
            return OMITTED
        return plain_fields(value.items(), number_of, depth + 1)
    if isinstance(value, (set, frozenset)):
        return OMITTED
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else type(value).__name__


def plain_fields(fields: Iterable[tuple[Any, Any]], number_of: Callable[[Any], Any], depth: int = 0) -> dict[str, Any]:
    """What `plain` gives for the value of each of `fields`, (name, value), by name; without those that it omits."""
    values = {str(name): plain(value, number_of, depth) for name, value in fields}
    return {name: value for name, value in values.items() if value is not OMITTED}


def _base(value: Any) -> Any:
    """The value as its base type: subclasses, such as NumPy's float64, have another JSON text or none."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def shortest(number: Any, dtype: str) -> Any:
    """A number of a tensor as it was typed: 0.1, for the 0.10000000149011612 that float32 holds.

    It becomes the same number again in that dtype. Integers and truth values stay what they are.
    """
    if dtype != "float32" or not isinstance(number, float):
        return number
    import numpy as np

    return float(str(np.float32(number)))


def as_json(value: Any) -> Any:
    """`value`, made of what `plain` gives, with infinities and NaN as text, which JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


class WhatIsTold:
    """A context in which what a framework does not have, or refuses to tell, is left out.

    What is a fault of the collector itself passes, and is said by the guard around it.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, frames: object) -> bool:
        refusals = (
            LookupError,
            AttributeError,
            ImportError,
            TypeError,
            ValueError,
            OSError,
            RuntimeError,
            AssertionError,
        )
        return kind is not None and issubclass(kind, refusals) and not issubclass(kind, RecursionError)
