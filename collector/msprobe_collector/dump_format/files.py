"""Opening files that come from elsewhere: plain ones only, never waiting for one, and never more than fits."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

#: From this size on the values of a file are memory-mapped. Below, one read is faster and leaves no file open.
MAP_FROM_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 24


class NotAPlainFileError(OSError):
    """A pipe, a device or a folder stands where a file should."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(None, "it is not a plain file", str(path))


def open_plain(path: str | Path) -> BinaryIO:
    """The file at `path`, open for reading.

    Raises:
        OSError: it cannot be opened.
        NotAPlainFileError: it is something else than a file, such as a pipe, which could block.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAPlainFileError(path)
    return os.fdopen(descriptor, "rb")


def read_plain(path: Path, *, most_bytes: int | None = None) -> bytes:
    """The content of the text file at `path`, undecoded, up to its first NUL byte.

    No text holds NUL. A file that a crash cut off can end with many, and a sparse one of 200 GB begins with them.

    Raises:
        OSError: as `open_plain` does; also for a text of more than `most_bytes`, or larger than this machine's memory.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory if most_bytes is None else most_bytes
    with open_plain(path) as file:
        text_bytes = 0
        while chunk := file.read(_CHUNK_BYTES):
            end = chunk.find(b"\0")
            text_bytes += len(chunk) if end < 0 else end
            if text_bytes > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
            if end >= 0:
                break
        file.seek(0)
        return file.read(text_bytes)
