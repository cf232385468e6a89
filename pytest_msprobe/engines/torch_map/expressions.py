"""The right-hand sides of torch_calls: expressions of a few kinds, as functions that a small interpreter makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import cast

from pytest_msprobe.engines import references

ALLOWED_NODES = (
    ast.Call,
    ast.keyword,
    ast.Attribute,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.UnaryOp,
    ast.USub,
)


_ROOTED = re.compile(r"(torch|adapters|references)(\.\w+)+")


class MissingInTorch(LookupError):
    """The installed PyTorch has no such name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the installed PyTorch has no {name}")
        self.name = name


def is_of_kind(value: object, kinds: tuple[str, ...]) -> bool:
    """Whether `value` is of one of the `kinds` that an annotation of a table names."""
    return any(_KINDS[kind](value) for kind in kinds)


_KINDS: Mapping[str, Callable[[object], bool]] = {
    "None": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "tuple": lambda value: isinstance(value, (tuple, list)),
    "Tensor": lambda value: hasattr(value, "shape"),
    "dtype": lambda value: type(value).__name__ == "dtype",
}


def attribute_at(dotted: str, roots: Mapping[str, object]) -> object:
    """The value of a dotted name that begins at a root.

    Raises:
        MissingInTorch: the installed PyTorch has no such name.
    """
    root, *path = dotted.split(".")
    if root == "references":
        return references.function(dotted)
    value = roots[root]
    for name in path:
        try:
            value = getattr(value, name)
        except AttributeError:
            raise MissingInTorch(dotted) from None
    return value


def dotted_names(expression: ast.expr) -> list[str]:
    """Longest dotted names of an expression that begin at a root, outermost first."""
    found: list[str] = []
    if isinstance(expression, ast.Attribute):
        dotted = ast.unparse(expression)
        if _ROOTED.fullmatch(dotted):
            return [dotted]
    for child in ast.iter_child_nodes(expression):
        node = child.value if isinstance(child, ast.keyword) else child
        if isinstance(node, ast.expr):
            found += dotted_names(node)
    return found


def evaluate(node: ast.expr, values: Mapping[str, object], roots: Mapping[str, object]) -> object:
    """Value of an expression of the allowed nodes."""
    return _evaluation(node)(values, roots)


_Values = Mapping[str, object]
_Evaluation = Callable[[_Values, _Values], object]
_Evaluations = Callable[[_Values, _Values], list[object]]


@cache
def _evaluation(node: ast.expr) -> _Evaluation:
    """The expression as a function of parameters and roots: a table line is read once, for thousands of calls."""
    match node:
        case ast.Constant(value=value):
            return lambda values, roots: value
        case ast.Name(id=name):
            return lambda values, roots: values[name] if name in values else roots[name]
        case ast.Attribute(value=owner, attr=name):
            dotted = ast.unparse(node)
            if _ROOTED.fullmatch(dotted):
                return lambda values, roots: attribute_at(dotted, roots)
            return _attribute(_evaluation(owner), name, dotted)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            named = [(str(keyword.arg), _evaluation(keyword.value)) for keyword in keywords]
            return _call(_evaluation(function), _sequence(arguments), named)
        case ast.Tuple(elts=elements):
            several = _sequence(elements)
            return lambda values, roots: tuple(several(values, roots))
        case ast.List(elts=elements):
            return _sequence(elements)
        case ast.UnaryOp(operand=operand):
            positive = _evaluation(operand)
            return lambda values, roots: -cast("float", positive(values, roots))
    raise ValueError(f"not an expression of a table: {node!r}")


def _attribute(owner: _Evaluation, name: str, dotted: str) -> _Evaluation:
    def value(values: _Values, roots: _Values) -> object:
        """The attribute of what the owner evaluates to.

        Raises:
            MissingInTorch: the owner has no such attribute.
        """
        target = owner(values, roots)
        try:
            return cast("object", getattr(target, name))
        except AttributeError:
            raise MissingInTorch(dotted) from None

    return value


def _call(function: _Evaluation, arguments: _Evaluations, named: Sequence[tuple[str, _Evaluation]]) -> _Evaluation:
    def value(values: _Values, roots: _Values) -> object:
        callee = cast("Callable[..., object]", function(values, roots))
        keywords = {name: keyword(values, roots) for name, keyword in named}
        return callee(*arguments(values, roots), **keywords)

    return value


def _sequence(nodes: Sequence[ast.expr]) -> _Evaluations:
    items = [
        (True, _evaluation(node.value)) if isinstance(node, ast.Starred) else (False, _evaluation(node))
        for node in nodes
    ]

    def several(values: _Values, roots: _Values) -> list[object]:
        found: list[object] = []
        for is_starred, item in items:
            if is_starred:
                found += cast("Sequence[object]", item(values, roots))
            else:
                found.append(item(values, roots))
        return found

    return several
