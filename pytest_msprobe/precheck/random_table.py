"""Which APIs are random or uninitialised, and what their arguments say about their outputs: random_apis.txt, read."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msprobe_collector.dump_format import ApiName

_TABLE = Path(__file__).with_name("random_apis.txt")
_NO_LAW = "none:"


@dataclass(frozen=True, slots=True)
class Term:
    """A name with arguments: `uniform(0, 1)`, where an argument is a constant or names a parameter of the API."""

    name: str
    arguments: tuple[ast.expr, ...]

    def values(self, bound: Mapping[str, Any]) -> list[Any]:
        """The arguments' values, given those of the API's parameters."""
        return [bound[item.id] if isinstance(item, ast.Name) else ast.literal_eval(item) for item in self.arguments]


@dataclass(frozen=True, slots=True)
class RandomApi:
    """One line of the table.

    Attributes:
        signature: of the API.
        law: what its outputs follow; None when none is known.
        form: the dtype and shape that they must have; None when the arguments do not tell.
        reason: why there is no law; "" when there is one.
    """

    signature: inspect.Signature
    law: Term | None
    form: Term | None
    reason: str = ""

    def bind(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all parameters for one call. TypeError when they do not fit."""
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return dict(bound.arguments)


def random_api(api: ApiName, framework: str) -> RandomApi | None:
    """The table's line for `api`; `framework` is that of the dump."""
    return _tables()[_dialect(framework)].get(f"{api.type}.{api.table_name}")


def random_apis(framework: str = "mindspore") -> Mapping[str, str]:
    """`Type.name` of every API in the table: its law (`uniform`, `uninitialised`, ...), or "" where it has none."""
    lines = _tables()[_dialect(framework)]
    return MappingProxyType({name: line.law.name if line.law else "" for name, line in lines.items()})


def _dialect(framework: str) -> str:
    return "mindspore" if framework == "mindspore" else "pytorch"


@cache
def _tables() -> Mapping[str, dict[str, RandomApi]]:
    tables: dict[str, dict[str, RandomApi]] = {}
    for number, text in enumerate(_TABLE.read_text(encoding="utf-8").splitlines(), start=1):
        line = text.strip()
        if line.startswith("["):
            section = tables.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, entry = _read(line)
            if name in section:
                raise ValueError(f"{_TABLE.name}:{number}: {name} is listed twice")
            section[name] = entry
    return MappingProxyType(tables)


def _read(line: str) -> tuple[str, RandomApi]:
    left, _, right = line.partition(" -> ")
    name, bracket, parameters = left.partition("(")
    signature = _signature(bracket + parameters if bracket else "(*arguments, **keywords)")
    if right.startswith(_NO_LAW):
        return name, RandomApi(signature, None, None, right.removeprefix(_NO_LAW).strip())
    law, _, form = right.partition("; ")
    return name, RandomApi(signature, _term(law), _term(form) if form else None)


def _signature(text: str) -> inspect.Signature:
    """The signature that `(a, b=1, *c, d=2, **e)` writes; defaults are constants."""
    (function,) = ast.parse(f"def api{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written = function.args
    given: dict[str, ast.expr | None] = dict(
        zip([item.arg for item in reversed(written.args)], reversed(written.defaults))
    )
    given |= {item.arg: default for item, default in zip(written.kwonlyargs, written.kw_defaults)}
    parameter = inspect.Parameter
    kinds: list[tuple[str, Any]] = [(item.arg, parameter.POSITIONAL_OR_KEYWORD) for item in written.args]
    kinds += [(written.vararg.arg, parameter.VAR_POSITIONAL)] if written.vararg else []
    kinds += [(item.arg, parameter.KEYWORD_ONLY) for item in written.kwonlyargs]
    kinds += [(written.kwarg.arg, parameter.VAR_KEYWORD)] if written.kwarg else []
    return inspect.Signature([parameter(name, kind, default=_default(given.get(name))) for name, kind in kinds])


def _default(written: ast.expr | None) -> Any:
    return inspect.Parameter.empty if written is None else ast.literal_eval(written)


def _term(text: str) -> Term:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return Term(call.func.id, tuple(call.args))
