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

#: Rooms below all others: plain values, and words for errors.
_LOW = (
    "msprobe_collector.dump_format",
    "pytest_msprobe.faults",
    "pytest_msprobe.installing",
    "pytest_msprobe.verdicts",
)
_COMPUTING = (*_LOW, "pytest_msprobe.apis", "pytest_msprobe.engines", "pytest_msprobe.numerics")
#: Of the room `suites`, what is not a suite.
_SHARED_BY_SUITES = tuple(
    f"pytest_msprobe.suites.{name}"
    for name in (
        "api_calls",
        "contract",
        "node_names",
        "operation_groups",
        "option",
        "option_values",
        "places",
        "shared_options",
    )
)
_SUITES = ("precheck", "comparison", "overflow", "gradients", "repeat")

#: What each room may import of ours; its own modules always. No room imports one that stands above it.
ALLOWED = {
    "pytest_msprobe.numerics": (),
    "pytest_msprobe.verdicts": ("msprobe_collector.dump_format",),
    "pytest_msprobe.faults": (),
    "pytest_msprobe.apis": ("msprobe_collector.dump_format",),
    "pytest_msprobe.engines": (*_LOW, "msprobe_collector.__file__", "pytest_msprobe.apis"),
    "pytest_msprobe.installing": (),
    "pytest_msprobe.reports": _LOW,
    "pytest_msprobe.cases": _COMPUTING,
    "pytest_msprobe.evidence": (*_COMPUTING, "pytest_msprobe.cases"),
    **{
        f"pytest_msprobe.suites.{suite}": (
            *_COMPUTING,
            *_SHARED_BY_SUITES,
            "pytest_msprobe.cases",
            "pytest_msprobe.evidence",
            "pytest_msprobe.reports",
        )
        for suite in _SUITES
    },
    **dict.fromkeys(_SHARED_BY_SUITES, (*_LOW, *_SHARED_BY_SUITES, "pytest_msprobe.engines.specification")),
    "pytest_msprobe.suites.registry": (
        *_SHARED_BY_SUITES,
        *(f"pytest_msprobe.suites.{suite}.options" for suite in _SUITES),
    ),
    "pytest_msprobe.run": (
        *_LOW,
        *_SHARED_BY_SUITES,
        "pytest_msprobe.suites.registry",
        "pytest_msprobe.reports",
        "pytest_msprobe.engines.time_limit",
    ),
    "pytest_msprobe.workers": (
        *_LOW,
        "pytest_msprobe.suites.contract",
        "pytest_msprobe.reports",
        "pytest_msprobe.engines.specification",
        "pytest_msprobe.engines.time_limit",
    ),
    "pytest_msprobe.finder": (),
    "pytest_msprobe.plugin": (
        "pytest_msprobe.activation",
        "pytest_msprobe.finder",
        "pytest_msprobe.hookspecs",
        "pytest_msprobe.run",
    ),
    "msprobe_collector": (),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, root in ROOTS.items():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


NAMES = frozenset(name for name, _ in modules())


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
            for alias in node.names:
                is_module = f"{module}.{alias.name}" in NAMES or module in ROOTS
                yield f"{module}.{alias.name}" if is_module else module, id(node) in top_level


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


def room_of(module: str) -> str:
    """The folder in which a module stands, or the module itself; each suite is a room of its own."""
    parts = module.split(".")
    depth = 3 if parts[:2] == ["pytest_msprobe", "suites"] else 2
    return ".".join(parts[:depth])


def test_no_circle_between_rooms() -> None:
    arrows: dict[str, set[str]] = {}
    for module, path in modules():
        for imported, _ in imports_of(path):
            if begins_with(imported, "pytest_msprobe") and room_of(imported) != room_of(module):
                arrows.setdefault(room_of(module), set()).add(room_of(imported))
    # Rooms that import nothing more are taken away, until none is left or the rest stands in a circle.
    while ends := {room for rooms in arrows.values() for room in rooms if room not in arrows}:
        arrows = {room: left for room, rooms in arrows.items() if (left := rooms - ends)}
    assert arrows == {}, f"rooms that import each other: {arrows}"


def test_frameworks_load_only_inside_functions() -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in modules()
        for imported, is_top_level in imports_of(path)
        # adapters and references are the PyTorch code that only a running engine loads; PyTorch's side of the
        # collector loads behind `PyTorch`, when collecting begins
        if is_top_level
        and imported.split(".")[0] in ("torch", "mindspore")
        and not any(
            room in module
            for room in (
                "torch_map",
                "engines.references",
                "engines.torch_arithmetic",
                "engines.torch_decompositions",
                "static_graph.graph_code",
                "msprobe_collector.pytorch.tensor_values",
                "msprobe_collector.pytorch.watching",
            )
        )
    ]
    assert found == []


def test_the_collector_knows_frameworks_in_their_own_rooms_only() -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in modules()
        if module.startswith("msprobe_collector") and module.split(".")[1:2] not in (["mindspore"], ["pytorch"])
        for imported, _ in imports_of(path)
        if imported.split(".")[0] in ("torch", "mindspore")
        or begins_with(imported, "msprobe_collector.mindspore")
        or begins_with(imported, "msprobe_collector.pytorch")
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
    msprobe_collector msprobe_collector.dump_format msprobe_collector.configuration pytest_msprobe.apis
    msprobe_collector.framework msprobe_collector.debugger msprobe_collector.gradient_monitor
    msprobe_collector.mindspore.debugger msprobe_collector.mindspore.callbacks
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
