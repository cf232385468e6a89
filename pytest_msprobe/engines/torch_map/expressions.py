"""The right-hand sides of torch_calls: expressions of a few kinds, run by a small interpreter."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
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
    """What stands at a dotted name that begins at a root. Raises MissingInTorch."""
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
        if re.fullmatch(r"(torch|adapters|references)(\.\w+)+", dotted):
            return [dotted]
    for child in ast.iter_child_nodes(expression):
        node = child.value if isinstance(child, ast.keyword) else child
        if isinstance(node, ast.expr):
            found += dotted_names(node)
    return found


def evaluate(node: object, values: Mapping[str, object], roots: Mapping[str, object]) -> object:
    """Value of an expression of the allowed nodes."""
    match node:
        case ast.Constant(value=value):
            return cast("object", value)
        case ast.Name(id=name):
            return values[name] if name in values else roots[name]
        case ast.Attribute(value=owner, attr=name):
            if (dotted := ast.unparse(node)).startswith("references."):
                return references.function(dotted)
            target = evaluate(owner, values, roots)
            try:
                return cast("object", getattr(target, name))
            except AttributeError:
                raise MissingInTorch(ast.unparse(node)) from None
        case ast.Call(func=function, args=arguments, keywords=keywords):
            callee = cast("Callable[..., object]", evaluate(function, values, roots))
            named = {str(keyword.arg): evaluate(keyword.value, values, roots) for keyword in keywords}
            return callee(*_sequence(arguments, values, roots), **named)
        case ast.Tuple(elts=elements):
            return tuple(_sequence(elements, values, roots))
        case ast.List(elts=elements):
            return _sequence(elements, values, roots)
        case ast.UnaryOp(operand=operand):
            return -cast("float", evaluate(operand, values, roots))
    raise ValueError(f"not an expression of a table: {node!r}")


def _sequence(nodes: Sequence[ast.expr], values: Mapping[str, object], roots: Mapping[str, object]) -> list[object]:
    items: list[object] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            items += cast("Sequence[object]", evaluate(node.value, values, roots))
        else:
            items.append(evaluate(node, values, roots))
    return items
