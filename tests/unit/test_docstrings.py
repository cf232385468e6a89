"""Docstrings say which errors a public function raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "pytest_msprobe", ROOT / "collector" / "msprobe_collector")


def raises_itself(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether there is a `raise` of a new error in the function; those of functions inside it are their own."""
    own = [node for statement in function.body for node in ast.walk(statement)]
    inside = {
        id(node)
        for inner in own
        if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(inner)
    }
    return any(isinstance(node, ast.Raise) and node.exc is not None and id(node) not in inside for node in own)


def silent_functions(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each public function that raises and has no section `Raises:`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        if raises_itself(node) and "Raises:" not in (ast.get_docstring(node) or ""):
            yield node.lineno, node.name


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_public_functions_say_what_they_raise(package: Path) -> None:
    silent = [
        f"{path.relative_to(ROOT).as_posix()}:{line} {name}"
        for path in sorted(package.rglob("*.py"))
        for line, name in silent_functions(path.read_text(encoding="utf-8"))
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError", [(1, "f")]),
        ("'Raises ValueError.'; raise ValueError", [(1, "f")]),
        ("'Text.\\n\\nRaises:\\n    ValueError: always.\\n'; raise ValueError", []),
        ("raise", []),
        ("return 1", []),
    ],
)
def test_the_rule(body: str, expected: list[tuple[int, str]]) -> None:
    assert list(silent_functions(f"def f(): {body}")) == expected
    assert list(silent_functions(f"def _f(): {body}")) == []


def test_inner_functions_answer_for_themselves() -> None:
    assert list(silent_functions("def f():\n    def g():\n        raise ValueError\n    return g")) == [(2, "g")]
