"""Which folders this process writes to, so that no other process of the same rank and path writes there too."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FolderInUseError(OSError):
    """Another process writes to the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, "another process writes there", str(folder))


class FolderLocks:
    """Locks on folders, which the operating system releases when the process dies; no file is made for them.

    The first folder stays locked until `release`: another run of the same script, which would begin there, is noticed
    whatever step this one has reached.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], int] = {}

    def take(self, folder: Path) -> None:
        """Lock `folder`, which exists.

        Where the file system has no locks for folders (NFS), nothing is locked.

        Raises:
            FolderInUseError: another process has.
        """
        status = folder.stat()
        key = (status.st_dev, status.st_ino)
        if key in self._held:
            return
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise FolderInUseError(folder) from None
        except OSError:
            os.close(descriptor)
            return
        self._held[key] = descriptor

    def release(self, *, but_first: bool = False) -> None:
        """Release all, or all but the first. In a forked child this leaves the parent's locks as they are."""
        for key in list(self._held)[1 if but_first else 0 :]:
            os.close(self._held.pop(key))
