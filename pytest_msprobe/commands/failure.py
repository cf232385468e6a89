"""How a sub-command fails for a reason that its user can fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CommandError(Exception):
    """Ends a command with exit code 2; the text is all that its user sees."""


@contextmanager
def stated_errors() -> Iterator[None]:
    """Turn errors that a user can mend into the error of a command, for use around its body.

    Raises:
        CommandError: a ValueError or an OSError came up inside; the text is theirs, with the file of an OSError.
    """
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None
