"""One setting under its names. Option modules import nothing but this: pytest loads them in every project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One setting under its three names: `--msprobe-NAME`, ini `msprobe_NAME`, YAML key `NAME` (with underscores).

    Attributes:
        name: see above.
        metavar: how help shows its value.
        help: one line.
        default: the text that is used when it is not given.
        parse: its value for a text; raises ValueError, which says why not and what is allowed.
        bare: the value of a flag that takes none on the command line; "" for an option that needs one.
        is_path: whether its value is a path, which workers get as an absolute one.
        is_list: whether it may be repeated, and is a list in YAML and one value per line in an ini file.
        is_yaml_only: whether it stands in the YAML file of --msprobe-config only; `parse` then gets (YAML value, file).
    """

    name: str
    metavar: str
    help: str
    default: str
    parse: Callable[..., Any]
    bare: str = ""
    is_path: bool = False
    is_yaml_only: bool = False
    is_list: bool = False

    @property
    def flag(self) -> str:
        """Name of the option on the command line."""
        return f"--msprobe-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Name of the option in ini files and in pytest's option namespace."""
        return f"msprobe_{self.name}"
