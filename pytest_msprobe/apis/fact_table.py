"""The one grammar of fact files and its parser.

A file holds the facts of one topic, one line each::

    # a comment
    Type.name(signature) -> fact  # source of the fact
    name name name -> fact
    Type.* -> fact
    [framework Type -> fact]

* `Type` is the type of record names (`Mint`, `Functional`, ...); a Primitive is named by its class.
* A name without a type applies to every type and spelling, see `plain_name`.
* `Type.*` applies to all names of a type.
* A heading in brackets applies to the lines below it, up to the next one: `mindspore` or `pytorch` limits them to dumps
  of that framework (`pytorch` includes MSAdapter), a type stands before their names, a fact is that of lines
  without an arrow. Each part may be missing.
* `none: reason` as the fact says that there is none, and why.
* What else a fact and a signature mean is the topic's own; its file says so at the top.

The most particular line counts: `Type.name` before `Type.*` before `name`. A name has several lines only when each
has a signature (overloads).

Signatures and terms in fact files, read by `ast`: nothing of a file is ever run.

How names of APIs are spelled: one plain word for all forms of an operation, and the forms that write in place.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msprobe_collector.dump_format import API_TYPES, ApiName


def read_signature(text: str, default: Callable[[ast.expr], object] = ast.literal_eval) -> inspect.Signature:
    """The signature that `(a, b=1, *c, d: int | None = 2, **e)` writes.

    Args:
        text: with its brackets.
        default: makes the value of a default from its expression; as it stands, defaults are constants.

    Returns:
        Annotations are tuples of the words between the bars, `("int", "None")`; () where there is none.
    """
    (function,) = ast.parse(f"def api{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written, kinds = function.args, inspect.Parameter

    parameters: list[inspect.Parameter] = []

    def add(kind: Any, arguments: Sequence[ast.arg | None], expressions: Sequence[ast.expr | None]) -> None:
        for argument, expression in zip(arguments, expressions):
            if argument is not None:
                value = kinds.empty if expression is None else default(expression)
                text = ast.unparse(argument.annotation) if argument.annotation else ""
                words = tuple(filter(None, text.split(" | ")))
                parameters.append(kinds(argument.arg, kind, default=value, annotation=words))

    without_default = [None] * (len(written.args) - len(written.defaults))
    add(kinds.POSITIONAL_OR_KEYWORD, written.args, [*without_default, *written.defaults])
    add(kinds.VAR_POSITIONAL, [written.vararg], [None])
    add(kinds.KEYWORD_ONLY, written.kwonlyargs, written.kw_defaults)
    add(kinds.VAR_KEYWORD, [written.kwarg], [None])
    return inspect.Signature(parameters)


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
        return [_evaluated(item, bound) for item in self.arguments]


def _evaluated(item: ast.expr, bound: Mapping[str, Any]) -> Any:
    return bound[item.id] if isinstance(item, ast.Name) else ast.literal_eval(item)


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
    return is_name_in_place(api.short)


def is_name_in_place(name: str) -> bool:
    """Whether an API of this short name does."""
    if name.startswith("__"):
        return name == "__setitem__" or _IN_PLACE_METHOD.fullmatch(name) is not None
    return name.endswith("_")


FOLDER = Path(__file__).with_name("facts")
FRAMEWORKS = ("mindspore", "pytorch")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one line says of an API.

    Attributes:
        name: the API as the table knows it: `Mint.rand`, `addmm`, `Jit.*`.
        parameters: signature in brackets, "" without one.
        text: right of the arrow, or of that of the heading; "" when neither has one.
        source: behind the line, "" without one.
    """

    name: str
    parameters: str = ""
    text: str = ""
    source: str = ""

    @property
    def reason(self) -> str:
        """Why there is no fact; "" when there is one."""
        return self.text.partition("none: ")[2] if self.text.startswith("none: ") else ""


