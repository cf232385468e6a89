"""Starts the processes of a training, with laws on or off, and says what became of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quality.laws.entries import Entry
from tools import ROOT, clone_environment

#: Seconds after which a training counts as hanging.
LIMIT = 120


@dataclass(frozen=True)
class Outcome:
    """What became of the starts of a script.

    Attributes:
        folder: that the last start ran in.
        failure: the end of what a process wrote that did not end well; empty when all did.
        seconds: of all starts.
    """

    folder: Path
    failure: str
    seconds: float


class Server:
    """A process that has PyTorch loaded and starts trainings by fork."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "quality.laws.process", "--serve"]
        self._process = subprocess.Popen(
            command, env=_inherited(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def started(self, name: str, folder: Path, environment: Mapping[str, str], log: Path) -> int:
        """The number of the process of one rank."""
        asked = {"name": name, "folder": str(folder), "environment": dict(environment), "log": str(log)}
        return int(self._answer(json.dumps(asked)))

    def waited(self, pid: int) -> int:
        """Its exit status; a process that hangs is killed."""
        timer = threading.Timer(LIMIT, os.kill, (pid, signal.SIGKILL))
        timer.start()
        try:
            return int(self._answer(f"wait {pid}"))
        finally:
            timer.cancel()

    def close(self) -> None:
        """No more trainings."""
        self._process.communicate()

    def _answer(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def _inherited() -> dict[str, str]:
    variables = clone_environment(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    return {name: value for name, value in variables.items() if not name.startswith("MSPROBE_LAWS")}


def _environment(rank: int, entry: Entry, port: int, laws: bool) -> dict[str, str]:
    environment = {"MSPROBE_LAWS": "1"} if laws else {}
    if entry.ranks > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": entry.ranks, "MASTER_PORT": port}
        environment |= {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launched(entry: Entry, folder: Path, server: Server | None = None, *, laws: bool = True) -> Outcome:
    """Starts the script as often as the entry says, in `folder`, which is made; by fork of `server` if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    started, failure = time.monotonic(), ""
    for run in range(entry.runs):
        port = _free_port()
        logs = [folder / f"log_{run}_{rank}.txt" for rank in range(entry.ranks)]
        given = [_environment(rank, entry, port, laws) for rank in range(entry.ranks)]
        codes = _forked(server, entry, folder, logs, given) if server else _run(entry, folder, logs, given)
        wrong = [f"exit {code}: {log.read_text(errors='replace')[-1500:]}" for code, log in zip(codes, logs) if code]
        if wrong:
            failure = wrong[0]
            break
    return Outcome(folder, failure, time.monotonic() - started)


def _forked(
    server: Server, entry: Entry, folder: Path, logs: Sequence[Path], given: Sequence[Mapping[str, str]]
) -> list[int]:
    pids = [server.started(entry.name, folder, environment, log) for log, environment in zip(logs, given)]
    return [server.waited(pid) for pid in pids]


def _run(entry: Entry, folder: Path, logs: Sequence[Path], given: Sequence[Mapping[str, str]]) -> list[int]:
    command = [sys.executable, "-m", "quality.laws.process", entry.framework, entry.name]
    processes = []
    for log, environment in zip(logs, given):
        with log.open("wb") as out:
            whole = _inherited() | environment
            processes.append(subprocess.Popen(command, cwd=folder, env=whole, stdout=out, stderr=subprocess.STDOUT))
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(LIMIT))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(process.wait())
    return codes
