"""Names of APIs that were bound before collecting began, and that cannot be reached."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from msprobe_collector.recording.installation import ApiTarget

#: Modules of the framework whose own names are replaced too: its layers call what users would.
_LAYERS = ("mindspore.nn.layer", "mindspore.nn.loss", "mindspore.mint.nn")


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


def is_searched(module: str) -> bool:
    """Whether names in `module` are replaced that hold an API."""
    return not _is_framework(module) or module.startswith(_LAYERS)


def _is_framework(module: str) -> bool:
    return module.split(".")[0] in ("mindspore", "msprobe_collector")
