"""The commands `merge` and `page`: finished runs as one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_msprobe.commands.common import print_lines, stated_errors
from pytest_msprobe.reports.jsonl import MERGED_NAME, merge_runs
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.suites.registry import suite_class


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both commands."""
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
    parser.set_defaults(run=merge)
    parser = commands.add_parser(
        "page",
        help="make the page of finished runs",
        description="Make one page from rows of --msprobe-jsonl: of one run, or of shards, resumed runs and ranks "
        "together. Of rows on the same record the last one counts, in the order in which the files are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="ROWS", type=Path, help="a file of --msprobe-jsonl")
    parser.add_argument("-o", dest="page", metavar="FILE", type=Path, required=True, help="page to write")
    parser.set_defaults(run=make_page)


def merge(arguments: argparse.Namespace) -> int:
    """Results of several runs, shards or hosts as one, and their summary; 1 when there are failures.

    Raises:
        CommandError: a source is not what it should be, or a file cannot be written.
    """
    with stated_errors():
        if arguments.page is not None:
            check_page_replaceable(arguments.page)
        merged = merge_runs(arguments.sources, arguments.folder, suite_class)
        print_lines(merged.lines())
        if arguments.page is not None:
            _write_page(arguments.page, [arguments.folder / MERGED_NAME])
    return int(merged.has_failed)


def make_page(arguments: argparse.Namespace) -> None:
    """Write the page of finished runs, and say where.

    Raises:
        CommandError: a source is not what it should be, or the page cannot be written.
    """
    with stated_errors():
        _write_page(arguments.page, arguments.sources)


def _write_page(page: Path, sources: Sequence[Path]) -> None:
    write_page(page, sources, suite_class)
    sys.stdout.write(f"page: {page}\n")
