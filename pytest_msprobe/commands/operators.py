"""`python -m pytest_msprobe operators`: the tables of operators that a record may call. For our own developers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.support import CommandError


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "operators",
        help="write the tables of operators that a record may call (for developers of pytest-msprobe)",
        description="Write the tables of callable operators for the installed MindSpore and PyTorch. They are what a "
        "run may call: read the difference before you commit it, see docs/security.md.",
    )
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, help="folder to write into; default: print")
    parser.add_argument(
        "--framework", choices=("mindspore", "torch"), help="only the table of this framework; default: both"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print or write the tables.

    Raises:
        CommandError: a framework is not installed, or a file cannot be written.
    """
    from pytest_msprobe.commands.operator_tables import mindspore_table, torch_table

    makers = {"mindspore": mindspore_table, "torch": torch_table}
    for framework in [arguments.framework] if arguments.framework else makers:
        try:
            table = makers[framework]()
        except ImportError as error:
            raise CommandError(f"{error.name} is needed for this: {error}") from None
        if arguments.folder is None:
            sys.stdout.write(table.text)
            continue
        try:
            (arguments.folder / table.file).write_text(table.text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{arguments.folder / table.file} cannot be written: {error.strerror}") from None
        sys.stdout.write(f"wrote {arguments.folder / table.file}\n")
