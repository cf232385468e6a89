"""Public names of packages, which load when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, whose names are those of its modules `homes`."""

    def load(name: str) -> Any:
        """Return what a module calls `name`.

        Raises:
            AttributeError: none does.
        """
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
