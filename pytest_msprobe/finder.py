"""Keeps pytest's assertion rewriting away from our modules.

pytest compiles every module of a plugin's distribution anew to rewrite its `assert` statements, in each process where
PYTHONDONTWRITEBYTECODE is set: 10 ms for each of 120 modules. Ours are no tests. A module's docstring can refuse
(PYTEST_DONT_REWRITE), but is read and compiled all the same, so that a finder of our own comes before pytest's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PACKAGES = ("pytest_msprobe", "msprobe_collector")


class OrdinaryFinder:
    """Finds our modules as Python does without pytest."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """None for all other modules, and for what another finder provides."""
        return PathFinder.find_spec(name, path, target) if name.partition(".")[0] in _PACKAGES else None


def install() -> None:
    """Put the finder first, once in a process."""
    if OrdinaryFinder not in sys.meta_path:
        sys.meta_path.insert(0, OrdinaryFinder)
