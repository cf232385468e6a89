"""Our own references of fused and NPU-only MindSpore APIs, and the table (`references.txt`) that names them.

A table line reads ``Type.name -> module.function  # source of the formula`` or ``Type.name -> none: reason``. A
function has the parameters of its MindSpore API and is written in PyTorch, so that the torch engine runs it in float64
or in the dump's dtypes and takes its gradients by autograd. Importing this package loads no framework; a module of
functions is imported when the torch engine first runs one of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import cast

_LINE = re.compile(
    r"(?P<api>\w+\.[\w.]+) -> (?:none: (?P<reason>.+)|(?P<function>[a-z_0-9]+\.[a-z_0-9]+)  # (?P<source>.+))"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """One line of the table: a function with the source of its formula, or the reason why there can be none.

    Attributes:
        target: `references.module.function`, "" when there is none.
        source: where the formula stands; "" when there is none.
        reason: why the API cannot be computed here; "" when it can.
    """

    target: str = ""
    source: str = ""
    reason: str = ""


def find(api_type: str, name: str) -> Reference | None:
    """What the table says of an API; None when it is silent."""
    return _table().get(f"{api_type}.{name}")


def names() -> Mapping[str, str]:
    """The APIs (`Functional.rms_norm`) that are judged by a reference of ours, each with the source of its formula."""
    return MappingProxyType({api: entry.source for api, entry in _table().items() if entry.target})


def function(target: str) -> Callable[..., object]:
    """The function behind a `Reference.target`. Imports PyTorch."""
    _, module, name = target.split(".")
    return cast("Callable[..., object]", getattr(import_module(f"{__name__}.{module}"), name))


@cache
def _table() -> Mapping[str, Reference]:
    table = {}
    for line in Path(__file__).with_name("references.txt").read_text(encoding="utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        match = _LINE.fullmatch(line)
        if match is None or match["api"] in table:
            raise ValueError(f"references.txt: not a table line, or a second one of its API: {line}")
        target = f"references.{match['function']}" if match["function"] else ""
        table[match["api"]] = Reference(target, match["source"] or "", match["reason"] or "")
    return table
