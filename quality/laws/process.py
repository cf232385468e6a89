"""What one process of a training does: python -m quality.laws.process FRAMEWORK NAME.

With --serve it starts trainings by fork, for each line of stdin, which is a JSON object (name, folder, environment,
log): PyTorch is loaded once, and each training still has a process of its own in which the laws begin before the script
does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from msprobe_laws.__main__ import FRAMEWORKS
from msprobe_laws.extension import is_wanted, start


def main(framework: str, name: str) -> None:
    """Run the script of an entry in the current folder, with laws where MSPROBE_LAWS asks for them."""
    # What `python -m msprobe_laws` does, without a second process for each training.
    if is_wanted():
        start(FRAMEWORKS[framework])
    from quality.laws.entries import catalogue

    entry = next(one for one in catalogue(framework) if one.name == name)
    entry.train()


def _begin(asked: dict[str, Any]) -> None:
    """Make this forked process one of a training."""
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(asked["folder"])
    for variable in ("MSPROBE_LAWS", "RANK", "WORLD_SIZE"):
        os.environ.pop(variable, None)
    os.environ.update(asked["environment"])


def serve() -> None:
    """Answer each line with the number of a process, and lines `wait PID` with its exit status."""
    # What takes long to load; the scripts themselves are loaded when the laws are on.
    import torch.distributed.fsdp
    import torch.utils.data

    import msprobe_laws.pytorch.watch  # noqa: F401

    weight = torch.nn.Parameter(torch.ones(2, 2))
    weight.sum().backward()
    for make in (torch.optim.AdamW, torch.optim.Muon):  # a first step loads what it needs
        make([weight], lr=0.1).step()

    for line in sys.stdin:
        words = line.split()
        if words[0] == "wait":
            _, status = os.waitpid(int(words[1]), 0)
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        else:
            asked = json.loads(line)
            pid = os.fork()
            if not pid:
                _begin(asked)
                main("torch", asked["name"])
                return
            sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve() if sys.argv[1] == "--serve" else main(sys.argv[1], sys.argv[2])
