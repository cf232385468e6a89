"""Primitives that Cells hold as attributes: recorded by giving each instance a class whose call is seen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msprobe_collector.hooking.cells import named_cells


class PrimitiveCalls:
    """Records calls of the primitives of watched models as `Primitive.{attribute}.{Class}`."""

    def __init__(self, wrap: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> None:
        self._wrap = wrap
        #: (primitive, its class, its class while seen)
        self._swaps: list[tuple[Any, type, type]] = []
        self._calls: dict[int, Callable[..., Any]] = {}
        self._seen_classes: dict[type, type] = {}
        self._is_in = False

    def watch(self, models: Sequence[Any]) -> None:
        """Add the primitives of `models`, also those in lists; one under several names keeps its first."""
        for _, cell in named_cells(models):
            for name, primitive in _primitives_of(cell):
                if id(primitive) in self._calls:
                    continue
                original = type(primitive)
                call = functools.partial(original.__call__, primitive)
                self._calls[id(primitive)] = self._wrap(call, f"Primitive.{name}.{original.__name__}")
                self._swaps.append((primitive, original, self._seen_class(original)))

    def put_in(self) -> None:
        """See the calls from now on."""
        if not self._is_in:
            self._is_in = True
            for primitive, _, seen in self._swaps:
                primitive.__class__ = seen

    def take_out(self) -> None:
        """Give every primitive its own class back."""
        if self._is_in:
            self._is_in = False
            for primitive, original, _ in self._swaps:
                primitive.__class__ = original

    def _seen_class(self, original: type) -> type:
        seen = self._seen_classes.get(original)
        if seen is None:
            calls = self._calls

            def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
                return calls[id(primitive)](*args, **kwargs)

            attributes = {"__call__": call, "__module__": original.__module__, "__qualname__": original.__qualname__}
            seen = self._seen_classes[original] = type(original.__name__, (original,), attributes)
        return seen


def _primitives_of(cell: Any) -> Iterator[tuple[str, Any]]:
    from mindspore.ops import Primitive

    for name, primitive in cell._primitives.items():
        if primitive is not None:
            yield name, primitive
    for name, value in vars(cell).items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}.{index}", item) for index, item in enumerate(value) if isinstance(item, Primitive))
