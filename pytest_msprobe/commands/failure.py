"""How a sub-command fails for a reason that its user can fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """Ends a command with exit code 2; the text is all that its user sees."""


@contextmanager
def stated_errors() -> Iterator[None]:
    """Turns a ValueError and an OSError into a CommandError that names the file."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None
