"""`python -m pytest_msprobe page ROWS... -o FILE`: the page of finished runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_msprobe.suites.registry import suite_class
from pytest_msprobe.support import stated_errors


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
    with stated_errors():
        write(arguments.page, arguments.sources)


def write(page: Path, sources: Sequence[Path]) -> None:
    """Write the page of the rows in `sources`, and say where. Raises ValueError and OSError as `write_page`."""
    from pytest_msprobe.reports.page.page import write_page

    write_page(page, sources, suite_class)
    sys.stdout.write(f"page: {page}\n")
