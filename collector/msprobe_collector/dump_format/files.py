"""Opening files that come from elsewhere: plain ones only, and never waiting for one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NotAPlainFileError(OSError):
    """A pipe, a device or a folder stands where a file should."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, "it is not a plain file", str(path))


def open_plain(path: Path) -> BinaryIO:
    """The file at `path`, open for reading. Raises OSError; NotAPlainFileError for a pipe, which could block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAPlainFileError(path)
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path) -> bytes:
    """The content of the file at `path`. Raises OSError as `open_plain` does."""
    with open_plain(path) as file:
        return file.read()
