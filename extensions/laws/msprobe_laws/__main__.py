"""Run a training script with its laws checked: `python -m msprobe_laws train.py ARGUMENTS`."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from msprobe_collector.recording import process
from msprobe_laws.extension import ENVIRONMENT, is_wanted

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


_DESCRIPTION = (
    "Run a training script, which needs no changes, and check the laws of training while it runs. On several ranks: "
    "torchrun ... -m msprobe_laws train.py, or msrun ... python -m msprobe_laws train.py."
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.replace('SCRIPT, ...', 'SCRIPT')}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the script that the command line names, as `python` does. Wrong arguments end with exit code 2."""
    parser = _Parser(prog="python -m msprobe_laws", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "--framework", choices=FRAMEWORKS, help="default: what the script imports, else each that is installed"
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", help="a file, or a module behind -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    options = parser.parse_args(arguments)
    try:
        file = _module_file(options.script) if options.is_module else Path(options.script)
    except ModuleNotFoundError as error:
        if not f"{options.script}.".startswith(f"{error.name}."):
            raise  # a package of the script's needs a module that is missing
        file = None
    if file is None or not file.is_file():
        parser.error(f"there is no {'module' if options.is_module else 'script'} {options.script}")
    if not options.is_module:
        sys.path[0] = str(file.resolve().parent)  # what is imported below is what the script imports
    installed = installed_frameworks()
    if not installed or options.framework not in (None, *installed):
        parser.error(f"{options.framework or ' and '.join(FRAMEWORKS)}: not installed")
    own_package = [options.script.partition(".")[0]] if options.is_module else []
    frameworks = [options.framework] if options.framework else frameworks_of(file, Path(sys.path[0]), own_package)
    if not is_wanted():
        os.environ[ENVIRONMENT] = "1"
    for name in [name for name in installed if name in frameworks] or installed:
        import_module(f"msprobe_laws.{FRAMEWORKS[name]}")
    process.run(options.script, options.arguments, is_module=options.is_module)


def _module_file(name: str) -> Path | None:
    """Return the file of a module, or that which runs a package; None without one."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    return None if spec is None or spec.origin is None else Path(spec.origin)


if __name__ == "__main__":
    main()
