"""Methods of classes, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class MethodSwaps:
    """Replaces methods of classes and puts the originals back."""

    def __init__(self) -> None:
        self._originals: list[tuple[type, str, Any]] = []

    @property
    def are_in(self) -> bool:
        """Whether a method is replaced."""
        return bool(self._originals)

    def put(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the method `name`, which `owner` defines itself, by `make(original)`."""
        original = vars(owner)[name]
        setattr(owner, name, make(original))
        self._originals.append((owner, name, original))

    def take_out(self) -> None:
        """Put the originals back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)
