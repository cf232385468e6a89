"""Which frameworks a training script imports, from its text; nothing of it is executed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

#: Package of ours for each framework, by the name that scripts import.
FRAMEWORKS = {"torch": "pytorch", "mindspore": "mindspore"}


def installed_frameworks() -> list[str]:
    """Return the frameworks of this environment."""
    return [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]


def frameworks_of(script: Path, folder: Path, names: Iterable[str] = ()) -> set[str]:
    """Return the frameworks in the import statements of a script; without one, of the modules beside it.

    Args:
        script: its file.
        folder: where modules of its own are found.
        names: of modules and packages that belong to the script, beside those that it imports.
    """
    imported = _imported(script)
    frameworks = imported & FRAMEWORKS.keys()
    waiting = [] if frameworks else [*names, *imported]
    looked_at: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in looked_at:
            continue
        looked_at.add(name)
        for file in (folder / f"{name}.py", *(folder / name).rglob("*.py")):
            imported = _imported(file)
            frameworks |= imported & FRAMEWORKS.keys()
            waiting.extend(imported)
    return frameworks


def _imported(file: Path) -> set[str]:
    """Return the first parts of the modules that a file imports, wherever in it; none of a file that is no Python."""
    try:
        nodes = ast.walk(ast.parse(file.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    modules: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.append(node.module)
    return {module.partition(".")[0] for module in modules}
