"""Tensors of a call that are not top-level arguments, under the paths by which dumps name their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_CONTAINERS = (list, tuple, dict)


def inner_tensors(
    arguments: Sequence[Any], keywords: Mapping[str, Any], tensor_type: type | tuple[type, ...]
) -> Iterator[tuple[str, Any]]:
    """(path, tensor) of those in lists, tuples, dicts and keywords: `input.0.1`, `kwargs.mask`."""
    waiting = [(f"kwargs.{name}", value) for name, value in keywords.items()]
    waiting += [(f"input.{at}", value) for at, value in enumerate(arguments) if type(value) in _CONTAINERS]
    while waiting:
        path, value = waiting.pop(0)
        if isinstance(value, tensor_type):
            yield path, value
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}.{index}", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            waiting += [(f"{path}.{key}", item) for key, item in value.items()]
