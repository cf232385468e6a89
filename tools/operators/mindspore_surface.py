"""The public APIs of the installed MindSpore that a collector can record, found by looking at it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

#: (namespace, module, API type of its records, what stands before the name in a record)
_MODULES = (
    ("mint", "mindspore.mint", "Mint", ""),
    ("mint.nn.functional", "mindspore.mint.nn.functional", "MintFunctional", ""),
    ("mint.linalg", "mindspore.mint.linalg", "Mint", "linalg."),
    ("mint.special", "mindspore.mint.special", "Mint", "special."),
    ("mint.distributed", "mindspore.mint.distributed", "MintDistributed", ""),
    ("communication", "mindspore.communication.comm_func", "Distributed", ""),
    ("ops", "mindspore.ops", "Functional", ""),
)
_PRIMITIVES = ("mindspore.ops.operations", "mindspore.ops.auto_generate")
#: Operators that a collector can hook: those that give a Tensor, or the truth of one.
OPERATORS = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift".split()
) | frozenset(f"__{name}__" for name in "abs bool eq ge getitem gt invert le lt ne neg pos round setitem".split())


@dataclass(frozen=True, slots=True)
class PublicApi:
    """One public callable.

    Attributes:
        namespace: where users find it: `mint.linalg`, `Tensor`, `Primitive`.
        type: API type of its records.
        name: name in its records, the class for a Primitive.
    """

    namespace: str
    type: str
    name: str


def public_apis() -> tuple[PublicApi, ...]:
    """Every public callable, sorted by name within its namespace. Imports MindSpore."""
    found = [
        PublicApi(namespace, api_type, prefix + name)
        for namespace, module, api_type, prefix in _MODULES
        for name in _functions(importlib.import_module(module))
    ]
    found += [PublicApi("Tensor", "Tensor", name) for name in _methods(importlib.import_module("mindspore").Tensor)]
    found += [PublicApi("Primitive", "Primitive", name) for name in _primitives()]
    return tuple(found)


def _functions(module: Any) -> Iterator[str]:
    """`mint.__all__` also repeats names of its submodules, which mint itself does not have."""
    yield from _public(module, getattr(module, "__all__", dir(module)), inspect.isroutine)


def _methods(tensor: type) -> Iterator[str]:
    # Not getattr: a class has operators of its own, such as `Tensor | None`.
    yield from sorted(name for name in OPERATORS if any(name in vars(owner) for owner in tensor.__mro__[:-1]))
    yield from _public(tensor, dir(tensor), callable)


def _primitives() -> Iterator[str]:
    base = importlib.import_module("mindspore.ops").Primitive
    names = {
        name
        for module in map(importlib.import_module, _PRIMITIVES)
        for name in _public(module, dir(module), lambda item: inspect.isclass(item) and issubclass(item, base))
    }
    yield from sorted(names)


def _public(owner: object, names: list[str], is_wanted: Callable[[Any], bool]) -> Iterator[str]:
    for name in sorted(set(names)):
        if not name.startswith("_") and is_wanted(getattr(owner, name, None)):
            yield name
