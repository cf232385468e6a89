"""What an API is stands in fact files: no other module looks for a word inside of an API's name.

`"exp" in name` is true of `expand`, `"mul_" in name` of `__mul__`: such a test decides wrongly for the next API.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("pytest_msprobe", "collector/msprobe_collector", "extensions")
#: The reader of facts.
READER = ROOT / "pytest_msprobe" / "apis"
#: Attributes that hold the name of an API, and parameters and variables that do.
ATTRIBUTES = {"api", "bare", "short", "table_name"}
NAMES = {"api", "api_name", "bare"}
#: Variables whose attributes `name` and `call` are such names.
OPERATIONS = {"operation", "forward", "backward"}
#: What gives a part of a text or the text in another case.
PARTS = {"lower", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "rpartition", "partition", "replace"}
SEARCHES = {"startswith", "endswith", "find", "index", "count"}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}


def test_no_module_looks_for_words_in_names_of_apis() -> None:
    assert [search for package in PACKAGES for search in _searches(ROOT / package)] == []


@pytest.mark.parametrize(
    "statement",
    [
        "'exp' in operation.bare",
        "any(word in name for word in WORDS)",
        "name.endswith('norm')",
        "name.startswith('conv')",
        "re.search('grad', name)",
        "PATTERN.fullmatch(call.api.short)",
    ],
)
def test_a_search_is_seen(statement: str) -> None:
    assert list(_searches_of(_function(statement)))


@pytest.mark.parametrize("statement", ["operation.bare == 'exp'", "name in NAMES", "record.startswith('Optimizer.')"])
def test_equal_names_are_no_search(statement: str) -> None:
    assert not list(_searches_of(_function(statement)))


def _function(statement: str) -> ast.AST:
    return ast.parse(
        f"def f(operation, call, record):\n    name = operation.bare.lower()\n    return {statement}"
    ).body[0]


def _searches(package: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(package.rglob("*.py")):
        if READER in path.parents or "tests" in path.relative_to(ROOT).parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for text in _searches_of(node):
                    yield f"{path.relative_to(ROOT)}: {node.name}", text


def _searches_of(function: ast.AST) -> Iterator[str]:
    """Expressions of a function that look for something inside of the name of an API."""
    names = set(NAMES)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_name(node.value, names):
            targets = [target for target in node.targets if isinstance(target, ast.Name)]
            names |= {target.id for target in targets}
        elif isinstance(node, (ast.For, ast.comprehension)) and "record_names" in ast.unparse(node.iter):
            names |= {target.id for target in ast.walk(node.target) if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if _is_name(node.comparators[0], names):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_search = node.func.attr in SEARCHES and _is_name(node.func.value, names)
            is_pattern = node.func.attr in PATTERNS and any(_is_name(argument, names) for argument in node.args)
            if is_search or is_pattern:
                yield ast.unparse(node)


def _is_name(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is the name of an API or a part of it."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Subscript):
        return _is_name(node.value, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in PARTS and _is_name(node.func.value, names)
    if not isinstance(node, ast.Attribute):
        return False
    of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return node.attr in ATTRIBUTES or (node.attr in ("name", "call") and of in OPERATIONS)
