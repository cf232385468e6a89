"""The arrows of docs/architecture.md, enforced on the imports as written."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_msprobe.suites.registry import SUITES
from pytest_msprobe.support import entry_points_of

#: Packages that only entry points lead to.
EXTENSIONS = [path.parent.name for path in (Path(__file__).parents[2] / "extensions").glob("*/*/__init__.py")]


def root_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


ROOTS = {package: root_of(package) for package in ("pytest_msprobe", "msprobe_collector", *EXTENSIONS)}

#: Rooms below all others: plain values, and words for errors.
_LOW = (
    "msprobe_collector.dump_format",
    "pytest_msprobe.answers",
    "pytest_msprobe.support",
    "pytest_msprobe.verdicts",
)
#: The table of tolerances, which imports no module.
_TABLE = "pytest_msprobe.numerics.expected"
_COMPUTING = (*_LOW, "pytest_msprobe.apis", "pytest_msprobe.engines", "pytest_msprobe.numerics")
#: Of the room `suites`, what is not a suite.
_SHARED_BY_SUITES = tuple(f"pytest_msprobe.suites.{name}" for name in ("contract", "entry", "grouping", "options"))
#: What suites derive from, and nothing else imports.
_BASES_OF_SUITES = ("pytest_msprobe.suites.api_calls",)
_SUITES = [entry.name for entry in SUITES.values() if entry.place.startswith("pytest_msprobe.suites.")]

#: What each room may import of ours; its own modules always. No room imports one that stands above it.
ALLOWED = {
    "pytest_msprobe.numerics": ("msprobe_collector.dump_format", "pytest_msprobe.verdicts"),
    "pytest_msprobe.verdicts": ("msprobe_collector.dump_format",),
    "pytest_msprobe.support": (),
    "pytest_msprobe.answers": ("msprobe_collector.dump_format", "pytest_msprobe.verdicts", _TABLE),
    "pytest_msprobe.apis": ("msprobe_collector.dump_format",),
    "pytest_msprobe.manifests": ("msprobe_collector.dump_format", "pytest_msprobe.answers"),
    "pytest_msprobe.engines": (
        *_LOW,
        "msprobe_collector.__file__",
        "pytest_msprobe.apis",
        "pytest_msprobe.numerics.pair",
        _TABLE,
    ),
    "pytest_msprobe.reports": (*_LOW, _TABLE, "pytest_msprobe.suites.contract"),
    "pytest_msprobe.cases": _COMPUTING,
    **dict.fromkeys(EXTENSIONS, ("pytest_msprobe", "msprobe_collector")),
    "pytest_msprobe.evidence": (*_COMPUTING, "pytest_msprobe.cases"),
    **{
        f"pytest_msprobe.suites.{suite}": (
            *_COMPUTING,
            *_SHARED_BY_SUITES,
            *_BASES_OF_SUITES,
            "pytest_msprobe.cases",
            "pytest_msprobe.evidence",
            "pytest_msprobe.manifests",
            "pytest_msprobe.reports",
        )
        for suite in _SUITES
    },
    **dict.fromkeys(
        _SHARED_BY_SUITES, (*_LOW, *_SHARED_BY_SUITES, "pytest_msprobe.apis", "pytest_msprobe.engines.protocol")
    ),
    **dict.fromkeys(_BASES_OF_SUITES, (*_LOW, *_SHARED_BY_SUITES, "pytest_msprobe.engines", "pytest_msprobe.reports")),
    "pytest_msprobe.own_kernels": (
        *_COMPUTING,
        "pytest_msprobe.cases",
        "pytest_msprobe.suites.precheck",
        "pytest_msprobe.suites.repeat",
    ),
    "pytest_msprobe.suites.registry": (*_SHARED_BY_SUITES, "pytest_msprobe.support"),
    "pytest_msprobe.run": (
        *_LOW,
        *_SHARED_BY_SUITES,
        "pytest_msprobe.suites.registry",
        "pytest_msprobe.reports",
        "pytest_msprobe.engines.process",
    ),
    "pytest_msprobe.diagnose": (
        *_LOW,
        _TABLE,
        "pytest_msprobe.engines.protocol",
        "pytest_msprobe.engines.selection",
        "pytest_msprobe.suites.grouping",
        "pytest_msprobe.manifests",
        "pytest_msprobe.run.dump_folders",
        "pytest_msprobe.suites.registry",
    ),
    "pytest_msprobe.workers": (
        *_LOW,
        "pytest_msprobe.suites.contract",
        "pytest_msprobe.reports",
        "pytest_msprobe.run.record_index",
        "pytest_msprobe.engines.protocol",
        "pytest_msprobe.engines.process",
    ),
    "pytest_msprobe.plugin": (
        "pytest_msprobe.activation",
        "pytest_msprobe.hookspecs",
        "pytest_msprobe.own_kernels.fixtures",
        "pytest_msprobe.run",
        "pytest_msprobe.support",
    ),
    "msprobe_collector": (),
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, root in ROOTS.items():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[0] in ("documentation", "conftest_templates"):  # for people: an installed package holds them
                continue
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


#: The collector from below, what begins with the same name together; all else of it stands on top.
LAYERS = (
    ("logger", "loading", "msprobe_names"),
    ("dump_format",),
    ("configuration",),
    ("extensions", "recording"),
    ("framework",),
    ("mindspore", "pytorch"),
)
#: Modules of frameworks that a script imports, and what is made of the debugger for them.
_ON_TOP = ("mindspore.framework", "mindspore.callbacks", "pytorch.framework")
_ON_TOP += ("mindspore.unedited_scripts", "pytorch.unedited_scripts")


def layer_of(module: str) -> int:
    name = module.removeprefix("msprobe_collector.")
    layers = [number for number, names in enumerate(LAYERS) if any(begins_with(name, below) for below in names)]
    return len(LAYERS) if name in _ON_TOP or not layers else layers[0]


def test_no_module_of_the_collector_imports_one_that_stands_above_it() -> None:
    arrows = [
        (module, imported)
        for module, path in modules()
        if begins_with(module, "msprobe_collector")
        for imported, _ in imports_of(path)
        if begins_with(imported, "msprobe_collector")
    ]
    assert len(arrows) > 300
    assert [arrow for arrow in arrows if layer_of(arrow[0]) < layer_of(arrow[1])] == []


def modules_in_circles(arrows: dict[str, set[str]]) -> list[str]:
    # Files that import nothing more are taken away, until none is left or the rest stands in a circle or above one.
    while ends := {module for module, imported in arrows.items() if not imported & arrows.keys()}:
        arrows = {module: imported for module, imported in arrows.items() if module not in ends}
    return sorted(arrows)


def test_no_circle_between_files() -> None:
    """Not by imports for types alone either."""
    arrows = {}
    for module, path in modules():
        names = [name for name, _ in imports_of(path)]
        modules_of_names = {name if name in NAMES else name.rpartition(".")[0] for name in names}
        arrows[module] = (modules_of_names & NAMES) - {module}
    assert modules_in_circles(arrows) == []


def test_frameworks_load_only_inside_functions() -> None:
    found = [
        f"{module} imports {imported}"
        for module, path in modules()
        for imported, is_top_level in imports_of(path)
        # adapters and references are the PyTorch code that only a running engine loads; the frameworks' sides of the
        # collector load behind `PyTorch` and `MindSpore`, when collecting begins
        if is_top_level
        and imported.split(".")[0] in ("torch", "mindspore")
        and not (
            module.startswith(("msprobe_collector.pytorch.", "msprobe_collector.mindspore."))
            and not module.endswith((".framework", ".callbacks"))
        )
        and not any(
            room in module
            for room in (
                *(f"{package}.{framework}." for package in EXTENSIONS for framework in ("mindspore", "pytorch")),
                "engines.adapters",
                "engines.references",
                "engines.torch_arithmetic",
                "engines.torch_decompositions",
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


#: Names by which a package is known elsewhere: its own, and those of its suites and of the files that these judge.
NAMED = {
    name
    for package in EXTENSIONS
    for name in (
        package,
        *(
            word
            for entry in SUITES.values()
            if begins_with(entry.place.partition(":")[0], package)
            for word in (f'"{entry.name}"', f"suite={entry.name}", *entry.files)
        ),
    )
}


@pytest.mark.parametrize("room", ["pytest_msprobe", "msprobe_collector"])
def test_nothing_names_what_only_entry_points_lead_to(room: str) -> None:
    assert len(NAMED) >= 5
    words = re.compile("|".join(map(re.escape, sorted(NAMED))))
    files = [path for path in ROOTS[room].rglob("*") if path.suffix in (".py", ".txt", ".json", ".yaml", ".js")]
    found = [f"{path}: {match[0]}" for path in files for match in words.finditer(path.read_text(encoding="utf-8"))]
    assert found == []


#: Modules that every project with the package installed pays for, those of entry points among them.
LIGHT = (
    """
    pytest_msprobe.plugin pytest_msprobe.hookspecs pytest_msprobe.api pytest_msprobe.__main__
    msprobe_collector msprobe_collector.dump_format msprobe_collector.configuration pytest_msprobe.apis
    msprobe_collector.framework msprobe_collector.debugger msprobe_collector.gradient_monitor
    msprobe_collector.mindspore.framework msprobe_collector.mindspore.callbacks pytest_msprobe.numerics.expected
