"""Dumps of a small network as two people wrote it: other APIs and the same numbers, but where one of them is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.nn.functional as F

IS_PORT, FACTOR = "port" in sys.argv, 2.0 if "doubled" in sys.argv else 1.0


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        shapes = (16, 16), (16, 16), (16,)
        self.inner, self.outer, self.gain = (torch.nn.Parameter(torch.randn(shape)) for shape in shapes)

    def norm(self, x):
        if IS_PORT:
            return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return F.rms_norm(x, (16,), self.gain, 1e-6)

    def scaled(self, x):
        return x * (0.25 * FACTOR) if IS_PORT else x / (4 / FACTOR)

    def forward(self, x):
        x = F.linear(x, self.inner)
        return F.linear(self.scaled(self.norm(x)) + x, self.outer)


torch.manual_seed(0)
network = Network().to(torch.bfloat16 if "bfloat16" in sys.argv else torch.float32)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
F.cross_entropy(network(torch.randn(6, 16).to(network.gain.dtype)), torch.arange(6)).backward()
optimizer.step()
"""


def collected(folder: Path, *runs: str) -> None:
    """Make the dump of each run below `folder`, and the scripts: `original`, `port` or `port_doubled`."""
    started = []
    for run in runs:
        script = folder / ("port.py" if "port" in run else "original.py")
        script.write_text(SCRIPT, encoding="utf-8")
        command = [sys.executable, "-m", "msprobe_collector", "collect", "--exit", f"--dump-path={folder / run}"]
        started.append(subprocess.Popen([*command, str(script), *run.split("_")], cwd=folder))
    assert [process.wait() for process in started] == [0] * len(runs)
