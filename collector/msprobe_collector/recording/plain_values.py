"""Values of Python as JSON has them: what a hyper-parameter, a switch or a setting is written as."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
