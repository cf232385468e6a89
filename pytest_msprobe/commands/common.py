"""What every command shares: its error, and how files are written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from msprobe_collector.dump_format.values import optional
from pytest_msprobe.run.reporting import check_writable
from pytest_msprobe.suites.contract import SuiteError

_PACKAGE = Path(__file__).parents[1]


class CommandError(Exception):
    """Ends a command with exit code 2; the text is all that its user sees."""


@contextmanager
def stated_errors() -> Iterator[None]:
    """Turn a ValueError, a SuiteError, or an OSError with its file, into the error of a command, around its body.

    Raises:
        CommandError: the body raised one of these.
    """
    try:
        yield
    except (ValueError, SuiteError) as error:
        raise CommandError(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"{optional('{}: ', error.filename)}{error.strerror or error}") from None


def check_place(option: str, target: Path) -> None:
    """Refuse a file that cannot be written where `option` says, before what is to stand in it is computed.

    Raises:
        CommandError: its folder cannot be written, or made.
    """
    try:
        check_writable(option, target.absolute().parent)
    except pytest.UsageError as error:
        raise CommandError(str(error)) from None


def print_lines(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Write lines to the output, or to `stream`."""
    (stream or sys.stdout).writelines(map("{}\n".format, lines))


def bundled(name: str, what: str) -> Path:
    """Return the folder `name` inside the installed package, or at the top of the repository.

    Raises:
        CommandError: there is none; the text begins with `what`, which is missing.
    """
    folders = (_PACKAGE / name, _PACKAGE.parent / name)
    folder = next(filter(Path.is_dir, folders), None)
    if folder is None:
        raise CommandError(f"{what} missing from this installation: {folders[0]}; install it again")
    return folder


def create(target: Path, content: str) -> None:
    """Write a new file, and say so.

    Raises:
        CommandError: it exists, or cannot be written.
    """
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise CommandError(f"{target} exists and is left as it is; name another file with -o") from None
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}") from None
    sys.stdout.write(f"wrote {target}\n")