""".split()
    + [each.module for kind in ("suites", "commands") for each in entry_points_of(f"pytest_msprobe.{kind}")]
)


@pytest.mark.parametrize("package", LIGHT)
def test_importing_a_package_loads_neither_numpy_nor_a_framework(package: str) -> None:
    check = (
        f"import sys, {package}; print([m for m in ('numpy', 'torch', 'mindspore', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_entries_of_suites_load_no_suite() -> None:
    check = "import sys, pytest_msprobe.suites.registry; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    loaded = ast.literal_eval(done.stdout)
    assert [entry.name for entry in SUITES.values() if entry.place.partition(":")[0] in loaded] == []


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    long = {module: count for module, path in modules() if (count := len(path.read_text().splitlines())) > 700}
    assert long == {}


#: Modules whose numbers are tolerances: the table, and the constants of formulas of standards.
TABLES = (_TABLE, "pytest_msprobe.numerics.standards")
#: Numbers that read like tolerances, and are none.
NO_TOLERANCES = {
    # What inputs are drawn from.
    "pytest_msprobe.cases.random_data": {"DEFAULT_RANGE"},
    # Numbers of a definition: of a truncated normal law, and of SELU.
    "pytest_msprobe.numerics.chance": {"_TRUNCATED_AT"},
    "pytest_msprobe.numerics.draws": {"_ALPHA"},
    # Time between two lines of progress, as a part of what has passed.
    "pytest_msprobe.run.terminal": {"_PROGRESS_SHARE"},
    # Of the format of sketches: the collector writes them, and imports nothing of the plugin.
    "msprobe_collector.dump_format.sketches": {"LEAST", "MOST", "_APART", "_LEAST_SQUARE", "RESOLUTION"},
    "msprobe_collector.dump_format.sketch_files": {"_MOST_RATIO"},
    "msprobe_collector.dump_format.writing.statistics": {"_LEAST_SHIFTED"},
}
#: Modules or packages whose functions hold floats that are no tolerances, and these; None for any.
NO_BOUNDS: dict[str, set[float] | None] = {
    # How likely a difference of settings makes that of values.
    "pytest_msprobe.manifests": None,
    "pytest_msprobe.suites.comparison.accounting.diagnosis": {0.9},
    # Numbers of definitions: of functions and layers, of optimizers, of a mean that forgets.
    "pytest_msprobe.engines": None,
    "pytest_msprobe.cases.second_runs": {1e-5, 1e-6},
    "msprobe_laws.formulas": None,
    "pytest_msprobe.suites.gradients.check": {0.01},
    # How the rate of false alarms is shared among tests of one sample, which together take all of it.
    "pytest_msprobe.numerics.chance": {0.125, 0.25},
    # Words, pictures and progress: how alike names are, how a figure is written, sizes, parts of a time.
    "pytest_msprobe.__main__": {0.7},
    "pytest_msprobe.run.settings": {0.6, 0.85},
    "pytest_msprobe.run.answering": {0.85},
    "pytest_msprobe.answers.words": {1e-4},
    "pytest_msprobe.reports.page": {1e15},
    "pytest_msprobe.suites.gradients.report": None,
    "pytest_msprobe.workers.controller": {0.8},
    # Bytes, costs and seconds.
    "pytest_msprobe.cases.edge_cases": {1e9},
    "pytest_msprobe.commands.selfcheck": {1e3, 1e6},
    "pytest_msprobe.evidence": {1e9},
    "pytest_msprobe.suites.grouping": {20_000.0},
    "pytest_msprobe.suites.options": {0.8},
    "msprobe_checkpoints.command": {1e9},
    # It imports nothing of the plugin.
    "msprobe_collector": None,
}
_ROUNDED = re.compile(
    r"\b(Roundoffs|Relative|Times|Share|Absolute)\.|roundoff|unit\b|tiny\b|tolerance|allowed|smallest_normal"
)
_LIKE_TOLERANCES = re.compile("ROUNDING|ROUNDOFF|TOLERANCE|FLOOR|GROWTH(?!S)|EXCESS|DISTANCE|SAME|APART|FARTHEST")


def constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Name and value of what a module or a class sets to numbers; fields of a dataclass are none."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    annotated = [node for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None]
    plain = [node for body in (tree, *classes) for node in body.body if isinstance(node, ast.Assign)]
    for node in (*annotated, *plain):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts) if several else [(target, node.value)]
            for name, value in pairs:
                with suppress(NameError, TypeError):  # no constant
                    yield ast.unparse(name), eval(ast.unparse(value), {"__builtins__": {}})


def leaves_of(value: object) -> Iterator[object]:
    if isinstance(value, (dict, tuple, list, set)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(part)
    else:
        yield value


def test_tolerances_stand_in_one_table() -> None:
    found: dict[str, set[str]] = {}
    for module, path in modules():
        if any(begins_with(module, table) for table in TABLES):
            continue
        for name, value in constants(ast.parse(path.read_text(encoding="utf-8"))):
            kinds = {type(leaf) for leaf in leaves_of(value)}
            if not kinds <= {int, float}:
                continue
            if (float in kinds and "SECOND" not in name) or _LIKE_TOLERANCES.search(name):
                found.setdefault(module, set()).add(name)
    assert found == NO_TOLERANCES, "a float that a module or a class defines belongs into numerics/expected.py"


def bounds(tree: ast.Module) -> Iterator[float]:
    """Floats in functions and in defaults of fields but for 0, 0.5, 1 and 2, and whole numbers that multiply bounds.

    2 roundoffs are a spacing.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = [node for part in classes for node in part.body if isinstance(node, ast.AnnAssign)]
    for node in (part for place in (*functions, *fields) for part in ast.walk(place)):
        match node:
            case ast.Constant(value=float(number)) if number not in (0.0, 0.5, 1.0, 2.0):
                yield number
            case ast.BinOp(ast.Constant(value=base), ast.Pow(), ast.Constant() | ast.UnaryOp() as power):
                with suppress(ValueError):  # no constant
                    if isinstance(number := base ** ast.literal_eval(power), float):
                        yield number
            case ast.BinOp(left, ast.Mult() | ast.Div(), right):
                for factor, other in ((left, right), (right, left)):
                    if not _ROUNDED.search(ast.unparse(factor)) and _ROUNDED.search(ast.unparse(other)):
                        numbers = [leaf.value for leaf in ast.walk(factor) if isinstance(leaf, ast.Constant)]
                        yield from (number for number in numbers if isinstance(number, int) and number > 2)


