"""Starts the processes of a training, with laws on or off, and says what became of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT
from tools.laws.entries import Entry

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


def _environment(rank: int, entry: Entry, port: int, laws: bool) -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "collector"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("MSPROBE_LAWS", None)
    if laws:
        environment["MSPROBE_LAWS"] = "1"
    if entry.ranks > 1:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": entry.ranks, "MASTER_PORT": port}
        environment |= {name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launched(entry: Entry, folder: Path, *, laws: bool = True) -> Outcome:
    """Starts the script as often as the entry says, in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.laws.process", entry.framework, entry.name]
    started, failure = time.monotonic(), ""
    for run in range(entry.runs):
        port = _free_port()
        logs = [folder / f"log_{run}_{rank}.txt" for rank in range(entry.ranks)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("wb") as out:
                environment = _environment(rank, entry, port, laws)
                processes.append(
                    subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
                )
        deadline = time.monotonic() + LIMIT
        for process, log in zip(processes, logs):
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = -9
            if code and not failure:
                failure = f"exit {code}: {log.read_text(errors='replace')[-1500:]}"
        if failure:
            break
    return Outcome(folder, failure, time.monotonic() - started)
