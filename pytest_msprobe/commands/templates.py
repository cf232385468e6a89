"""`python -m pytest_msprobe conftest NAME`: a ready conftest.py to start from."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from pytest_msprobe.support import CommandError

_PACKAGE = Path(__file__).parents[1]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "conftest", help="write a conftest.py from a template", description="Write a conftest.py from a template."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="template; without it they are listed")
    parser.add_argument(
        "-o", dest="file", metavar="FILE", type=Path, default=Path("conftest.py"), help="default: conftest.py"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """List the templates, or copy one.

    Raises:
        CommandError: there is no such template, or a file is in the way.
    """
    templates = find_templates()
    if arguments.name is None:
        sys.stdout.write(_listing(templates))
        return
    template = templates.get(arguments.name)
    if template is None:
        raise CommandError(f"there is no template {arguments.name!r}; there are:\n{_listing(templates)}".rstrip())
    _copy(template, arguments.file)
    companion = template.with_suffix(".txt")
    if companion.is_file():
        beside = arguments.file.parent / companion.name
        if beside.exists():
            sys.stdout.write(f"kept {beside}\n")
        else:
            _copy(companion, beside)


def find_templates() -> dict[str, Path]:
    """Templates by name: inside the installed package, or at the top of the repository.

    Raises:
        CommandError: the installation has no folder of templates.
    """
    folders = (_PACKAGE / "conftest_templates", _PACKAGE.parent / "conftest_templates")
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise CommandError(f"the templates are missing from this installation: {folders[0]}; install it again")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _listing(templates: dict[str, Path]) -> str:
    width = max(map(len, templates))
    return "".join(f"  {name:{width}}  {_first_line(path)}\n" for name, path in templates.items())


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _copy(source: Path, target: Path) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError:
        raise CommandError(f"{target} exists and is left as it is; name another file with -o") from None
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}") from None
    sys.stdout.write(f"wrote {target}\n")
