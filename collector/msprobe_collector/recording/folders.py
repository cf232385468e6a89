"""Which folders this process writes to, so that no other process of the same rank and path writes there too.

- A process writes to `{dump_path}/step{n}/rank{r}`; while no rank is known to `proc0`, or
  `proc{pid}` beside it.
- A dump that stands where another one is to be written is removed.
- When collecting ends, messages say what was written.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msprobe_collector import logger
from msprobe_collector.configuration import Configuration, ConfigurationError, parse_number_ranges
from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.dump_format.manifest import EMPTY_RUN_FILE, MANIFEST_FILE
from msprobe_collector.dump_format.values import counted
from msprobe_collector.recording.guard import ERROR_LOG
from msprobe_collector.recording.process import error_facts, script_facts, time_text


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


@dataclass(slots=True)
class WrittenRun:
    """What a process has written.

    Attributes:
        records: in all steps.
        steps: numbers of those that have a dump.
        roots: folders that were the root of the dump, one after the other.
        owners: names of its folders, `rank0`, `proc0` or `proc{pid}`.
        replaced: folders in which an earlier dump stood.
        kept: folders below the same root with dumps of earlier runs.
    """

    records: int = 0
    steps: set[int] = field(default_factory=set)
    roots: set[Path] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)
    replaced: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)


def show_messages() -> None:
    """Show what the collector has to say on stderr, unless the script has set up logging."""
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def closing_lines(configuration: Configuration, written: WrittenRun) -> list[str]:
    """What was written where, how it is checked, and what became of earlier dumps; one line each."""
    root = Path(os.path.commonpath(written.roots or [configuration.dump_path]))
    what = f"task {configuration.task}, level {configuration.level}"
    if not written.steps:
        return [f"nothing was collected in {root} ({what}): start() was not reached in a step and rank that is wanted"]
    steps = parse_number_ranges(sorted(written.steps))
    owners = ", ".join(sorted(written.owners))
    records, verb = counted(written.records, "records"), "is" if written.records == 1 else "are"
    lines = [f"{records} of step {steps}, {owners}, {verb} in {root} ({what}); {_check(configuration, root)}"]
    if written.replaced:
        lines.append(f"the earlier dump in {_named(written.replaced, root)} was replaced")
    if written.kept:
        kept = _named(written.kept, root)
        lines.append(f"dumps of an earlier run are kept in {kept}; to check {root} is to check these too")
    return lines


def write_empty_run(configuration: Configuration, began: float, error: BaseException | None) -> str:
    """Write that the run which began at `began` has collected nothing; what to say of it and of earlier dumps.

    Whoever judges the folder later then does not take the dump of an earlier run for one of this. Raises OSError.
    """
    root = configuration.dump_path
    facts: dict[str, object] = {"time": time_text(began), "script": script_facts(root)}
    ended = "no step began"
    if error is not None:
        facts["ended_in"] = error_facts(error)
        ended = f"the script ended in {type(error).__name__} before a step began"
    descriptor = os.open(root / EMPTY_RUN_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(facts, file)
    text = f"nothing was collected in {root}: {ended}"
    for folder in itertools.islice(dumps_before(root, began), 1):
        earlier = time_text(folder.stat().st_mtime)
        text += f"; {folder.relative_to(root)} holds the dump of an earlier run, of {earlier}"
    return text


def _check(configuration: Configuration, root: Path) -> str:
    command = f"pytest --msprobe-dump={root}"
    if configuration.collects_apis and configuration.task in ("statistics", "tensor"):
        return f"check them with: {command}"
    if configuration.task == "overflow_check":
        return f"check them with: {command} --msprobe-suite=overflow"
    return f"compare them with another dump: {command} --msprobe-golden=OTHER"


def _named(folders: Sequence[Path], root: Path) -> str:
    shown = [str(folder.relative_to(root)) for folder in folders[:3]]
    more = len(folders) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


#: The folder of a process without a rank, the same in every run, so that a run replaces the dump of the one before.
#: No process of a script has this number.
ONLY_PROCESS = "proc0"


def own_folder() -> str:
    """The name of the folder of this process, where several write at a time."""
    return f"proc{os.getpid()}"


def prepare_dump_path(dump_path: Path) -> None:
    """Create the root of the dump.

    Raises:
        ConfigurationError: it cannot be created or written to.
    """
    try:
        dump_path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except FileExistsError:
        raise _refusal(dump_path, "is a file; name a folder") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refusal(dump_path, f"cannot be created: {reason}; name a folder that can be written") from None
    if not os.access(dump_path, os.W_OK | os.X_OK):
        raise _refusal(dump_path, "cannot be written to; name another folder or change its permissions")


def _refusal(dump_path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{str(dump_path)!r} {problem}", place="PrecisionDebugger", field="dump_path")
