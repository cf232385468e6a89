"""`python -m pytest_msprobe merge A B -o DIR`: results of several runs, shards or hosts as one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.commands.failure import CommandError
from pytest_msprobe.reports.merge import merge_runs


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "merge",
        help="join the results of several runs, shards or hosts",
        description="Join rows of --msprobe-jsonl into one CSV pair and one JSONL file. Of rows for the same check the "
        "last one counts, in the order in which the sources are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", type=Path, help="a .jsonl file, or a folder with some")
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, required=True, help="folder to write into")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Merge, and print the summary.

    Raises:
        CommandError: a source is not what it should be, or the folder cannot be written.
    """
    try:
        lines = merge_runs(arguments.sources, arguments.folder)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or arguments.folder}: {error.strerror}") from None
    sys.stdout.write("".join(f"{line}\n" for line in lines))
