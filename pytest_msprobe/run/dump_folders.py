"""What the folders hold that a run was given: dumps, and files that no suite reads from a folder of dumps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path

import pytest

from msprobe_collector.dump_format.dump import RANK, STEP, natural
from msprobe_collector.dump_format.manifest import EmptyRun, empty_run_of
from msprobe_collector.dump_format.unread_files import NOT_READ, is_of_kernel_dump, old_file_in
from pytest_msprobe.suites.registry import FILES

_DUMP = "dump.json"
_GRADIENTS = re.compile(r"grad_summary_\d+\.csv", re.ASCII)
#: Folders of which one dump has several: what one of them lacks is missing.
_FAMILIES = (STEP, RANK, re.compile(r"proc\d+"))


@dataclass(slots=True)
class DumpFolder:
    """A folder that was looked through.

    Attributes:
        path: of the folder.
        dumps: the dump.json files in it, step2 before step10; without any, the other files that a suite judges.
        without_dump: folders of a step, rank or process without a dump, while another of that kind has one.
        debug, gradients, kernels: the first file of each kind that is no API dump; None for none.
        unreadable: the first folder that cannot be looked into, and why; "" for none.
        holds_python: whether there are Python files, which may be tests.
        empty_run: the last run that was to collect here, where it has collected nothing; None otherwise.
    """

    path: Path
    dumps: list[Path] = field(default_factory=list)
    without_dump: list[Path] = field(default_factory=list)
    debug: Path | None = None
    gradients: Path | None = None
    kernels: Path | None = None
    unreadable: str = ""
    holds_python: bool = False
    empty_run: EmptyRun | None = None

    def others(self) -> Iterator[str]:
        """A line on each kind of file that is there and belongs to another run, or to none."""
        if self.debug is not None:
            yield f"{self.debug}: values of debugger.save; to compare them, name both files, not their folders"
        if self.gradients is not None:
            yield f"{self.gradients}: gradients of a task grad_probe; judge them with --msprobe-gradients=DIR"
        if self.kernels is not None:
            yield f"{self.kernels.parent}: {NOT_READ}"


def look_through(path: Path, skipped: Sequence[str] = ()) -> DumpFolder:
    """What the folder at `path` holds, without folders whose names fit one of the patterns `skipped`."""
    content = DumpFolder(path, empty_run=empty_run_of(path))
    numbered: list[Path] = []
    others: list[Path] = []

    def note_unreadable(error: OSError) -> None:
        place = "" if error.filename == str(path) else f"{error.filename}: "
        content.unreadable = content.unreadable or f"{place}cannot be read: {error.strerror}"

    # A tensor folder can hold 100,000 files; it never holds a dump.json.
    for place, folders, files in os.walk(path, onerror=note_unreadable):
        folders[:] = [name for name in folders if not any(map(fnmatch, repeat(name), ("dump_tensor_data", *skipped)))]
        here = Path(place)
        numbered += [here / name for name in folders if _family(name) is not None]
        for name in files:
            _note(content, here / name)
            if name in FILES:
                others.append(here / name)
    content.dumps = content.dumps or others
    content.dumps.sort(key=natural)
    content.without_dump = sorted(_without_dump(numbered, content), key=natural)
    return content


def _note(content: DumpFolder, file: Path) -> None:
    if file.name == _DUMP:
        content.dumps.append(file)
    elif file.suffix == ".py":
        content.holds_python = True
    elif content.debug is None and file.name == "debug.json":
        content.debug = file
    elif content.gradients is None and _GRADIENTS.fullmatch(file.name):
        content.gradients = file
    elif content.kernels is None and is_of_kernel_dump(file.name):
        content.kernels = file


def _without_dump(numbered: Sequence[Path], content: DumpFolder) -> Iterator[Path]:
    holding = set(chain.from_iterable(map(attrgetter("parents"), content.dumps)))
    kinds = {(folder.parent, _family(folder.name)) for folder in numbered if folder in holding}
    for folder in numbered:
        if folder not in holding and (folder.parent, _family(folder.name)) in kinds:
            yield folder


def _family(name: str) -> re.Pattern[str] | None:
    return next((pattern for pattern in _FAMILIES if pattern.fullmatch(name)), None)


def why_no_dump(folder: DumpFolder) -> str:
    """Why a folder without a dump.json cannot be judged, and what to do."""
    if folder.empty_run is not None:
        return str(folder.empty_run)
    if folder.gradients is not None:
        return f"holds gradients and no dump.json; judge them with --msprobe-gradients={folder.path}"
    if folder.debug is not None:
        return f"holds no dump.json; to compare values of debugger.save, name the file {folder.debug}"
    if folder.unreadable:
        return folder.unreadable
    if folder.kernels is not None:
        return NOT_READ
    return old_file_in(folder.path) or "holds no dump.json; give a dump, step or rank folder"


def plain_folders(config: pytest.Config, named: Sequence[Path]) -> list[DumpFolder]:
    """The folders among the plain arguments `named`, of a run that has something to judge.

    Raises:
        pytest.UsageError: one holds gradients or kernel dumps only, which would be dropped.
    """
    skipped: list[str] = config.getini("norecursedirs")
    folders = [look_through(path, skipped) for path in dict.fromkeys(named) if path.is_dir()]
    for folder in folders:
        is_foreign = folder.gradients or folder.kernels or folder.debug
        if is_foreign and not folder.dumps and not folder.holds_python:
            raise pytest.UsageError(f"{folder.path}: {why_no_dump(folder)}")
    return folders


def judged_in(folder: DumpFolder) -> list[Path]:
    """The dumps in a plain folder that are judged: all, or, where there may be tests as well, the folder's own."""
    return [dump for dump in folder.dumps if not folder.holds_python or dump.parent == folder.path]
