"""Starts the ranks of entries; those of one size run one after the other in the same processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from quality.sharded.entries import Entry
from quality.sharded.process import DONE
from tools import ROOT, clone_environment

#: Seconds that a rank may go on after another one ended with an error.
_GRACE = 5
#: Seconds that all entries of one launch may take together.
_LIMIT = 600


class Launch:
    """Runs of entries below a folder, each only where it does not lie there.

    Attributes:
        folder: of all dumps: `single/NAME` and `sharded/NAME`.
        failures: entries that have no dump, with the reason.
        changed: entries in which the collector changed a bit.
    """

    def __init__(self, folder: Path, task: str = "tensor") -> None:
        self.folder = folder
        self._task = task
        self.failures: dict[str, str] = {}
        self.changed: list[str] = []
        self._singles: dict[str, Entry] = {}

    def run(self, entries: Sequence[Entry]) -> None:
        """Write the dumps of all these, and of the runs on one rank that they belong to."""
        for entry in entries:
            self._singles.setdefault(entry.single, entry)
        singles = list(dict.fromkeys(self._singles[entry.single] for entry in entries))
        for kind in ("hand-made", "plain", "mindspore", "outside"):
            self._started([one for one in singles if one.kind == kind], "single", 0)
            for world in (2, 3, 4):
                chosen = [one for one in entries if one.kind == kind and one.world == world]
                self._started(chosen, "sharded", world)

    def dump(self, entry: Entry) -> Path:
        """The folder of the sharded step."""
        return self.folder / "sharded" / entry.folder / f"step{entry.steps - 1}"

    def logical(self, entry: Entry) -> Path:
        """The folder of the step on one rank."""
        return self.folder / "single" / self._singles[entry.single].folder / f"step{entry.steps - 1}"

    def _started(self, entries: Sequence[Entry], side: str, world: int) -> None:
        place = self.folder / side
        ranks = range(max(world, 1))
        wanted = [one for one in entries if not all(self._done(place, one, rank) for rank in ranks)]
        while wanted:
            place.mkdir(parents=True, exist_ok=True)
            output = _run_ranks(wanted, place, world, self._task)
            left = [one for one in wanted if not all(self._done(place, one, rank) for rank in ranks)]
            if left and left[0] in wanted:
                self.failures[left[0].name] = output
                left = left[1:]
            wanted = left
        for one in entries:
            self._read(place, one, ranks)

    @staticmethod
    def _done(place: Path, entry: Entry, rank: int) -> bool:
        return (place / entry.folder / DONE.format(rank=rank)).is_file()

    def _read(self, place: Path, entry: Entry, ranks: Sequence[int]) -> None:
        for rank in ranks:
            file = place / entry.folder / DONE.format(rank=rank)
            found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            if "failure" in found:
                self.failures.setdefault(entry.name, f"rank {rank}: {found['failure']}")
            elif found and not found["is_identical"]:
                self.changed.append(entry.name)


def _run_ranks(entries: Sequence[Entry], place: Path, world: int, task: str) -> str:
    """The last words of the ranks, of which none is left when this returns."""
    if world and entries[0].kind == "mindspore" and shutil.which("msrun", path=_environment()["PATH"]) is None:
        return "msrun, which comes with MindSpore, is not on PATH"
    with tempfile.TemporaryDirectory() as temporary:
        commands = list(_commands(entries, (str(place), task), world, Path(temporary)))
        logs = [Path(temporary) / f"rank{rank}.log" for rank in range(len(commands))]
        processes = []
        for command, log in zip(commands, logs):
            with log.open("wb") as file:
                streams = {"stdout": file, "stderr": file}
                processes.append(
                    subprocess.Popen(command, cwd=ROOT, env=_environment(), start_new_session=True, **streams)
                )
        _wait(processes)
        logs += sorted(Path(temporary).glob("msrun/worker_*.log"))
        texts = [log.read_text("utf-8", "replace") for log in logs]
    codes = [process.returncode for process in processes]
    return "\n".join(_said(texts, codes))


def _said(texts: Sequence[str], codes: Sequence[int]) -> Iterator[str]:
    for rank, text in enumerate(texts):
        ended = f"rank {rank} ended with {codes[rank]}" if rank < len(codes) else "log of msrun"
        yield f"{ended}: {text[-3000:]}"


def _commands(entries: Sequence[Entry], how: Sequence[str], world: int, temporary: Path) -> Iterator[list[str]]:
    names = [entry.name for entry in entries]
    if entries[0].kind == "mindspore":
        script = str(Path(__file__).with_name("mindspore_runs.py"))
        if not world:
            yield [sys.executable, script, *how, *names]
            return
        ranks = [f"--worker_num={world}", f"--local_worker_num={world}", f"--log_dir={temporary / 'msrun'}"]
        yield ["msrun", *ranks, f"--master_port={_free_port()}", "--join=True", script, *how, *names]
        return
    for rank in range(max(world, 1)):
        arguments = [str(rank), str(world), str(temporary / "store"), *how]
        yield [sys.executable, "-m", "quality.sharded.process", *arguments, *names]


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all ended; where one ends with an error, or all take too long, the others are ended too."""
    started = time.monotonic()
    while any(process.poll() is None for process in processes):
        is_late = time.monotonic() - started > _LIMIT
        if is_late or any(process.poll() not in (None, 0) for process in processes):
            time.sleep(_GRACE)
            for process in processes:
                _end(process)
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process, and those that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """One thread a process, programs of this interpreter first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return clone_environment(OMP_NUM_THREADS="1", PATH=path)
