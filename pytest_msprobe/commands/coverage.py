"""`python -m pytest_msprobe coverage`: which APIs of the installed MindSpore are judged, and by what."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.support import CommandError


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "coverage",
        help="list which APIs of the installed MindSpore are judged, and by what",
        description="List every public API of the installed MindSpore with what judges it, or why nothing does. "
        "Needs MindSpore and PyTorch.",
    )
    parser.add_argument("-o", dest="file", metavar="FILE", type=Path, help="write into FILE; default: print")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print or write the page.

    Raises:
        CommandError: a framework is not installed, or the file cannot be written.
    """
    from pytest_msprobe.commands.coverage_page import make_page

    try:
        text = make_page()
    except ImportError as error:
        raise CommandError(f"{error.name} is needed for this: {error}") from None
    if arguments.file is None:
        sys.stdout.write(text)
        return
    try:
        arguments.file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{arguments.file} cannot be written: {error.strerror}") from None
    sys.stdout.write(f"wrote {arguments.file}\n")
