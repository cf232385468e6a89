"""The command `skill`: how a coding agent localises wrong numerics, or verifies a kernel, on one page each."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pytest_msprobe.commands.common import CommandError, bundled, stated_errors

_NAMES = ("localise-numerics", "verify-kernel")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
