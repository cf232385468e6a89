"""The commands of `python -m pytest_msprobe`: ours, and those that entry points of `pytest_msprobe.commands` name.

`add_to(commands)`, of each of our modules and of what an entry point names, declares a command. The command sets
`run(arguments)`, which gives the exit code, or None for 0. An entry point is called as its command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint

from pytest_msprobe.commands.common import print_lines
from pytest_msprobe.suites.registry import REFUSED
from pytest_msprobe.support import entry_points_of, left_out, text_of

#: What declares our commands, in the order of help; commands of entry points stand behind them, by name.
_DECLARING = (
    "diagnose.add_to package_files.add_to finished_runs.add_to finished_runs.add_baseline diagnose.add_next_collection "
    "diagnose.add_manifest options.add_to finished_runs.add_scalars selfcheck.add_to package_files.add_skill".split()
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all commands, and say on the error stream which of them, and which suites, cannot be had."""
    for place in _DECLARING:
        module, _, name = place.partition(".")
        getattr(import_module(f"{__name__}.{module}"), name)(commands)
    refused = add_others(commands, entry_points_of("pytest_msprobe.commands"))
    print_lines((*REFUSED, *refused), sys.stderr)


def add_others(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], entry_points: Iterable[EntryPoint]
) -> list[str]:
    """Declare the commands of entry points; one line on each that cannot be had."""
    refused: list[str] = []
    for entry_point in entry_points:
        if entry_point.name in commands.choices:
            refused.append(left_out(entry_point, "there is a command of this name already"))
            continue
        try:
            entry_point.load()(commands)
        except Exception as error:
            refused.append(left_out(entry_point, text_of(error)))
    return refused
