"""Putting recorded callables in the place of the originals, and the originals back.

Methods of classes and functions of modules, replaced for a while.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """A callable to hook.

    Attributes:
        owner: module or class that holds it.
        name: its attribute there.
        original: the callable itself.
        call: its record name without number and direction: `Mint.add`.
    """

    owner: Any
    name: str
    original: Callable[..., Any]
    call: str


class Installation:
    """Swaps callables in and out.

    While it is out, every name holds the very object that it held before: nothing costs anything then.
    """

    def __init__(
        self, wrap: Callable[[Callable[..., Any], str], Callable[..., Any]], *, is_searched: Callable[[str], bool]
    ) -> None:
        """Prepare an installation that replaces a callable by `wrap(callable, call name)`.

        Args:
            wrap: makes what stands in a callable's place.
            is_searched: whether other names of the callable are looked for in the module of this name.
        """
        self._wrap = wrap
        self._is_searched = is_searched
        self._targets: list[ApiTarget] = []
        #: What the user has registered, by owner and name; it goes before the rest.
        self._custom: dict[tuple[int, str], ApiTarget] = {}
        #: (owner, attribute, what its own dict held, replacement)
        self._swaps: list[tuple[Any, str, Any, Any]] = []
        self._is_in = False

    def add(self, targets: Sequence[ApiTarget]) -> None:
        """Make `targets` part of it; also under other names in loaded modules (`from mindspore.mint import add`)."""
        with self._changed():
            self._targets += targets

    def add_new(self, functions: Iterable[tuple[Any, str, str]]) -> None:
        """Add those functions, given as (owner, name, call), that are no part of it yet."""
        places = {(id(target.owner), target.name) for target in self._targets}
        new = [
            ApiTarget(owner, name, getattr(owner, name), call)
            for owner, name, call in functions
            if (id(owner), name) not in places
        ]
        if new:
            self.add(new)

    def register(self, owner: Any, name: str, call: str) -> None:
        """Record `owner.name` as `call`, also where it is a part under another name already."""
        with self._changed():
            self._custom[id(owner), name] = ApiTarget(owner, name, getattr(owner, name), call)

    def remove(self, owner: Any, name: str) -> bool:
        """Undo `register`; False when there was none."""
        if (id(owner), name) not in self._custom:
            return False
        with self._changed():
            del self._custom[id(owner), name]
        return True

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Take the originals back while what is recorded changes, and make the swaps anew afterwards."""
        was_in = self._is_in
        self.uninstall()
        yield
        self._swaps.clear()
        wrappers: dict[int, Any] = {}
        others = (target for target in self._targets if (id(target.owner), target.name) not in self._custom)
        for target in (*self._custom.values(), *others):
            wrapper = self._wrap(target.original, target.call)
            _name_after_place(wrapper, target)
            wrappers.setdefault(id(target.original), wrapper)
            self._swaps.append((target.owner, target.name, vars(target.owner).get(target.name, _ABSENT), wrapper))
        if wrappers:
            self._add_early_names(wrappers)
        if was_in:
            self.install()

    def install(self) -> None:
        """Put the recorded callables in place."""
        if not self._is_in:
            self._is_in = True
            for owner, name, _, wrapper in self._swaps:
                setattr(owner, name, wrapper)

    def uninstall(self) -> None:
        """Put the originals back."""
        if self._is_in:
            self._is_in = False
            for owner, name, original, _ in reversed(self._swaps):
                _restore(owner, name, original)

    def _add_early_names(self, wrappers: dict[int, Any]) -> None:
        swapped = {(id(owner), name) for owner, name, _, _ in self._swaps}
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or not self._is_searched(module.__name__):
                continue
            # Few modules have one; this look at all their names runs in C.
            if wrappers.keys().isdisjoint(map(id, list(vars(module).values()))):
                continue
            for name, value in list(vars(module).items()):
                wrapper = wrappers.get(id(value))
                if wrapper is not None and (id(module), name) not in swapped:
                    self._swaps.append((module, name, value, wrapper))


def _restore(owner: Any, name: str, original: Any) -> None:
    """Give `owner` back what its own dict held."""
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def _name_after_place(wrapper: Any, target: ApiTarget) -> None:
    """Let a pickle of `wrapper` find it, or the original, under the name that it has now."""
    owner = target.owner
    if isinstance(owner, ModuleType):
        wrapper.__module__, wrapper.__qualname__ = owner.__name__, target.name
    elif isinstance(owner, type):
        wrapper.__module__, wrapper.__qualname__ = owner.__module__, f"{owner.__qualname__}.{target.name}"


class MethodSwaps:
    """Replaces methods of classes and puts the originals back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    @property
    def are_in(self) -> bool:
        """Whether a method is replaced."""
        return bool(self._originals)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the method `name` of `owner` by `make(original)`; one that `owner` inherits, for `owner` alone.

        `make` gets None where there is none.
        """
        value = vars(owner).get(name, _ABSENT)
        setattr(owner, name, make(getattr(owner, name, None) if value is _ABSENT else value))
        self._originals.append((owner, name, value))

    def uninstall(self) -> None:
        """Put the originals back."""
        while self._originals:
            _restore(*self._originals.pop())
