"""Environment variables that change what a training computes. Only these are read: others may hold secrets."""

from __future__ import annotations

import functools
import os
from pathlib import Path

#: Their names and what each does to numbers, one a line.
TABLE = Path(__file__).with_name("environment.txt")


@functools.cache  # asked at each step that is collected
def variables() -> tuple[str, ...]:
    """Return the names of the table, in its order."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return tuple(line.partition(":")[0] for line in lines if line and not line.startswith("#"))


def environment() -> dict[str, str]:
    """Return the variables of the table that are set, with at most 256 characters of each value."""
    # Characters of a value that are kept.
    return {name: os.environ[name][:256] for name in variables() if name in os.environ}
