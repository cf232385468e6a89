"""What msprobe_laws uses of the collector."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msprobe_laws
from msprobe_collector import extensions


def imports_of_the_collector() -> Iterator[tuple[str, str]]:
    """(module below msprobe_collector, name) of what is imported from there."""
    for file in Path(msprobe_laws.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msprobe_collector"):
                yield from ((str(node.module).removeprefix("msprobe_collector."), alias.name) for alias in node.names)


def test_what_is_used_of_the_collector_is_listed_there() -> None:
    listed = set(re.findall(r"\w+", extensions.__doc__ or ""))
    used = {(module, name) for module, name in imports_of_the_collector() if not module.startswith("dump_format")}
    assert len(used) > 10
    assert {(module, name) for module, name in used if not {module.rpartition(".")[2], name} <= listed} == set()
