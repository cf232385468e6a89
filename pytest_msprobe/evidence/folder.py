"""A folder that the processes of one run fill together, within one budget.

Error data and reproducers on the process that reports: where they are, and what found no room.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from msprobe_collector.dump_format.values import counted
from pytest_msprobe.support import write_whole

_STATE_FILE = ".msprobe-state"


class FolderState(msgspec.Struct):
    """What the processes of a run know of each other.

    Attributes:
        used_bytes: of the budget.
        saved: API calls that are in the folder.
        left_out: failed checks that were not saved because the budget was used up.
    """

    used_bytes: int = 0
    saved: int = 0
    left_out: int = 0


class EvidenceFolder:
    """One folder of a run, shared by its processes through a small locked file.

    Attributes:
        root: the folder.
        limit_bytes: how much may be written.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes

    @contextmanager
    def locked(self) -> Iterator[FolderState]:
        """The state, which no other process reads or changes meanwhile. Raises OSError."""
        make_folder(self.root)
        descriptor = os.open(self.root / _STATE_FILE, os.O_RDWR | os.O_CREAT, 0o640)
        with open(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
            state = _decode(file.read())
            yield state
            file.seek(0)
            file.truncate()
            file.write(msgspec.json.encode(state))

    def take(self, state: FolderState, needed_bytes: int) -> bool:
        """Whether the budget has room for `needed_bytes`, which are then taken; if not, a check counts as left out."""
        if state.used_bytes + needed_bytes > self.limit_bytes:
            state.left_out += 1
            return False
        state.used_bytes += needed_bytes
        return True

    def state(self) -> FolderState:
        """The state at this moment."""
        with suppress(OSError):
            return _decode((self.root / _STATE_FILE).read_bytes())
        return FolderState()

    def tidy(self) -> None:
        """Remove the shared file at the end of a run, and the folder when nothing was saved."""
        with suppress(OSError):
            (self.root / _STATE_FILE).unlink(missing_ok=True)
            self.root.rmdir()


def reserve(wanted: Path, option: str) -> Path:
    """A folder for this run alone: `wanted`, or, when that holds something, the first free of `wanted_2`, `wanted_3`.

    Raises:
        pytest.UsageError: it cannot be made.
    """
    folder, number = wanted, 1
    try:
        while True:
            with suppress(FileExistsError):
                make_folder(folder.parent)
                os.mkdir(folder, 0o750)
                return folder
            if folder.is_dir() and not any(folder.iterdir()):
                return folder
            if not wanted.is_dir():
                raise pytest.UsageError(f"{option}={wanted}: is not a folder")
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
    except OSError as error:
        raise pytest.UsageError(f"{option}={wanted}: cannot be written: {error.strerror}") from None


def make_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, readable for owner and group."""
    if not folder.is_dir():
        make_folder(folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o750)


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file at `path`, readable for owner and group, as a whole. Raises OSError."""
    write_whole(path, write, 0o640)


def _decode(content: bytes) -> FolderState:
    try:
        return msgspec.json.decode(content, type=FolderState)
    except msgspec.DecodeError:
        return FolderState()  # new, or cut off by a kill


class EvidencePlugin:
    """Says at the end what the folders of this run hold, and removes those that stayed empty."""

    def __init__(self, folders: Mapping[str, EvidenceFolder]) -> None:
        """A plugin for `folders` by what they hold."""
        self._folders = folders

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line per folder that was needed."""
        for kind, folder in self._folders.items():
            state = folder.state()
            if state.saved or state.left_out:
                terminalreporter.write_line(f"{kind}: {folder.root} ({counted(state.saved, 'API calls')})")
            if state.left_out:
                terminalreporter.write_line(
                    f"{kind}: {counted(state.left_out, 'failed checks', 'were')} not saved, "
                    f"--msprobe-error-data-limit={folder.limit_bytes / 1e9:.3g}GB is used up",
                    red=True,
                )

    @pytest.hookimpl
    def pytest_unconfigure(self) -> None:
        """Leave no empty folder behind."""
        for folder in self._folders.values():
            folder.tidy()
