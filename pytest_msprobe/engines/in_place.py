"""Which APIs write to their first argument."""

from __future__ import annotations

import re

from msprobe_collector.dump_format import ApiName

_IN_PLACE_DUNDER = re.compile(r"__i(?:add|sub|mul|matmul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)__")


def writes_in_place(api: ApiName) -> bool:
    """Whether `api` changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = api.short
    if name.startswith("__"):
        return name == "__setitem__" or _IN_PLACE_DUNDER.fullmatch(name) is not None
    return name.endswith("_")
