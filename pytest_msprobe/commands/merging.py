"""`python -m pytest_msprobe merge A B -o DIR`: results of several runs, shards or hosts as one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.commands import page
from pytest_msprobe.reports.jsonl import MERGED_NAME, merge_runs
from pytest_msprobe.reports.page.page import check_page_replaceable
from pytest_msprobe.suites.registry import suite_class
from pytest_msprobe.support import stated_errors


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "merge",
        help="join the results of several runs, shards or hosts",
        description="Join rows of --msprobe-jsonl into one JSONL file, and those of the pre-check into a CSV pair. Of "
        "rows for the same check the last one counts, in the order in which the sources are named. Exits with 1 when "
        "there are failures among them.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", type=Path, help="a .jsonl file, or a folder with some")
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, required=True, help="folder to write into")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page of the merged rows as well")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Merge, and print the summary; 1 when there are failures.

    Raises:
        CommandError: a source is not what it should be, or a file cannot be written.
    """
    with stated_errors():
        if arguments.page is not None:
            check_page_replaceable(arguments.page)
        merged = merge_runs(arguments.sources, arguments.folder, suite_class)
        sys.stdout.write("".join(f"{line}\n" for line in merged.lines()))
        if arguments.page is not None:
            page.write(arguments.page, [arguments.folder / MERGED_NAME])
    return int(merged.has_failed)
