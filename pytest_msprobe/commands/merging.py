"""`python -m pytest_msprobe merge A B -o DIR`: results of several runs, shards or hosts as one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_msprobe.commands.failure import CommandError
from pytest_msprobe.reports.merge import merge_runs
from pytest_msprobe.reports.terminal import VerdictCounts
from pytest_msprobe.suites.registry import SUITES, suite_class


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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Merge, and print the summary; 1 when there are failures.

    Raises:
        CommandError: a source is not what it should be, or the folder cannot be written.
    """
    try:
        merged = merge_runs(arguments.sources, arguments.folder, _tally)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or arguments.folder}: {error.strerror}") from None
    sys.stdout.write("".join(f"{line}\n" for line in merged.lines()))
    return int(merged.has_failed)


def _tally(suite: str) -> VerdictCounts:
    if suite not in SUITES:
        return VerdictCounts()
    found = suite_class(suite)
    return VerdictCounts(found.noun, found.kinds, found.figures)
