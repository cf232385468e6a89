"""Which folders this process writes to, so that no other process of the same rank and path writes there too.

A dump that stands where another one is to be written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.dump_format.manifest import MANIFEST_FILE
from msprobe_collector.recording.guard import ERROR_LOG


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

    def take(self, folder: Path, *, is_shared: bool = False) -> None:
        """Lock `folder`, which exists.

        Where the file system has no locks for folders (NFS), nothing is locked.

        Raises:
            FolderInUseError: another process has. Of a folder that `is_shared`, also where there are no locks, and
                where another process has just renamed it.
        """
        try:
            status = folder.stat()
        except FileNotFoundError:
            if is_shared:
                raise FolderInUseError(folder) from None
            raise
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
            if is_shared:
                raise FolderInUseError(folder) from None
            return
        self._held[key] = descriptor

    def release(self, *, but_first: bool = False) -> None:
        """Release all, or all but the first. In a forked child this leaves the parent's locks as they are."""
        for key in list(self._held)[1 if but_first else 0 :]:
            os.close(self._held.pop(key))


#: What a rank's folder holds besides tensors; the first is removed first, so that no record outlives its tensors.
_FILES = ("dump.json", "debug.json", "stack.json", "construct.json", "sketches.bin", MANIFEST_FILE, ERROR_LOG)
_TENSORS = (".npy", ".pt")


def remove_earlier_dump(folder: Path) -> bool:
    """Remove the dump in a rank's `folder`, and nothing else; whether there was one. Raises OSError."""
    has_dump = False
    for name in _FILES:
        with suppress(FileNotFoundError):
            (folder / name).unlink()
            has_dump = True
    tensors = folder / TENSOR_FOLDER
    if tensors.is_dir() and not tensors.is_symlink():
        for file in tensors.iterdir():
            if file.suffix in _TENSORS:
                file.unlink()
                has_dump = True
        with suppress(OSError):  # something else stands in it
            tensors.rmdir()
    return has_dump


def remove_dump_and_folders(folder: Path) -> None:
    """Remove the dump in a rank's `folder`, and the folders of the rank and the step if nothing else is there."""
    remove_earlier_dump(folder)
    for emptied in (folder, folder.parent):
        with suppress(OSError):
            emptied.rmdir()


def dumps_before(dump_path: Path, time: float) -> Iterator[Path]:
    """Folders of ranks below `dump_path` whose dump was last written to before `time` (seconds since the epoch)."""
    for name in _FILES[:2]:
        for file in sorted(dump_path.glob(f"step*/*/{name}")):
            with suppress(OSError):
                if file.stat().st_mtime < time:
                    yield file.parent
