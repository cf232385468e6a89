"""`python -m pytest_msprobe COMMAND`: what is not a test run. Imports no framework."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from pytest_msprobe.commands import add_to
from pytest_msprobe.commands.common import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 where none is named, as where an argument is wrong."""
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output has ended, as `head` does. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m pytest_msprobe", description="Helpers around pytest-msprobe.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_to(commands)
    if not arguments:
        sys.stdout.write(parser.format_help())
        return 2
    try:
        if not arguments[0].startswith("-") and arguments[0] not in commands.choices:
            raise CommandError(_unknown(arguments[0], list(commands.choices)))
        chosen = parser.parse_args(arguments)
        code: int | None = chosen.run(chosen)
    except CommandError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return code or 0


def _unknown(name: str, commands: Sequence[str]) -> str:
    near = get_close_matches(name, commands, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(commands)}"
    return f"there is no command {name!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
