"""Dumps of one step of the small GPT of `planted_networks`, with a kernel at fault below what the collector sees.

`python tests/planted_cells.py FOLDER [KERNEL NUMBER] [--task=statistics] [--level=L0]`: from call NUMBER of KERNEL
(`aten::gelu`) the output is 3 % too large. It runs in a process of its own: a collector is one per process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def planted(folder: Path, *arguments: str) -> Path:
    """The folder, with the dump that `arguments` describe."""
    subprocess.run([sys.executable, __file__, str(folder), *arguments], check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kernel", nargs="?", default="")
    parser.add_argument("number", nargs="?", type=int, default=0)
    parser.add_argument("--task", default="tensor")
    parser.add_argument("--level", default="mix")
    arguments = parser.parse_args()

    import torch
    from planted_networks import LENGTH, WORDS, Gpt
    from torch.utils._python_dispatch import TorchDispatchMode

    from msprobe_collector.pytorch import PrecisionDebugger

    class Kernels(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, kernel: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunction():  # else the collector takes the kernel for a call of its own
                out = kernel(*args, **(kwargs or {}))
                if kernel.name() == arguments.kernel:
                    self.seen += 1
                    if self.seen == arguments.number + 1:
                        out.mul_(1.03)
            return out

    torch.set_num_threads(1)
    net = Gpt(blocks=3)
    torch.manual_seed(1)
    ids, labels = torch.randint(0, WORDS, (2, LENGTH)), torch.randint(0, WORDS, (2, LENGTH))
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        settings = {"task": arguments.task, "dump_path": str(arguments.folder), "level": arguments.level}
        config.write_text(json.dumps({**settings, arguments.task: {}}))
        debugger = PrecisionDebugger(str(config))
        with Kernels():
            debugger.start(net)
            logits = net(ids, mask)
            torch.nn.functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1)).backward()
            debugger.stop()


if __name__ == "__main__":
    main()
