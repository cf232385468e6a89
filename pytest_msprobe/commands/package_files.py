"""The commands `conftest`, `docs` and `skill`: files that this package brings, written, copied and printed."""

from __future__ import annotations

import argparse
import ast
import shutil
import sys
from pathlib import Path

from pytest_msprobe.commands.common import CommandError, bundled, create, stated_errors

_PACKAGE = Path(__file__).parents[1]
#: What `docs` copies, by its place in the repository.
_PAGES = (
    "README.md CHANGELOG.md docs extensions/laws/README.md extensions/checkpoints/README.md collector/examples".split()
)

_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*_dump", "site_pages.py")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both commands."""
    parser = commands.add_parser(
        "conftest", help="write a conftest.py from a template", description="Write a conftest.py from a template."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="template; without it they are listed")
    parser.add_argument(
        "-o", dest="file", metavar="FILE", type=Path, default=Path("conftest.py"), help="default: conftest.py"
    )
    parser.set_defaults(run=write_conftest)
    parser = commands.add_parser(
        "docs",
        help="copy the documentation, CI jobs and examples into a folder",
        description="Copy the documentation, the CI jobs and the examples of this version into a new folder.",
    )
    parser.add_argument(
        "-o", dest="folder", metavar="DIR", type=Path, default=Path("msprobe_docs"), help="default: msprobe_docs"
    )
    parser.set_defaults(run=copy_docs)


def write_conftest(arguments: argparse.Namespace) -> None:
    """List the templates of a conftest.py, or copy one.

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


def copy_docs(arguments: argparse.Namespace) -> None:
    """Copy README, documentation, CI jobs and examples into a new folder, and say where to begin.

    Raises:
        CommandError: the folder exists or cannot be written, or the installation has no documentation.
    """
    packaged, target = _PACKAGE / "documentation", arguments.folder
    source = packaged if packaged.is_dir() else _PACKAGE.parent
    if not (source / "docs").is_dir():
        raise CommandError(f"the documentation is missing from this installation: {packaged}; install it again")
    if target.exists():
        raise CommandError(f"{target} exists and is left as it is; name another folder with -o")
    with stated_errors():
        for page in _PAGES:
            place = target / page
            place.parent.mkdir(parents=True, exist_ok=True)
            if (source / page).is_dir():
                shutil.copytree(source / page, place, ignore=_NOT_COPIED)
            else:
                shutil.copyfile(source / page, place)
    sys.stdout.write(f"wrote {target}; begin with {target / 'README.md'}\n")


def find_templates() -> dict[str, Path]:
    """Templates by name.

    Raises:
        CommandError: the installation has no folder of templates.
    """
    folder = bundled("conftest_templates", "the templates are")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _listing(templates: dict[str, Path]) -> str:
    width = max(map(len, templates))
    lines = []
    for name, path in templates.items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first, _, _ = docstring.partition("\n")
        lines.append(f"  {name:{width}}  {first}\n")
    return "".join(lines)


def _copy(source: Path, target: Path) -> None:
    create(target, source.read_text(encoding="utf-8"))


_NAMES = ("localise-numerics", "verify-kernel")


def add_skill(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "skill",
        help="print the page for coding agents that localise wrong numerics, or verify a kernel",
        description="Print SKILL.md, a page for coding agents, or copy it into a folder of skills.",
    )
    parser.add_argument("name", nargs="?", choices=_NAMES, default=_NAMES[0], help=f"which one; {_NAMES[0]} if none")
    parser.add_argument(
        "-o", dest="folder", metavar="DIR", type=Path, help="copy it into DIR/NAME, such as .claude/skills"
    )
    parser.set_defaults(run=show_skill)


def show_skill(arguments: argparse.Namespace) -> None:
    """Print the page, or copy it.

    Raises:
        CommandError: the folder is there already or cannot be written, or the installation has no skill.
    """
    source = bundled(f"skills/{arguments.name}", "the skill is")
    if arguments.folder is None:
        sys.stdout.write((source / "SKILL.md").read_text(encoding="utf-8"))
        return
    target = arguments.folder / arguments.name
    if target.exists():
        raise CommandError(f"{target} exists and is left as it is; name another folder with -o")
    with stated_errors():
        shutil.copytree(source, target)
    sys.stdout.write(f"wrote {target}\n")
