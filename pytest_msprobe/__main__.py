"""`python -m pytest_msprobe COMMAND`: what is not a test run. Imports no framework."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_msprobe.commands import add_to
from pytest_msprobe.commands.common import CommandError

#: Commands of earlier versions that are programs of the repository now.
_MOVED = ("coverage", "operators")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m pytest_msprobe", description="Helpers around pytest-msprobe.")
    if given and given[0] in _MOVED:
        source = f"run `python -m tools.{given[0]}` in a clone or in the unpacked source archive"
        sys.stderr.write(f"{parser.prog}: {given[0]} is not installed with pytest-msprobe: {source}\n")
        return 2
    add_to(parser.add_subparsers(metavar="COMMAND", required=True))
    chosen = parser.parse_args(given)
    try:
        code: int | None = chosen.run(chosen)
    except CommandError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
