"""The commands of `python -m pytest_msprobe`. Each module declares its own in `add_to(commands)`.

A command sets `run(arguments)`, which gives the exit code, or None for 0.
"""

from __future__ import annotations

import argparse

from msprobe_checkpoints import command
from pytest_msprobe.commands import (
    baseline,
    diagnose,
    finished_runs,
    manifest,
    next_collection,
    options,
    package_files,
    skill,
)

#: Modules with commands, in the order of help.
_MODULES = (
    diagnose,
    package_files,
    finished_runs,
    baseline,
    next_collection,
    manifest,
    command,
    options,
    skill,
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare all commands."""
    for module in _MODULES:
        module.add_to(commands)
