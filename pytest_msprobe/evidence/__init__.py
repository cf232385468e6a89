"""What a failing API call leaves on disk, in a folder that the processes of a run fill together within one budget."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import pytest

from msprobe_collector.dump_format import Direction, Dump, tensor_positions
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.cases.case import Case
from pytest_msprobe.engines.protocol import Array, LeafPath, Output
from pytest_msprobe.support import write_whole
from pytest_msprobe.verdicts import Verdict

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
    """Says at the end what the folders of this run hold and what found no room, and removes those that stayed empty."""

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


_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]")
_MOST_STEM_CHARACTERS = 180


@dataclass(frozen=True, slots=True)
class BothResults:
    """What both sides computed; None where one raised.

    Attributes:
        tested, bench: forward outputs, the benchmark's in float64.
        incoming: gradients that the backward got, of the i-th top-level output tensor; None when this is about the
            forward.
        tested_gradients, bench_gradients: in the order of `Case.wanted`.
    """

    tested: tuple[Output, ...] | None = None
    bench: tuple[Output, ...] | None = None
    incoming: tuple[Array | None, ...] | None = None
    tested_gradients: tuple[Array | None, ...] | None = None
    bench_gradients: tuple[Array | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """A failing API call: what it got, what came out, and what should have.

    Attributes:
        dump, case: where it was recorded, and what it is called with.
        results: what came out.
        verdicts: what is said about each direction, the failing one last.
        seed: of random inputs.
    """

    dump: Dump
    case: Case
    results: BothResults
    verdicts: Mapping[Direction, Verdict]
    seed: int

    @property
    def entries(self) -> list[int | str]:
        """Of each of `case.wanted` the index in a backward record's `output`, or the path in `other_gradients`."""
        positions = tensor_positions(self.case.forward.arguments or ())
        entries: dict[LeafPath, int | str] = {("input", position): index for index, position in enumerate(positions)}
        entries |= self.case.pairing.entries
        return [entries.get(path, ".".join(map(str, path))) for path in self.case.wanted]


class EvidenceWriter(Protocol):
    """Something that keeps evidence on disk."""

    def save(self, evidence: Evidence) -> str:
        """Keep it; one line on where, or on why not.

        Raises:
            OSError: it could not be written.
        """


@dataclass(frozen=True, slots=True)
class FailureKeeper:
    """Keeps what failing calls of a run computed.

    Attributes:
        writers: where it goes.
        seed: of random inputs.
    """

    writers: tuple[EvidenceWriter, ...]
    seed: int

    def keep(
        self, dump: Dump, case: Case, results: BothResults, verdicts: Mapping[Direction, Verdict]
    ) -> tuple[str, ...]:
        """What each writer says about the evidence of a failing call; never raises for a disk that fails."""
        evidence = Evidence(dump, case, results, verdicts, self.seed)
        lines = []
        for writer in self.writers:
            try:
                lines.append(writer.save(evidence))
            except OSError as error:
                lines.append(f"{type(writer).__name__}: not saved: {error.strerror or error}")
        return tuple(lines)


def file_stem(name: str) -> str:
    """`name` as part of a file name: unusual characters become %XX, and a long one ends in a digest of the whole."""
    stem = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in _bytes(match.group())), name)
    if len(stem) <= _MOST_STEM_CHARACTERS:
        return stem
    return f"{stem[: _MOST_STEM_CHARACTERS - 17]}.{hashlib.sha256(_bytes(name)).hexdigest()[:16]}"


def dump_folder(dump: Path, dumps: Sequence[Path], edge_case: str = "") -> Path:
    """Where what belongs to `dump` stands among that of all `dumps`: `.` for a single one, else as the CSVs name it.

    What belongs to an edge case stands in a folder `edge_nan` there, since its record has the name of the recorded one.
    """
    if edge_case:
        taken = {dump_folder(other, dumps) for other in dumps}
        folder = dump_folder(dump, dumps) / f"edge_{edge_case}"
        while folder in taken:  # error data of edge cases, checked with edge cases
            folder = folder.with_name(f"{folder.name}_2")
        return folder
    if len(set(dumps)) < 2 or dump not in dumps:
        return Path()
    common = os.path.commonpath([path.parent for path in dumps])
    folder = dump.parent.relative_to(common)
    return folder if dump.name == "dump.json" else folder / file_stem(dump.stem)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
