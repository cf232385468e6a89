"""`manifest`: what two runs are made of, and what of it differs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_msprobe.commands.common import print_lines


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "manifest",
        help="say what differs between two runs before any number: settings, versions, weights, batch",
        description="Compare the run.json that the collector wrote beside two dumps: optimizers, model, precision, "
        "switches, versions, environment, batch, initial weights, random state; the most likely explanation of other "
        "numbers first. Of one run: what it is made of, and what looks wrong in it. Exits with 0 when nothing differs "
        "(or looks wrong), 1 when something does, 2 when a manifest cannot be read.",
    )
    parser.add_argument("target", metavar="DUMP", type=Path, help="folder of a run, step or rank, or a run.json")
    parser.add_argument("golden", metavar="GOLDEN", type=Path, nargs="?", help="the same of the run to compare with")
    parser.set_defaults(run=say_what_differs)


def say_what_differs(arguments: argparse.Namespace) -> int:
    """Print the differences; the exit code."""
    from pytest_msprobe.manifests.text import lines_of_one, lines_of_two

    if arguments.golden is None:
        lines, code = lines_of_one(arguments.target)
    else:
        lines, code = lines_of_two(arguments.target, arguments.golden)
    print_lines(lines)
    return code
