"""The arrows of docs/architecture.md, enforced on the imports as written."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import msprobe_collector
import pytest_msprobe

ROOTS = {
    "pytest_msprobe": Path(pytest_msprobe.__file__).parent,
    "msprobe_collector": Path(msprobe_collector.__file__).parent,
}

#: What each room may import of ours; its own modules always.
ALLOWED = {
    "pytest_msprobe.numerics": (),
    "pytest_msprobe.engines": ("msprobe_collector.dump_format", "msprobe_collector.__file__"),
    "pytest_msprobe.reports": ("msprobe_collector.dump_format",),
    "pytest_msprobe.precheck": (
        "msprobe_collector.dump_format",
        "pytest_msprobe.engines",
        "pytest_msprobe.numerics",
        "pytest_msprobe.reports",
        "pytest_msprobe.node_names",
        "pytest_msprobe.settings",
        "pytest_msprobe.suite",
        "pytest_msprobe._keys",
    ),
    "pytest_msprobe.comparison": (
        "msprobe_collector.dump_format",
        "pytest_msprobe.numerics",
        "pytest_msprobe.reports",
        "pytest_msprobe.node_names",
        "pytest_msprobe.settings",
        "pytest_msprobe.option",
        "pytest_msprobe.suite",
        "pytest_msprobe._keys",
    ),
    "pytest_msprobe.overflow": (
        "msprobe_collector.dump_format",
        "pytest_msprobe.engines",
        "pytest_msprobe.precheck",
        "pytest_msprobe.reports",
        "pytest_msprobe.node_names",
        "pytest_msprobe.option",
        "pytest_msprobe.option_values",
        "pytest_msprobe.settings",
        "pytest_msprobe._keys",
    ),
    "pytest_msprobe.gradients": (
        "msprobe_collector.dump_format",
        "pytest_msprobe.reports",
        "pytest_msprobe.node_names",
        "pytest_msprobe.option",
        "pytest_msprobe.option_values",
        "pytest_msprobe.settings",
        "pytest_msprobe._keys",
    ),
    "pytest_msprobe.coverage": ("msprobe_collector.dump_format", "pytest_msprobe.engines", "pytest_msprobe.precheck"),
    "msprobe_collector": (),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, root in ROOTS.items():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def imports_of(path: Path) -> Iterator[tuple[str, bool]]:
    """(imported module, whether it is imported when the module loads)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top_level = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top_level) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module in ROOTS else [module]
            yield from ((name, id(node) in top_level) for name in names)


def begins_with(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in modules()
        if begins_with(module, room)
        for imported, _ in imports_of(path)
        if imported.split(".")[0] in ROOTS
        and not any(begins_with(imported, allowed) for allowed in (room, *ALLOWED[room]))
    ]
    assert found == []


def test_frameworks_load_only_inside_functions() -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in modules()
        for imported, is_top_level in imports_of(path)
        # adapters and references are the PyTorch code that only a running engine loads
        if is_top_level
        and imported.split(".")[0] in ("torch", "mindspore")
        and not any(room in module for room in ("torch_map", "engines.references", "static_graph.graph_code"))
    ]
    assert found == []


def test_the_collector_never_imports_pytest() -> None:
    found = [
        module
        for module, path in modules()
        if module.startswith("msprobe_collector")
        for name, _ in imports_of(path)
        if name == "pytest"
    ]
    assert found == []


LIGHT = """
    pytest_msprobe.plugin pytest_msprobe.hookspecs pytest_msprobe.api pytest_msprobe.__main__
    msprobe_collector msprobe_collector.dump_format msprobe_collector.configuration msprobe_collector.callbacks
    msprobe_collector.gradient_monitor msprobe_collector.debugger
""".split()


@pytest.mark.parametrize("package", LIGHT)
def test_importing_a_package_loads_neither_numpy_nor_a_framework(package: str) -> None:
    check = (
        f"import sys, {package}; print([m for m in ('numpy', 'torch', 'mindspore', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_module_has_outgrown_its_name() -> None:
    long = {module: count for module, path in modules() if (count := len(path.read_text().splitlines())) > 300}
    assert long == {}
