"""Methods of classes and functions of modules, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INHERITED = object()


class MethodSwaps:
    """Replaces methods of classes and puts the originals back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    @property
    def are_in(self) -> bool:
        """Whether a method is replaced."""
        return bool(self._originals)

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the method `name` of `owner` by `make(original)`; one that `owner` inherits, for `owner` alone."""
        own = vars(owner).get(name, _INHERITED)
        setattr(owner, name, make(getattr(owner, name) if own is _INHERITED else own))
        self._originals.append((owner, name, own))

    def put_new(self, owner: type, name: str, value: Any) -> None:
        """Give `owner` an attribute that it has not itself."""
        setattr(owner, name, value)
        self._originals.append((owner, name, _INHERITED))

    def take_out(self) -> None:
        """Put the originals back."""
        while self._originals:
            owner, name, own = self._originals.pop()
            if own is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
