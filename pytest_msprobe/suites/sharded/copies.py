"""Parameters that only ranks have, at the optimizer: which parameter of the logical run each of them is a copy of.

The last stage of a pipeline has a copy of a tied embedding by another name. What it holds before the step tells which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from msprobe_collector.dump_format.leaves import Leaf

#: The place of a value of a parameter in the record of an optimizer, what it is, and the name; of state the kind, too.
_PLACE = re.compile(r"((?:input|output)\.(?:\d+\.)?(parameters|gradients|state)\.)(.*)", re.DOTALL)
_BEFORE = "input.parameters."


def parameter_of(path: str) -> str:
    """The name of the parameter that a value at the optimizer is of; "" for none."""
    match = _PLACE.fullmatch(path)
    if match is None:
        return ""
    return match[3].rpartition(".")[0] if match[2] == "state" else match[3]


def named(path: str, change: Callable[[str], str]) -> str:
    """The place of a value at the optimizer with another name of its parameter; other places as they are."""
    match, name = _PLACE.fullmatch(path), parameter_of(path)
    return path if match is None else match[1] + change(name) + match[3].removeprefix(name)


class LogicalCopies:
    """What the logical run has for values that only ranks hold."""

    def __init__(self, leaves: Mapping[str, Leaf], fits: Callable[[str, Leaf], bool]) -> None:
        """`leaves` are values of the logical run at the optimizer, by their places.

        `fits` says whether what ranks have at a place before the step is what the logical run has in a leaf.
        """
        self._leaves, self._fits = leaves, fits
        self._originals = cache(self._original_of)

    def original(self, path: str) -> tuple[str, str]:
        """The place that a value of the ranks has in the logical run, and ""; or "" and why it cannot be told."""
        name = parameter_of(path)
        if not name:
            return "", "only ranks hold it"
        original, reason = self._originals(name)
        return named(path, lambda _: original) if original else "", reason

    def leaf(self, path: str) -> Leaf | None:
        """What the logical run has at this place."""
        return self._leaves.get(path)

    def _original_of(self, name: str) -> tuple[str, str]:
        if _BEFORE + name in self._leaves:
            return name, ""
        equal = []
        for path, leaf in self._leaves.items():
            if path.startswith(_BEFORE) and self._fits(_BEFORE + name, leaf):
                equal.append(path.removeprefix(_BEFORE))
        if len(equal) == 1:
            return equal[0], ""
        what = f"{len(equal)} parameters have" if equal else "no parameter has"
        return "", f"only ranks hold it, and {what} the same values in the logical run"
