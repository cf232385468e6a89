"""Signatures and terms in fact files, read by `ast`: nothing of a file is ever run."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


def read_signature(text: str, default: Callable[[ast.expr], object] = ast.literal_eval) -> inspect.Signature:
    """The signature that `(a, b=1, *c, d: int | None = 2, **e)` writes.

    Args:
        text: with its brackets.
        default: makes the value of a default from its expression; as it stands, defaults are constants.

    Returns:
        Annotations are tuples of the words between the bars, `("int", "None")`.
    """
    (function,) = ast.parse(f"def api{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written, kinds = function.args, inspect.Parameter

    def made(argument: ast.arg, kind: Any, given: ast.expr | None = None) -> inspect.Parameter:
        value = kinds.empty if given is None else default(given)
        annotation = argument.annotation
        words = kinds.empty if annotation is None else tuple(map(str.strip, ast.unparse(annotation).split("|")))
        return kinds(argument.arg, kind, default=value, annotation=words)

    without_default = [None] * (len(written.args) - len(written.defaults))
    parameters = [
        made(argument, kinds.POSITIONAL_OR_KEYWORD, given)
        for argument, given in zip(written.args, [*without_default, *written.defaults], strict=True)
    ]
    parameters += [made(written.vararg, kinds.VAR_POSITIONAL)] if written.vararg else []
    parameters += [made(*pair) for pair in _keyword_only(written)]
    parameters += [made(written.kwarg, kinds.VAR_KEYWORD)] if written.kwarg else []
    return inspect.Signature(parameters)


def _keyword_only(written: ast.arguments) -> list[tuple[ast.arg, Any, ast.expr | None]]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [(argument, kind, given) for argument, given in zip(written.kwonlyargs, written.kw_defaults)]


@dataclass(frozen=True, slots=True)
class Term:
    """A name with arguments: `uniform(0, high)`, where an argument is a constant or names a parameter of the API.

    Attributes:
        name: before the bracket.
        arguments: as written.
        keywords: constants that are given by name.
    """

    name: str
    arguments: tuple[ast.expr, ...]
    keywords: Mapping[str, Any]

    def values(self, bound: Mapping[str, Any]) -> list[Any]:
        """The arguments' values, given those of the API's parameters."""
        return [bound[item.id] if isinstance(item, ast.Name) else ast.literal_eval(item) for item in self.arguments]


@cache
def read_terms(text: str) -> tuple[Term, ...]:
    """The terms of `name(arguments); name(arguments)`."""
    return tuple(_term(part) for part in text.split("; "))


def _term(text: str) -> Term:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not name(arguments): {text}")
    keywords = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    return Term(call.func.id, tuple(call.args), keywords)
