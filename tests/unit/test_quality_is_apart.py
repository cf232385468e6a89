"""What measures the project is imported by nothing outside of quality/."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pytest_msprobe", "collector", "conftest_templates", "extensions", "tests", "tools")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_imports_quality() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    found = [str(path) for path in files if any(name.split(".")[0] == "quality" for name in imported(path))]
    assert found == []