class FactTable:
    """The facts of one topic."""

    def __init__(self, lines: Iterator[tuple[str, Fact]]) -> None:
        """A table of (framework, fact); the framework is "" for a fact of all of them."""
        tables: dict[str, dict[str, tuple[Fact, ...]]] = {framework: {} for framework in FRAMEWORKS}
        for framework, fact in lines:
            for table in [tables[framework]] if framework else tables.values():
                others = table.get(fact.name, ())
                if others and not (fact.parameters and others[-1].parameters):
                    raise ValueError(f"{fact.name} is listed twice")
                table[fact.name] = (*others, fact)
        self._tables = tables
        self._found = lru_cache(maxsize=1024)(self.find)  # all calls of an API ask the same

    def of(self, api: ApiName, framework: str = "mindspore") -> Fact | None:
        """The fact on `api` in a dump of `framework`, or None."""
        return self._found(api.type, api.table_name, framework)

    def find(self, api_type: str, name: str, framework: str = "mindspore") -> Fact | None:
        """The same by record type and table name: `Mint` and `linalg.inv`, `Primitive` and `Conv2D`."""
        table = self._of_framework(framework)
        return next(iter(self._lines(table, api_type, name)), None)

    def forms(self, api: ApiName, framework: str) -> tuple[Fact, ...]:
        """Every line that counts for `api`, in order: its overloads; () without any."""
        return self._lines(self._of_framework(framework), api.type, api.table_name)

    @staticmethod
    def _lines(table: Mapping[str, tuple[Fact, ...]], api_type: str, name: str) -> tuple[Fact, ...]:
        for key in (f"{api_type}.{name}", f"{api_type}.*", plain_name(name.rpartition(".")[2])):
            if key in table:
                return table[key]
        return ()

    def word(self, name: str) -> Fact | None:
        """The fact on the bare `name`, whatever its type."""
        return next(iter(self._tables["mindspore"].get(plain_name(name), ())), None)

    def overloads(self, api_type: str, name: str) -> tuple[Fact, ...]:
        """Every line on the MindSpore API of this type and name, in order; () without any."""
        return self._tables["mindspore"].get(f"{api_type}.{name}", ())

    def typed(self, framework: str = "mindspore") -> Mapping[str, Fact]:
        """The first line on each `Type.name`, in the order of the file."""
        table = self._of_framework(framework)
        return MappingProxyType({name: lines[0] for name, lines in table.items() if "." in name})

    def _of_framework(self, framework: str) -> Mapping[str, tuple[Fact, ...]]:
        return self._tables.get(framework, self._tables["pytorch"])


@cache
def facts(topic: str) -> FactTable:
    """The facts of `topic`, the name of a file in `facts` without `.txt`, read when first asked for.

    Raises:
        ValueError: a line of the file is not one of the grammar.
    """
    return read(FOLDER / f"{topic}.txt")


def read(path: Path) -> FactTable:
    """The facts in the file at `path`.

    Raises:
        ValueError: a line of it is wrong; the text names the file.
    """
    try:
        return FactTable(_facts(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _facts(text: str) -> Iterator[tuple[str, Fact]]:
    framework = api_type = shared = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("["):
            scope, _, shared = line.removeprefix("[").removesuffix("]").partition("-> ")
            framework = next((word for word in scope.split() if word in FRAMEWORKS), "")
            api_type = next((word for word in scope.split() if word in API_TYPES), "")
            if not line.endswith("]") or len(scope.split()) != bool(framework) + bool(api_type):
                raise ValueError(f"line {number}: not a heading [framework Type -> fact]: {line}")
        elif line and not line.startswith("#"):
            written, _, source = line.partition("  # ")
            declared, arrow, fact = written.rstrip().partition(" -> ")
            name, bracket, parameters = declared.partition("(")
            if bracket and not (parameters.endswith(")") and arrow):
                raise ValueError(f"line {number}: not name(signature) -> fact: {line}")
            for spelled in name.split():
                yield framework, Fact(_key(spelled, api_type), bracket + parameters, fact if arrow else shared, source)


def _key(name: str, api_type: str) -> str:
    """`Type.name`, or the plain spelling of a name without a type."""
    if api_type:
        return f"{api_type}.{name}"
    return name if name.partition(".")[0] in API_TYPES and "." in name else plain_name(name)