def test_functions_have_no_tolerances_of_their_own() -> None:
    found: dict[str, set[float]] = {}
    for module, path in modules():
        exceptions = [numbers for name, numbers in NO_BOUNDS.items() if begins_with(module, name)]
        if None in exceptions or any(begins_with(module, table) for table in TABLES):
            continue
        if numbers := set(bounds(ast.parse(path.read_text(encoding="utf-8")))) - set().union(*exceptions):
            found[module] = numbers
    assert found == {}, "a bound that a function holds belongs into numerics/expected.py"


@pytest.mark.parametrize(
    "statement",
    ["return x < 1e-6", "return 4 * self.unit", "return x <= 2.0**-24", "return (4 + 2 * sqrt(n)) * unit_roundoff(x)"],
)
def test_a_bound_in_a_function_is_found(statement: str) -> None:
    assert [*bounds(ast.parse(f"def judge(x):\n    {statement}"))]


def test_each_row_of_the_table_says_what_it_is() -> None:
    from pytest_msprobe.numerics import expected

    lines = Path(expected.__file__).read_text(encoding="utf-8").splitlines()
    tree = ast.parse("\n".join(lines))
    rows = [node for part in tree.body if isinstance(part, ast.ClassDef) for node in part.body]
    rows = [node for node in rows if isinstance(node, ast.Assign)]
    assert len(rows) > 90
    assert [ast.unparse(row) for row in rows if not lines[row.lineno - 2].lstrip().startswith("#: ")] == []


def test_each_row_of_the_table_is_used() -> None:
    from pytest_msprobe.numerics import expected

    text = "\n".join(path.read_text(encoding="utf-8") for _, path in modules())
    rows = [
        f"{name}.{row}"
        for name, part in vars(expected).items()
        if isinstance(part, type) and part.__module__ == expected.__name__ and name != "OfDtype"
        for row in vars(part)
        if row.isupper()
    ]
    assert [row for row in rows if not re.search(rf"\b{row}\b", text)] == []
