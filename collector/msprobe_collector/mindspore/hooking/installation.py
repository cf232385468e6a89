"""Putting recorded callables in the place of the originals, and the originals back."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from msprobe_collector.mindspore.hooking.discovery import ApiTarget

logger = logging.getLogger("msprobe_collector")

#: Modules of the framework whose own names are replaced too: its layers call what users would.
_LAYERS = ("mindspore.nn.layer", "mindspore.nn.loss", "mindspore.mint.nn")
_ABSENT = object()


class Installation:
    """Swaps callables in and out.

    While it is out, every name holds the very object that it held before: nothing costs anything then.
    """

    def __init__(self, wrap: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> None:
        """Prepare an installation that replaces a callable by `wrap(callable, call name)`."""
        self._wrap = wrap
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
        """Around a change of what is recorded: the originals are in place, and the swaps are made anew."""
        was_in = self._is_in
        self.take_out()
        yield
        self._swaps.clear()
        wrappers: dict[int, Any] = {}
        others = (target for target in self._targets if (id(target.owner), target.name) not in self._custom)
        for target in (*self._custom.values(), *others):
            wrapper = self._wrap(target.original, target.call)
            _name_after_place(wrapper, target)
            wrappers.setdefault(id(target.original), wrapper)
            self._swaps.append((target.owner, target.name, vars(target.owner).get(target.name, _ABSENT), wrapper))
        self._add_early_names(wrappers)
        if was_in:
            self.put_in()

    def put_in(self) -> None:
        """Put the recorded callables in place."""
        if not self._is_in:
            self._is_in = True
            for owner, name, _, wrapper in self._swaps:
                setattr(owner, name, wrapper)

    def take_out(self) -> None:
        """Put the originals back."""
        if self._is_in:
            self._is_in = False
            for owner, name, original, _ in reversed(self._swaps):
                if original is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)

    def _add_early_names(self, wrappers: dict[int, Any]) -> None:
        known = {(id(owner), name) for owner, name, _, _ in self._swaps}
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType) or not _is_searched(module.__name__):
                continue
            for name, value in list(vars(module).items()):
                wrapper = wrappers.get(id(value))
                if wrapper is not None and (id(module), name) not in known:
                    self._swaps.append((module, name, value, wrapper))


def _name_after_place(wrapper: Any, target: ApiTarget) -> None:
    """Let a pickle of `wrapper` find it, or the original, under the name that it has now."""
    owner = target.owner
    if isinstance(owner, ModuleType):
        wrapper.__module__, wrapper.__qualname__ = owner.__name__, target.name
    elif isinstance(owner, type):
        wrapper.__module__, wrapper.__qualname__ = owner.__module__, f"{owner.__qualname__}.{target.name}"


def unreachable_names(targets: Sequence[ApiTarget]) -> list[str]:
    """APIs that something other than a module's names refers to, such as a class attribute or a default argument.

    Calls through these references are not collected. Costs a look at every container in memory, once.
    """
    by_identity = {id(target.original): target.call for target in reversed(targets)}  # the first names it
    found: set[str] = set()
    for holder in gc.get_objects():
        if type(holder) is dict and "__module__" in holder and not _is_framework(str(holder.get("__module__"))):
            found.update(by_identity[id(value)] for value in holder.values() if id(value) in by_identity)
        elif type(holder) is type(_is_framework) and not _is_framework(holder.__module__ or ""):
            values = holder.__defaults__ or ()
            found.update(by_identity[id(value)] for value in values if id(value) in by_identity)
    return sorted(found)


def _is_searched(module: str) -> bool:
    return not _is_framework(module) or module.startswith(_LAYERS)


def _is_framework(module: str) -> bool:
    return module.split(".")[0] in ("mindspore", "msprobe_collector")
