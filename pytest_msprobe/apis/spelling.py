"""How names of APIs are spelled: one plain word for all forms of an operation, and the forms that write in place."""

from __future__ import annotations

import re
from functools import cache

from msprobe_collector.dump_format import ApiName

_OPERATORS = "add|sub|mul|matmul|div|truediv|floordiv|mod|divmod|pow|and|or|xor|lshift|rshift"
_OPERATOR_METHOD = re.compile(rf"__[ir]?({_OPERATORS})__")
_IN_PLACE_METHOD = re.compile(rf"__i(?:{_OPERATORS})__")


@cache
def plain_name(name: str) -> str:
    """`addmm` for `addmm_` and `Addmm`, `logsoftmax` for `log_softmax`, `add` for `__add__`, `__radd__`, `__iadd__`."""
    operator = _OPERATOR_METHOD.fullmatch(name)
    return operator[1] if operator else name.replace("_", "").lower()


def writes_in_place(api: ApiName) -> bool:
    """Whether `api` changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    name = api.short
    if name.startswith("__"):
        return name == "__setitem__" or _IN_PLACE_METHOD.fullmatch(name) is not None
    return name.endswith("_")
