"""Whether results can be written, asked before the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def check_writable(option: str, folder: Path) -> None:
    """Refuse a `folder` that is not, and cannot become, a folder to write into.

    Raises:
        pytest.UsageError: it cannot be one; the text names the `option`.
    """
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except OSError as error:
        raise pytest.UsageError(f"{option}={folder}: {error.strerror}") from None
    if not existing.is_dir():
        raise pytest.UsageError(f"{option}={folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise pytest.UsageError(f"{option}={folder}: {existing} cannot be written")
