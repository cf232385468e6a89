"""One setting under its three names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One setting under its three names: `--msprobe-NAME`, ini `msprobe_NAME`, YAML key `NAME` (with underscores).

    `bare` is what the flag stands for on the command line, where it takes no value; "" for an option that needs one.
    """

    name: str
    metavar: str
    help: str
    default: str
    parse: Callable[[str], Any]
    bare: str = ""

    @property
    def flag(self) -> str:
        """On the command line."""
        return f"--msprobe-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """In ini files and in pytest's option namespace."""
        return f"msprobe_{self.name}"
