"""A training script on two real ranks under msrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def run_on_two_ranks(folder: Path, script: str) -> Path:
    """Run `script` in `folder`, with the name of a dump folder; returns the folder. A rank that dies is quoted."""
    (folder / "train.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True", "--log_dir=logs"]
    programs = Path(sys.executable).parent
    result = subprocess.run(
        [programs / "msrun", *command, "train.py", "dump"],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    logs = "".join(path.read_text(errors="replace")[-3000:] for path in (folder / "logs").glob("worker_*.log"))
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:] + logs
    return folder / "dump"
