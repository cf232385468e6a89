"""`python -m pytest_msprobe page ROWS... -o FILE`: the page of finished runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.commands.failure import CommandError
from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.suites.registry import SUITES, suite_class


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "page",
        help="make the page of finished runs",
        description="Make one page from rows of --msprobe-jsonl: of one run, or of shards, resumed runs and ranks "
        "together. Of rows on the same record the last one counts, in the order in which the files are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="ROWS", type=Path, help="a file of --msprobe-jsonl")
    parser.add_argument("-o", dest="page", metavar="FILE", type=Path, required=True, help="page to write")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Write the page, and say where.

    Raises:
        CommandError: a source is not what it should be, or the page cannot be written.
    """
    from pytest_msprobe.reports.page.page import write_page

    try:
        write_page(arguments.page, arguments.sources, _suite)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None
    sys.stdout.write(f"page: {arguments.page}\n")


def _suite(name: str) -> type[Suite] | None:
    return suite_class(name) if name in SUITES else None
