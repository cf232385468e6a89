"""Primitives that Cells hold as attributes, seen at the `__call__` of their classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from msprobe_collector.mindspore.hooking.cells import named_cells
from msprobe_collector.recording.method_swaps import MethodSwaps


class Wrap(Protocol):
    """Makes a recorded callable."""

    def __call__(
        self, original: Callable[..., Any], call: str, *, attributes: Mapping[str, Any] | None
    ) -> Callable[..., Any]:
        """`original`, recorded as calls of `call` with the constructor's `attributes`."""


class PrimitiveCalls:
    """Records calls of the primitives of watched models as `Primitive.{attribute}.{Class}`.

    Nothing is put on a primitive itself: a copy of one, or a pickle, is what it would be without the collector. The
    calls of a copy leave no records.
    """

    def __init__(self, wrap: Wrap, is_inside: Callable[[], bool]) -> None:
        """Prepare.

        Args:
            wrap: makes a recorded callable.
            is_inside: whether a recorded call runs, so that calls inside are not recorded.
        """
        self._wrap = wrap
        self._is_inside = is_inside
        #: By id of the primitive, which stays its own while the primitive is kept here too.
        self._recorded: dict[int, tuple[Any, Callable[..., Any]]] = {}
        self._calls: dict[type, Callable[..., Any]] = {}
        self._swaps = MethodSwaps()

    def watch(self, models: Sequence[Any]) -> None:
        """Add the primitives of `models`, also those in lists; one under several names keeps its first."""
        for _, cell in named_cells(models):
            for name, primitive in _primitives_of(cell):
                if id(primitive) in self._recorded:
                    continue
                kind = type(primitive)
                if kind not in self._calls and not self._swaps.are_in:
                    self._calls[kind] = kind.__call__
                call = functools.partial(self._calls.get(kind, kind.__call__), primitive)
                recorded = self._wrap(
                    call, f"Primitive.{name}.{kind.__name__}", attributes=constructor_attributes(primitive)
                )
                self._recorded[id(primitive)] = (primitive, recorded)

    def put_in(self) -> None:
        """See the calls from now on."""
        if not self._swaps.are_in:
            for kind in self._calls:
                self._swaps.put(kind, "__call__", self._seen)

    def take_out(self) -> None:
        """Put the originals back."""
        self._swaps.take_out()

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorded, is_inside = self._recorded, self._is_inside

        @functools.wraps(original)
        def call(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            known = None if is_inside() else recorded.get(id(primitive))
            return original(primitive, *args, **kwargs) if known is None else known[1](*args, **kwargs)

        return call


def constructor_attributes(primitive: Any) -> dict[str, Any]:
    """What the primitive's class was called with, defaults included (`stride`, `transpose_b`, `epsilon`).

    They are in `init_attrs`, and where a base class has overwritten that (LRN), stand as attributes of their names.
    """
    known = {**vars(primitive), **primitive.init_attrs}
    return {name: known[name] for name in _constructor_parameters(type(primitive).__init__) if name in known}


@cache
def _constructor_parameters(constructor: Callable[..., None]) -> tuple[str, ...]:
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind not in variadic)


def _primitives_of(cell: Any) -> Iterator[tuple[str, Any]]:
    from mindspore.ops import Primitive

    for name, primitive in cell._primitives.items():
        if primitive is not None:
            yield name, primitive
    for name, value in vars(cell).items():
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}.{index}", item) for index, item in enumerate(value) if isinstance(item, Primitive))
