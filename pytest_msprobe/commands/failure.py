"""How a sub-command fails for a reason that its user can fix."""

from __future__ import annotations


class CommandError(Exception):
    """Ends a command with exit code 2; the text is all that its user sees."""
